//! Reduction operations: how the elements of several ranks become one.
//!
//! What an operation does with a value that is hard to handle depends on the class of the type:
//!
//! | | integers | `f32`, `f64` | [`F16`], [`Bf16`] | [`F8E4m3`], [`F8E5m2`] |
//! | --- | --- | --- | --- | --- |
//! | computed in | the type | the type | `f32`, rounded after every step | `f32`, rounded after every step |
//! | rounded | | to nearest, ties to even | to nearest, ties to even | to nearest, ties to even |
//! | too large | wraps | infinite | infinite | the largest finite number |
//! | an infinity | | as IEEE 754 says | as IEEE 754 says | the largest finite number |
//! | NaN and a number: [`Min`], [`Max`] | | the number | the number | the number |
//! | NaN and a number: the others | | NaN | NaN | NaN |
//! | +0 and -0: [`Min`], [`Max`] | | the first | the first | the first |
//!
//! [`Avg`] of integers is the wrapped sum, divided and truncated towards zero. [`Avg`] of floats multiplies each
//! element with 1/n, rounds the product to the type, and then sums; 1/n is an `f64` for `f64`, an `f32` for all others.
//! [`PreMulSum`] multiplies each element with its rank's scalar, rounds the product to the type, and then sums.
//!
//! NCCL does the same, with one exception: its 1/n of a narrow float is rounded to the type, too, before it multiplies;
//! that is never nearer to 1/n. The order of the steps depends on the algorithm and the number of ranks, but each
//! element is reduced in one order for all ranks, which therefore get the same bits.
//!
//! [`F16`]: crate::element::F16
//! [`Bf16`]: crate::element::Bf16
//! [`F8E4m3`]: crate::element::F8E4m3
//! [`F8E5m2`]: crate::element::F8E5m2

use crate::element::Element;

/// An operation on elements, as NCCL defines it.
///
/// Every rank's own elements pass [`prepare`](Self::prepare) once, are joined by [`combine`](Self::combine), and the
/// joined element passes [`finish`](Self::finish) once.
pub trait Reduce<E: Element>: Copy + 'static {
    /// What happens to a rank's own element before it is combined.
    #[inline(always)]
    fn prepare(self, element: E) -> E {
        element
    }

    /// Joins two elements.
    fn combine(self, a: E, b: E) -> E;

    /// What happens to the element when all ranks' are in it.
    #[inline(always)]
    fn finish(self, element: E) -> E {
        element
    }

    /// Whether [`prepare`](Self::prepare) changes anything, so that an untouched copy will not do.
    #[inline(always)]
    fn prepares(self) -> bool {
        false
    }

    /// Whether [`finish`](Self::finish) changes anything.
    #[inline(always)]
    fn finishes(self) -> bool {
        false
    }

    /// Whether only the rank itself can prepare its elements, because other ranks' operations differ from its own.
    #[inline(always)]
    fn differs_between_ranks(self) -> bool {
        false
    }

    /// [`prepare`](Self::prepare) for each element in an eight-byte word.
    #[inline(always)]
    fn prepare_word(self, word: u64) -> u64 {
        zip_words(word, 0, |a, _: E| self.prepare(a))
    }

    /// [`combine`](Self::combine) for each pair of elements in two eight-byte words.
    #[inline(always)]
    fn combine_words(self, a: u64, b: u64) -> u64 {
        zip_words(a, b, |a, b| self.combine(a, b))
    }

    /// [`finish`](Self::finish) for each element in an eight-byte word.
    #[inline(always)]
    fn finish_word(self, word: u64) -> u64 {
        zip_words(word, 0, |a, _: E| self.finish(a))
    }

    /// `to[i]` becomes [`prepare`](Self::prepare) of `from[i]`. For machines with ordinary memory.
    ///
    /// # Safety
    /// The ranges are valid for `count` elements and do not overlap.
    #[inline(always)]
    unsafe fn prepare_range(self, to: *mut E, from: *const E, count: usize) {
        for i in 0..count {
            // SAFETY: `i` is less than the count
            unsafe { to.add(i).write(self.prepare(from.add(i).read())) };
        }
    }

    /// `to[i]` becomes [`combine`](Self::combine) of `a[i]` and `b[i]`. For machines with ordinary memory.
    ///
    /// # Safety
    /// The ranges are valid for `count` elements; `to` may be `a`, they do not overlap otherwise.
    #[inline(always)]
    unsafe fn combine_ranges(self, to: *mut E, a: *const E, b: *const E, count: usize) {
        for i in 0..count {
            // SAFETY: `i` is less than the count
            unsafe { to.add(i).write(self.combine(a.add(i).read(), b.add(i).read())) };
        }
    }

    /// `range[i]` becomes [`finish`](Self::finish) of itself. For machines with ordinary memory.
    ///
    /// # Safety
    /// The range is valid for `count` elements.
    #[inline(always)]
    unsafe fn finish_range(self, range: *mut E, count: usize) {
        for i in 0..count {
            // SAFETY: `i` is less than the count
            unsafe { range.add(i).write(self.finish(range.add(i).read())) };
        }
    }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl<E: Element> Reduce<E> for $name {
            #[inline(always)]
            fn combine(self, a: E, b: E) -> E {
                a.$method(b)
            }
        }
    )*};
}

