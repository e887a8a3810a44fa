//! What a reduction must give: exactly for integers, within what rounding may do for floats.

use ferronickel::{Element, F8E4m3, F8E5m2};

use crate::random::Random;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Sum,
    Prod,
    Min,
    Max,
    Avg,
    PreMulSum,
}

pub const OPS: [Op; 6] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg, Op::PreMulSum];

/// An element with its exact value.
pub trait Value: Element + std::fmt::Debug {
    /// For floats: the largest relative error of one rounding. None for integers.
    const ROUNDING: Option<f64>;
    /// The element nearest to a small number, or an integer's low bits.
    fn from_number(number: i64) -> Self;
    /// Its value.
    fn number(self) -> f64;
    /// Its value if it is an integer.
    fn integer(self) -> i128;
    /// The integer with these low bits.
    fn wrapped(integer: i128) -> Self;
    fn bits(self) -> u64;
}

macro_rules! integers {
    ($($t:ident)*) => {$(
        impl Value for $t {
            const ROUNDING: Option<f64> = None;
            fn from_number(number: i64) -> Self {
                number as $t
            }
            fn number(self) -> f64 {
                self as f64
            }
            fn integer(self) -> i128 {
                self as i128
            }
            fn wrapped(integer: i128) -> Self {
                integer as $t
            }
            fn bits(self) -> u64 {
                self as u64
            }
        }
    )*};
}

integers! { i8 u8 i32 u32 i64 u64 }

macro_rules! floats {
    ($($t:ty: $rounding:expr, $from:expr, $to:expr, $bits:expr;)*) => {$(
        impl Value for $t {
            const ROUNDING: Option<f64> = Some($rounding);
            fn from_number(number: i64) -> Self {
                // eighths, so that there is something to round
                $from(number as f64 / 8.0)
            }
            fn number(self) -> f64 {
                $to(self)
            }
            fn integer(self) -> i128 {
                unreachable!("it is a float")
            }
            fn wrapped(_integer: i128) -> Self {
                unreachable!("it is a float")
            }
            fn bits(self) -> u64 {
                $bits(self)
            }
        }
    )*};
}

floats! {
    half::f16: 1.0 / 2048.0, half::f16::from_f64, half::f16::to_f64, |e: half::f16| e.to_bits() as u64;
    half::bf16: 1.0 / 256.0, half::bf16::from_f64, half::bf16::to_f64, |e: half::bf16| e.to_bits() as u64;
    f32: 1.0 / 16_777_216.0, |n: f64| n as f32, |e: f32| e as f64, |e: f32| e.to_bits() as u64;
    f64: f64::EPSILON / 2.0, |n: f64| n, |e: f64| e, f64::to_bits;
    F8E4m3: 1.0 / 16.0, |n: f64| F8E4m3::from_f32(n as f32), |e: F8E4m3| e.to_f32() as f64, |e: F8E4m3| e.to_bits() as u64;
    F8E5m2: 1.0 / 8.0, |n: f64| F8E5m2::from_f32(n as f32), |e: F8E5m2| e.to_f32() as f64, |e: F8E5m2| e.to_bits() as u64;
}

/// An element for `op`: integers are anything, floats small enough that nothing overflows.
pub fn sample<T: Value>(random: &mut Random, op: Op) -> T {
    let any = random.next() as i64;
    match (T::ROUNDING, op) {
        (None, _) => T::from_number(any),
        // 1/2, 1 or 2 with a sign
        (Some(_), Op::Prod) => T::from_number([4, 8, 16, -8, -4, -16][(any & 3) as usize + (any as u64 % 3) as usize]),
        (Some(_), _) => T::from_number(any.rem_euclid(81) - 40),
    }
}

/// Whether `got` may be what `op` makes of the elements of all ranks, with their scalars.
pub fn is_right<T: Value>(op: Op, elements: &[T], scalars: &[T], got: T) -> bool {
    let ranks = elements.len();
    match T::ROUNDING {
        None => {
            let numbers = elements.iter().map(|e| e.integer());
            let sum = |numbers: &mut dyn Iterator<Item = i128>| numbers.fold(0, i128::wrapping_add);
            let want = match op {
                Op::Sum => T::wrapped(sum(&mut { numbers })),
                Op::Prod => T::wrapped(numbers.fold(1, i128::wrapping_mul)),
                Op::Min => T::wrapped(numbers.min().unwrap()),
                Op::Max => T::wrapped(numbers.max().unwrap()),
                // the sum wraps, then it is divided
                Op::Avg => T::wrapped(T::wrapped(sum(&mut { numbers })).integer() / ranks as i128),
                Op::PreMulSum => {
                    let products = numbers.zip(scalars).map(|(a, b)| a.wrapping_mul(b.integer()));
                    T::wrapped(sum(&mut { products }))
                }
            };
            got.bits() == want.bits()
        }
        Some(rounding) => {
            let numbers = elements.iter().map(|e| e.number());
            let (want, size) = match op {
                Op::Sum => (numbers.clone().sum(), numbers.map(f64::abs).sum::<f64>()),
                Op::Prod => (numbers.clone().product::<f64>(), numbers.product::<f64>().abs()),
                Op::Min => (numbers.fold(f64::INFINITY, f64::min), 0.0),
                Op::Max => (numbers.fold(f64::NEG_INFINITY, f64::max), 0.0),
                Op::Avg => {
                    (numbers.clone().sum::<f64>() / ranks as f64, numbers.map(f64::abs).sum::<f64>() / ranks as f64)
                }
                Op::PreMulSum => {
                    let products = numbers.zip(scalars).map(|(a, b)| a * b.number());
                    (products.clone().sum(), products.map(f64::abs).sum::<f64>())
                }
            };
            // each element takes part in at most as many roundings as there are ranks, and is scaled once
            let error: f64 = size * rounding * (ranks as f64 + 1.0);
            (got.number() - want).abs() <= error + f64::from(f32::MIN_POSITIVE)
        }
    }
}
