//! Communicators come and go, and nothing of them stays: no thread, no descriptor, no memory. A program of its own, so
//! that nothing else changes what is counted.

mod support;

use std::time::{Duration, Instant};

use ferronickel::RedOp;
use support::{ROADS, config, on_threads};

fn entries(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A life with calls of every size, ended in one of three ways.
fn live(closed: &[&str], end: usize) {
    on_threads(3, &config(closed), |rank| {
        for count in [1, 1000, 200_000] {
            let buffer = rank.device.alloc::<f32>(count).unwrap();
            let called = rank.communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &rank.stream);
            let done = called.and_then(|()| rank.stream.synchronize());
            // a rank that is ahead may have aborted already
            assert!(done.is_ok() || end == 2, "{done:?}");
        }
        match end {
            0 => rank.communicator.finalize().unwrap(),
            1 => {}
            _ => {
                // rank 2 never calls: the others are in the midst of it
                let buffer = rank.device.alloc::<f32>(10).unwrap();
                match rank.communicator.rank() {
                    2 => rank.communicator.abort(),
                    _ => drop(rank.communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &rank.stream)),
                }
            }
        }
    });
}

#[test]
fn nothing_stays_behind() {
    // the first round makes what is kept for good: the dispatcher, the allocator's arenas
    let round = || ROADS.iter().for_each(|(_, closed)| (0..3).for_each(|end| live(closed, end)));
    (0..2).for_each(|_| round());
    let settle = |threads: usize| {
        let began = Instant::now();
        while entries("/proc/self/task") > threads && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // this thread, the harness's and the dispatcher
    settle(3);
    let (threads, descriptors, memory) = (entries("/proc/self/task"), entries("/proc/self/fd"), resident_kib());
    assert!(threads <= 3, "{threads} threads are left");
    (0..6).for_each(|_| round());
    settle(threads);
    assert_eq!(entries("/proc/self/task"), threads, "threads");
    assert_eq!(entries("/proc/self/fd"), descriptors, "descriptors");
    let grown = resident_kib().saturating_sub(memory);
    assert!(grown < 8 << 10, "{grown} KiB of memory more after 54 communicators");
}
