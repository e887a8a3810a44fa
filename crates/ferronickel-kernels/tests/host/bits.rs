//! What happens to the bits: values that are easy to get wrong, and patterns that must pass unchanged.

use crate::buffer::Buffer;
use crate::erased::{Made, call};
use crate::machine::{CacheLine, Halves, LineKind};
use crate::rank::{ALGORITHMS, Algorithm, Collective, Data, Rank, Shape};
use crate::threads::run;
use crate::value::Random;
use ferronickel_kernels::block::{Block, Stop, narrow_flag};
use ferronickel_kernels::element::{Bf16, Element, F8E4m3, F8E5m2, F16};
use ferronickel_kernels::protocol::{PassOn, Step, Wire};
use ferronickel_kernels::reduce::{Avg, Max, Min, PreMulSum, Prod, Sum};

fn shape(ranks: usize) -> Shape {
    Shape { ranks, capacity: 4096, slot_bytes: 256, channels: 1 }
}

/// What every rank gets from an all-reduce of `inputs`, one row for each rank, as bits; all ranks get the same.
fn reduced<E: Element + Sync, R: Made<E>>(
    how: Algorithm,
    op: impl Fn(usize) -> R + Sync,
    inputs: &[Vec<E>],
) -> Vec<u64> {
    let count = inputs[0].len();
    let buffers = || inputs.iter().map(|_| Buffer::new(count * size_of::<E>(), 0)).collect::<Vec<_>>();
    let (send, receive) = (buffers(), buffers());
    for (buffer, input) in send.iter().zip(inputs) {
        input.iter().enumerate().for_each(|(i, &element)| buffer.set(i, element));
    }
    run::<CacheLine, _>(shape(inputs.len()), 1, false, |mut rank| {
        let at = rank.rank;
        let data = Data { send: send[at].start().cast::<E>().cast_const(), receive: receive[at].start().cast(), count };
        // SAFETY: the buffers hold `count` elements and outlive all ranks
        unsafe { call(&mut rank, Collective::AllReduce, how, op(at), data, 7).unwrap() };
    });
    let row = |buffer: &Buffer| (0..count).map(|i| buffer.get::<E>(i).to_bits()).collect::<Vec<_>>();
    let first = row(&receive[0]);
    receive.iter().for_each(|buffer| assert_eq!(row(buffer), first, "{how:?}: ranks disagree"));
    first
}

/// By every algorithm that takes so many ranks.
fn by_all<E: Element + Sync, R: Made<E> + Sync>(op: R, inputs: &[Vec<E>], check: impl Fn(Algorithm, &[u64])) {
    by_all_of(|_| op, inputs, check);
}

/// The same, with an operation for each rank.
fn by_all_of<E: Element + Sync, R: Made<E>>(
    op: impl Fn(usize) -> R + Sync,
    inputs: &[Vec<E>],
    check: impl Fn(Algorithm, &[u64]),
) {
    for how in ALGORITHMS {
        if inputs.len() > 1 || !matches!(how, Algorithm::RingLl | Algorithm::RingSimple) {
            check(how, &reduced(how, &op, inputs));
        }
    }
}

