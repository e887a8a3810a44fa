//! Floats: numbers whose sums and products are exact in any order.

use ferronickel::{F8E4m3, F8E5m2};
use half::{bf16, f16};

use super::{AVERAGE_BOUND, Op, Recipe, Type, Value, below};

/// How far an average of eight bits may be off: not at all.
const EXACT: u64 = 0;

/// What a float type can hold.
#[derive(Clone, Copy)]
struct Format {
    /// Bits of the mantissa, the hidden one counted.
    precision: u32,
    /// The exponent of the largest normal numbers; the smallest is one minus this.
    max_exponent: i64,
}

const HALF: Format = Format { precision: 11, max_exponent: 15 };
const BFLOAT16: Format = Format { precision: 8, max_exponent: 127 };
const FLOAT: Format = Format { precision: 24, max_exponent: 127 };
/// Without the numbers from 256 to 448: among those with their exponent is a NaN.
const FLOAT8E4M3: Format = Format { precision: 4, max_exponent: 7 };
const FLOAT8E5M2: Format = Format { precision: 3, max_exponent: 15 };
const DOUBLE: Format = Format { precision: 53, max_exponent: 1023 };

impl Format {
    /// An input as a double, which holds it exactly.
    #[inline(always)]
    fn input(self, recipe: Recipe, index: u64, rank: u64) -> f64 {
        match recipe.op {
            Op::Sum | Op::Avg => self.addend(recipe, index, rank) as f64 * self.scale(recipe, index),
            Op::Prod => self.factor(recipe, index, rank),
            Op::Max | Op::Min => {
                let bits = recipe.draw(index, rank);
                let exponents = 2 * self.max_exponent as u64;
                let exponent = below(exponents, bits.rotate_left(8)) as i64 + 1 - self.max_exponent;
                self.number(bits, exponent)
            }
        }
    }

    /// An integer, so small that the magnitudes of all ranks together still fit the mantissa.
    #[inline(always)]
    fn addend(self, recipe: Recipe, index: u64, rank: u64) -> i64 {
        let room = 1_u64 << self.precision;
        let bits = recipe.draw(index, rank);
        if recipe.op == Op::Avg {
            return self.average_addend(recipe, index, rank, bits >> 62);
        }
        match room / recipe.ranks {
            0 => i64::from(has_turn(recipe, index, rank, room)) * if bits >> 63 == 0 { 1 } else { -1 },
            largest => below(2 * largest + 1, bits) as i64 - largest as i64,
        }
    }

    /// An addend of an average: divided by the number of ranks, it has few values, which are powers of two.
    #[inline(always)]
    fn average_addend(self, recipe: Recipe, index: u64, rank: u64, doubled: u64) -> i64 {
        let room = 1_u64 << self.precision;
        let odd = recipe.ranks >> recipe.ranks.trailing_zeros();
        // As many ranks as can have the odd part, doubled most, in a sum that fits; one at least, then with a one.
        let turns = room / (odd << 3);
        let magnitude = match turns {
            0 => u64::from(has_turn(recipe, index, rank, 1)),
            turns => u64::from(has_turn(recipe, index, rank, turns)) * (odd << doubled),
        };
        magnitude as i64 * if recipe.draw_shared(index) & 1 == 0 { 1 } else { -1 }
    }

    /// A factor: a random mantissa at one rank, a power of two at four others, and one at the rest; any sign.
    #[inline(always)]
    fn factor(self, recipe: Recipe, index: u64, rank: u64) -> f64 {
        let bits = recipe.draw(index, rank);
        let one = below(recipe.ranks, recipe.draw_shared(index));
        let after = (rank + recipe.ranks - one) % recipe.ranks;
        match after {
            0 => self.number(bits, 0),
            1..=4 => power_of_two(below(3, bits << 1) as i64 - 1) * sign(bits),
            _ => sign(bits),
        }
    }

    /// The power of two that all addends of an element share. Formats with few exponents have none to spare below one:
    /// averages are smaller yet.
    #[inline(always)]
    fn scale(self, recipe: Recipe, index: u64) -> f64 {
        let (lowest, powers) = if self.max_exponent < 8 { (0, 5) } else { (-4, 9) };
        power_of_two((recipe.draw_shared(index) >> 60) as i64 % powers + lowest)
    }

