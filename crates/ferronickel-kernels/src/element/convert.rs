//! Narrow floats by bit arithmetic, so that loops over them vectorise on any machine.
//!
//! Rounding is to nearest, ties to even, as IEEE 754 and NVIDIA's conversions do it.

/// Widens a bfloat16: the upper half of a single.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Narrows to bfloat16.
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    // Half of the unit kept, less one when the kept part is even, carries into it exactly when rounding up is due.
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    // The carry could turn a NaN into an infinity; a quiet NaN keeps its sign and the top of its payload.
    let quiet = (bits >> 16) as u16 | 0x40;
    if bits & 0x7fff_ffff > INFINITE { quiet } else { rounded }
}

/// Widens a half.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = (bits as u32 & 0x8000) << 16;
    let rest = bits as u32 & 0x7fff;
    // Exponent and mantissa in place of a single's give a value that is 2^112 too small; scaling is exact, and
    // turns a half's denormals into normal singles.
    let scaled = f32::from_bits(rest << 13) * f32::from_bits((127 + 112) << 23);
    let special = INFINITE | (rest << 13);
    let magnitude = if rest >= 0x7c00 { special } else { scaled.to_bits() };
    f32::from_bits(magnitude | sign)
}

/// Narrows to a half.
#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let sign = (value.to_bits() >> 16) & 0x8000;
    // Normal: round to ten bits as above, then rebase the exponent from 127 to 15.
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_add(0x0fff + odd).wrapping_sub(112 << 23) >> 13;
    // Denormal: adding 0.5 makes the adder round at 2^-24, the half's smallest step.
    let denormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < SMALLEST_NORMAL_HALF { denormal } else { normal };
    let finite = if finite > 0x7c00 || magnitude >= INFINITE { 0x7c00 } else { finite };
    let quiet = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    let rounded = if magnitude > INFINITE { quiet } else { finite };
    (rounded | sign) as u16
}

/// Widens an e4m3: no infinities, and only what has all bits set is a NaN.
#[inline(always)]
pub fn e4m3_to_f32(bits: u8) -> f32 {
    let sign = (bits as u32 & 0x80) << 24;
    let rest = bits as u32 & 0x7f;
    // Normal: rebase the exponent from 7 to 127.
    let normal = (rest << 20) + (120 << 23);
    // Denormal: the mantissa upon 2^-6, less 2^-6. Unlike a product with a single's denormal, it takes a processor no
    // longer than other numbers, and eight-bit floats are often denormal.
    let smallest_normal = 121 << 23;
    let denormal = f32::from_bits(smallest_normal | (rest << 20)) - f32::from_bits(smallest_normal);
    let number = if rest < 0x08 { denormal.to_bits() } else { normal };
    f32::from_bits(sign | if rest == 0x7f { 0x7fc0_0000 } else { number })
}

/// Widens an e5m2: the upper half of a half.
#[inline(always)]
pub fn e5m2_to_f32(bits: u8) -> f32 {
    let sign = (bits as u32 & 0x80) << 24;
    let rest = bits as u32 & 0x7f;
    // as above, with a bias of 15
    let normal = (rest << 21) + (112 << 23);
    let smallest_normal = 113 << 23;
    let denormal = f32::from_bits(smallest_normal | (rest << 21)) - f32::from_bits(smallest_normal);
    let number = if rest < 0x04 { denormal.to_bits() } else { normal };
    f32::from_bits(sign | if rest >= 0x7c { INFINITE | (rest << 21) } else { number })
}

/// Narrows to e4m3; what is too large becomes the largest finite number.
#[inline(always)]
pub fn f32_to_e4m3(value: f32) -> u8 {
    narrow_to_8::<3, 7>(value, 448.0, 0x7f)
}

/// Narrows to e5m2; what is too large, an infinity too, becomes the largest finite number.
#[inline(always)]
pub fn f32_to_e5m2(value: f32) -> u8 {
    // a quiet NaN keeps the top of its payload
    narrow_to_8::<2, 15>(value, 57344.0, 0x7e | (value.to_bits() >> 21) & 3)
}

/// Narrows to eight bits, of which `MANTISSA` are the mantissa; a NaN becomes `nan`, the sign is kept.
#[inline(always)]
fn narrow_to_8<const MANTISSA: u32, const BIAS: u32>(value: f32, largest: f32, nan: u32) -> u8 {
    let sign = (value.to_bits() >> 24) & 0x80;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let finite = if magnitude < largest.to_bits() { magnitude } else { largest.to_bits() };
    // Normal: round to the mantissa's bits as above, then rebase the exponent from 127.
    let dropped = 23 - MANTISSA;
    let odd = (finite >> dropped) & 1;
    let half = (1 << (dropped - 1)) - 1;
    let normal = finite.wrapping_add(half + odd).wrapping_sub((127 - BIAS) << 23) >> dropped;
    // Denormal: the adder rounds at the unit in the last place of `unit`, which is the smallest step of the type.
    let unit = (127 + 23 + 1 - BIAS - MANTISSA) << 23;
    let denormal = (f32::from_bits(finite) + f32::from_bits(unit)).to_bits().wrapping_sub(unit);
    let rounded = if finite < (127 + 1 - BIAS) << 23 { denormal } else { normal };
    (sign | if magnitude > INFINITE { nan } else { rounded }) as u8
}

/// The bits of a single's infinity; anything larger is a NaN.
const INFINITE: u32 = 0x7f80_0000;
/// The bits, as a single, of 2^-14.
const SMALLEST_NORMAL_HALF: u32 = (127 - 14) << 23;

#[cfg(test)]
mod tests {
    use super::*;

    /// Every half and every bfloat16 pattern widens as the `half` crate says.
    #[test]
    fn widening_agrees_with_half() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                ours == theirs && ours.is_sign_negative() == theirs.is_sign_negative()
                    || ours.is_nan() && theirs.is_nan(),
                "f16 {bits:#x}"
            );
            let (ours, theirs) = (bf16_to_f32(bits), half::bf16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "bf16 {bits:#x}");
        }
    }

    /// Singles all over the range, with the neighbourhoods of every rounding boundary, narrow as `half` says.
    #[test]
    fn narrowing_agrees_with_half() {
        let check = |bits: u32| {
            let value = f32::from_bits(bits);
            if value.is_nan() {
                assert!(half::f16::from_bits(f32_to_f16(value)).is_nan(), "f16 {bits:#x}");
                assert!(half::bf16::from_bits(f32_to_bf16(value)).is_nan(), "bf16 {bits:#x}");
            } else {
                assert_eq!(f32_to_f16(value), half::f16::from_f32(value).to_bits(), "f16 {bits:#x}");
                assert_eq!(f32_to_bf16(value), half::bf16::from_f32(value).to_bits(), "bf16 {bits:#x}");
            }
        };
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff] {
                check((high as u32) << 16 | low);
            }
        }
        // a walk that visits four million patterns evenly
        let mut bits = 0u32;
        for _ in 0..1 << 22 {
            bits = bits.wrapping_add(0x9e37_79b9);
            check(bits);
        }
    }

    #[test]
    fn a_narrowed_value_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            if !half::f16::from_bits(bits).is_nan() {
                assert_eq!(f32_to_f16(f16_to_f32(bits)), bits);
            }
            if !half::bf16::from_bits(bits).is_nan() {
                assert_eq!(f32_to_bf16(bf16_to_f32(bits)), bits);
            }
        }
    }
}
