//! Connecting: every rank lays out memory, learns where its peers' is, and proves each road before it is used.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferronickel_kernels::protocol::simple::slot_stride;
use ferronickel_kernels::protocol::{FLAG_STRIDE, Link, SLOTS};

use super::layout::{Layout, RingParts};
use super::net::handshake::Purpose;
use super::net::socket::{self, Listener};
use crate::device::region::Region;
use super::{Broken, Roads, Transport};
use crate::bootstrap::rendezvous::Member;
use crate::device::context::{Channel, DirectTables, Links, Ring};
use crate::error::{Error, Result};
use crate::proxy::{End, Proxy};

/// What a rank connects to.
pub(crate) struct Request<'a> {
    pub member: &'a Member,
    pub rank: usize,
    pub secret: &'a [u8; 32],
    pub roads: &'a Roads,
    pub layout: &'a Layout,
    /// For each channel, the ranks in ring order.
    pub rings: &'a [Vec<usize>],
    pub timeout: Duration,
}

/// A rank's connections.
pub(crate) struct Connected {
    pub channels: Vec<Channel>,
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

/// What a rank tells the others: where to write to it.
#[derive(Clone)]
struct Offer {
    region: std::result::Result<Arc<Region>, String>,
    address: Option<SocketAddr>,
}

impl Request<'_> {
    /// Connects along the chosen roads, and tries each.
    pub fn attempt(&self) -> Result<Attempt> {
        let listener = match self.net_sources().is_empty() {
            true => None,
            false => {
                Some(Listener::new().map_err(|error| Error::system("listening on the loopback interface", error))?)
            }
        };
        let offer = Offer { region: self.offer_region(), address: listener.as_ref().map(|listener| listener.address) };
        let offers = self.member.all_gather(offer)?;
        let broken = self.unoffered(&offers);
        if !broken.is_empty() {
            return Ok(Attempt::Broken(broken));
        }
        let (regions, unmapped) = self.map_regions(&offers);
        let streams = self.connect_streams(listener.as_ref(), &offers)?;
        let mut broken = self.probe(&regions)?;
        broken.extend(unmapped);
        let broken: Vec<_> = self.member.all_gather(broken)?.into_iter().flatten().collect();
        if !broken.is_empty() {
            return Ok(Attempt::Broken(broken));
        }
        self.build(regions, streams).map(Attempt::Connected)
    }

    fn offer_region(&self) -> std::result::Result<Arc<Region>, String> {
        let bytes = self.layout.bytes();
        if self.roads.touches(self.rank, Transport::Shm) {
            Region::shared(bytes)
                .map_err(|error| format!("rank {} got no {bytes} bytes of shared memory: {error}", self.rank))
        } else {
            Region::private(bytes)
                .map_err(|error| format!("rank {} got no {bytes} bytes of memory: {error}", self.rank))
        }
    }

    /// Roads that end at a rank that has no memory for them.
    fn unoffered(&self, offers: &[Offer]) -> Vec<Broken> {
        let mut broken = Vec::new();
        if offers.iter().all(|offer| offer.region.is_ok()) {
            return broken;
        }
        for (from, to) in self.roads.pairs() {
            let transport = self.roads.transport(from, to);
            if let (Err(reason), true) = (&offers[to].region, transport != Transport::Net) {
                broken.push(Broken { from, to, transport, reason: reason.clone() });
            }
        }
        broken
    }

    /// Every rank's region as this rank reaches it: None where only the network leads.
    fn map_regions(&self, offers: &[Offer]) -> (Vec<Option<Arc<Region>>>, Vec<Broken>) {
        let mut broken = Vec::new();
        let reach = |(peer, offer): (usize, &Offer)| {
            let region = offer.region.as_ref().ok()?;
            let roads = [(self.rank, peer), (peer, self.rank)];
            if peer == self.rank || roads.iter().any(|&(from, to)| self.roads.transport(from, to) == Transport::P2p) {
                return Some(region.clone());
            }
            let &(from, to) = roads.iter().find(|&&(from, to)| self.roads.transport(from, to) == Transport::Shm)?;
            let reason = match Region::map(region) {
                Some(Ok(mapped)) => return Some(mapped),
                Some(Err(error)) => format!("rank {} could not map rank {peer}'s shared memory: {error}", self.rank),
                None => format!("rank {peer} offered memory that cannot be shared"),
            };
            broken.push(Broken { from, to, transport: Transport::Shm, reason });
            None
        };
        (offers.iter().enumerate().map(reach).collect(), broken)
    }

