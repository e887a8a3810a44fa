//! Reduction operations: how the elements of several ranks become one.

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
    fn combine(a: E, b: E) -> E;

    /// Joins two narrow floats that a machine has widened by itself; what it narrows again is what
    /// [`combine`](Self::combine) would have given.
    fn combine_widened(a: f32, b: f32) -> f32;

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
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl<E: Element> Reduce<E> for $name {
            #[inline(always)]
            fn combine(a: E, b: E) -> E {
                a.$method(b)
            }

            #[inline(always)]
            fn combine_widened(a: f32, b: f32) -> f32 {
                Element::$method(a, b)
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
    fn combine(a: E, b: E) -> E {
        a.add(b)
    }

    #[inline(always)]
    fn combine_widened(a: f32, b: f32) -> f32 {
        a + b
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

/// Applies `f` to each element in an eight-byte word.
#[inline(always)]
pub fn map_word<E: Element>(word: u64, f: impl Fn(E) -> E) -> u64 {
    zip_words(word, 0, |a, _: E| f(a))
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
