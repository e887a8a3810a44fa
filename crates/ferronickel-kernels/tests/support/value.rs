//! Elements with whole-number values, and what a reduction of them must give.

use ferronickel_kernels::element::{Bf16, Element, F8E4m3, F8E5m2, F16};

/// The operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The mean.
    Avg,
    /// The sum, each rank's elements times a scalar of its own.
    PreMulSum,
}

/// All of them.
pub const OPS: [Op; 6] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg, Op::PreMulSum];

/// An element that stands for a whole number: integers wrap, floats hold small ones exactly.
pub trait Value: Element + Send + Sync + std::fmt::Debug {
    /// Floats hold every whole number up to this.
    const ROOM: i128;
    /// The element nearest to `number`, or what is left of it after wrapping.
    fn from_number(number: i128) -> Self;
    /// The number it stands for.
    fn to_number(self) -> i128;
}

macro_rules! numbers {
    ($($t:ident $room:expr;)*) => {$(
        impl Value for $t {
            const ROOM: i128 = $room;
            fn from_number(number: i128) -> Self {
                number as $t
            }
            fn to_number(self) -> i128 {
                self as i128
            }
        }
    )*};
}

numbers! {
    i8 i128::MAX;
    u8 i128::MAX;
    i32 i128::MAX;
    u32 i128::MAX;
    i64 i128::MAX;
    u64 i128::MAX;
    f32 1 << 24;
    f64 1 << 53;
}

impl Value for F16 {
    const ROOM: i128 = 2048;
    fn from_number(number: i128) -> Self {
        F16(half::f16::from_f64(number as f64).to_bits())
    }
    fn to_number(self) -> i128 {
        half::f16::from_bits(self.0).to_f64() as i128
    }
}

impl Value for Bf16 {
    const ROOM: i128 = 256;
    fn from_number(number: i128) -> Self {
        Bf16(half::bf16::from_f64(number as f64).to_bits())
    }
    fn to_number(self) -> i128 {
        half::bf16::from_bits(self.0).to_f64() as i128
    }
}

macro_rules! float8 {
    ($($t:ident $room:expr;)*) => {$(
        impl Value for $t {
            const ROOM: i128 = $room;
            fn from_number(number: i128) -> Self {
                $t::from_f32(number as f32)
            }
            fn to_number(self) -> i128 {
                self.to_f32() as i128
            }
        }
    )*};
}

float8! {
    F8E4m3 16;
    F8E5m2 8;
}

/// A sequence of numbers that looks random and is the same for the same seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number less than `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// An element for `op` over `ranks` ranks. Integers are anything; floats are such that no step rounds.
pub fn sample<E: Value>(random: &mut Random, op: Op, ranks: usize) -> E {
    let any = random.next() as i64 as i128;
    // the largest magnitude that all ranks together still have room for
    let share = (E::ROOM / ranks as i128).min(20);
    let sign = if any < 0 { -1 } else { 1 };
    E::from_number(match op {
        _ if !E::IS_FLOAT => any,
        Op::Prod => sign * (1 + (any & 1)),
        // the mean has few bits, and so have the elements
        Op::Avg => sign * random.pick(&[0, 1, largest_power(share)]) * ranks as i128,
        // no zeros, which would become negative
        Op::PreMulSum => sign * (1 + any.rem_euclid((share / 2).max(1))),
        Op::Sum | Op::Min | Op::Max => any.rem_euclid(2 * share + 1) - share,
    })
}

/// The largest power of two up to `most`.
fn largest_power(most: i128) -> i128 {
    1 << most.ilog2()
}

/// What one of `ranks` ranks multiplies its elements with, where the operation says so.
pub fn sample_scalar<E: Value>(random: &mut Random, ranks: usize) -> E {
    let any = random.next() as i64 as i128;
    let most = if E::ROOM / ranks as i128 >= 2 { 2 } else { 1 };
    let sign = if any < 0 { -1 } else { 1 };
    E::from_number(if E::IS_FLOAT { sign * (1 + any.rem_euclid(most)) } else { any })
}

/// What `op` makes of one element of each rank, and the ranks' scalars.
pub fn expected<E: Value>(op: Op, elements: &[E], scalars: &[E]) -> E {
    let numbers = elements.iter().map(|e| e.to_number());
    let sum = numbers.clone().sum::<i128>();
    let ranks = elements.len() as i128;
    let products = numbers.clone().zip(scalars).map(|(number, scalar)| number.wrapping_mul(scalar.to_number()));
    E::from_number(match op {
        Op::Sum => sum,
        Op::Prod => numbers.fold(1, i128::wrapping_mul),
        Op::Min => numbers.min().unwrap(),
        Op::Max => numbers.max().unwrap(),
        // an integer's sum wraps before it is divided
        Op::Avg if E::IS_FLOAT => sum / ranks,
        Op::Avg => E::from_number(sum).to_number() / ranks,
        Op::PreMulSum => products.fold(0, i128::wrapping_add),
    })
}
