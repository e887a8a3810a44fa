extern crate std;

use std::vec::Vec;

use super::*;
use crate::element::Element;
use crate::element::convert::{f16_to_f32, f32_to_f16};

/// A type's format, and all its finite magnitudes in order: the independent reference of rounding.
struct Format {
    mantissa: i32,
    bias: i32,
    finite: Vec<f64>,
}

impl Format {
    fn new(mantissa: i32, bias: i32, largest: u8) -> Self {
        let mut format = Format { mantissa, bias, finite: Vec::new() };
        format.finite = (0..=largest).map(|bits| format.value(bits)).collect();
        format
    }

    /// The value of a finite pattern by the definition: a sign, a biased exponent, a fraction.
    fn value(&self, bits: u8) -> f64 {
        let exponent = i32::from(bits & 0x7f) >> self.mantissa;
        let fraction = f64::from(i32::from(bits) & ((1 << self.mantissa) - 1)) / f64::from(1 << self.mantissa);
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(1 - self.bias),
            _ => (1.0 + fraction) * 2f64.powi(exponent - self.bias),
        };
        if bits < 0x80 { magnitude } else { -magnitude }
    }

    /// The pattern of the value nearest to `value`, ties to even, saturating.
    fn nearest(&self, value: f64) -> u8 {
        let magnitude = value.abs();
        let above = self.finite.partition_point(|&candidate| candidate < magnitude);
        let best = if above == 0 {
            0
        } else if above == self.finite.len() {
            above - 1
        } else {
            let (down, up) = (magnitude - self.finite[above - 1], self.finite[above] - magnitude);
            // patterns are in the order of their magnitudes, so the last bit is the mantissa's
            if up < down || up == down && above % 2 == 0 { above } else { above - 1 }
        };
        best as u8 | if value.is_sign_negative() { 0x80 } else { 0 }
    }
}

trait Float8: Element + fmt::Debug {
    fn format() -> Format;
    fn widen(self) -> f32;
    fn narrow(value: f32) -> Self;

    fn of(bits: u8) -> Self {
        Element::from_bits(u64::from(bits))
    }

    fn bits(self) -> u8 {
        Element::to_bits(self) as u8
    }
}

macro_rules! formats {
    ($($t:ident: $mantissa:literal, $bias:literal, $largest:literal;)*) => {$(
        impl Float8 for $t {
            fn format() -> Format {
                Format::new($mantissa, $bias, $largest)
            }
            fn widen(self) -> f32 {
                self.to_f32()
            }
            fn narrow(value: f32) -> Self {
                Self::from_f32(value)
            }
        }
    )*};
}

formats! {
    F8E4m3: 3, 7, 0x7e;
    F8E5m2: 2, 15, 0x7b;
}

fn every_pattern_widens_and_comes_back<T: Float8>() {
    let format = T::format();
    for bits in 0..=u8::MAX {
        let single = T::of(bits).widen();
        if usize::from(bits & 0x7f) < format.finite.len() {
            assert_eq!(f64::from(single).to_bits(), format.value(bits).to_bits(), "{bits:#x}");
            assert_eq!(T::narrow(single).bits(), bits);
        } else if single.is_infinite() {
            assert_eq!(single.is_sign_negative(), bits >= 0x80);
            assert_eq!(T::narrow(single).bits(), (bits & 0x80) | (format.finite.len() - 1) as u8, "it saturates");
        } else {
            assert!(single.is_nan() && T::narrow(single).widen().is_nan(), "{bits:#x}");
        }
    }
}

#[test]
fn every_pattern_is_what_the_format_says() {
    every_pattern_widens_and_comes_back::<F8E4m3>();
    every_pattern_widens_and_comes_back::<F8E5m2>();
}

#[test]
fn landmarks() {
    let values = |bits: [u8; 6]| bits.map(|bits| F8E4m3(bits).to_f32());
    assert_eq!(values([0x01, 0x07, 0x08, 0x38, 0x7e, 0xfe]), [0.001953125, 0.013671875, 0.015625, 1.0, 448.0, -448.0]);
    assert!(F8E4m3(0x7f).to_f32().is_nan() && F8E4m3(0xff).to_f32().is_nan());
    let values = |bits: [u8; 6]| bits.map(|bits| F8E5m2(bits).to_f32());
    let infinite = f32::INFINITY;
    assert_eq!(
        values([0x01, 0x04, 0x3c, 0x7b, 0x7c, 0xfc]),
        [1.0 / 65536.0, 1.0 / 16384.0, 1.0, 57344.0, infinite, -infinite]
    );
    assert!((0x7d..=0x7f).all(|bits| F8E5m2(bits).to_f32().is_nan() && F8E5m2(bits | 0x80).to_f32().is_nan()));
}

