//! All-reduce gives what the definition says: on every road, with every algorithm, type and operation, for sizes that
//! divide and sizes that do not, in place and out of place.

mod support;

use ferronickel::{Config, DataType, DeviceBuffer, Element, F8E4m3, F8E5m2, RedOp, group};
use half::{bf16, f16};
use support::{Numbers, ROADS, Rank, config, in_one_thread, on_threads};

/// An element with a reference that is exact: inputs are such that no order of reduction rounds, but for the mean of
/// floats, which may be off by a unit in the last place for each rank.
trait Reference: Element + PartialEq + std::fmt::Debug {
    /// How many ranks can bring something else than zero to a sum, so that no step rounds; and to a mean.
    const ADDENDS: usize = usize::MAX;
    fn from_small(value: i64) -> Self;
    /// The reduction of small values, computed widely.
    fn reduced(values: &[i64], op: RedOp) -> Self;
    fn is_near(self, expected: Self, units: u64) -> bool;
}

fn exact(values: &[i64], op: RedOp) -> i128 {
    let values = values.iter().map(|&value| value as i128);
    match op {
        RedOp::Sum | RedOp::Avg => values.sum(),
        RedOp::Prod => values.product(),
        RedOp::Max => values.max().unwrap(),
        RedOp::Min => values.min().unwrap(),
    }
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Reference for $t {
            fn from_small(value: i64) -> Self {
                value as $t
            }
            fn reduced(values: &[i64], op: RedOp) -> Self {
                // integers wrap in their own type, and the mean truncates what has wrapped
                let wrapped: Vec<_> = values.iter().map(|&value| value as $t as i64).collect();
                if <$t>::MIN == 0 {
                    let values = values.iter().map(|&value| value as $t);
                    return match op {
                        RedOp::Sum => values.fold(0, <$t>::wrapping_add),
                        RedOp::Avg => (values.clone().fold(0, <$t>::wrapping_add) as u128 / values.len() as u128) as $t,
                        RedOp::Prod => values.fold(1, <$t>::wrapping_mul),
                        RedOp::Max => values.max().unwrap(),
                        RedOp::Min => values.min().unwrap(),
                    };
                }
                let reduced = exact(&wrapped, op) as $t;
                if op == RedOp::Avg { (reduced as i128 / values.len() as i128) as $t } else { reduced }
            }
            fn is_near(self, expected: Self, _units: u64) -> bool {
                self == expected
            }
        }
    )*};
}
integers!(i8 u8 i32 u32 i64 u64);

macro_rules! floats {
    ($($t:ty: $addends:expr, $from:expr, $place:expr;)*) => {$(
        impl Reference for $t {
            const ADDENDS: usize = $addends;
            fn from_small(value: i64) -> Self {
                ($from)(value as f64)
            }
            fn reduced(values: &[i64], op: RedOp) -> Self {
                let reduced = exact(values, op) as f64;
                ($from)(if op == RedOp::Avg { reduced / values.len() as f64 } else { reduced })
            }
            fn is_near(self, expected: Self, units: u64) -> bool {
                let (a, b): (i64, i64) = (($place)(self), ($place)(expected));
                a.abs_diff(b) <= units
            }
        }
    )*};
}
/// The bits of a float, its sign apart, as a number that grows as the float does.
fn place(is_negative: bool, magnitude: u64) -> i64 {
    if is_negative { -(magnitude as i64) } else { magnitude as i64 }
}

floats! {
    f32: usize::MAX, |v: f64| v as f32, |v: f32| place(v.is_sign_negative(), v.abs().to_bits().into());
    f64: usize::MAX, |v: f64| v, |v: f64| place(v.is_sign_negative(), v.abs().to_bits());
    f16: usize::MAX, f16::from_f64, |v: f16| place(v.is_sign_negative(), (v.to_bits() & 0x7fff).into());
    bf16: usize::MAX, bf16::from_f64, |v: bf16| place(v.is_sign_negative(), (v.to_bits() & 0x7fff).into());
    // whole numbers up to 16 and 8; each rank brings three at most
    F8E4m3: 5, |v: f64| F8E4m3::from_f32(v as f32), |v: F8E4m3| place(v.to_bits() > 0x7f, (v.to_bits() & 0x7f).into());
    F8E5m2: 2, |v: f64| F8E5m2::from_f32(v as f32), |v: F8E5m2| place(v.to_bits() > 0x7f, (v.to_bits() & 0x7f).into());
}

/// What rank `rank` brings at element `index` of call number `call`. Small, so that sums are exact in every type;
/// powers of two where they are multiplied; of one sign where they are averaged, since what cancels has no bound.
fn input(call: usize, rank: usize, index: usize, op: RedOp) -> i64 {
    let choice = Numbers((call * 1_000_003 + rank * 7_919 + index) as u64).next() % 7;
    match op {
        RedOp::Sum | RedOp::Max | RedOp::Min => choice as i64 - 3,
        RedOp::Prod => [1, 2, -1, 1, -2, 1, 1][choice as usize],
        RedOp::Avg => choice as i64,
    }
}