    /// A number with this exponent, and sign and mantissa from random bits.
    #[inline(always)]
    fn number(self, bits: u64, exponent: i64) -> f64 {
        let fraction = self.precision - 1;
        let mantissa = (bits & ((1 << fraction) - 1)) << (52 - fraction);
        f64::from_bits(power_of_two(exponent).to_bits() | mantissa) * sign(bits)
    }

    /// The result as a double; exact for all but an average.
    fn expected(self, recipe: Recipe, index: u64) -> f64 {
        let inputs = (0..recipe.ranks).map(|rank| self.input(recipe, index, rank));
        match recipe.op {
            Op::Sum | Op::Avg => {
                let sum: i64 = (0..recipe.ranks).map(|rank| self.addend(recipe, index, rank)).sum();
                let sum = sum as f64 * self.scale(recipe, index);
                if recipe.op == Op::Avg { sum / recipe.ranks as f64 } else { sum }
            }
            Op::Prod => inputs.product(),
            Op::Max => inputs.fold(f64::NEG_INFINITY, f64::max),
            Op::Min => inputs.fold(f64::INFINITY, f64::min),
        }
    }
}

/// Whether a rank is one of the so many that have something else than zero at this element.
#[inline(always)]
fn has_turn(recipe: Recipe, index: u64, rank: u64, turns: u64) -> bool {
    turns >= recipe.ranks || (rank + below(recipe.ranks, recipe.draw_shared(index))) % recipe.ranks < turns
}

/// The sign in the highest bit.
#[inline(always)]
fn sign(bits: u64) -> f64 {
    if bits >> 63 == 0 { 1.0 } else { -1.0 }
}

/// Two to this power, which must be one of a normal double.
#[inline(always)]
fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

macro_rules! float {
    ($($value:ty, $bits:ty, $kind:expr, $format:expr, $bound:expr, $poison:expr, $from:expr;)*) => {$(
        impl Value for $value {
            const TYPE: Type = $kind;
            const POISON: Self = $poison;

            #[inline(always)]
            fn input(recipe: Recipe, index: u64, rank: u64) -> Self {
                $from($format.input(recipe, index, rank))
            }

            fn expected(recipe: Recipe, index: u64) -> Self {
                $from($format.expected(recipe, index))
            }

            fn is_right(self, expected: Self, op: Op) -> bool {
                if self.to_bits() == expected.to_bits() {
                    return true;
                }
                let place = |value: Self| in_order(value.to_bits(), <$bits>::BITS);
                let distance = place(self).abs_diff(place(expected));
                op == Op::Avg && !self.is_nan() && distance <= u128::from($bound)
            }
        }
    )*};
}

float! {
    f16, u16, Type::Half, HALF, AVERAGE_BOUND, f16::NAN, |value: f64| f16::from_f32(value as f32);
    bf16, u16, Type::Bfloat16, BFLOAT16, AVERAGE_BOUND, bf16::NAN, |value: f64| bf16::from_f32(value as f32);
    F8E4m3, u8, Type::Float8e4m3, FLOAT8E4M3, EXACT, F8E4m3::from_bits(0x7f), |value: f64| F8E4m3::from_f32(value as f32);
    F8E5m2, u8, Type::Float8e5m2, FLOAT8E5M2, EXACT, F8E5m2::from_bits(0x7f), |value: f64| F8E5m2::from_f32(value as f32);
    f32, u32, Type::Float, FLOAT, AVERAGE_BOUND, f32::NAN, |value: f64| value as f32;
    f64, u64, Type::Double, DOUBLE, AVERAGE_BOUND, f64::NAN, |value: f64| value;
}

