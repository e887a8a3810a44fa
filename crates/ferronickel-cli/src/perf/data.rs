//! What is reduced: inputs whose result is known exactly, whatever the order of the reduction.
//!
//! An input is a pure function of a seed, the element's index and the rank, so the expected result of any element can
//! be computed anywhere without keeping a copy. Integers take any bits: their arithmetic wraps, and wrapping sums and
//! products do not depend on the order. Floats are chosen so that no step can round:
//!
//! | op | inputs | why it is exact |
//! | --- | --- | --- |
//! | sum | integers times one power of two for the element | the sum of all magnitudes fits the mantissa |
//! | prod | one rank has a random mantissa, at most four others a factor 1/2 or 2, the rest 1 | only exponents add up |
//! | max, min | any normal numbers | nothing is computed |
//! | avg | the odd part of the number of ranks, doubled up to three times, times a power of two | see below |
//!
//! So every comparison is of bits, with one exception: an average of floats of 16 bits and more may differ by
//! [`AVERAGE_BOUND`] units in the last place. Its exact result can be represented, and adding first is exact; but an
//! implementation may as well multiply every input with a rounded 1/n before it adds, which is off by one unit for some
//! n. All inputs have one sign, so that nothing cancels and enlarges that. An average of eight bits has so few ranks in
//! it that it is rounded once whichever way it is computed, and a unit is an eighth of it or a quarter: it must be the
//! nearest, but for the sign of a zero.
//!
//! Where a narrow type cannot count all ranks, only as many as it can have something else than zero in sums and
//! averages; which ones depends on the element.

mod float;
mod integer;

use std::fmt::Debug;

use ferronickel::Element;

use super::kind::{Op, Type};

/// How many units in the last place an average of floats of 16 bits and more may be off.
pub const AVERAGE_BOUND: u64 = 2;

/// What the inputs of one call are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Other seeds give other inputs.
    pub seed: u64,
    /// The operation they are made for.
    pub op: Op,
    /// How many ranks take part.
    pub ranks: u64,
}

impl Recipe {
    /// What `rank` puts in, for the elements from `first` on.
    pub fn inputs<T: Value>(self, rank: u64, first: u64, out: &mut [T]) {
        // One loop for each operation, so that none asks inside which one it is.
        match self.op {
            Op::Sum => fill(first, out, |index| T::input(self.with(Op::Sum), index, rank)),
            Op::Prod => fill(first, out, |index| T::input(self.with(Op::Prod), index, rank)),
            Op::Max | Op::Min => fill(first, out, |index| T::input(self.with(Op::Max), index, rank)),
            Op::Avg => fill(first, out, |index| T::input(self.with(Op::Avg), index, rank)),
        }
    }

    /// What every rank must get, for the elements from `first` on.
    pub fn expected<T: Value>(self, first: u64, out: &mut [T]) {
        fill(first, out, |index| T::expected(self, index));
    }

    const fn with(self, op: Op) -> Self {
        Self { op, ..self }
    }

    /// Sixty-four random bits for an element of a rank.
    #[inline(always)]
    fn draw(self, index: u64, rank: u64) -> u64 {
        let at = self.seed ^ index.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ rank.wrapping_mul(0xD1B5_4A32_D192_ED03);
        mix(at)
    }

    /// Sixty-four random bits that all ranks share for an element.
    #[inline(always)]
    fn draw_shared(self, index: u64) -> u64 {
        self.draw(index, u64::MAX)
    }
}

fn fill<T>(first: u64, out: &mut [T], value: impl Fn(u64) -> T) {
    for (index, slot) in (first..).zip(out) {
        *slot = value(index);
    }
}

/// Scatters the bits of a number; a bijection.
#[inline(always)]
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 32)).wrapping_mul(0xBEA2_25F9_EB34_556D);
    bits = (bits ^ (bits >> 29)).wrapping_mul(0xBEA2_25F9_EB34_556D);
    bits ^ (bits >> 32)
}

/// A number below `limit`, drawn from random bits.
#[inline(always)]
const fn below(limit: u64, bits: u64) -> u64 {
    ((bits as u128 * limit as u128) >> 64) as u64
}

/// An element type whose inputs and results are known.
pub trait Value: Element + PartialEq + Debug {
    /// Its name and size.
    const TYPE: Type;

    /// What no result is by chance; written where a result is expected, so that a result never written shows.
    const POISON: Self;

    /// What `rank` puts in at `index`.
    fn input(recipe: Recipe, index: u64, rank: u64) -> Self;

    /// What every rank must get at `index`.
    fn expected(recipe: Recipe, index: u64) -> Self;

    /// Whether `self` is right where `expected` was to come.
    fn is_right(self, expected: Self, op: Op) -> bool;
}

/// Runs a generic function for the element type that a [`Type`] names.
macro_rules! with_value_type {
    ($kind:expr, $value:ident => $body:expr) => {
        match $kind {
            Type::Int8 => {
                type $value = i8;
                $body
            }
            Type::Uint8 => {
                type $value = u8;
                $body
            }
            Type::Int32 => {
                type $value = i32;
                $body
            }
            Type::Uint32 => {
                type $value = u32;
                $body
            }
            Type::Int64 => {
                type $value = i64;
                $body
            }
            Type::Uint64 => {
                type $value = u64;
                $body
            }
            Type::Half => {
                type $value = half::f16;
                $body
            }
            Type::Float => {
                type $value = f32;
                $body
            }
            Type::Double => {
                type $value = f64;
                $body
            }
            Type::Bfloat16 => {
                type $value = half::bf16;
                $body
            }
            Type::Float8e4m3 => {
                type $value = ferronickel::F8E4m3;
                $body
            }
            Type::Float8e5m2 => {
                type $value = ferronickel::F8E5m2;
                $body
            }
        }
    };
}
pub(super) use with_value_type;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_that_a_name_means_is_run() {
        for kind in Type::ALL {
            let (ran, size) = with_value_type!(kind, T => (T::TYPE, size_of::<T>() as u64));
            assert_eq!((ran, size), (kind, kind.size_of()));
        }
    }

    #[test]
    fn pieces_join_up() {
        let recipe = Recipe { seed: 7, op: Op::Sum, ranks: 3 };
        let mut whole = [0_f32; 100];
        recipe.inputs(1, 0, &mut whole);
        let mut piece = [0_f32; 10];
        recipe.inputs(1, 40, &mut piece);
        assert_eq!(piece, whole[40..50]);
        recipe.expected(0, &mut whole);
        recipe.expected(40, &mut piece);
        assert_eq!(piece, whole[40..50]);
    }

    #[test]
    fn seeds_and_ranks_differ() {
        let recipe = Recipe { seed: 7, op: Op::Max, ranks: 3 };
        let inputs = |recipe: Recipe, rank| {
            let mut out = [0_i64; 50];
            recipe.inputs(rank, 0, &mut out);
            out
        };
        assert_ne!(inputs(recipe, 0), inputs(recipe, 1));
        assert_ne!(inputs(recipe, 0), inputs(Recipe { seed: 8, ..recipe }, 0));
    }

    #[test]
    fn below_stays_below() {
        for bits in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!(below(1, bits) == 0 && below(10, bits) < 10);
        }
        assert_eq!(below(10, u64::MAX), 9);
    }
}
