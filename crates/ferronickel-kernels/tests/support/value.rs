//! Elements with whole-number values, and what a reduction of them must give.

use ferronickel_kernels::element::{Bf16, Element, F16};

/// The five operations.
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
}

/// All of them.
pub const OPS: [Op; 5] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg];

/// An element that stands for a whole number: integers wrap, floats hold small ones exactly.
pub trait Value: Element + Send + Sync + std::fmt::Debug {
    /// The element nearest to `number`, or what is left of it after wrapping.
    fn from_number(number: i128) -> Self;
    /// The number it stands for.
    fn to_number(self) -> i128;
}

macro_rules! numbers {
    ($($t:ident)*) => {$(
        impl Value for $t {
            fn from_number(number: i128) -> Self {
                number as $t
            }
            fn to_number(self) -> i128 {
                self as i128
            }
        }
    )*};
}

numbers! { i8 u8 i32 u32 i64 u64 f32 f64 }

impl Value for F16 {
    fn from_number(number: i128) -> Self {
        F16(half::f16::from_f64(number as f64).to_bits())
    }
    fn to_number(self) -> i128 {
        half::f16::from_bits(self.0).to_f64() as i128
    }
}

impl Value for Bf16 {
    fn from_number(number: i128) -> Self {
        Bf16(half::bf16::from_f64(number as f64).to_bits())
    }
    fn to_number(self) -> i128 {
        half::bf16::from_bits(self.0).to_f64() as i128
    }
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
    E::from_number(match op {
        _ if !E::IS_FLOAT => any,
        Op::Prod => [-2, -1, 1, 2][(any & 3) as usize],
        Op::Avg => (any.rem_euclid(17) - 8) * ranks as i128,
        _ => any.rem_euclid(41) - 20,
    })
}

/// What `op` makes of one element of each rank.
pub fn expected<E: Value>(op: Op, elements: &[E]) -> E {
    let numbers = elements.iter().map(|e| e.to_number());
    let sum = numbers.clone().sum::<i128>();
    let ranks = elements.len() as i128;
    E::from_number(match op {
        Op::Sum => sum,
        Op::Prod => numbers.fold(1, i128::wrapping_mul),
        Op::Min => numbers.min().unwrap(),
        Op::Max => numbers.max().unwrap(),
        // an integer's sum wraps before it is divided
        Op::Avg if E::IS_FLOAT => sum / ranks,
        Op::Avg => E::from_number(sum).to_number() / ranks,
    })
}
