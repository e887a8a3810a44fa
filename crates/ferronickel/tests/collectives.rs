//! Every collective on every road between threads: what each rank gets, in place and not.

mod support;

use ferronickel::{Communicator, Config, Device, DeviceBuffer, ErrorKind, Operation, RedOp, Result, Stream, group};

/// A rank with its stream.
struct Rank {
    communicator: Communicator,
    stream: Stream,
}

impl Rank {
    fn buffer(&self, values: &[i64]) -> DeviceBuffer<i64> {
        let buffer = self.communicator.device().alloc(values.len()).unwrap();
        buffer.copy_from_host(values).unwrap();
        buffer
    }
}

fn ranks(size: usize, settings: &[(&str, &str)]) -> Vec<Rank> {
    let devices: Vec<_> = (0..size as u32).map(Device::host).collect();
    let quiet = Config::default().with("FERRONICKEL_ANNOUNCE", "0").unwrap();
    let config = settings.iter().fold(quiet, |config, (name, value)| config.with(name, value).unwrap());
    let made = Communicator::init_all(&devices, &config).unwrap();
    made.into_iter()
        .map(|communicator| Rank { stream: communicator.device().stream().unwrap(), communicator })
        .collect()
}

/// Every rank makes a call, all in one group, and waits for it.
fn all(ranks: &[Rank], call: impl Fn(usize, &Rank) -> Result<()>) {
    group(|| ranks.iter().enumerate().try_for_each(|(rank, at)| call(rank, at))).unwrap();
    ranks.iter().for_each(|at| at.stream.synchronize().unwrap());
}

const P2P: &[(&str, &str)] = &[];
const SHM: &[(&str, &str)] = &[("NCCL_P2P_DISABLE", "1")];
const NET: &[(&str, &str)] = &[("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")];

/// Counts around what a slot, a line and a place of an inbox hold.
const COUNTS: [usize; 6] = [0, 1, 7, 300, 4097, 70_001];

fn value(rank: usize, i: usize) -> i64 {
    (1 + rank as i64) * 1_000_003 + 7 * i as i64
}

fn values(rank: usize, count: usize) -> Vec<i64> {
    (0..count).map(|i| value(rank, i)).collect()
}

fn sums(size: usize, count: usize) -> Vec<i64> {
    (0..count).map(|i| (0..size).map(|rank| value(rank, i)).sum()).collect()
}

fn check_reductions(ranks: &[Rank], count: usize) {
    let size = ranks.len();
    let sends: Vec<_> = ranks.iter().enumerate().map(|(rank, at)| at.buffer(&values(rank, count))).collect();
    let receives: Vec<_> = ranks.iter().map(|at| at.buffer(&vec![-1; count])).collect();
    all(ranks, |rank, at| at.communicator.all_reduce(&sends[rank], &receives[rank], RedOp::Sum, &at.stream));
    receives.iter().for_each(|receive| assert_eq!(receive.to_vec().unwrap(), sums(size, count), "all_reduce"));
    for root in 0..size {
        receives.iter().for_each(|receive| receive.copy_from_host(&vec![-1; count]).unwrap());
        all(ranks, |rank, at| {
            at.communicator.reduce(&sends[rank], Some(&receives[rank]), RedOp::Sum, root, &at.stream)
        });
        for (rank, receive) in receives.iter().enumerate() {
            let expected = if rank == root { sums(size, count) } else { vec![-1; count] };
            assert_eq!(receive.to_vec().unwrap(), expected, "reduce to {root}, rank {rank}");
        }
    }
    // each rank has a part for each
    let sends: Vec<_> = ranks.iter().enumerate().map(|(rank, at)| at.buffer(&values(rank, count * size))).collect();
    all(ranks, |rank, at| at.communicator.reduce_scatter(&sends[rank], &receives[rank], RedOp::Sum, &at.stream));
    let whole = sums(size, count * size);
    for (rank, receive) in receives.iter().enumerate() {
        assert_eq!(receive.to_vec().unwrap(), whole[rank * count..(rank + 1) * count], "reduce_scatter, rank {rank}");
    }
    all(ranks, |rank, at| {
        let part = sends[rank].slice(rank * count..(rank + 1) * count)?;
        at.communicator.reduce_scatter(&sends[rank], &part, RedOp::Sum, &at.stream)
    });
    for (rank, send) in sends.iter().enumerate() {
        let got = send.to_vec().unwrap();
        let part = rank * count..(rank + 1) * count;
        assert_eq!(got[part.clone()], whole[part], "reduce_scatter in place, rank {rank}");
    }
}