macro_rules! float_tests {
    ($($name:ident: $t:ty, $nan:expr, $one:expr, $is_nan:expr;)*) => {$(
        mod $name {
            use super::*;

            fn bits(pattern: u64) -> $t {
                <$t as Element>::from_bits(pattern)
            }

            const SIGN: u64 = 1 << (8 * size_of::<$t>() - 1);

            #[test]
            fn a_nan_gives_way_to_a_number() {
                let inputs = [vec![bits($nan), bits($one), bits($nan)], vec![bits($one), bits($nan), bits($nan)]];
                let check = |how: Algorithm, got: &[u64]| {
                    assert_eq!(got[..2], [$one, $one], "{how:?}");
                    assert!($is_nan(bits(got[2])), "{how:?}");
                };
                by_all(Min, &inputs, check);
                by_all(Max, &inputs, check);
            }

            #[test]
            fn a_nan_survives_a_sum() {
                let inputs = [vec![bits($nan), bits($one)], vec![bits($one), bits($nan)]];
                let check = |how: Algorithm, got: &[u64]| {
                    assert!(got.iter().all(|&got| $is_nan(bits(got))), "{how:?}");
                };
                by_all(Sum, &inputs, check);
                by_all(Avg { ranks: 2 }, &inputs, check);
            }

            #[test]
            fn zero_keeps_its_sign() {
                let inputs = [vec![bits(SIGN), bits(0)], vec![bits(SIGN), bits(SIGN)]];
                by_all(Sum, &inputs, |how, got| assert_eq!(got, [SIGN, 0], "{how:?}"));
                let inputs = [vec![bits(SIGN)], vec![bits($one)]];
                by_all(Prod, &inputs, |how, got| assert_eq!(got, [SIGN], "{how:?}"));
            }

            /// One rank has nothing to reduce with: every pattern passes.
            #[test]
            fn one_rank_gets_its_own_bits() {
                let patterns = [$nan, $nan | SIGN, $nan + 1, SIGN, 0, $one, 1, SIGN | 1];
                let inputs = [patterns.map(bits).to_vec()];
                by_all(Sum, &inputs, |how, got| assert_eq!(got, patterns, "{how:?}"));
                by_all(Max, &inputs, |how, got| assert_eq!(got, patterns, "{how:?}"));
            }

            /// Whatever the bits, all ranks get the same; `reduced` checks it.
            #[test]
            fn ranks_agree() {
                let mut random = Random(1);
                let inputs = [(); 3].map(|()| (0..256).map(|_| bits(random.next())).collect::<Vec<$t>>());
                by_all(Sum, &inputs, |_, _| ());
                by_all(Min, &inputs, |_, _| ());
                by_all(Avg { ranks: 3 }, &inputs, |_, _| ());
            }

            /// Each product is rounded by itself, to the type; two of them have but one sum.
            #[test]
            fn products_are_rounded_before_they_are_summed() {
                let mut random = Random(3);
                // of one sign, about one: nothing overflows, and sums of unrounded products often round otherwise
                let one: u64 = $one;
                let mut about_one = || bits(one | random.next() % (1 << one.trailing_zeros()));
                let scalars = [about_one(), about_one()];
                let inputs = [(); 2].map(|()| (0..200).map(|_| about_one()).collect::<Vec<$t>>());
                let sums = inputs[0].iter().zip(&inputs[1]).map(|(a, b)| a.mul(scalars[0]).add(b.mul(scalars[1])));
                let sums: Vec<_> = sums.map(Element::to_bits).collect();
                let op = |rank: usize| PreMulSum { scalar: scalars[rank] };
                by_all_of(op, &inputs, |how, got| assert_eq!(got, sums, "{how:?}"));
            }

            /// A link that only passes elements on passes every pattern.
            #[test]
            fn links_pass_every_pattern() {
                let mut random = Random(2);
                let elements: Vec<$t> = (0..16).map(|_| bits(random.next())).chain([bits($nan + 1)]).collect();
                pass::<$t, CacheLine>(&elements);
                pass::<$t, Halves>(&elements);
            }
        }
    )*};
}

float_tests! {
    float16: F16, 0x7e01, 0x3c00, |e: F16| e.to_f32().is_nan();
    bfloat16: Bf16, 0x7fc1, 0x3f80, |e: Bf16| e.to_f32().is_nan();
    float8e4m3: F8E4m3, 0x7f, 0x38, |e: F8E4m3| e.to_f32().is_nan();
    float8e5m2: F8E5m2, 0x7e, 0x3c, |e: F8E5m2| e.to_f32().is_nan();
    float32: f32, 0x7fc0_0001, 0x3f80_0000, f32::is_nan;
    float64: f64, 0x7ff8_0000_0000_0001, 0x3ff0_0000_0000_0000, f64::is_nan;
}