    /// The ring neighbours from which data comes through the network, by channel.
    fn net_sources(&self) -> Vec<Purpose> {
        self.ring_links(|links| (links.previous, self.rank))
    }

    /// The ring neighbours to which data goes through the network, by channel.
    fn net_targets(&self) -> Vec<Purpose> {
        self.ring_links(|links| (self.rank, links.next))
    }

    fn ring_links(&self, pair: impl Fn(Neighbours) -> (usize, usize)) -> Vec<Purpose> {
        let purpose = |channel: usize| {
            let (from, to) = pair(self.neighbours(channel));
            let net = from != to && self.roads.transport(from, to) == Transport::Net;
            net.then_some(Purpose { channel: channel as u32, from: from as u32, to: to as u32 })
        };
        (0..self.layout.channels).filter_map(purpose).collect()
    }

    fn neighbours(&self, channel: usize) -> Neighbours {
        let ring = &self.rings[channel];
        let position = ring.iter().position(|&rank| rank == self.rank).expect("a ring passes through every rank");
        let at = |step: usize| ring[(position + step) % ring.len()];
        Neighbours { position, previous: at(ring.len() - 1), next: at(1) }
    }

    /// Connects to those we send to while those we receive from connect to us.
    fn connect_streams(&self, listener: Option<&Listener>, offers: &[Offer]) -> Result<Streams> {
        let (secret, timeout) = (self.secret, self.timeout);
        let stop = || self.member.progress().stopped();
        std::thread::scope(|scope| {
            let accepting = listener.map(|listener| {
                let expected = self.net_sources();
                scope.spawn(move || listener.accept(secret, expected, timeout, stop))
            });
            let connect = |purpose: Purpose| {
                let address =
                    offers[purpose.to as usize].address.expect("whoever receives through the network listens");
                let stream = socket::connect(address, secret, purpose, timeout).map_err(|error| {
                    Error::system(&format!("connecting to rank {} at {address} through NET/Socket", purpose.to), error)
                })?;
                Ok((purpose, stream))
            };
            let outgoing = self.net_targets().into_iter().map(connect).collect::<Result<Vec<_>>>()?;
            let incoming = match accepting.map(|thread| thread.join().expect("accepting does not panic")) {
                Some(accepted) => {
                    accepted.map_err(|error| Error::system("accepting connections on NET/Socket", error))?
                }
                None => Vec::new(),
            };
            Ok(Streams { outgoing, incoming })
        })
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
                let garbled = faults::garbles(self.secret, self.roads.transport(self.rank, peer));
                #[cfg(not(test))]
                let garbled = false;
                word.store(pattern(self.rank, peer, channel) ^ u64::from(garbled), Ordering::Release);
            }
        }
        self.member.all_gather(())?;
        for (peer, channel) in everywhere() {
            // the answer is made from what arrived, so that it is right only if that was
            let arrived = word(self.rank, peer, channel, 0).map(|word| word.load(Ordering::Acquire));
            if let (Some(arrived), Some(answer)) = (arrived, word(peer, self.rank, channel, 1)) {
                answer.store(!arrived, Ordering::Release);
            }
        }
        self.member.all_gather(())?;
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

    fn build(&self, regions: Vec<Option<Arc<Region>>>, streams: Streams) -> Result<Connected> {
        let mut ends = Ends { streams, sends: Vec::new(), receives: Vec::new(), buffers: Vec::new() };
        let mut channels = Vec::with_capacity(self.layout.channels);
        for channel in 0..self.layout.channels {
            let direct = self.layout.direct.then(|| self.direct_tables(&regions, channel));
            let ring = self.ring(&regions, channel, &mut ends)?;
            channels.push(Channel { direct, ring, staged_steps: Mutex::new(0) });
        }
        let mut kept: Vec<_> = regions.into_iter().flatten().collect();
        kept.append(&mut ends.buffers);
        let proxy = match ends.sends.is_empty() && ends.receives.is_empty() {
            true => None,
            false => {
                let progress = self.member.progress().clone();
                Some(Proxy::start(self.rank, progress, ends.sends, ends.receives, kept.clone())?)
            }
        };
        Ok(Connected { channels, proxy, regions: kept })
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

    fn ring(&self, regions: &[Option<Arc<Region>>], channel: usize, ends: &mut Ends) -> Result<Ring> {
        let Neighbours { position, previous, next } = self.neighbours(channel);
        let parts = self.layout.parts(channel);
        let own = regions[self.rank].as_ref().expect("a rank reaches itself");
        // a link through memory: slots and tail at the receiver, head at the sender
        let link = |from: usize, to: usize, parts: RingParts| {
            let (at_sender, at_receiver) = (regions[from].as_ref()?, regions[to].as_ref()?);
            Some(Link {
                slots: at_receiver.at(parts.slots),
                tail: at_receiver.at(parts.tail).cast(),
                head: at_sender.at(parts.head).cast(),
                peer: (if from == self.rank { to } else { from }) as u32,
                step: 0,
            })
        };
        let through_memory = |from: usize, to: usize| from == to || self.roads.transport(from, to) != Transport::Net;
        let memory_link = |from, to, parts| if through_memory(from, to) { link(from, to, parts) } else { None };
        let to_next = match memory_link(self.rank, next, parts.ring_simple) {
            Some(link) => link,
            None => ends.outgoing(own, &parts.ring_simple, self.layout, channel, next)?,
        };
        let from_previous = match memory_link(previous, self.rank, parts.ring_simple) {
            Some(link) => link,
            None => ends.incoming(own, &parts.ring_simple, self.layout, channel, previous)?,
        };
        let ll = memory_link(previous, self.rank, parts.ring_ll).zip(memory_link(self.rank, next, parts.ring_ll));
        Ok(Ring {
            position: position as u32,
            simple: Mutex::new(Links { from_previous, to_next }),
            ll: ll.map(|(from_previous, to_next)| Mutex::new(Links { from_previous, to_next })),
        })
    }
}

