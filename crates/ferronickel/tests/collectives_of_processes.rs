//! Every collective between processes, on every road and between nodes, by every algorithm.

#[path = "support/processes.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod processes;

use std::time::Duration;

use ferronickel::{Communicator, Config, Device, DeviceBuffer, Operation, RedOp, Stream, group};
use processes::{Part, Ranks, RootAt};

const LIMIT: Duration = Duration::from_secs(120);
/// Below and above what is lent and what a slot holds.
const COUNTS: [usize; 5] = [0, 1, 900, 30_001, 150_000];

/// Plays a rank. In the test's own process this does nothing.
#[test]
fn rank() {
    let Some(part) = Part::taken() else { return };
    let device = Device::host(part.rank as u32);
    let communicator =
        Communicator::init_rank(&part.id, part.size, part.rank, &device, &Config::from_environment()).unwrap();
    let rank = Rank { stream: device.stream().unwrap(), communicator };
    for count in COUNTS {
        rank.reductions(count);
        rank.movements(count);
        rank.messages(count);
    }
    rank.communicator.finalize().unwrap();
}

struct Rank {
    communicator: Communicator,
    stream: Stream,
}

fn value(rank: usize, i: usize) -> i32 {
    (rank as i32 + 1) * 1_000_003 + 7 * i as i32
}

impl Rank {
    fn buffer(&self, values: impl IntoIterator<Item = i32>) -> DeviceBuffer<i32> {
        let values: Vec<_> = values.into_iter().collect();
        let buffer = self.communicator.device().alloc(values.len()).unwrap();
        buffer.copy_from_host(&values).unwrap();
        buffer
    }

    fn own(&self, count: usize) -> DeviceBuffer<i32> {
        self.buffer((0..count).map(|i| value(self.communicator.rank(), i)))
    }

    fn done(&self, call: ferronickel::Result<()>) {
        call.and_then(|()| self.stream.synchronize()).unwrap();
    }

    fn reductions(&self, count: usize) {
        let (c, stream) = (&self.communicator, &self.stream);
        let (rank, size) = (c.rank(), c.size());
        let sum = |i: usize| (0..size).map(|rank| value(rank, i)).fold(0, i32::wrapping_add);
        let sums: Vec<_> = (0..count * size).map(sum).collect();
        let (send, receive) = (self.own(count), self.buffer(vec![-1; count]));
        self.done(c.all_reduce(&send, &receive, RedOp::Sum, stream));
        assert_eq!(receive.to_vec().unwrap(), sums[..count], "all_reduce of {count}");
        self.done(c.all_reduce(&send, &receive, Operation::scaled(3 + rank as i32), stream));
        let scaled = |i: usize| (0..size).map(move |rank| value(rank, i).wrapping_mul(3 + rank as i32));
        let expected: Vec<_> = (0..count).map(|i| scaled(i).fold(0, i32::wrapping_add)).collect();
        assert_eq!(receive.to_vec().unwrap(), expected, "all_reduce of {count}, scaled");
        for root in 0..size {
            self.done(c.reduce(&send, Some(&receive), RedOp::Sum, root, stream));
            if rank == root {
                assert_eq!(receive.to_vec().unwrap(), sums[..count], "reduce of {count} to {root}");
            }
        }
        self.done(c.reduce_scatter(&self.own(count * size), &receive, RedOp::Sum, stream));
        assert_eq!(receive.to_vec().unwrap(), sums[rank * count..][..count], "reduce_scatter of {count}");
    }

    fn movements(&self, count: usize) {
        let (c, stream) = (&self.communicator, &self.stream);
        let (rank, size) = (c.rank(), c.size());
        let send = self.own(count);
        let everything: Vec<_> = (0..size).flat_map(|rank| (0..count).map(move |i| value(rank, i))).collect();
        let large = self.buffer(vec![-1; count * size]);
        for root in 0..size {
            let buffer = self.own(count);
            self.done(c.broadcast(None, &buffer, root, stream));
            assert_eq!(buffer.to_vec().unwrap(), everything[root * count..][..count], "broadcast of {count}");
            self.done(c.gather(&send, Some(&large), root, stream));
            if rank == root {
                assert_eq!(large.to_vec().unwrap(), everything, "gather of {count} to {root}");
            }
            self.done(c.scatter(Some(&large), &buffer, root, stream));
            assert_eq!(buffer.to_vec().unwrap(), everything[rank * count..][..count], "scatter of {count}");
        }
        self.done(c.all_gather(&send, &large, stream));
        assert_eq!(large.to_vec().unwrap(), everything, "all_gather of {count}");
        self.done(c.all_to_all(&self.own(count * size), &large, stream));
        let expected = |from: usize| (0..count).map(move |i| value(from, rank * count + i));
        assert_eq!(large.to_vec().unwrap(), (0..size).flat_map(expected).collect::<Vec<_>>(), "all_to_all of {count}");
        self.done(c.barrier(stream));
    }

    /// A ring of messages, and what is sent to oneself.
    fn messages(&self, count: usize) {
        let (c, stream) = (&self.communicator, &self.stream);
        let (rank, size) = (c.rank(), c.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let send = self.own(count);
        let received = [self.buffer(vec![-1; count]), self.buffer(vec![-1; count])];
        self.done(group(|| {
            c.send(&send, next, stream)?;
            c.receive(&received[0], previous, stream)?;
            c.send(&send, rank, stream)?;
            c.receive(&received[1], rank, stream)
        }));
        for (received, from) in received.iter().zip([previous, rank]) {
            let expected: Vec<_> = (0..count).map(|i| value(from, i)).collect();
            assert_eq!(received.to_vec().unwrap(), expected, "a message of {count} from {from}");
        }
    }
}

fn check(size: usize, settings: &[(&'static str, &'static str)], node: impl Fn(usize) -> Option<&'static str>) {
    let all = |rank: usize| {
        let own = node(rank).map(|node| ("NCCL_HOSTID", node));
        settings.iter().copied().chain(own).map(|(name, value)| (name, value.to_string())).collect()
    };
    Ranks::start("rank", size, "all of it", RootAt::Test, all).succeed(LIMIT);
}

#[test]
fn by_ipc() {
    check(2, &[], |_| None);
    check(3, &[], |_| None);
}

#[test]
fn through_shared_memory() {
    check(3, &[("NCCL_P2P_DISABLE", "1")], |_| None);
}

#[test]
fn through_the_network() {
    check(3, &[("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")], |_| None);
}

#[test]
fn between_uneven_nodes() {
    let nodes = ["a", "b", "a", "c", "c", "a"];
    for algorithm in ["allreduce:Hierarchical", "Tree;allgather:PAT;reducescatter:PAT;alltoall:OneShot"] {
        check(6, &[("NCCL_ALGO", algorithm)], |rank| Some(nodes[rank]));
    }
}

#[test]
fn by_every_algorithm() {
    for algorithm in ["OneShot", "Ring;alltoall:OneShot", "Tree;allgather:PAT;reducescatter:PAT;alltoall:OneShot"] {
        for protocol in ["LL", "Simple"] {
            check(3, &[("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)], |_| None);
        }
    }
}
