//! Elements: the values a collective moves and reduces.

mod convert;
mod float8;

pub use float8::{F8E4m3, F8E5m2};

/// A value a collective moves: plain bytes, a power of two of them, at most eight.
///
/// # Safety
/// Every bit pattern is valid, and there is no padding.
pub unsafe trait Element: Copy + 'static {
    /// Whether the type is a floating-point type.
    const IS_FLOAT: bool;
    /// The sum; integers wrap.
    fn add(self, other: Self) -> Self;
    /// The product; integers wrap.
    fn mul(self, other: Self) -> Self;
    /// The smaller, or the first of equals; a NaN gives way to a number.
    fn min(self, other: Self) -> Self;
    /// The larger, or the first of equals; a NaN gives way to a number.
    fn max(self, other: Self) -> Self;
    /// A float times 1/`ranks`; an integer unchanged.
    fn scale_by_inverse(self, ranks: u32) -> Self;
    /// An integer divided by `ranks`, truncating; a float unchanged.
    fn divide(self, ranks: u32) -> Self;
    /// The element whose bytes are the low bytes of `bits`.
    fn from_bits(bits: u64) -> Self;
    /// The element's bytes, in the low bits.
    fn to_bits(self) -> u64;
}

macro_rules! integers {
    ($($t:ident as $unsigned:ident, $wide:ident;)*) => {$(
        // SAFETY: an integer has no padding and no invalid pattern
        unsafe impl Element for $t {
            const IS_FLOAT: bool = false;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if other > self { other } else { self }
            }
            #[inline(always)]
            fn scale_by_inverse(self, _ranks: u32) -> Self {
                self
            }
            #[inline(always)]
            fn divide(self, ranks: u32) -> Self {
                // in a type that holds both the element and the number of ranks; no rank, no division
                let ranks = if ranks == 0 { 1 } else { ranks };
                ((self as $wide) / (ranks as $wide)) as $t
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                bits as $t
            }
            #[inline(always)]
            fn to_bits(self) -> u64 {
                self as $unsigned as u64
            }
        }
    )*};
}

integers! {
    i8 as u8, i64;
    u8 as u8, u64;
    i32 as u32, i64;
    u32 as u32, u64;
    i64 as u64, i64;
    u64 as u64, u64;
}

macro_rules! floats {
    ($($t:ident $bits:ident;)*) => {$(
        // SAFETY: a float has no padding and no invalid pattern
        unsafe impl Element for $t {
            const IS_FLOAT: bool = true;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if other < self || self.is_nan() { other } else { self }
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if other > self || self.is_nan() { other } else { self }
            }
            #[inline(always)]
            fn scale_by_inverse(self, ranks: u32) -> Self {
                self * (1.0 / ranks as $t)
            }
            #[inline(always)]
            fn divide(self, _ranks: u32) -> Self {
                self
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                <$t>::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn to_bits(self) -> u64 {
                <$t>::to_bits(self) as u64
            }
        }
    )*};
}

floats! {
    f32 u32;
    f64 u64;
}

macro_rules! narrow_floats {
    ($($(#[$doc:meta])* $t:ident: $widen:path, $narrow:path;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(transparent)]
        pub struct $t(
            /// The bit pattern.
            pub u16,
        );

        impl $t {
            /// The same value in single precision.
            #[inline(always)]
            pub fn to_f32(self) -> f32 {
                $widen(self.0)
            }

            /// The nearest value, ties to even; too large becomes infinite, NaN stays NaN.
            #[inline(always)]
            pub fn from_f32(value: f32) -> Self {
                Self($narrow(value))
            }
        }
    )*};
}

narrow_floats! {
    /// IEEE half precision: 5 bits of exponent, 10 of mantissa.
    F16: convert::f16_to_f32, convert::f32_to_f16;
    /// The upper half of a single: 8 bits of exponent, 7 of mantissa.
    Bf16: convert::bf16_to_f32, convert::f32_to_bf16;
}

macro_rules! narrow_elements {
    ($($t:ident $bits:ident;)*) => {$(
        // SAFETY: an unsigned integer in all but name
        unsafe impl Element for $t {
            const IS_FLOAT: bool = true;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                Self::from_f32(self.to_f32() + other.to_f32())
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                Self::from_f32(self.to_f32() * other.to_f32())
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Self::from_f32(Element::min(self.to_f32(), other.to_f32()))
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Self::from_f32(Element::max(self.to_f32(), other.to_f32()))
            }
            #[inline(always)]
            fn scale_by_inverse(self, ranks: u32) -> Self {
                Self::from_f32(self.to_f32() * (1.0 / ranks as f32))
            }
            #[inline(always)]
            fn divide(self, _ranks: u32) -> Self {
                self
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                Self(bits as $bits)
            }
            #[inline(always)]
            fn to_bits(self) -> u64 {
                self.0 as u64
            }
        }
    )*};
}

narrow_elements! {
    F16 u16;
    Bf16 u16;
    F8E4m3 u8;
    F8E5m2 u8;
}
