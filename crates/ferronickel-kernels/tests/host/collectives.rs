//! Every collective by every algorithm, over two to eight ranks and thirteen, and messages in any pattern.

use crate::buffer::Buffer;
use crate::job::{Call, Job, algorithms_for};
use crate::machine::{CacheLine, Halves, LineKind};
use crate::rank::{Algorithm, Collective, Shape};
use crate::threads::{LEND_BYTES, launch_boundary, run};
use crate::value::{Op, Random, Value};
use ferronickel_kernels::algorithm::exchange::Transfer;
use ferronickel_kernels::block::Stop;
use std::sync::Mutex;

fn collectives(ranks: usize) -> Vec<Collective> {
    let mut all = vec![Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll, Collective::AllReduce];
    for root in [0, ranks / 2, ranks - 1] {
        all.extend([Collective::Broadcast(root), Collective::Reduce(root)]);
    }
    all
}

/// Counts around what a slot of 512 bytes holds, and some slots' worth.
fn check<E: Value, K: LineKind>(ranks: usize, threads: usize, op: Op, counts: &[usize]) {
    let shape = Shape { ranks, capacity: 8 * 1024, slot_bytes: 512, channels: 1 };
    let mut jobs = Vec::new();
    for what in collectives(ranks) {
        for how in algorithms_for(what) {
            for &count in counts {
                if !how.is_one_shot() || count * size_of::<E>() <= shape.capacity {
                    let seed = (count * 31 + ranks * 7 + jobs.len()) as u64;
                    jobs.push(Job::<E>::new(Call { what, how, op, count, seed }, ranks));
                }
            }
        }
    }
    run::<K, _>(shape, threads, false, |mut rank| {
        for job in &jobs {
            job.run(&mut rank).unwrap();
            launch_boundary(rank.block);
        }
    });
    for job in &jobs {
        (0..ranks).for_each(|rank| job.check(rank));
        job.check_guards();
    }
}

#[test]
fn by_single_threads() {
    for ranks in [2, 3, 4, 5, 7, 8] {
        check::<i32, CacheLine>(ranks, 1, Op::Sum, &[0, 1, 37, 400]);
    }
    check::<i32, CacheLine>(13, 1, Op::Sum, &[1, 129]);
    check::<f64, CacheLine>(5, 1, Op::Avg, &[3, 300]);
    check::<u8, Halves>(4, 1, Op::Avg, &[5, 1500]);
}

#[test]
fn by_blocks_of_threads() {
    check::<i32, CacheLine>(3, 2, Op::PreMulSum, &[0, 1, 37, 400]);
    check::<i64, Halves>(3, 3, Op::Sum, &[2, 70]);
}

/// Messages large enough to be lent, by address.
#[test]
fn what_is_lent() {
    let slot_bytes = 2 * LEND_BYTES;
    for ranks in [2, 3, 5] {
        let shape = Shape { ranks, capacity: 64, slot_bytes, channels: 1 };
        let count = 3 * slot_bytes / 4 + 5;
        let mut jobs = Vec::new();
        for what in collectives(ranks) {
            let over_links = algorithms_for(what).into_iter().filter(|how| !how.is_one_shot());
            for how in over_links.filter(|how| *how != Algorithm::TreeLl && *how != Algorithm::FlatLl) {
                let call = Call { what, how, op: Op::Sum, count, seed: jobs.len() as u64 };
                jobs.push(Job::<u32>::new(call, ranks));
            }
        }
        run::<CacheLine, _>(shape, 1, false, |mut rank| {
            for job in &jobs {
                job.run(&mut rank).unwrap();
                // what was lent may be changed as soon as the call has returned
                job.scribble(rank.rank);
            }
        });
        for job in &jobs {
            (0..ranks).for_each(|rank| job.check(rank));
            job.check_guards();
        }
    }
}

/// The messages of a rank, which the threads of its block share.
struct List(Mutex<Vec<Transfer>>);

