//! Halves, widened and narrowed by the processor, which is several times as fast as bit arithmetic and gives the same
//! bits.

use std::any::TypeId;

use ferronickel_kernels::element::{Element, F16};
use ferronickel_kernels::reduce::{Avg, Max, Min, PreMulSum, Prod, Reduce, Sum};

/// An operation that can also be done on elements that have been widened to singles.
pub trait Widened<E: Element>: Reduce<E> {
    /// What it makes of two widened elements: narrowed again, the same as of the elements themselves.
    fn combine_widened(a: f32, b: f32) -> f32;
}

macro_rules! widened {
    ($($operation:ty: $method:ident;)*) => {$(
        impl<E: Element> Widened<E> for $operation {
            #[inline(always)]
            fn combine_widened(a: f32, b: f32) -> f32 {
                Element::$method(a, b)
            }
        }
    )*};
}

impl<E: Element> Widened<E> for PreMulSum<E> {
    #[inline(always)]
    fn combine_widened(a: f32, b: f32) -> f32 {
        a + b
    }
}

widened! {
    Sum: add;
    Prod: mul;
    Min: min;
    Max: max;
    Avg: add;
}

/// Combines as many elements as the processor takes at a time, if they are halves and it can convert them. Returns how
/// many that was; the rest is the caller's to do.
///
/// # Safety
/// The ranges are valid; `a` may be `sum`, they do not overlap otherwise.
#[inline(always)]
pub unsafe fn combine<E: Element, R: Widened<E>>(sum: *mut E, a: *const E, b: *const E, count: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if TypeId::of::<E>() == TypeId::of::<F16>() && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
    {
        // SAFETY: the processor has the features, the elements are halves, the rest is the caller's promise
        return unsafe { combine_f16c::<E, R>(sum.cast(), a.cast(), b.cast(), count) };
    }
    let _ = (sum, a, b, count);
    0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn combine_f16c<E: Element, R: Widened<E>>(sum: *mut u16, a: *const u16, b: *const u16, count: usize) -> usize {
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
        _mm256_loadu_ps, _mm256_storeu_ps,
    };
    const LANES: usize = 8;
    // A piece of singles in the first-level cache, so that the arithmetic between the conversions is a loop of its own,
    // which the compiler turns into vectors.
    const PIECE: usize = 32 * LANES;
    let (mut left, mut right) = ([0f32; PIECE], [0f32; PIECE]);
    let whole = count / LANES * LANES;
    let mut at = 0;
    while at < whole {
        let piece = PIECE.min(whole - at);
        // SAFETY: the piece lies within the ranges, and each vector within the piece
        unsafe {
            for lane in (0..piece).step_by(LANES) {
                let widen = |from: *const u16| _mm256_cvtph_ps(_mm_loadu_si128(from.add(at + lane).cast()));
                _mm256_storeu_ps(left.as_mut_ptr().add(lane), widen(a));
                _mm256_storeu_ps(right.as_mut_ptr().add(lane), widen(b));
            }
        }
        for (left, right) in left[..piece].iter_mut().zip(&right[..piece]) {
            *left = R::combine_widened(*left, *right);
        }
        // SAFETY: as above
        unsafe {
            for lane in (0..piece).step_by(LANES) {
                let sums = _mm256_loadu_ps(left.as_ptr().add(lane));
                let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(sums);
                _mm_storeu_si128(sum.add(at + lane).cast(), narrow);
            }
        }
        at += piece;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agrees<R: Widened<F16>>(op: R) {
        // every pattern with partners all over the range, infinities, NaNs and denormals among them
        let a: Vec<_> = (0..=u16::MAX).map(F16).collect();
        for step in [1u16, 0x3c01, 0x7bff, 0x8003, 0xfc00, 0x7e01] {
            let b: Vec<_> = (0..=u16::MAX).map(|bits| F16(bits.wrapping_mul(31).wrapping_add(step))).collect();
            let mut sum = a.clone();
            // SAFETY: three ranges of one length
            let done = unsafe { combine::<F16, R>(sum.as_mut_ptr(), a.as_ptr(), b.as_ptr(), a.len()) };
            for i in 0..done {
                let expected = op.combine(a[i], b[i]);
                // two NaNs: which one's bits survive is the processor's choice
                let nan = |half: F16| half.0 & 0x7fff > 0x7c00;
                assert!(sum[i] == expected || nan(sum[i]) && nan(expected), "{:?} with {:?}: {:?}", a[i], b[i], sum[i]);
            }
        }
    }

    #[test]
    fn the_processor_gives_the_bits_that_arithmetic_gives() {
        agrees(Sum);
        agrees(Prod);
        agrees(Max);
        agrees(Min);
    }
}