/// A rank's place on a ring.
struct Neighbours {
    position: usize,
    previous: usize,
    next: usize,
}

struct Streams {
    outgoing: Vec<(Purpose, TcpStream)>,
    incoming: Vec<(Purpose, TcpStream)>,
}

/// The ends of network connections, as they are made for the proxy.
struct Ends {
    streams: Streams,
    sends: Vec<End>,
    receives: Vec<End>,
    /// Slots of outgoing links, which no peer sees.
    buffers: Vec<Arc<Region>>,
}

impl Ends {
    /// The kernel's side of a link whose other side is the proxy: it fills slots of its own.
    fn outgoing(
        &mut self,
        own: &Region,
        parts: &RingParts,
        layout: &Layout,
        channel: usize,
        peer: usize,
    ) -> Result<Link> {
        let slot_bytes = layout.capacities.ring_simple;
        let buffer = self.buffer(FLAG_STRIDE + SLOTS as usize * slot_stride(slot_bytes))?;
        let link = Link {
            slots: buffer.at(FLAG_STRIDE),
            tail: buffer.at(0).cast(),
            head: own.at(parts.head).cast(),
            peer: peer as u32,
            step: 0,
        };
        let stream = take(&mut self.streams.outgoing, channel);
        self.sends.push(End { stream, link, slot_bytes, channel: channel as u32 });
        Ok(link)
    }

    /// The kernel's side of a link whose other side is the proxy, which fills the slots.
    fn incoming(
        &mut self,
        own: &Region,
        parts: &RingParts,
        layout: &Layout,
        channel: usize,
        peer: usize,
    ) -> Result<Link> {
        let slot_bytes = layout.capacities.ring_simple;
        let buffer = self.buffer(FLAG_STRIDE)?;
        let link = Link {
            slots: own.at(parts.slots),
            tail: own.at(parts.tail).cast(),
            head: buffer.at(0).cast(),
            peer: peer as u32,
            step: 0,
        };
        let stream = take(&mut self.streams.incoming, channel);
        self.receives.push(End { stream, link, slot_bytes, channel: channel as u32 });
        Ok(link)
    }

    fn buffer(&mut self, bytes: usize) -> Result<Arc<Region>> {
        let buffer = Region::private(bytes)
            .map_err(|error| Error::system(&format!("mapping {bytes} bytes for NET/Socket"), error))?;
        self.buffers.push(buffer.clone());
        Ok(buffer)
    }
}

fn take(streams: &mut Vec<(Purpose, TcpStream)>, channel: usize) -> TcpStream {
    let at = streams.iter().position(|(purpose, _)| purpose.channel == channel as u32);
    streams.swap_remove(at.expect("every link through the network was connected")).1
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