// SAFETY: the pointers lead to buffers and links that outlive the threads
unsafe impl Sync for List {}

/// Each rank sends random messages to each, itself not among them, all in one exchange.
fn messages<K: LineKind>(ranks: usize, threads: usize, seed: u64) {
    let mut random = Random(seed);
    let shape = Shape { ranks, capacity: 64, slot_bytes: 1024, channels: 1 };
    // by sender, then receiver: messages in order
    let mut some = |from: usize, to: usize| -> Vec<usize> {
        let count = if from == to { 0 } else { random.below(4) };
        (0..count).map(|_| random.pick(&[0, 1, 100, 1024, 3000, LEND_BYTES + 7])).collect()
    };
    let sizes: Vec<Vec<_>> = (0..ranks).map(|from| (0..ranks).map(|to| some(from, to)).collect()).collect();
    let buffers = || -> Vec<Vec<Vec<Buffer>>> {
        let each = |sizes: &Vec<usize>| sizes.iter().map(|&size| Buffer::new(size, 0)).collect();
        sizes.iter().map(|to| to.iter().map(each).collect()).collect()
    };
    let (sent, received) = (buffers(), buffers());
    for buffer in sent.iter().flatten().flatten() {
        let length = buffer.bytes();
        (0..length).for_each(|i| buffer.set(i, random.next() as u8));
    }
    let lists: Vec<_> = (0..ranks).map(|_| List(Mutex::default())).collect();
    let lists = &lists[..];
    run::<K, _>(shape, threads, false, |rank| {
        let at = rank.rank;
        let call = |from: usize, to: usize, k: usize| (1000 * from + 10 * to + k + 1) as u64;
        let mut list = lists[at].0.lock().unwrap();
        if list.is_empty() {
            for peer in (0..ranks).filter(|&peer| peer != at) {
                for (sends, from, to) in [(true, at, peer), (false, peer, at)] {
                    for (k, &size) in sizes[from][to].iter().enumerate() {
                        let buffer = if sends { &sent[from][to][k] } else { &received[from][to][k] };
                        let mut transfer = rank.transfer(peer, sends, buffer.start(), size, call(from, to, k));
                        transfer.follows = k > 0;
                        list.push(transfer);
                    }
                }
            }
        }
        let (start, count) = (list.as_mut_ptr(), list.len());
        drop(list);
        launch_boundary(rank.block);
        // SAFETY: the list lives until all threads have ended, and only the exchange changes it
        unsafe { rank.exchange(std::slice::from_raw_parts_mut(start, count)).unwrap() };
    });
    for (sent, received) in sent.iter().flatten().flatten().zip(received.iter().flatten().flatten()) {
        assert!((0..sent.bytes()).all(|i| sent.get::<u8>(i) == received.get::<u8>(i)), "seed {seed}");
        assert!(received.is_intact() && sent.is_intact(), "seed {seed}");
    }
}

#[test]
fn messages_in_any_pattern() {
    for seed in 0..12 {
        messages::<CacheLine>(2 + seed as usize % 4, 1, seed);
    }
    messages::<CacheLine>(3, 2, 77);
}

#[test]
fn a_message_that_differs_is_noticed() {
    let shape = Shape { ranks: 2, capacity: 64, slot_bytes: 1024, channels: 1 };
    let buffers = [Buffer::new(8, 0), Buffer::new(8, 0)];
    let ends = run::<CacheLine, _>(shape, 1, false, |rank| {
        let (at, peer) = (rank.rank, 1 - rank.rank);
        let mut transfer = [rank.transfer(peer, at == 0, buffers[at].start(), 8, 5 + at as u64)];
        // SAFETY: the buffer is as long as the message
        unsafe { rank.exchange(&mut transfer) }
    });
    assert_eq!(ends, [Ok(()), Err(Stop::Mismatch { peer: 0, theirs: 5 })]);
}
