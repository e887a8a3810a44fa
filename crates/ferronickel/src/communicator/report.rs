//! What a communicator says of itself: NCCL's lines in the log, and the announcement of a slower road.

use std::fmt::Write as _;
use std::sync::Once;
use std::time::Instant;

use super::init::Agreed;
use super::{Inner, UniqueId};
use crate::bootstrap::interfaces::Choice;
use crate::config::variables;
use crate::device::Device;
use crate::diagnostics::log::{self, Level, Subsys, info, version};
use crate::group::CollectiveCall;
use crate::plan::{Plan, names};
use crate::transport::connect::Neighbours;
use crate::transport::{PeerInfo, Roads, Transport};

/// The version of NCCL whose interface and log this library follows.
const NCCL_VERSION: &str = "2.30.7";

/// Sizes at which the cost of a slower road is told.
const COST_AT: [(usize, &str); 2] = [(8, "8 B"), (16 << 20, "16 MiB")];

/// When a rank began init, and when it had met the others.
pub(super) struct InitTimings {
    pub began: Instant,
    pub met: Instant,
}

/// Says once per process whose log this is.
fn log_version(device: u32) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let ours = env!("CARGO_PKG_VERSION");
        version!(device, "NCCL version {NCCL_VERSION}+ferronickel{ours}");
        info!(
            device,
            Subsys::INIT,
            "This is ferronickel {ours}, which follows NCCL {NCCL_VERSION}; devices are host devices"
        );
    });
}

/// A rank begins init.
pub(super) fn log_start(id: &UniqueId, size: usize, rank: usize, device: &Device, api: &str) {
    let (index, bus_id, number) = (device.index(), device.bus_id().as_number(), id.public_number());
    log_version(index);
    info!(
        index,
        Subsys::INIT,
        "[Rank {rank}] {api} comm {number:#x} rank {rank} nranks {size} cudaDev {index} nvmlDev {index} busId {bus_id:x} commId {number:#x} - Init START",
    );
}

/// Which interface this process is reached at, and why not at another.
pub(super) fn log_interface(device: &Device, choice: &Choice) {
    let index = device.index();
    info!(index, Subsys::INIT | Subsys::BOOTSTRAP, "Bootstrap: Using {}", choice.endpoints[0]);
    if !choice.explicit {
        info!(index, Subsys::BOOTSTRAP | Subsys::NET, "Interface for {}", choice.decision);
    }
}

impl Inner {
    /// The place of a rank among all: what init connected.
    pub(super) fn log_connected(&self, agreed: &Agreed, peers: &[PeerInfo], interface: &str) {
        let Agreed { roads, layout, rings, .. } = agreed;
        if roads.node_mates(self.rank).next() == Some(self.rank) {
            self.announce_slower_road(roads);
        }
        if !log::enabled(Level::Info, Subsys::ALL) {
            return;
        }
        let (rank, size, device) = (self.rank, self.size, self.device.index());
        if roads.touches(rank, Transport::Net) {
            info!(device, Subsys::INIT | Subsys::NET, "NET/Socket : Using [0]{interface}");
            info!(device, Subsys::INIT, "Using network Socket");
        }
        info!(
            device,
            Subsys::INIT,
            "comm {:#x} rank {rank} nRanks {size} nNodes {} localRanks {} localRank {} MNNVL 0",
            self.number,
            roads.nodes(),
            roads.node_mates(rank).count(),
            roads.node_mates(rank).take_while(|&mate| mate < rank).count(),
        );
        for (channel, ring) in rings.iter().enumerate().filter(|_| rank == 0) {
            info!(device, Subsys::INIT, "Channel {channel:02}/{:02} :{}", layout.channels, ring_order(ring));
        }
        for (channel, ring) in rings.iter().enumerate() {
            let Neighbours { previous, next, .. } = Neighbours::on(ring, rank);
            info!(device, Subsys::GRAPH, "Ring {channel:02} : {previous} -> {rank} -> {next}");
        }
        for decision in &*self.context.decisions {
            info!(device, Subsys::GRAPH, "Road {decision}");
        }
        for (channel, ring) in rings.iter().enumerate() {
            self.log_channel(channel, &Neighbours::on(ring, rank), agreed, peers);
        }
        if size > 1 {
            info!(device, Subsys::INIT, "Connected all rings, use ring PXN 0 GDR 0");
            if layout.direct {
                info!(device, Subsys::INIT, "Connected every rank to every other, for OneShot and TwoShot");
            }
        }
        let channels = layout.channels;
        info!(
            device,
            Subsys::INIT,
            "{channels} coll channels, 0 collnet channels, 0 nvls channels, 0 p2p channels, 0 p2p channels per peer"
        );
        if rank == 0 {
            self.planner.to_string().lines().for_each(|line| info!(device, Subsys::TUNING, "{line}"));
        }
    }

    /// One line for each connection that the channel has from this rank, and for those that a socket brings to it.
    fn log_channel(&self, channel: usize, neighbours: &Neighbours, agreed: &Agreed, peers: &[PeerInfo]) {
        let (rank, size, device) = (self.rank, self.size, self.device.index());
        let (Agreed { roads, layout, .. }, &Neighbours { previous, next, .. }) = (agreed, neighbours);
        let label = |rank: usize| peers[rank].label();
        if size > 1 && roads.transport(previous, rank) == Transport::Net {
            let (from, to) = (label(previous), label(rank));
            info!(
                device,
                Subsys::INIT | Subsys::NET,
                "Channel {channel:02}/0 : {from} -> {to} [receive] via {}",
                Transport::Net
            );
        }
        for peer in (0..size).filter(|&peer| peer != rank && (layout.direct || peer == next)) {
            let (from, to, transport) = (label(rank), label(peer), roads.transport(rank, peer));
            match transport {
                Transport::P2p | Transport::Ipc => {
                    info!(device, Subsys::INIT | Subsys::P2P, "Channel {channel:02}/0 : {from} -> {to} via {transport}")
                }
                Transport::Shm => {
                    info!(device, Subsys::INIT | Subsys::SHM, "Channel {channel:02} : {from} -> {to} via {transport}")
                }
                Transport::Net => info!(
                    device,
                    Subsys::INIT | Subsys::NET,
                    "Channel {channel:02}/0 : {from} -> {to} [send] via {transport}"
                ),
            }
        }
    }

