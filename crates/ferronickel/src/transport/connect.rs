//! Connecting: every rank lays out memory, learns where its peers' is, and proves each road before it is used.

mod ends;
mod links;
mod offer;
mod streams;
mod visits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferronickel_kernels::protocol::FLAG_STRIDE;

use self::ends::Ends;

use self::offer::{Memory, Offer};
pub(crate) use self::streams::Sockets;
use self::streams::Streams;
use self::visits::Visits;
use super::layout::Layout;
use super::{Broken, Roads, Transport};
use crate::bootstrap::door::Door;
use crate::bootstrap::session::{Member, Plain};
use crate::bootstrap::unique_id::UniqueId;
use crate::device::context::{Channel, Counters, DirectTables, PairLinks};
use crate::device::region::Region;
use crate::error::Result;
use crate::proxy::{Proxy, Work};

/// What a rank connects to.
pub(crate) struct Request<'a> {
    pub member: &'a Member,
    pub rank: usize,
    pub id: &'a UniqueId,
    /// Where this process is reached already.
    pub door: Option<&'a Arc<Door>>,
    pub roads: &'a Roads,
    pub layout: &'a Layout,
    /// For each channel, the ranks in ring order.
    pub rings: &'a [Vec<usize>],
    pub timeout: Duration,
    /// How often it was tried before.
    pub attempt: u16,
    pub sockets: Sockets,
}

/// A rank's connections.
pub(crate) struct Connected {
    pub channels: Vec<Channel>,
    pub links: PairLinks,
    pub proxy: Option<Proxy>,
    /// The memory behind them.
    pub regions: Vec<Arc<Region>>,
}

/// What came of an attempt.
pub(crate) enum Attempt {
    Connected(Connected),
    /// Some roads do not work: the same list on every rank.
    Broken(Vec<Broken>),
}

