//! Floats of eight bits.
//!
//! They follow NCCL, that is, NVIDIA's `__nv_fp8_e4m3` and `__nv_fp8_e5m2`: two elements are widened, combined, and the
//! result is narrowed to the nearest value, ties to even, with saturation (`__NV_SATFINITE`): **what is too large, an
//! infinity included, becomes the largest finite number of its sign**. So no operation ever gives an infinity, not even
//! a minimum of infinities; what is only moved keeps its bits. A NaN stays a NaN, of no particular payload.
//!
//! NCCL combines them in half precision, these in single precision. For a sum, product, minimum or maximum of two
//! elements the result is the same for every pair of patterns, and the tests try every pair.

use core::cmp::Ordering;
use core::fmt;

use super::convert;

macro_rules! float8 {
    ($($(#[$doc:meta])* $t:ident: $widen:path, $narrow:path;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $t(pub(super) u8);

        impl $t {
            /// The value with this bit pattern.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// The bit pattern.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// Whether this is a NaN.
            pub fn is_nan(self) -> bool {
                self.to_f32().is_nan()
            }

            /// The same value in single precision.
            #[inline(always)]
            pub fn to_f32(self) -> f32 {
                $widen(self.0)
            }

            /// The nearest value, ties to even; what is too large becomes the largest finite value, NaN stays NaN.
            #[inline(always)]
            pub fn from_f32(value: f32) -> Self {
                Self($narrow(value))
            }
        }

        impl PartialEq for $t {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $t {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl From<$t> for f32 {
            fn from(value: $t) -> f32 {
                value.to_f32()
            }
        }

        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    )*};
}

float8! {
    /// A float of eight bits, 4 of exponent and 3 of mantissa: the "fn" variant of the OCP standard. It has no
    /// infinities and two NaNs (`0x7f`, `0xff`); the largest number is 448, the smallest 2^-9. Arithmetic saturates:
    /// what is too large becomes ±448.
    F8E4m3: convert::e4m3_to_f32, convert::f32_to_e4m3;
    /// A float of eight bits, 5 of exponent and 2 of mantissa: the upper half of an IEEE half, with its infinities and
    /// NaNs. The largest number is 57344, the smallest 2^-16. Arithmetic saturates: what is too large, an infinity
    /// too, becomes ±57344.
    F8E5m2: convert::e5m2_to_f32, convert::f32_to_e5m2;
}

#[cfg(test)]
mod tests;