fn check_movements(ranks: &[Rank], count: usize) {
    let size = ranks.len();
    let sends: Vec<_> = ranks.iter().enumerate().map(|(rank, at)| at.buffer(&values(rank, count))).collect();
    let large: Vec<_> = ranks.iter().map(|at| at.buffer(&vec![-1; count * size])).collect();
    let everything: Vec<_> = (0..size).flat_map(|rank| values(rank, count)).collect();
    for root in 0..size {
        let buffers: Vec<_> = ranks.iter().enumerate().map(|(rank, at)| at.buffer(&values(rank, count))).collect();
        all(ranks, |rank, at| at.communicator.broadcast(None, &buffers[rank], root, &at.stream));
        buffers.iter().for_each(|buffer| assert_eq!(buffer.to_vec().unwrap(), values(root, count), "broadcast"));
        large.iter().for_each(|large| large.copy_from_host(&vec![-1; count * size]).unwrap());
        all(ranks, |rank, at| at.communicator.gather(&sends[rank], Some(&large[rank]), root, &at.stream));
        assert_eq!(large[root].to_vec().unwrap(), everything, "gather to {root}");
        all(ranks, |rank, at| at.communicator.scatter(Some(&large[rank]), &buffers[rank], root, &at.stream));
        for (rank, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer.to_vec().unwrap(), values(rank, count), "scatter from {root}, rank {rank}");
        }
    }
    all(ranks, |rank, at| at.communicator.all_gather(&sends[rank], &large[rank], &at.stream));
    large.iter().for_each(|large| assert_eq!(large.to_vec().unwrap(), everything, "all_gather"));
    all(ranks, |rank, at| {
        large[rank].copy_from_host(&(0..size).flat_map(|_| values(rank, count)).collect::<Vec<_>>())?;
        let part = large[rank].slice(rank * count..(rank + 1) * count)?;
        at.communicator.all_gather(&part, &large[rank], &at.stream)
    });
    large.iter().for_each(|large| assert_eq!(large.to_vec().unwrap(), everything, "all_gather in place"));
    let sends: Vec<_> = ranks.iter().enumerate().map(|(rank, at)| at.buffer(&values(rank, count * size))).collect();
    all(ranks, |rank, at| at.communicator.all_to_all(&sends[rank], &large[rank], &at.stream));
    for (rank, large) in large.iter().enumerate() {
        let expected: Vec<_> =
            (0..size).flat_map(|from| (0..count).map(move |i| value(from, rank * count + i))).collect();
        assert_eq!(large.to_vec().unwrap(), expected, "all_to_all, rank {rank}");
    }
    all(ranks, |_, at| at.communicator.barrier(&at.stream));
}

fn check(size: usize, settings: &[(&str, &str)]) {
    let ranks = ranks(size, settings);
    for count in COUNTS {
        check_reductions(&ranks, count);
        check_movements(&ranks, count);
    }
}

#[test]
fn one_rank() {
    check(1, P2P);
}

#[test]
fn two_ranks_by_pointer() {
    check(2, P2P);
}

#[test]
fn three_ranks_through_shared_memory() {
    check(3, SHM);
}

#[test]
fn three_ranks_through_the_network() {
    check(3, NET);
}

#[test]
fn five_ranks_by_pointer() {
    check(5, P2P);
}

