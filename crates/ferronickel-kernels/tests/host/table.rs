//! Every type, with every operation, by every algorithm, over one to five ranks.

use crate::job::{AnyJob, Call, Job};
use crate::machine::{CacheLine, Halves, LineKind};
use crate::rank::{ALGORITHMS, Collective, Shape};
use crate::threads::{launch_boundary, run};
use crate::value::{Op, Random, Value};
use ferronickel_kernels::element::{Bf16, F8E4m3, F8E5m2, F16};

/// One communicator of `ranks` ranks makes all `calls`.
fn all<E: Value, K: LineKind>(ranks: usize, threads: usize, calls: &[Call]) {
    let jobs: Vec<_> = calls.iter().map(|&call| Job::<E>::new(call, ranks)).collect();
    let shape = Shape { ranks, capacity: 8 * 1024, slot_bytes: 512, channels: 2 };
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

/// Calls by every algorithm, of the sizes that matter: nothing, little, much; OneShot's own limit.
fn calls(op: Op, ranks: usize, size: usize) -> Vec<Call> {
    let mut calls = Vec::new();
    for how in ALGORITHMS {
        for count in [0, 1, 37, 8 * 1024 / size, 3001] {
            let fits = !how.is_one_shot() || count * size <= 8 * 1024;
            if fits {
                calls.push(Call { what: Collective::AllReduce, how, op, count, seed: (count * 6 + ranks) as u64 });
            }
        }
    }
    calls
}

fn one_to_five_ranks<E: Value>(op: Op) {
    for ranks in 1..=5 {
        all::<E, CacheLine>(ranks, 1, &calls(op, ranks, size_of::<E>()));
    }
}

macro_rules! table {
    ($($name:ident: $t:ty;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn sum() {
                one_to_five_ranks::<$t>(Op::Sum);
            }

            #[test]
            fn prod() {
                one_to_five_ranks::<$t>(Op::Prod);
            }

            #[test]
            fn min() {
                one_to_five_ranks::<$t>(Op::Min);
            }

            #[test]
            fn max() {
                one_to_five_ranks::<$t>(Op::Max);
            }

            #[test]
            fn avg() {
                one_to_five_ranks::<$t>(Op::Avg);
            }

            #[test]
            fn pre_mul_sum() {
                one_to_five_ranks::<$t>(Op::PreMulSum);
            }
        }
    )*};
}

table! {
    int8: i8;
    uint8: u8;
    int32: i32;
    uint32: u32;
    int64: i64;
    uint64: u64;
    float16: F16;
    bfloat16: Bf16;
    float8e4m3: F8E4m3;
    float8e5m2: F8E5m2;
    float32: f32;
    float64: f64;
}

/// Blocks of several threads share the work out, as on a GPU.
fn blocks_of_threads<E: Value, K: LineKind>(op: Op) {
    let few: Vec<_> = calls(op, 3, size_of::<E>()).into_iter().filter(|call| call.count < 1000).collect();
    all::<E, K>(3, 3, &few);
}

#[test]
fn blocks_of_threads_with_cache_lines() {
    blocks_of_threads::<f32, CacheLine>(Op::Avg);
    blocks_of_threads::<i64, CacheLine>(Op::Avg);
}

#[test]
fn blocks_of_threads_with_halves() {
    blocks_of_threads::<F16, Halves>(Op::Sum);
    blocks_of_threads::<u8, Halves>(Op::Prod);
    blocks_of_threads::<F8E4m3, Halves>(Op::PreMulSum);
}

/// Everything mixed, on one count of epochs, by blocks of `threads` threads.
fn mixed<K: LineKind>(threads: usize, rounds: usize) {
    for seed in 0..rounds {
        let mut random = Random(seed as u64);
        let ranks = 2 + random.below(3);
        let shape = Shape { ranks, capacity: 512, slot_bytes: random.pick(&[32, 128]), channels: 1 + random.below(2) };
        let jobs: Vec<_> = (0..40).map(|_| AnyJob::random(&mut random, ranks, shape.capacity, 500)).collect();
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
}

#[test]
fn mixed_by_single_threads() {
    mixed::<CacheLine>(1, 10);
    mixed::<Halves>(1, 10);
}

#[test]
fn mixed_by_blocks_of_threads() {
    mixed::<CacheLine>(2, 2);
    mixed::<Halves>(3, 2);
}
