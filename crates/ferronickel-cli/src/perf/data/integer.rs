//! Integers: any bits, and arithmetic that wraps.

use super::{Op, Recipe, Type, Value};

macro_rules! integer {
    ($($value:ty => $kind:expr),*) => {$(
        impl Value for $value {
            const TYPE: Type = $kind;
            const POISON: Self = 0x5A;

            #[inline(always)]
            fn input(recipe: Recipe, index: u64, rank: u64) -> Self {
                let bits = recipe.draw(index, rank) as Self;
                match recipe.op {
                    // A product of many numbers ends up as zero unless all are odd.
                    Op::Prod => bits | 1,
                    _ => bits,
                }
            }

            fn expected(recipe: Recipe, index: u64) -> Self {
                let inputs = (0..recipe.ranks).map(|rank| Self::input(recipe, index, rank));
                match recipe.op {
                    Op::Sum => inputs.fold(0, Self::wrapping_add),
                    Op::Prod => inputs.fold(1, Self::wrapping_mul),
                    Op::Max => inputs.fold(Self::MIN, Self::max),
                    Op::Min => inputs.fold(Self::MAX, Self::min),
                    // The sum wraps in the type; the number of ranks need not fit it.
                    Op::Avg => (i128::from(inputs.fold(0, Self::wrapping_add)) / i128::from(recipe.ranks)) as Self,
                }
            }

            fn is_right(self, expected: Self, _: Op) -> bool {
                self == expected
            }
        }
    )*};
}

integer! {
    i8 => Type::Int8,
    u8 => Type::Uint8,
    i32 => Type::Int32,
    u32 => Type::Uint32,
    i64 => Type::Int64,
    u64 => Type::Uint64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_wraps_in_the_type_and_truncates_towards_zero() {
        for index in 0..200 {
            let recipe = Recipe { seed: 3, op: Op::Avg, ranks: 3 };
            let sum = (0..3).fold(0_i8, |sum, rank| sum.wrapping_add(i8::input(recipe, index, rank)));
            assert_eq!(i8::expected(recipe, index), sum / 3);
        }
        // More ranks than an i8 can count.
        let recipe = Recipe { seed: 3, op: Op::Avg, ranks: 200 };
        assert_eq!(i8::expected(recipe, 0), 0);
    }

    #[test]
    fn a_product_does_not_die() {
        let recipe = Recipe { seed: 3, op: Op::Prod, ranks: 64 };
        assert!((0..200).all(|index| u32::expected(recipe, index) % 2 == 1));
    }

    #[test]
    fn a_single_bit_off_is_wrong() {
        assert!(5_u64.is_right(5, Op::Sum));
        assert!(!4_u64.is_right(5, Op::Avg));
    }
}