#[test]
fn every_algorithm_and_protocol_by_name() {
    for algorithm in ["OneShot", "Ring", "Tree;allgather:ring;reducescatter:ring;alltoall:oneshot", "PAT"] {
        for protocol in ["LL", "Simple"] {
            for road in [P2P, SHM] {
                // what an algorithm is not for is done by another
                let algorithm = match algorithm {
                    "PAT" => "PAT;allreduce:twoshot,ring;broadcast:tree;reduce:tree;alltoall:oneshot",
                    "Ring" => "Ring;alltoall:oneshot",
                    other => other,
                };
                let settings = [road, &[("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)]].concat();
                check(4, &settings);
            }
        }
    }
}

#[test]
fn nodes_by_host_id() {
    let quiet = Config::default().with("FERRONICKEL_ANNOUNCE", "0").unwrap();
    for algorithm in ["Hierarchical", "Tree", "TwoShot", "Ring"] {
        let id = ferronickel::UniqueId::new().unwrap();
        // 3 + 1 + 2
        let hosts = ["a", "b", "a", "c", "c", "a"];
        let threads: Vec<_> = hosts
            .iter()
            .enumerate()
            .map(|(rank, host)| {
                let config = quiet.clone().with("NCCL_HOSTID", host).unwrap();
                let config = config.with("NCCL_ALGO", &format!("allreduce:{algorithm}")).unwrap();
                let id = id.clone();
                std::thread::spawn(move || {
                    let device = Device::host(rank as u32);
                    let communicator = Communicator::init_rank(&id, 6, rank, &device, &config).unwrap();
                    Rank { stream: device.stream().unwrap(), communicator }
                })
            })
            .collect();
        let ranks: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        for count in COUNTS {
            check_reductions(&ranks, count);
        }
        check_movements(&ranks, 300);
    }
}

#[test]
fn scalars_differ_between_ranks_and_may_be_on_the_device() {
    for settings in [P2P, SHM, NET] {
        let ranks = ranks(3, settings);
        for count in [5, 100_000] {
            let sends: Vec<_> = ranks.iter().enumerate().map(|(rank, at)| at.buffer(&values(rank, count))).collect();
            let receives: Vec<_> = ranks.iter().map(|at| at.buffer(&vec![-1; count])).collect();
            let scalars: Vec<_> = ranks.iter().enumerate().map(|(rank, at)| at.buffer(&[10 + rank as i64])).collect();
            let expected: Vec<_> =
                (0..count).map(|i| (0..3).map(|rank| (10 + rank as i64) * value(rank, i)).sum::<i64>()).collect();
            all(&ranks, |rank, at| {
                let op = Operation::scaled(10 + rank as i64);
                at.communicator.all_reduce(&sends[rank], &receives[rank], op, &at.stream)
            });
            receives.iter().for_each(|receive| assert_eq!(receive.to_vec().unwrap(), expected));
            all(&ranks, |rank, at| {
                let op = Operation::scaled_by(&scalars[rank]);
                at.communicator.reduce(&sends[rank], Some(&receives[rank]), op, 1, &at.stream)
            });
            assert_eq!(receives[1].to_vec().unwrap(), expected);
        }
    }
}

#[test]
fn messages_in_any_pattern() {
    for settings in [P2P, SHM, NET] {
        let ranks = ranks(3, settings);
        // several messages a pair, of sizes that are lent and that are not, empty ones, and to oneself
        let sizes = [3, 0, 50_000, 1, 9000];
        let sent: Vec<Vec<_>> =
            (0..3).map(|rank| sizes.iter().map(|&size| ranks[rank].buffer(&values(rank, size))).collect()).collect();
        let received: Vec<Vec<Vec<_>>> = (0..3)
            .map(|rank| {
                (0..3).map(|_| sizes.iter().map(|&size| ranks[rank].buffer(&vec![-1; size])).collect()).collect()
            })
            .collect();
        all(&ranks, |rank, at| {
            for k in 0..sizes.len() {
                for (peer, received) in received[rank].iter().enumerate() {
                    at.communicator.receive(&received[k], peer, &at.stream)?;
                    at.communicator.send(&sent[rank][k], peer, &at.stream)?;
                }
            }
            Ok(())
        });
        for (rank, received) in received.iter().enumerate() {
            for (peer, received) in received.iter().enumerate() {
                for (k, (received, &size)) in received.iter().zip(&sizes).enumerate() {
                    assert_eq!(received.to_vec().unwrap(), values(peer, size), "{peer} to {rank}, message {k}");
                }
            }
        }
    }
}

#[test]
fn messages_mix_with_collectives_in_one_group() {
    let ranks = ranks(2, P2P);
    let numbers: Vec<_> = ranks.iter().enumerate().map(|(rank, at)| at.buffer(&values(rank, 100))).collect();
    let message: Vec<_> = ranks.iter().map(|at| at.buffer(&[7; 30_000])).collect();
    all(&ranks, |rank, at| {
        if rank == 0 {
            at.communicator.all_reduce(&numbers[0], &numbers[0], RedOp::Sum, &at.stream)?;
            at.communicator.send(&message[0], 1, &at.stream)
        } else {
            at.communicator.receive(&message[1], 0, &at.stream)?;
            at.communicator.all_reduce(&numbers[1], &numbers[1], RedOp::Sum, &at.stream)
        }
    });
    numbers.iter().for_each(|numbers| assert_eq!(numbers.to_vec().unwrap(), sums(2, 100)));
}

#[test]
fn different_counts_for_different_ranks() {
    let ranks = ranks(3, P2P);
    let counts = [5, 0, 70_000];
    let all_counts = counts.iter().sum::<usize>();
    let sends: Vec<_> = ranks.iter().enumerate().map(|(rank, at)| at.buffer(&values(rank, counts[rank]))).collect();
    let receives: Vec<_> = ranks.iter().map(|at| at.buffer(&vec![-1; all_counts])).collect();
    all(&ranks, |rank, at| at.communicator.all_gather_v(&sends[rank], &receives[rank], &counts, &at.stream));
    let expected: Vec<_> = (0..3).flat_map(|rank| values(rank, counts[rank])).collect();
    receives.iter().for_each(|receive| assert_eq!(receive.to_vec().unwrap(), expected));
    // rank r sends r + 1 elements to each
    let sends: Vec<_> = ranks.iter().enumerate().map(|(rank, at)| at.buffer(&values(rank, 3 * (rank + 1)))).collect();
    let receives: Vec<_> = ranks.iter().map(|at| at.buffer(&[-1; 6])).collect();
    all(&ranks, |rank, at| {
        at.communicator.all_to_all_v(&sends[rank], &[rank + 1; 3], &receives[rank], &[1, 2, 3], &at.stream)
    });
    for (rank, receive) in receives.iter().enumerate() {
        let part = |from: usize| (0..from + 1).map(move |i| value(from, rank * (from + 1) + i));
        assert_eq!(receive.to_vec().unwrap(), (0..3).flat_map(part).collect::<Vec<_>>());
    }
}

#[test]
fn wrong_calls_are_refused_and_nothing_of_their_group_is_queued() {
    let ranks = ranks(2, P2P);
    let at = &ranks[0];
    let (small, large) = (at.buffer(&[0; 4]), at.buffer(&[0; 8]));
    let refused = |result: Result<()>, kind: ErrorKind, words: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let c = &at.communicator;
    refused(c.broadcast(None, &small, 2, &at.stream), ErrorKind::InvalidArgument, "root 2");
    refused(c.reduce(&small, None, RedOp::Sum, 0, &at.stream), ErrorKind::InvalidArgument, "the root gives no receive");
    refused(c.all_gather(&small, &small, &at.stream), ErrorKind::InvalidArgument, "receive 4");
    refused(c.reduce_scatter(&large, &large, RedOp::Sum, &at.stream), ErrorKind::InvalidArgument, "send 8");
    refused(c.all_to_all(&large, &large, &at.stream), ErrorKind::InvalidArgument, "overlap");
    refused(c.send(&small, 5, &at.stream), ErrorKind::InvalidArgument, "rank 5");
    refused(c.send(&small, 0, &at.stream), ErrorKind::InvalidUsage, "receives from itself nothing");
    refused(c.all_gather_v(&small, &large, &[4], &at.stream), ErrorKind::InvalidArgument, "1 entries");
    let one_stream = group(|| {
        c.all_reduce(&small, &small, RedOp::Sum, &at.stream)?;
        let other = ranks[1].buffer(&[0; 4]);
        ranks[1].communicator.all_reduce(&other, &other, RedOp::Sum, &ranks[1].stream)?;
        c.send(&large, 0, &at.stream)
    });
    refused(one_stream, ErrorKind::InvalidUsage, "itself");
    // nothing is left behind
    check_reductions(&ranks, 10);
}
