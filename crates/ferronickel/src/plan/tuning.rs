//! The cost model: how long a kernel takes on a road.
//!
//! A call costs a latency for each hop and a time for each byte that a rank copies or reduces. The constants are read
//! off `ferronickel perf all-reduce -t 2` on a virtual machine with two AMD EPYC processors, with `NCCL_ALGO` and
//! `NCCL_PROTO` set in turn (docs/performance.md); they need only be right about which kernel is faster, and from
//! which size on.

use crate::device::work::{Across, Kernel};
use crate::transport::Transport;
use crate::types::Collective;

/// Microseconds for a flag and what it announces to reach the other side.
fn hop(road: Transport) -> f64 {
    match road {
        Transport::P2p | Transport::Ipc | Transport::Shm => 0.2,
        Transport::Net => 9.0,
    }
}

/// Microseconds for a rank to copy or reduce one byte that another has written.
fn byte(road: Transport) -> f64 {
    match road {
        Transport::P2p | Transport::Ipc | Transport::Shm => 1.0 / 20_000.0,
        // into the socket and out of it, and by the proxy besides
        Transport::Net => 1.0 / 5_000.0,
    }
}

/// Predicted microseconds of a call over `ranks` ranks: of `bytes` bytes that all reduce or that one gives all, or that
/// each sends to each.
pub(crate) fn microseconds(collective: Collective, kernel: Kernel, road: Transport, ranks: usize, bytes: usize) -> f64 {
    let (hops, per_byte) = terms(collective, kernel, road, ranks);
    hops * hop(road) + per_byte * byte(road) * bytes as f64
}

/// The model's latency in microseconds and bandwidth (algbw) in GB/s.
pub(crate) fn latency_and_bandwidth(
    collective: Collective,
    kernel: Kernel,
    road: Transport,
    ranks: usize,
) -> (f64, f64) {
    let (hops, per_byte) = terms(collective, kernel, road, ranks);
    (hops * hop(road), 1.0 / (per_byte * byte(road) * 1000.0))
}

/// Hops, in units of [`hop`], and bytes moved for each byte of the call, in units of [`byte`].
fn terms(collective: Collective, kernel: Kernel, road: Transport, ranks: usize) -> (f64, f64) {
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

    #[test]
    fn cost_grows_with_bytes_and_ranks() {
        for kernel in
            [Kernel::OneShotLl, Kernel::OneShotSimple, Kernel::RingLl, Kernel::RingSimple, Kernel::TwoShotDirect]
        {
            for road in Transport::ALL {
                let cost = |ranks, bytes| microseconds(Collective::AllReduce, kernel, road, ranks, bytes);
                assert!(
                    cost(2, 8) < cost(2, 1 << 20) && cost(2, 8) < cost(8, 8) && cost(2, 1 << 20) < cost(8, 1 << 20)
                );
            }
        }
    }

    #[test]
    fn a_slower_road_is_slower() {
        assert!(
            microseconds(Collective::AllReduce, Kernel::RingSimple, Transport::Net, 2, 8)
                > microseconds(Collective::AllReduce, Kernel::RingSimple, Transport::Shm, 2, 8)
        );
        let (p2p, shm) = (Kernel::TwoShotDirect, Kernel::TwoShotStaged);
        assert!(
            microseconds(Collective::AllReduce, shm, Transport::Shm, 2, 1 << 24)
                > microseconds(Collective::AllReduce, p2p, Transport::P2p, 2, 1 << 24)
        );
    }
}