/// Singles with every sign and exponent and all that matters of the mantissa, on both sides of every tie.
fn narrowing_is_to_the_nearest<T: Float8>() {
    let format = T::format();
    let check = |bits: u32| {
        let value = f32::from_bits(bits);
        let narrow = T::narrow(value);
        if value.is_nan() {
            assert!(narrow.widen().is_nan() && (narrow.bits() >= 0x80) == value.is_sign_negative(), "{bits:#x}");
        } else {
            assert_eq!(narrow.bits(), format.nearest(f64::from(value)), "{bits:#x}");
        }
    };
    for high in 0..=u16::MAX {
        for low in [0, 1, 0x7fff, 0x8000, 0xffff] {
            check(u32::from(high) << 16 | low);
        }
    }
    let mut bits = 0u32;
    for _ in 0..1 << 20 {
        bits = bits.wrapping_add(0x9e37_79b9);
        check(bits);
    }
}

#[test]
fn narrowing_gives_the_nearest_of_all_values() {
    narrowing_is_to_the_nearest::<F8E4m3>();
    narrowing_is_to_the_nearest::<F8E5m2>();
}

fn same<T: Float8>(got: T, want: T) -> bool {
    got.bits() == want.bits() || got.widen().is_nan() && want.widen().is_nan()
}

/// NCCL's way: widened to half, combined there, narrowed.
fn by_way_of_half<T: Float8>(a: T, b: T, combine: fn(f32, f32) -> f32) -> T {
    let half = |value: f32| f16_to_f32(f32_to_f16(value));
    T::narrow(half(combine(half(a.widen()), half(b.widen()))))
}

fn every_pair<T: Float8>() {
    let format = T::format();
    for (a, b) in (0..=u8::MAX).flat_map(|a| (0..=u8::MAX).map(move |b| (T::of(a), T::of(b)))) {
        let (wide_a, wide_b) = (f64::from(a.widen()), f64::from(b.widen()));
        for (got, exact) in [(a.add(b), wide_a + wide_b), (a.mul(b), wide_a * wide_b)] {
            if exact.is_nan() {
                assert!(got.widen().is_nan(), "{a:?} and {b:?} give {got:?}");
            } else {
                assert_eq!(got.bits(), format.nearest(exact), "{a:?} and {b:?} give {got:?}, not {exact}");
            }
        }
        assert!(same(a.add(b), by_way_of_half(a, b, |a, b| a + b)), "{a:?} + {b:?}");
        assert!(same(a.mul(b), by_way_of_half(a, b, |a, b| a * b)), "{a:?} * {b:?}");
        // zeros of both signs are equal, and either may be the smaller
        if wide_a != wide_b {
            assert!(same(a.min(b), by_way_of_half(a, b, f32::min)), "min of {a:?}, {b:?}");
            assert!(same(a.max(b), by_way_of_half(a, b, f32::max)), "max of {a:?}, {b:?}");
        }
    }
}

#[test]
fn every_pair_gives_the_nearest_result_and_what_nccl_gives() {
    every_pair::<F8E4m3>();
    every_pair::<F8E5m2>();
}

#[test]
fn what_is_too_large_saturates() {
    assert_eq!(F8E4m3(0x7e).add(F8E4m3(0x7e)).to_f32(), 448.0);
    assert_eq!(F8E4m3(0xfe).mul(F8E4m3(0x7e)).to_f32(), -448.0);
    assert_eq!(F8E5m2(0x7b).add(F8E5m2(0x7b)).to_f32(), 57344.0);
    let infinite = F8E5m2(0xfc);
    assert_eq!(infinite.min(infinite).to_f32(), -57344.0);
    assert_eq!(F8E4m3::from_f32(f32::INFINITY).to_f32(), 448.0);
}

#[test]
fn comparison_and_text_are_those_of_the_values() {
    assert_eq!(F8E4m3(0x80), F8E4m3(0));
    assert_ne!(F8E4m3(0x7f), F8E4m3(0x7f));
    assert!(F8E5m2(0xfc) < F8E5m2(0x01));
    assert_eq!(std::format!("{} {:?}", F8E4m3(0xb8), F8E5m2(0x3c)), "-1 1.0");
}