impl Request<'_> {
    /// Connects along the chosen roads, and tries each.
    pub fn attempt(&self) -> Result<Attempt> {
        let door = self.data_door()?;
        let addresses = door.as_ref().map(|door| door.service().addresses.clone()).unwrap_or_default();
        let offers = self.member.all_gather(Offer { memory: self.offer_memory(), addresses })?;
        let broken = self.unoffered(&offers);
        if !broken.is_empty() {
            return Ok(Attempt::Broken(broken));
        }
        let (regions, unmapped) = self.map_regions(&offers);
        let streams = match &door {
            Some(door) => self.connect_streams(door, &offers)?,
            None => Streams::default(),
        };
        let mut broken = self.probe(&regions)?;
        broken.extend(unmapped);
        let broken: Vec<_> = self.member.all_gather(Plain(broken))?.into_iter().flat_map(|list| list.0).collect();
        if !broken.is_empty() {
            return Ok(Attempt::Broken(broken));
        }
        let visits = door.map(|door| {
            let addresses = offers.iter().map(|offer| offer.addresses.clone()).collect();
            let progress = self.member.progress().clone();
            Visits { door, addresses, rank: self.rank, attempt: self.attempt, timeout: self.timeout, progress }
        });
        self.build(regions, streams, visits).map(Attempt::Connected)
    }

    fn offer_memory(&self) -> std::result::Result<Memory, String> {
        let bytes = self.layout.bytes();
        let shared = [Transport::Shm, Transport::Ipc].iter().any(|&road| self.roads.touches(self.rank, road));
        let (kind, region) = match shared {
            true => ("shared memory", Region::shared(bytes)),
            false => ("memory", Region::private(bytes)),
        };
        region.map(Memory::Here).map_err(|error| format!("rank {} got no {bytes} bytes of {kind}: {error}", self.rank))
    }

    /// Roads that end at a rank that has no memory for them.
    fn unoffered(&self, offers: &[Offer]) -> Vec<Broken> {
        let mut broken = Vec::new();
        if offers.iter().all(|offer| offer.memory.is_ok()) {
            return broken;
        }
        for (from, to) in self.roads.pairs() {
            let transport = self.roads.transport(from, to);
            if let (Err(reason), true) = (&offers[to].memory, transport != Transport::Net) {
                broken.push(Broken { from, to, transport, reason: reason.clone() });
            }
        }
        broken
    }

    /// Every rank's region as this rank reaches it: None where only the network leads.
    fn map_regions(&self, offers: &[Offer]) -> (Vec<Option<Arc<Region>>>, Vec<Broken>) {
        let mut broken = Vec::new();
        let reach = |(peer, offer): (usize, &Offer)| {
            let memory = offer.memory.as_ref().ok()?;
            let roads = [(self.rank, peer), (peer, self.rank)];
            let along = |transport| roads.iter().find(|&&(from, to)| self.roads.transport(from, to) == transport);
            if let (Memory::Here(region), true) = (memory, peer == self.rank || along(Transport::P2p).is_some()) {
                return Some(region.clone());
            }
            let (transport, &(from, to)) = [Transport::Ipc, Transport::Shm]
                .into_iter()
                .find_map(|transport| along(transport).map(|pair| (transport, pair)))?;
            match memory.map() {
                Ok(mapped) => Some(mapped),
                Err(error) => {
                    let reason = format!("rank {} could not map rank {peer}'s shared memory: {error}", self.rank);
                    broken.push(Broken { from, to, transport, reason });
                    None
                }
            }
        };
        (offers.iter().enumerate().map(reach).collect(), broken)
    }

    fn neighbours(&self, channel: usize) -> Neighbours {
        Neighbours::on(&self.rings[channel], self.rank)
    }

    /// Sends a pattern along every road through memory, has it answered, and looks whether both came right. The
    /// network's roads have proved themselves in the handshake.
    fn probe(&self, regions: &[Option<Arc<Region>>]) -> Result<Vec<Broken>> {
        let mut broken = Vec::new();
        let peers = || (0..self.roads.ranks()).filter(|&peer| peer != self.rank);
        let everywhere = || peers().flat_map(|peer| (0..self.layout.channels).map(move |channel| (peer, channel)));
        let word = |at: usize, by: usize, channel: usize, index: usize| {
            let offset = self.layout.parts(channel).probes + by * FLAG_STRIDE + index * 8;
            // SAFETY: a probe line is aligned memory in the region, used for nothing else
            regions[at].as_ref().map(|region| unsafe { AtomicU64::from_ptr(region.at(offset).cast()) })
        };
        for (peer, channel) in everywhere() {
            if let Some(word) = word(peer, self.rank, channel, 0) {
                #[cfg(test)]
                let garbled = faults::garbles(self.id.secret(), self.roads.transport(self.rank, peer));
                #[cfg(not(test))]
                let garbled = false;
                word.store(pattern(self.rank, peer, channel) ^ u64::from(garbled), Ordering::Release);
            }
        }
        self.member.all_gather(Plain(()))?;
        for (peer, channel) in everywhere() {
            // the answer is made from what arrived, so that it is right only if that was
            let arrived = word(self.rank, peer, channel, 0).map(|word| word.load(Ordering::Acquire));
            if let (Some(arrived), Some(answer)) = (arrived, word(peer, self.rank, channel, 1)) {
                answer.store(!arrived, Ordering::Release);
            }
        }
        self.member.all_gather(Plain(()))?;
        for (peer, channel) in everywhere().filter(|&(peer, _)| regions[peer].is_some()) {
            let transport = self.roads.transport(self.rank, peer);
            let sent = pattern(self.rank, peer, channel);
            let answer = word(self.rank, peer, channel, 1).map(|word| word.load(Ordering::Acquire));
            if transport != Transport::Net && answer != Some(!sent) {
                let reason = format!("what was sent on channel {channel} did not come back right");
                broken.push(Broken { from: self.rank, to: peer, transport, reason });
            }
        }
        Ok(broken)
    }

    fn build(&self, regions: Vec<Option<Arc<Region>>>, streams: Streams, visits: Option<Visits>) -> Result<Connected> {
        let mut ends = Ends::new(streams);
        let mut channels = Vec::with_capacity(self.layout.channels);
        for channel in 0..self.layout.channels {
            let direct = self.layout.direct.then(|| self.direct_tables(&regions, channel));
            let ring = self.ring(&regions, channel, &mut ends)?;
            channels.push(Channel { direct, ring, counters: Counters::default() });
        }
        let links = self.pair_links(&regions, &mut ends)?;
        let mut kept: Vec<_> = regions.into_iter().flatten().collect();
        kept.append(&mut ends.buffers);
        let proxy = match visits {
            None => None,
            Some(visits) => {
                let (progress, threads) = (self.member.progress(), self.sockets.threads);
                let work = Work { sends: ends.sends, receives: ends.receives, connector: Arc::new(visits) };
                Some(Proxy::start(self.rank, progress, work, kept.clone(), threads)?)
            }
        };
        Ok(Connected { channels, links, proxy, regions: kept })
    }

    fn direct_tables(&self, regions: &[Option<Arc<Region>>], channel: usize) -> DirectTables {
        let parts = self.layout.parts(channel);
        let table = |offset: usize| {
            let at = |region: &Option<Arc<Region>>| region.as_ref().expect("every rank is reached").at(offset);
            regions.iter().map(at).collect()
        };
        DirectTables {
            ll_inboxes: table(parts.ll_inbox),
            simple_inboxes: table(parts.simple_inbox),
            boards: table(parts.board),
            stages: table(parts.stage),
        }
    }
}