/// What rank `rank` of `ranks` brings, of a type that may not hold what all of them could bring.
fn input_of<T: Reference>(call: usize, ranks: usize, rank: usize, index: usize, op: RedOp) -> i64 {
    match op {
        RedOp::Sum | RedOp::Avg if (rank + index) % ranks >= T::ADDENDS => 0,
        _ => input(call, rank, index, op),
    }
}

const GUARD: usize = 5;

/// A range of `count` elements, `offset` elements into an allocation, with guards around it.
fn guarded<T: Reference>(rank: &Rank, count: usize, offset: usize) -> (DeviceBuffer<T>, DeviceBuffer<T>) {
    let whole = rank.device.alloc::<T>(offset + count + GUARD).unwrap();
    whole.copy_from_host(&vec![T::from_small(55); whole.len()]).unwrap();
    let inner = whole.slice(offset..offset + count).unwrap();
    (whole, inner)
}

fn check<T: Reference>(whole: &DeviceBuffer<T>, offset: usize, count: usize, expected: &[T], units: usize, what: &str) {
    let all = whole.to_vec().unwrap();
    for (index, (&got, &want)) in all[offset..offset + count].iter().zip(expected).enumerate() {
        assert!(got.is_near(want, units as u64), "{what}: element {index} is {got:?}, not {want:?}");
    }
    let guards = all[..offset].iter().chain(&all[offset + count..]);
    assert!(guards.clone().all(|&guard| guard == T::from_small(55)), "{what}: bytes around the buffer changed");
}

fn expected<T: Reference>(call: usize, ranks: usize, count: usize, op: RedOp) -> Vec<T> {
    let column = |index| (0..ranks).map(|rank| input_of::<T>(call, ranks, rank, index, op)).collect::<Vec<_>>();
    (0..count).map(|index| T::reduced(&column(index), op)).collect()
}

/// One call of one rank, queued, waited for and checked.
fn one_call<T: Reference>(rank: &Rank, call: usize, count: usize, op: RedOp, in_place: bool, offset: usize) {
    let (number, ranks) = (rank.communicator.rank(), rank.communicator.size());
    let what = format!("call {call}: {count} {}, {op}, {ranks} ranks, in place {in_place}", T::DATA_TYPE);
    let (whole_send, send) = guarded::<T>(rank, count, offset);
    let (whole_receive, receive) = guarded::<T>(rank, count, offset);
    let own: Vec<_> = (0..count).map(|index| T::from_small(input_of::<T>(call, ranks, number, index, op))).collect();
    send.copy_from_host(&own).unwrap();
    let target = if in_place { &send } else { &receive };
    rank.communicator.all_reduce(&send, target, op, &rank.stream).unwrap();
    rank.stream.synchronize().unwrap();
    let whole_target = if in_place { &whole_send } else { &whole_receive };
    let units = if op == RedOp::Avg { ranks.min(T::ADDENDS) } else { 0 };
    check(whole_target, offset, count, &expected(call, ranks, count, op), units, &what);
    if !in_place {
        check(&whole_send, offset, count, &own, 0, &format!("{what}, input"));
    }
}

fn one_call_of_type(
    data_type: DataType,
    rank: &Rank,
    call: usize,
    count: usize,
    op: RedOp,
    in_place: bool,
    offset: usize,
) {
    let run = match data_type {
        DataType::Int8 => one_call::<i8>,
        DataType::Uint8 => one_call::<u8>,
        DataType::Int32 => one_call::<i32>,
        DataType::Uint32 => one_call::<u32>,
        DataType::Int64 => one_call::<i64>,
        DataType::Uint64 => one_call::<u64>,
        DataType::Float16 => one_call::<f16>,
        DataType::Float32 => one_call::<f32>,
        DataType::Float64 => one_call::<f64>,
        DataType::Bfloat16 => one_call::<bf16>,
        DataType::Float8e4m3 => one_call::<F8E4m3>,
        DataType::Float8e5m2 => one_call::<F8E5m2>,
    };
    run(rank, call, count, op, in_place, offset);
}

/// Calls of random type, operation, size and placement, one after another on the same communicator, so that every
/// algorithm follows every other.
fn mixed_calls(ranks: usize, config: &Config, calls: usize, seed: u64, largest: usize) {
    on_threads(ranks, config, |rank| {
        let mut numbers = Numbers(seed);
        for call in 0..calls {
            let data_type = DataType::ALL[numbers.below(DataType::ALL.len())];
            let op = RedOp::ALL[numbers.below(RedOp::ALL.len())];
            // as many small sizes as large ones
            let bits = numbers.below(usize::BITS as usize - largest.leading_zeros() as usize + 1);
            let count = numbers.below(1 << bits);
            let (in_place, offset) = (numbers.below(2) == 0, numbers.below(4));
            one_call_of_type(data_type, &rank, call, count, op, in_place, offset);
        }
    });
}

