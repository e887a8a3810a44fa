//! The cost model: how long a kernel takes on a road.
//!
//! A call costs a latency for each hop and a time for each byte that a rank copies or reduces. The constants are read
//! off `ferronickel perf all-reduce -t 2` on a virtual machine with two AMD EPYC processors, with `NCCL_ALGO` and
//! `NCCL_PROTO` set in turn (docs/performance.md); they need only be right about which kernel is faster, and from
//! which size on.

use crate::device::launch::Kernel;
use crate::transport::Transport;

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

/// Predicted microseconds of an all-reduce of `bytes` bytes over `ranks` ranks.
pub(crate) fn microseconds(kernel: Kernel, road: Transport, ranks: usize, bytes: usize) -> f64 {
    let (hops, per_byte) = terms(kernel, ranks);
    hops * hop(road) + per_byte * byte(road) * bytes as f64
}

/// The model's latency in microseconds and bandwidth (algbw) in GB/s.
pub(crate) fn latency_and_bandwidth(kernel: Kernel, road: Transport, ranks: usize) -> (f64, f64) {
    let (hops, per_byte) = terms(kernel, ranks);
    (hops * hop(road), 1.0 / (per_byte * byte(road) * 1000.0))
}

/// Hops, in units of [`hop`], and bytes moved for each byte of the call, in units of [`byte`].
fn terms(kernel: Kernel, ranks: usize) -> (f64, f64) {
    let peers = (ranks - 1) as f64;
    // what a ring or a two-shot algorithm moves of each byte: all but the own share, twice
    let shares = 2.0 * peers / ranks as f64;
    match kernel {
        Kernel::Copy => (0.0, 1.0),
        // every word is taken apart and put together
        Kernel::OneShotLl => (peers, 50.0 * peers),
        Kernel::OneShotSimple => (1.4 * peers, 1.4 * peers),
        // each share is read and written in place, once
        Kernel::TwoShotDirect => (3.0 * peers, 0.8 * shares),
        Kernel::TwoShotStaged => (3.0 * peers, 1.5 * shares),
        Kernel::RingLl => (2.2 * peers, 15.0 * shares),
        Kernel::RingSimple => (3.5 * peers, 1.6 * shares),
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
                let cost = |ranks, bytes| microseconds(kernel, road, ranks, bytes);
                assert!(
                    cost(2, 8) < cost(2, 1 << 20) && cost(2, 8) < cost(8, 8) && cost(2, 1 << 20) < cost(8, 1 << 20)
                );
            }
        }
    }

    #[test]
    fn a_slower_road_is_slower() {
        assert!(
            microseconds(Kernel::RingSimple, Transport::Net, 2, 8)
                > microseconds(Kernel::RingSimple, Transport::Shm, 2, 8)
        );
        let (p2p, shm) = (Kernel::TwoShotDirect, Kernel::TwoShotStaged);
        assert!(microseconds(shm, Transport::Shm, 2, 1 << 24) > microseconds(p2p, Transport::P2p, 2, 1 << 24));
    }
}
