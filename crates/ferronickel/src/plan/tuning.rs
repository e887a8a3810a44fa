//! The cost model: how long a kernel takes on a road.
//!
//! A call costs a latency for each hop and a time for each byte that a rank copies or reduces. What a hop and a byte cost
//! is the machine's ([`Costs`]); how many of them a kernel has is read off `ferronickel perf -t 2`, with `NCCL_ALGO` and
//! `NCCL_PROTO` set in turn (docs/performance.md). It need only be right about which kernel is faster, and from which
//! size on.

use crate::device::work::{Across, Kernel};
use crate::transport::Transport;
use crate::transport::costs::Costs;
use crate::types::Collective;

/// What is planned: how a collective would be done, over which road, by how many ranks.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub collective: Collective,
    pub kernel: Kernel,
    pub road: Transport,
    pub ranks: usize,
}

/// Predicted microseconds of a call over `ranks` ranks: of `bytes` bytes that all reduce or that one gives all, or that
/// each sends to each.
pub(crate) fn microseconds(costs: &Costs, way: Way, bytes: usize) -> f64 {
    let (hops, per_byte) = terms(way);
    let costs = costs.of(way.road);
    hops * costs.hop + per_byte * costs.byte * bytes as f64
}

/// The model's latency in microseconds and bandwidth (algbw) in GB/s.
pub(crate) fn latency_and_bandwidth(costs: &Costs, way: Way) -> (f64, f64) {
    let (hops, per_byte) = terms(way);
    let costs = costs.of(way.road);
    (hops * costs.hop, 1.0 / (per_byte * costs.byte * 1000.0))
}

/// Hops, and bytes moved for each byte of the call.
fn terms(way: Way) -> (f64, f64) {
    let Way { collective, kernel, road, ranks } = way;
    let peers = (ranks - 1) as f64;
    let levels = (ranks as f64).log2().ceil();
    // what a ring or a two-shot algorithm moves of each byte: all but the own share, twice
    let shares = 2.0 * peers / ranks as f64;
    // a byte that is lent is copied once, another twice
    let copies = if matches!(road, Transport::P2p | Transport::Ipc) { 1.0 } else { 2.0 };
    match (kernel, collective) {
        (Kernel::Copy, _) => (0.0, 1.0),
        // every word is taken apart and put together
        (Kernel::OneShotLl, _) => (peers, 50.0 * peers),
        (Kernel::OneShotSimple, Collective::AllReduce) => (1.4 * peers, 1.6 * peers),
        (Kernel::OneShotSimple, _) => (1.4 * peers, 2.0 * peers),
        // each share is read and written in place, once
        (Kernel::TwoShotDirect, _) => (3.0 * peers, 0.8 * shares),
        (Kernel::TwoShotStaged, _) => (3.0 * peers, 1.5 * shares),
        (Kernel::RingLl, Collective::AllReduce) => (2.2 * peers, 15.0 * shares),
        (Kernel::RingSimple, Collective::AllReduce) => (3.5 * peers, 1.6 * shares),
        (Kernel::RingLl, Collective::AllGather | Collective::ReduceScatter) => (1.1 * peers, 15.0 * peers),
        (Kernel::RingSimple, Collective::AllGather | Collective::ReduceScatter) => (1.8 * peers, 2.0 * peers),
        (Kernel::RingLl, _) => (1.1 * peers, 15.0),
        (Kernel::RingSimple, _) => (1.8 * peers, 2.0),
        (Kernel::TreeLl, Collective::AllReduce) => (2.4 * levels, 45.0),
        (Kernel::TreeSimple, Collective::AllReduce) => (4.0 * levels, 4.5),
        (Kernel::TreeLl, _) => (1.2 * levels, 22.0),
        (Kernel::TreeSimple, _) => (2.0 * levels, 3.0),
        (Kernel::PatLl, _) => (1.2 * levels + 0.3 * peers, 18.0 * peers),
        (Kernel::PatSimple, _) => (2.0 * levels + 0.5 * peers, 2.2 * peers),
        (Kernel::FlatLl, _) => (1.2 + 0.2 * peers, 15.0 * peers),
        (Kernel::FlatSimple, Collective::AllReduce) => (4.0 + 1.5 * peers, 2.0 * shares),
        (Kernel::FlatSimple, Collective::AllGather | Collective::ReduceScatter) => (2.5 * peers, copies * peers),
        (Kernel::FlatSimple, _) => (2.0 + 0.5 * peers, if copies > 1.0 { copies * peers } else { 1.0 }),
        (Kernel::Hierarchical(Across::Ring), _) => (6.0 + 3.5 * peers, 2.4),
        (Kernel::Hierarchical(Across::Tree), _) => (6.0 + 5.0 * levels, 4.0),
        (Kernel::Exchange, _) => (2.0 + 1.2 * peers, copies * peers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(kernel: Kernel, road: Transport, ranks: usize, bytes: usize) -> f64 {
        microseconds(&Costs::BUILT_IN, Way { collective: Collective::AllReduce, kernel, road, ranks }, bytes)
    }

    #[test]
    fn cost_grows_with_bytes_and_ranks() {
        let kernels = [
            Kernel::OneShotLl,
            Kernel::OneShotSimple,
            Kernel::RingLl,
            Kernel::RingSimple,
            Kernel::TreeLl,
            Kernel::TreeSimple,
            Kernel::FlatSimple,
            Kernel::TwoShotDirect,
        ];
        for kernel in kernels {
            for road in Transport::ALL {
                let cost = |ranks, bytes| cost(kernel, road, ranks, bytes);
                assert!(
                    cost(2, 8) < cost(2, 1 << 20) && cost(2, 8) < cost(8, 8) && cost(2, 1 << 20) < cost(8, 1 << 20)
                );
            }
        }
    }

    #[test]
    fn a_slower_road_is_slower() {
        assert!(cost(Kernel::RingSimple, Transport::Net, 2, 8) > cost(Kernel::RingSimple, Transport::Shm, 2, 8));
        let (p2p, shm) = (Kernel::TwoShotDirect, Kernel::TwoShotStaged);
        assert!(cost(shm, Transport::Shm, 2, 1 << 24) > cost(p2p, Transport::P2p, 2, 1 << 24));
    }
}