reductions! {
    /// The sum; integers wrap.
    Sum add;
    /// The product; integers wrap.
    Prod mul;
    /// The smallest; a NaN gives way to a number.
    Min min;
    /// The largest; a NaN gives way to a number.
    Max max;
}

/// The mean: floats are scaled before they are added, so that a sum of many cannot overflow; integers are added,
/// with wrap-around, and the sum is divided, truncating.
#[derive(Clone, Copy, Debug)]
pub struct Avg {
    /// The number of ranks.
    pub ranks: u32,
}

impl<E: Element> Reduce<E> for Avg {
    #[inline(always)]
    fn prepare(self, element: E) -> E {
        element.scale_by_inverse(self.ranks)
    }

    #[inline(always)]
    fn combine(self, a: E, b: E) -> E {
        a.add(b)
    }

    #[inline(always)]
    fn finish(self, element: E) -> E {
        element.divide(self.ranks)
    }

    #[inline(always)]
    fn prepares(self) -> bool {
        E::IS_FLOAT
    }

    #[inline(always)]
    fn finishes(self) -> bool {
        !E::IS_FLOAT
    }
}

/// The sum of every rank's elements times a factor of its own; integers wrap. The product is rounded to the type before
/// it is summed. What NCCL calls an operation of `ncclRedOpCreatePreMulSum`.
///
/// Only a rank itself can prepare its elements: an algorithm in which one rank prepares those of another, as the
/// two-shot algorithm in the callers' buffers does, cannot do it.
#[derive(Clone, Copy, Debug)]
pub struct PreMulSum<E> {
    /// This rank's factor; ranks may have different ones.
    pub scalar: E,
}

impl<E: Element> Reduce<E> for PreMulSum<E> {
    #[inline(always)]
    fn prepare(self, element: E) -> E {
        element.mul(self.scalar)
    }

    #[inline(always)]
    fn combine(self, a: E, b: E) -> E {
        a.add(b)
    }

    #[inline(always)]
    fn prepares(self) -> bool {
        true
    }

    #[inline(always)]
    fn differs_between_ranks(self) -> bool {
        true
    }
}

/// Applies `f` to each pair of elements in two eight-byte words, in registers: shifts, no memory.
#[inline(always)]
pub fn zip_words<E: Element>(a: u64, b: u64, f: impl Fn(E, E) -> E) -> u64 {
    let bits = 8 * size_of::<E>();
    let mut result = 0;
    let mut shift = 0;
    while shift < 64 {
        result |= f(E::from_bits(a >> shift), E::from_bits(b >> shift)).to_bits() << shift;
        shift += bits;
    }
    result
}