/// Sends `elements` from rank 0 to rank 1, over a link of each protocol, and on to rank 2.
fn pass<E: Element + Sync, K: LineKind>(elements: &[E]) {
    let count = elements.len();
    let buffers: Vec<_> = (0..3).map(|_| Buffer::new(size_of_val(elements), 0)).collect();
    elements.iter().enumerate().for_each(|(i, &element)| buffers[0].set(i, element));
    for ll in [false, true] {
        run::<K, _>(shape(3), 1, false, |rank| {
            let own = buffers[rank.rank].start().cast::<E>();
            if ll {
                pass_step(&rank, rank.ll_wire(7), ll, own, count);
            } else {
                pass_step(&rank, rank.simple_wire(7), ll, own, count);
            }
        });
        for buffer in &buffers {
            for (i, element) in elements.iter().enumerate() {
                assert_eq!(buffer.get::<E>(i).to_bits(), element.to_bits());
            }
        }
    }
}

fn pass_step<B: Block, E: Element>(rank: &Rank<B>, wire: impl Wire<B>, ll: bool, own: *mut E, count: usize) {
    let (from, to) = rank.tables(ll);
    let step = Step::of(PassOn, count);
    // SAFETY: the buffer holds `count` elements, which fit a slot
    unsafe {
        match rank.rank {
            0 => wire.step(step.with_own(own.cast_const()).send(to.wrapping_add(1))),
            1 => wire.step(step.receive(from).keep(own).send(to.wrapping_add(2))),
            _ => wire.step(step.receive(from.wrapping_add(1)).keep(own)),
        }
        .unwrap();
    }
}

#[test]
fn integers_wrap() {
    by_all(Sum, &[vec![127i8, -128], vec![1, -1]], |how, got| assert_eq!(got, [0x80, 0x7f], "{how:?}"));
    by_all(Sum, &[vec![200u8], vec![100]], |how, got| assert_eq!(got, [44], "{how:?}"));
    by_all(Prod, &[vec![i32::MIN], vec![-1]], |how, got| assert_eq!(got, [0x8000_0000], "{how:?}"));
    by_all(Sum, &[vec![u64::MAX], vec![2]], |how, got| assert_eq!(got, [1], "{how:?}"));
}

/// Divided after they were added, and after the sum has wrapped.
#[test]
fn integer_means_truncate() {
    let minus_one = -1i32 as u32 as u64;
    by_all(Avg { ranks: 2 }, &[vec![-3i32, 3], vec![0, 0]], |how, got| assert_eq!(got, [minus_one, 1], "{how:?}"));
    by_all(Avg { ranks: 2 }, &[vec![200u8], vec![100]], |how, got| assert_eq!(got, [22], "{how:?}"));
    by_all(Avg { ranks: 3 }, &[vec![1u64], vec![1], vec![0]], |how, got| assert_eq!(got, [0], "{how:?}"));
}

/// Floats are scaled before they are added: the mean of two large numbers is no infinity.
#[test]
fn float_means_do_not_overflow() {
    let largest = f32::MAX.to_bits() as u64;
    by_all(Avg { ranks: 2 }, &[vec![f32::MAX], vec![f32::MAX]], |how, got| assert_eq!(got, [largest], "{how:?}"));
}

/// A rank that never comes is waited for until the abort, by whoever needs it.
#[test]
fn an_abort_ends_every_wait() {
    for how in ALGORITHMS {
        let buffers: Vec<_> = (0..3).map(|_| Buffer::new(64, 0)).collect();
        let ends = run::<Halves, _>(shape(3), 1, true, |mut rank| {
            let own = buffers[rank.rank].start().cast::<u32>();
            // SAFETY: the buffers hold 16 elements and outlive all ranks
            unsafe { call(&mut rank, Collective::AllReduce, how, Sum, Data { send: own, receive: own, count: 16 }, 7) }
        });
        assert_eq!(ends, [Err(Stop::Aborted); 2], "{how:?}");
    }
}

/// Memory that holds zeros holds no line, whatever the flag; and neighbours differ where 32 bits wrap.
#[test]
fn no_flag_is_zero() {
    for flag in [5, u32::MAX as u64 - 1, u32::MAX as u64, 1 << 32, (1 << 32) + 1, 2 * u32::MAX as u64, u64::MAX] {
        assert_ne!(narrow_flag(flag), 0);
        for before in 1..5 {
            assert_ne!(narrow_flag(flag), narrow_flag(flag - before));
        }
    }
}