/// A rank's place on a ring.
pub(crate) struct Neighbours {
    pub position: usize,
    pub previous: usize,
    pub next: usize,
}

impl Neighbours {
    /// The place of `rank` on `ring`, which names the ranks in the order in which data passes through them.
    pub fn on(ring: &[usize], rank: usize) -> Neighbours {
        let position = ring.iter().position(|&other| other == rank).expect("a ring passes through every rank");
        let at = |step: usize| ring[(position + step) % ring.len()];
        Neighbours { position, previous: at(ring.len() - 1), next: at(1) }
    }
}

/// What `from` sends to `to` when it tries the road: never zero, and different everywhere.
fn pattern(from: usize, to: usize, channel: usize) -> u64 {
    let place = 1 + channel as u64 + ((to as u64) << 16) + ((from as u64) << 40);
    place.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Roads that tests break: what goes over them arrives with a bit changed.
#[cfg(test)]
pub(crate) mod faults {
    use std::sync::Mutex;

    use super::Transport;

    static GARBLED: Mutex<Vec<([u8; 32], Transport)>> = Mutex::new(Vec::new());

    /// Breaks a road of the communicator with this secret.
    pub fn garble(secret: &[u8; 32], transport: Transport) {
        GARBLED.lock().unwrap().push((*secret, transport));
    }

    pub fn garbles(secret: &[u8; 32], transport: Transport) -> bool {
        GARBLED.lock().unwrap().contains(&(*secret, transport))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Communicator, Config, Device, RedOp, UniqueId, group};

    #[test]
    fn neighbours_are_those_beside_a_rank_on_its_ring() {
        let ring = [2, 0, 3, 1];
        let place = |rank| {
            let Neighbours { position, previous, next } = Neighbours::on(&ring, rank);
            (position, previous, next)
        };
        assert_eq!([2, 0, 3, 1].map(place), [(0, 1, 0), (1, 2, 3), (2, 0, 1), (3, 3, 2)]);
        let Neighbours { previous, next, .. } = Neighbours::on(&[0], 0);
        assert_eq!((previous, next), (0, 0));
    }

    /// Two ranks over roads of which some garble what they carry; they must still add right.
    fn add_over(broken: &[Transport]) -> Vec<String> {
        let id = UniqueId::new().unwrap();
        broken.iter().for_each(|&transport| faults::garble(id.secret(), transport));
        let devices = [Device::host(0), Device::host(1)];
        let places: Vec<_> = devices.iter().cloned().enumerate().collect();
        let quiet = Config::default().with("FERRONICKEL_ANNOUNCE", "0").unwrap();
        let ranks = Communicator::init_ranks(&id, 2, &places, &quiet).unwrap();
        let streams = devices.each_ref().map(|device| device.stream().unwrap());
        let buffers = devices.each_ref().map(|device| device.alloc::<i32>(5000).unwrap());
        buffers.iter().for_each(|buffer| buffer.copy_from_host(&[3; 5000]).unwrap());
        group(|| (0..2).try_for_each(|n| ranks[n].all_reduce(&buffers[n], &buffers[n], RedOp::Sum, &streams[n])))
            .unwrap();
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        assert!(buffers.iter().all(|buffer| buffer.to_vec().unwrap() == [6; 5000]));
        ranks[0].decisions().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_road_that_garbles_is_found_out_and_the_next_is_taken() {
        let garbled = "what was sent on channel 0 did not come back right";
        assert_eq!(add_over(&[])[0], "0[0] -> 1[1]: P2P/direct pointer");
        let decisions = add_over(&[Transport::P2p]);
        assert_eq!(decisions[0], format!("0[0] -> 1[1]: SHM/direct; P2P refused: {garbled}"));
        let decisions = add_over(&[Transport::P2p, Transport::Shm]);
        assert_eq!(decisions[1], format!("1[1] -> 0[0]: NET/Socket/0; P2P refused: {garbled}; SHM refused: {garbled}"));
    }
}
