//! Every collective, type, operation, algorithm, protocol, road and shape, sampled from the table of all of them, against
//! a reference in higher precision. Outputs are poisoned before, and the bytes around all buffers are guarded.
//!
//! `FERRONICKEL_CONFORMANCE_SEED` chooses another sample (the seed is printed), `FERRONICKEL_CONFORMANCE_WORLDS` (default
//! 60) how many communicators are made, each for a dozen calls.

#[path = "conformance/call.rs"]
mod call;
#[path = "conformance/random.rs"]
mod random;
#[path = "conformance/reference.rs"]
mod reference;
#[path = "conformance/world.rs"]
mod world;

use call::{Case, Collective};
use random::Random;
use reference::{OPS, Op};
use world::{Road, World, WorldShape};

/// Makes the device with a number.
type MakeDevice = fn(u32) -> ferronickel::Device;
/// The kinds of device that must pass: another joins by its line.
const DEVICES: &[(&str, MakeDevice)] = &[("host", ferronickel::Device::host)];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Runs `check` with the case's element type.
macro_rules! with_types {
    ($number:expr, $check:ident, $($argument:expr),*) => {
        match $number {
            0 => call::$check::<i8>($($argument),*),
            1 => call::$check::<u8>($($argument),*),
            2 => call::$check::<i32>($($argument),*),
            3 => call::$check::<u32>($($argument),*),
            4 => call::$check::<i64>($($argument),*),
            5 => call::$check::<u64>($($argument),*),
            6 => call::$check::<half::f16>($($argument),*),
            7 => call::$check::<f32>($($argument),*),
            8 => call::$check::<f64>($($argument),*),
            9 => call::$check::<half::bf16>($($argument),*),
            10 => call::$check::<ferronickel::F8E4m3>($($argument),*),
            _ => call::$check::<ferronickel::F8E5m2>($($argument),*),
        }
    };
}

/// A sample of calls in one communicator.
fn check_world(world: &World, random: &mut Random, calls: usize) {
    for _ in 0..calls {
        let collective = random.pick(&world.collectives());
        let case = Case {
            collective,
            op: random.pick(&OPS),
            count: random.pick(&[0, 1, 2, 3, 7, 31, 64, 127, 900, 1023, 4096, 20_001, 70_003]),
            in_place: random.below(2) == 0,
            shift: random.below(4),
            root: random.below(world.ranks.len()),
            seed: random.next(),
        };
        with_types!(random.below(12), check, world, &case);
    }
}

#[test]
fn a_sample_of_everything() {
    let seed = setting("FERRONICKEL_CONFORMANCE_SEED", 1);
    let worlds = setting("FERRONICKEL_CONFORMANCE_WORLDS", 60);
    println!("FERRONICKEL_CONFORMANCE_SEED={seed} FERRONICKEL_CONFORMANCE_WORLDS={worlds}");
    let mut random = Random(seed);
    for (kind, device) in DEVICES {
        for number in 0..worlds {
            let shape = WorldShape::sample(&mut random);
            println!("{kind}, world {number}: {shape:?}");
            check_world(&World::new(&shape, *device), &mut random, 12);
        }
    }
}

#[test]
fn many_ranks() {
    let mut random = Random(64);
    for ranks in [33, 64] {
        let shape = WorldShape { ranks, road: Road::P2p, ..WorldShape::plain() };
        check_world(&World::new(&shape, DEVICES[0].1), &mut random, 6);
    }
}

/// Every type with every operation, by one call of each collective that reduces.
#[test]
fn every_type_with_every_operation() {
    let world = World::new(&WorldShape { ranks: 3, ..WorldShape::plain() }, DEVICES[0].1);
    for op in OPS {
        for collective in [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter] {
            for number in 0..12 {
                let case =
                    Case { collective, op, count: 1001, in_place: false, shift: 1, root: 2, seed: number as u64 + 7 };
                with_types!(number, check, &world, &case);
            }
        }
    }
}

/// Addition in rank order gives the same bits, whatever algorithm, protocol, channels and road.
#[test]
fn the_same_bits_whatever_the_way() {
    let deterministic = ("FERRONICKEL_DETERMINISTIC", "1");
    let ways: [&[(&str, &str)]; 4] = [
        &[],
        &[("NCCL_ALGO", "OneShot"), ("NCCL_PROTO", "LL")],
        &[("NCCL_ALGO", "OneShot"), ("NCCL_PROTO", "Simple"), ("NCCL_MAX_NCHANNELS", "1")],
        &[("NCCL_ALGO", "TwoShot;reduce:OneShot;reducescatter:OneShot"), ("NCCL_MIN_NCHANNELS", "7")],
    ];
    for collective in [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter] {
        for op in [Op::Sum, Op::Avg, Op::PreMulSum, Op::Prod] {
            let case = Case { collective, op, count: 5003, in_place: false, shift: 0, root: 1, seed: 99 };
            let mut results = Vec::new();
            for road in [Road::P2p, Road::Shm, Road::Net] {
                for way in ways.iter().filter(|way| road != Road::Net || !way.contains(&("NCCL_PROTO", "LL"))) {
                    // OneShot all-reduces only where all ranks reach each other's memory
                    let one_shot = way.iter().any(|(name, value)| *name == "NCCL_ALGO" && value.starts_with("OneShot"));
                    if road == Road::Net && one_shot && collective == Collective::AllReduce {
                        continue;
                    }
                    let settings = [&[deterministic], *way].concat();
                    let shape = WorldShape { ranks: 5, road, settings, ..WorldShape::plain() };
                    let world = World::new(&shape, DEVICES[0].1);
                    for _ in 0..2 {
                        results.push((shape.clone(), call::results::<f32>(&world, &case)));
                    }
                }
            }
            for (shape, bits) in &results {
                assert!(*bits == results[0].1, "{case:?}: {shape:?} gave other bits than {:?}", results[0].0);
            }
        }
    }
}
