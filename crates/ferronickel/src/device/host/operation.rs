//! An operation on elements of some type, chosen when a call runs.
//!
//! The algorithms are compiled once for each size of element. What they do with elements they leave to functions of
//! this operation, which are compiled for each type and operation: loops over ranges for Simple, and words for LL.

use ferronickel_kernels::element::Element;
use ferronickel_kernels::reduce::{Avg, Max, Min, PreMulSum, Prod, Reduce, Sum};

use super::vector::halves::Widened;
use super::vector::loops;
use crate::device::work::{self, Scaling};
use crate::types::{DataType, RedOp, ReductionKind, with_element};

/// The operation, as the algorithms use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    functions: &'static Functions,
    parameters: Parameters,
}

/// What an operation needs to know besides its elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parameters {
    /// The number of ranks.
    pub ranks: u32,
    /// The bits of the scalar, where there is one.
    pub scalar: u64,
}

/// An operation on elements of one type. The pointers are to elements of that type, the words hold such.
#[derive(Debug)]
struct Functions {
    prepares: bool,
    finishes: bool,
    differs: bool,
    prepare_word: fn(Parameters, u64) -> u64,
    combine_words: fn(Parameters, u64, u64) -> u64,
    finish_word: fn(Parameters, u64) -> u64,
    prepare_range: unsafe fn(Parameters, *mut u8, *const u8, usize),
    combine_ranges: unsafe fn(Parameters, *mut u8, *const u8, *const u8, usize),
    finish_range: unsafe fn(Parameters, *mut u8, usize),
}

/// An operation that is made when it is needed, from the parameters.
trait Made<E: Element>: Widened<E> {
    const PREPARES: bool = false;
    const FINISHES: bool = false;
    const DIFFERS: bool = false;
    fn made(parameters: Parameters) -> Self;
}

macro_rules! made_of_nothing {
    ($($operation:ident)*) => {$(
        impl<E: Element> Made<E> for $operation {
            #[inline(always)]
            fn made(_parameters: Parameters) -> Self {
                $operation
            }
        }
    )*};
}

made_of_nothing! { Sum Prod Min Max }

impl<E: Element> Made<E> for Avg {
    const PREPARES: bool = E::IS_FLOAT;
    const FINISHES: bool = !E::IS_FLOAT;

    #[inline(always)]
    fn made(parameters: Parameters) -> Self {
        Avg { ranks: parameters.ranks }
    }
}

impl<E: Element> Made<E> for PreMulSum<E> {
    const PREPARES: bool = true;
    const DIFFERS: bool = true;

    #[inline(always)]
    fn made(parameters: Parameters) -> Self {
        PreMulSum { scalar: E::from_bits(parameters.scalar) }
    }
}

/// The functions of operation `R` on elements `E`.
struct Of<E, R>(std::marker::PhantomData<(E, R)>);

impl<E: Element, R: Made<E>> Of<E, R> {
    const FUNCTIONS: Functions = Functions {
        prepares: R::PREPARES,
        finishes: R::FINISHES,
        differs: R::DIFFERS,
        prepare_word: |parameters, word| R::made(parameters).prepare_word(word),
        combine_words: |parameters, a, b| R::made(parameters).combine_words(a, b),
        finish_word: |parameters, word| R::made(parameters).finish_word(word),
        prepare_range: |parameters, to, from, count| {
            // SAFETY: the caller's promise, which is this type's
            unsafe { loops::prepare::<E, R>(R::made(parameters), to.cast(), from.cast(), count) }
        },
        combine_ranges: |parameters, to, a, b, count| {
            // SAFETY: the caller's promise, which is this type's
            unsafe { loops::combine::<E, R>(R::made(parameters), to.cast(), a.cast(), b.cast(), count) }
        },
        finish_range: |parameters, range, count| {
            // SAFETY: the caller's promise, which is this type's
            unsafe { loops::finish::<E, R>(R::made(parameters), range.cast(), count) }
        },
    };
}

impl Operation {
    /// The reduction `op` of elements of `data_type` over `ranks` ranks.
    pub fn new(data_type: DataType, op: work::Reduction, ranks: u32) -> Operation {
        let scalar = match op.scaling {
            Scaling::None => 0,
            Scaling::By(bits) => bits,
            Scaling::ByElementAt(at) => with_element!(data_type, E => {
                // SAFETY: the launch holds the scalar's buffer, whose one element is of this type
                let scalar = unsafe { at.cast::<E>().read() };
                Element::to_bits(scalar)
            }),
        };
        Operation::with(data_type, op.kind, Parameters { ranks, scalar })
    }