/// The bits of a float as an integer that grows as the float does, one for each unit in the last place.
fn in_order(bits: impl Into<u64>, width: u32) -> i128 {
    let bits = bits.into();
    let magnitude = i128::from(bits & ((1 << (width - 1)) - 1));
    if bits >> (width - 1) == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANKS: [u64; 6] = [1, 2, 3, 8, 61, 300];

    /// Inputs of one element, rotated and reversed: other orders of the same reduction.
    fn orders(inputs: &[f64]) -> Vec<Vec<f64>> {
        let mut orders = vec![inputs.to_vec()];
        for by in [1, inputs.len() / 2, inputs.len() - 1] {
            let mut rotated = inputs.to_vec();
            rotated.rotate_left(by % inputs.len());
            rotated.reverse();
            orders.push(rotated);
        }
        orders
    }

    /// Reduces by halves, as a tree does, rounding to the type after every step.
    fn tree<T: Value>(inputs: &[f64], round: fn(f64) -> f64, step: fn(f64, f64) -> f64) -> f64 {
        match inputs {
            [one] => *one,
            _ => {
                let (left, right) = inputs.split_at(inputs.len() / 2);
                round(step(tree::<T>(left, round, step), tree::<T>(right, round, step)))
            }
        }
    }

    fn to_e4m3(value: f64) -> f64 {
        f64::from(F8E4m3::from_f32(value as f32).to_f32())
    }

    fn to_e5m2(value: f64) -> f64 {
        f64::from(F8E5m2::from_f32(value as f32).to_f32())
    }

    fn any_order_is_exact<T: Value>(format: Format, round: fn(f64) -> f64, to: fn(f64) -> T) {
        for (op, step) in [
            (Op::Sum, (|a, b| a + b) as fn(f64, f64) -> f64),
            (Op::Prod, |a, b| a * b),
            (Op::Max, f64::max),
            (Op::Min, f64::min),
        ] {
            for (ranks, index) in RANKS.into_iter().flat_map(|ranks| (0..50).map(move |index| (ranks, index))) {
                let recipe = Recipe { seed: 11, op, ranks };
                let inputs: Vec<_> = (0..ranks).map(|rank| format.input(recipe, index, rank)).collect();
                assert!(
                    inputs.iter().all(|&input| round(input) == input),
                    "{op:?}: an input that the type cannot hold"
                );
                let expected = T::expected(recipe, index);
                for order in orders(&inputs) {
                    let in_turn = order.iter().copied().reduce(|a, b| round(step(a, b))).unwrap();
                    assert!(to(in_turn).is_right(expected, op), "{op:?} of {ranks}: {in_turn} for {expected:?}");
                    let by_halves = tree::<T>(&order, round, step);
                    assert!(to(by_halves).is_right(expected, op), "{op:?} of {ranks}: {by_halves} for {expected:?}");
                }
            }
        }
    }

    #[test]
    fn any_order_and_any_intermediate_precision_is_exact() {
        any_order_is_exact::<f16>(HALF, |value| f16::from_f64(value).to_f64(), f16::from_f64);
        any_order_is_exact::<f16>(HALF, |value| f64::from(value as f32), f16::from_f64);
        any_order_is_exact::<bf16>(BFLOAT16, |value| bf16::from_f64(value).to_f64(), bf16::from_f64);
        any_order_is_exact::<bf16>(BFLOAT16, |value| f64::from(value as f32), bf16::from_f64);
        any_order_is_exact::<F8E4m3>(FLOAT8E4M3, to_e4m3, |value| F8E4m3::from_f32(value as f32));
        any_order_is_exact::<F8E4m3>(
            FLOAT8E4M3,
            |value| f64::from(value as f32),
            |value| F8E4m3::from_f32(value as f32),
        );
        any_order_is_exact::<F8E5m2>(FLOAT8E5M2, to_e5m2, |value| F8E5m2::from_f32(value as f32));
        any_order_is_exact::<F8E5m2>(
            FLOAT8E5M2,
            |value| f64::from(value as f32),
            |value| F8E5m2::from_f32(value as f32),
        );
        any_order_is_exact::<f32>(FLOAT, |value| f64::from(value as f32), |value| value as f32);
        any_order_is_exact::<f64>(DOUBLE, |value| value, |value| value);
    }

    #[test]
    fn inputs_are_neither_denormal_nor_negative_zero() {
        for op in Op::ALL {
            for (index, rank) in (0..300).flat_map(|index| (0..3).map(move |rank| (index, rank))) {
                let input = f16::input(Recipe { seed: 5, op, ranks: 3 }, index, rank);
                assert!(input.is_normal() || input.to_bits() == 0, "{op:?}: {input:?}");
                let input = F8E4m3::input(Recipe { seed: 5, op, ranks: 3 }, index, rank);
                assert!((0x08..0x7f).contains(&(input.to_bits() & 0x7f)) || input.to_bits() == 0, "{op:?}: {input:?}");
                let input = F8E5m2::input(Recipe { seed: 5, op, ranks: 3 }, index, rank);
                assert!((0x04..0x7c).contains(&(input.to_bits() & 0x7f)) || input.to_bits() == 0, "{op:?}: {input:?}");
            }
        }
    }

    /// All ways to average that an implementation may take: scale or add first, in turn or by halves, rounding to the
    /// type or only at the end.
    fn any_way_to_average_is_right<T: Value>(format: Format, most: u64, round: fn(f64) -> f64, to: fn(f64) -> T) {
        for (ranks, index) in (1..=most).flat_map(|ranks| (0..4).map(move |index| (ranks, index))) {
            let recipe = Recipe { seed: 9, op: Op::Avg, ranks };
            let inputs: Vec<_> = (0..ranks).map(|rank| format.input(recipe, index, rank)).collect();
            let expected = T::expected(recipe, index);
            let inverse = round(1.0 / ranks as f64);
            let scaled: Vec<_> = inputs.iter().map(|&input| round(input * inverse)).collect();
            let add = |a: f64, b: f64| a + b;
            let mut ways = vec![
                round(inputs.iter().sum::<f64>() / ranks as f64),
                round(inputs.iter().map(|input| input / ranks as f64).sum()),
                round(scaled.iter().sum()),
            ];
            for order in orders(&scaled) {
                ways.push(order.iter().copied().reduce(|a, b| round(a + b)).unwrap());
                ways.push(tree::<T>(&order, round, add));
            }
            for order in orders(&inputs) {
                ways.push(round(order.iter().copied().reduce(|a, b| round(a + b)).unwrap() * inverse));
                ways.push(round(tree::<T>(&order, round, add) / ranks as f64));
            }
            for way in ways {
                assert!(to(way).is_right(expected, Op::Avg), "{ranks} ranks, element {index}: {way} for {expected:?}");
            }
        }
    }

    #[test]
    fn averages_are_within_the_bound() {
        any_way_to_average_is_right::<f16>(HALF, 300, |value| f16::from_f64(value).to_f64(), f16::from_f64);
        any_way_to_average_is_right::<bf16>(BFLOAT16, 300, |value| bf16::from_f64(value).to_f64(), bf16::from_f64);
        any_way_to_average_is_right::<f32>(FLOAT, 300, |value| f64::from(value as f32), |value| value as f32);
        // from 65 ranks on 1/n is denormal, so that scaling with it is not near
        any_way_to_average_is_right::<F8E4m3>(FLOAT8E4M3, 64, to_e4m3, |value| F8E4m3::from_f32(value as f32));
        any_way_to_average_is_right::<F8E5m2>(FLOAT8E5M2, 300, to_e5m2, |value| F8E5m2::from_f32(value as f32));
        any_way_to_average_is_right::<f64>(DOUBLE, 300, |value| value, |value| value);
    }

    #[test]
    fn the_bound_is_two_units_and_for_averages_only() {
        let (one, off) = (1.0_f32, |units: u32| f32::from_bits(1.0_f32.to_bits() + units));
        assert!(off(2).is_right(one, Op::Avg));
        assert!(!off(3).is_right(one, Op::Avg));
        assert!(!off(1).is_right(one, Op::Sum));
        assert!(!f32::NAN.is_right(one, Op::Avg));
        assert!(!f32::from_bits(f32::INFINITY.to_bits() + 1).is_right(f32::INFINITY, Op::Avg));
        assert!((-0.0_f32).is_right(0.0, Op::Avg));
        assert!(!F8E4m3::from_bits(0x39).is_right(F8E4m3::from_bits(0x38), Op::Avg));
        assert!(!F8E5m2::from_bits(0x7f).is_right(F8E5m2::from_bits(0x7e), Op::Avg));
        assert!(!(-0.0_f32).is_right(0.0, Op::Sum));
    }

    #[test]
    fn signs_and_magnitudes_vary() {
        let recipe = Recipe { seed: 1, op: Op::Sum, ranks: 4 };
        let values: Vec<f32> = (0..100).map(|index| f32::expected(recipe, index)).collect();
        assert!(values.iter().any(|&value| value < 0.0) && values.iter().any(|&value| value > 0.0));
        let recipe = Recipe { op: Op::Max, ..recipe };
        let inputs: Vec<f32> = (0..100).map(|index| f32::input(recipe, index, 0)).collect();
        assert!(inputs.iter().any(|value| value.abs() < 1e-9) && inputs.iter().any(|value| value.abs() > 1e9));
    }
}