    pub(super) fn log_complete(&self, api: &str, timings: InitTimings) {
        let (rank, size, device) = (self.rank, self.size, self.device.index());
        info!(
            device,
            Subsys::INIT,
            "{api} comm {0:#x} rank {rank} nranks {size} cudaDev {device} nvmlDev {device} busId {1:x} commId {0:#x} - Init COMPLETE",
            self.number,
            self.bus_id().as_number(),
        );
        let total = timings.began.elapsed().as_secs_f64();
        let bootstrap = (timings.met - timings.began).as_secs_f64();
        info!(
            device,
            Subsys::INIT | Subsys::PROFILE,
            "Init timings - {api}: rank {rank} nranks {size} total {total:.4} (bootstrap {bootstrap:.4}, connections {:.4})",
            total - bootstrap,
        );
    }

    /// The lines that a call writes, when they are wanted.
    #[inline]
    pub(crate) fn log_call(&self, call: &CollectiveCall, stream: u32, plan: &Plan, number: u64) {
        if log::enabled(Level::Info, Subsys::COLL | Subsys::TUNING) {
            self.write_call(call, stream, plan, number);
        }
    }

    #[cold]
    fn write_call(&self, call: &CollectiveCall, stream: u32, plan: &Plan, number: u64) {
        let (size, device, name) = (self.size, self.device.index(), call.collective.log_name());
        info!(
            device,
            Subsys::COLL,
            "{name}: opCount {:x} sendbuff {:p} recvbuff {:p} count {} datatype {} op {} root {} comm {:#x} [nranks={size}] stream {}",
            number - 1,
            call.send,
            call.receive,
            call.count,
            call.data_type as u8,
            call.op.kind.number(),
            call.root,
            self.number,
            stream,
        );
        let bytes = call.count * call.data_type.size_of();
        let (algorithm, protocol) = names(plan.kernel);
        info!(
            device,
            Subsys::TUNING,
            "{name}: {bytes} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}",
            algorithm.to_uppercase(),
            protocol.to_uppercase(),
            plan.channels - 1,
        );
    }

    pub(super) fn log_end(&self, what: &str) {
        let (rank, size, device) = (self.rank, self.size, self.device.index());
        info!(
            device,
            Subsys::INIT | Subsys::DESTROY,
            "comm {:#x} rank {rank} nranks {size} cudaDev {device} busId {:x} - {what} COMPLETE",
            self.number,
            self.bus_id().as_number(),
        );
    }

    /// Says in one line that a slower road is used than this machine allows, why, and what it costs.
    fn announce_slower_road(&self, roads: &Roads) {
        if !self.config.flag(&variables::ANNOUNCE).value {
            return;
        }
        let mates: Vec<_> = roads.node_mates(self.rank).collect();
        let here = |&(from, to): &(usize, usize)| mates.contains(&from) && mates.contains(&to);
        let slower: Vec<_> =
            roads.pairs().filter(here).filter(|&(a, b)| roads.transport(a, b) != roads.best(a, b)).collect();
        let slowest = slower.iter().map(|&(from, to)| roads.transport(from, to)).max();
        let found = slower.iter().find(|&&(from, to)| Some(roads.transport(from, to)) == slowest);
        let (Some(&(from, to)), Some(slowest)) = (found, slowest) else { return };
        let possible = roads.best(from, to);
        let decision = roads.decision(from, to);
        let mut line = format!("slower road: {} goes via {slowest} instead of {possible}", decision.about);
        if slower.len() > 1 {
            let others = slower.len() - 1;
            let _ = write!(
                line,
                ", and {others} other connection{} via a slower road too",
                if others == 1 { "" } else { "s" }
            );
        }
        for refusal in &decision.refused {
            let _ = write!(line, "; {refusal}");
        }
        let costs: Vec<_> = COST_AT
            .iter()
            .filter_map(|&(bytes, size)| {
                let here = self.planner.all_reduce_microseconds(bytes)?;
                let best = self.planner.best_on(possible, bytes);
                Some(format!("{:.1} times as long at {size} ({best:.1} -> {here:.1} us)", here / best))
            })
            .collect();
        if !costs.is_empty() {
            let _ = write!(line, "; predicted cost: an all-reduce takes {}", costs.join(", "));
        }
        log::announce(&line);
    }
}

/// ` 0 1 2 ...`, as NCCL prints a ring: numbers of equal width, cut when the line grows long.
fn ring_order(ring: &[usize]) -> String {
    const LONGEST: usize = 128;
    let width = (ring.len() - 1).to_string().len();
    let mut order = String::new();
    for rank in ring {
        let _ = write!(order, " {rank:width$}");
        if order.len() > LONGEST {
            return order + " ...";
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_printed_in_its_order_and_cut_when_it_is_long() {
        assert_eq!(ring_order(&[0]), " 0");
        assert_eq!(ring_order(&[3, 1, 10, 0, 2, 4, 5, 6, 7, 8, 9]), "  3  1 10  0  2  4  5  6  7  8  9");
        let long = ring_order(&(0..100).collect::<Vec<_>>());
        assert!(long.starts_with("  0  1  2") && long.ends_with(" 42 ..."), "{long}");
    }
}