    fn with(data_type: DataType, kind: ReductionKind, parameters: Parameters) -> Operation {
        let functions: &'static Functions = with_element!(data_type, E => match kind {
            ReductionKind::RedOp(RedOp::Sum) => &const { Of::<E, Sum>::FUNCTIONS },
            ReductionKind::RedOp(RedOp::Prod) => &const { Of::<E, Prod>::FUNCTIONS },
            ReductionKind::RedOp(RedOp::Max) => &const { Of::<E, Max>::FUNCTIONS },
            ReductionKind::RedOp(RedOp::Min) => &const { Of::<E, Min>::FUNCTIONS },
            ReductionKind::RedOp(RedOp::Avg) => &const { Of::<E, Avg>::FUNCTIONS },
            ReductionKind::PreMulSum => &const { Of::<E, PreMulSum<E>>::FUNCTIONS },
        });
        Operation { functions, parameters }
    }
}

/// `E` is any element of the operation's size: only its bytes matter.
impl<E: Element> Reduce<E> for Operation {
    #[inline(always)]
    fn prepare(self, element: E) -> E {
        E::from_bits((self.functions.prepare_word)(self.parameters, element.to_bits()))
    }

    #[inline(always)]
    fn combine(self, a: E, b: E) -> E {
        E::from_bits((self.functions.combine_words)(self.parameters, a.to_bits(), b.to_bits()))
    }

    #[inline(always)]
    fn finish(self, element: E) -> E {
        E::from_bits((self.functions.finish_word)(self.parameters, element.to_bits()))
    }

    #[inline(always)]
    fn prepares(self) -> bool {
        self.functions.prepares
    }

    #[inline(always)]
    fn finishes(self) -> bool {
        self.functions.finishes
    }

    #[inline(always)]
    fn differs_between_ranks(self) -> bool {
        self.functions.differs
    }

    #[inline(always)]
    fn prepare_word(self, word: u64) -> u64 {
        (self.functions.prepare_word)(self.parameters, word)
    }

    #[inline(always)]
    fn combine_words(self, a: u64, b: u64) -> u64 {
        (self.functions.combine_words)(self.parameters, a, b)
    }

    #[inline(always)]
    fn finish_word(self, word: u64) -> u64 {
        (self.functions.finish_word)(self.parameters, word)
    }

    #[inline(always)]
    unsafe fn prepare_range(self, to: *mut E, from: *const E, count: usize) {
        // SAFETY: the caller's promise
        unsafe { (self.functions.prepare_range)(self.parameters, to.cast(), from.cast(), count) }
    }

    #[inline(always)]
    unsafe fn combine_ranges(self, to: *mut E, a: *const E, b: *const E, count: usize) {
        // SAFETY: the caller's promise
        unsafe { (self.functions.combine_ranges)(self.parameters, to.cast(), a.cast(), b.cast(), count) }
    }

    #[inline(always)]
    unsafe fn finish_range(self, range: *mut E, count: usize) {
        // SAFETY: the caller's promise
        unsafe { (self.functions.finish_range)(self.parameters, range.cast(), count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_says_of_itself_what_the_kernels_one_says() {
        fn check<E: Element, R: Made<E>>(op: impl Into<ReductionKind>, data_type: DataType) {
            let (op, parameters) = (op.into(), Parameters { ranks: 3, scalar: 0x40 });
            let (ours, theirs) = (Operation::with(data_type, op, parameters), R::made(parameters));
            assert_eq!(Reduce::<E>::prepares(ours), theirs.prepares(), "{op} {data_type}");
            assert_eq!(Reduce::<E>::finishes(ours), theirs.finishes(), "{op} {data_type}");
            for (a, b) in
                [(0x0102_0304_0506_0708, 0x1122_3344_5566_7788), (0x4242_3f80_c0a0_40e0, 0x7f00_0101_8001_3c00)]
            {
                assert_eq!(Reduce::<E>::combine_words(ours, a, b), theirs.combine_words(a, b), "{op} {data_type}");
                assert_eq!(Reduce::<E>::prepare_word(ours, a), theirs.prepare_word(a), "{op} {data_type}");
                assert_eq!(Reduce::<E>::finish_word(ours, a), theirs.finish_word(a), "{op} {data_type}");
            }
        }
        for data_type in DataType::ALL {
            with_element!(data_type, E => {
                check::<E, Sum>(RedOp::Sum, data_type);
                check::<E, Prod>(RedOp::Prod, data_type);
                check::<E, Min>(RedOp::Min, data_type);
                check::<E, Max>(RedOp::Max, data_type);
                check::<E, Avg>(RedOp::Avg, data_type);
                check::<E, PreMulSum<E>>(ReductionKind::PreMulSum, data_type);
            });
        }
    }
}