#[test]
fn every_type_and_operation_on_every_road() {
    for (road, closed) in ROADS {
        on_threads(3, &config(closed), |rank| {
            let mut call = 0;
            for data_type in DataType::ALL {
                for op in RedOp::ALL {
                    for (count, in_place) in [(0, false), (1, true), (77, false), (3001, true), (70_001, false)] {
                        if road != "NET" || count < 70_000 || op == RedOp::Sum {
                            one_call_of_type(data_type, &rank, call, count, op, in_place, call % 3);
                        }
                        call += 1;
                    }
                }
            }
        });
    }
}

#[test]
fn algorithms_of_every_size_follow_each_other() {
    for (seed, (_, closed)) in ROADS.iter().enumerate() {
        for ranks in [1, 2, 5] {
            mixed_calls(ranks, &config(closed), 60, seed as u64 + 100 * ranks as u64, 200_000);
        }
    }
}

#[test]
fn every_algorithm_and_protocol_that_can_be_asked_for() {
    let choices = [
        ("Ring", "Simple"),
        ("Ring", "LL"),
        ("TwoShot", "Simple"),
        ("OneShot,Ring", "LL"),
        ("OneShot,TwoShot", "Simple"),
    ];
    for (algorithm, protocol) in choices {
        for closed in [&[][..], &["NCCL_P2P_DISABLE"]] {
            let config = config(closed).with("NCCL_ALGO", algorithm).unwrap().with("NCCL_PROTO", protocol).unwrap();
            mixed_calls(4, &config, 30, 7, 60_000);
        }
    }
}

#[test]
fn small_buffers_make_many_steps() {
    for (_, closed) in ROADS {
        let config = config(closed).with("NCCL_BUFFSIZE", "4096").unwrap();
        mixed_calls(3, &config, 25, 3, 100_000);
    }
}

#[test]
fn more_ranks_than_processors() {
    for (_, closed) in ROADS {
        mixed_calls(16, &config(closed), 12, 11, 20_000);
    }
    mixed_calls(64, &config(&[]), 4, 12, 2_000);
    // more than are connected each to each
    mixed_calls(70, &config(&[]), 3, 13, 2_000);
}

#[test]
fn one_thread_drives_all_ranks() {
    for (_, closed) in ROADS {
        let ranks = in_one_thread(4, &config(closed));
        for (call, count) in [0, 1, 100, 5_000, 300_000].into_iter().enumerate() {
            let buffers: Vec<_> = ranks.iter().map(|rank| rank.device.alloc::<i32>(count).unwrap()).collect();
            for (rank, buffer) in buffers.iter().enumerate() {
                let own: Vec<_> = (0..count).map(|index| input(call, rank, index, RedOp::Sum) as i32).collect();
                buffer.copy_from_host(&own).unwrap();
            }
            group(|| {
                ranks.iter().zip(&buffers).try_for_each(|(rank, buffer)| {
                    rank.communicator.all_reduce(buffer, buffer, RedOp::Sum, &rank.stream)
                })
            })
            .unwrap();
            ranks.iter().for_each(|rank| rank.stream.synchronize().unwrap());
            for buffer in &buffers {
                assert_eq!(buffer.to_vec().unwrap(), expected::<i32>(call, 4, count, RedOp::Sum));
            }
        }
    }
}

#[test]
fn all_ranks_get_the_same_bits() {
    // values whose sum depends on the order
    for closed in [&[][..], &["NCCL_P2P_DISABLE"], &["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]] {
        for count in [3, 1_000, 100_000] {
            let results = on_threads(5, &config(closed), |rank| {
                let buffer = rank.device.alloc::<f32>(count).unwrap();
                let mut numbers = Numbers(rank.communicator.rank() as u64);
                let own: Vec<_> = (0..count).map(|_| (numbers.next() as i64 as f64 / 1e15) as f32).collect();
                buffer.copy_from_host(&own).unwrap();
                let mut bits = Vec::new();
                for _ in 0..2 {
                    buffer.copy_from_host(&own).unwrap();
                    rank.communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &rank.stream).unwrap();
                    let result = buffer.to_vec().unwrap();
                    bits.push(result.into_iter().map(f32::to_bits).collect::<Vec<_>>());
                }
                bits
            });
            assert!(results.iter().all(|bits| bits == &results[0]), "ranks differ at {count}");
            assert_eq!(results[0][0], results[0][1], "runs differ at {count}");
        }
    }
}
