//! An operation on elements of any type of one size, so that algorithms are compiled for sizes and not for types.

use crate::rank::{Algorithm, Collective, Data, Rank};
use ferronickel_kernels::block::{Block, Stop};
use ferronickel_kernels::element::{Element, F16};
use ferronickel_kernels::reduce::{Avg, Max, Min, PreMulSum, Prod, Reduce, Sum};

/// An operation, by what it does with the bits of elements.
#[derive(Clone, Copy)]
pub struct Erased {
    parameter: u64,
    prepare: fn(u64, u64) -> u64,
    combine: fn(u64, u64, u64) -> u64,
    finish: fn(u64, u64) -> u64,
    prepares: bool,
    finishes: bool,
    differs: bool,
}

/// An operation that can be made from eight bytes.
pub trait Made<E: Element>: Reduce<E> {
    /// The bytes.
    fn parameter(self) -> u64;
    /// The operation.
    fn made(parameter: u64) -> Self;
}

macro_rules! made_of_nothing {
    ($($operation:ident)*) => {$(
        impl<E: Element> Made<E> for $operation {
            fn parameter(self) -> u64 {
                0
            }
            fn made(_parameter: u64) -> Self {
                $operation
            }
        }
    )*};
}

made_of_nothing! { Sum Prod Min Max }

impl<E: Element> Made<E> for Avg {
    fn parameter(self) -> u64 {
        self.ranks as u64
    }
    fn made(parameter: u64) -> Self {
        Avg { ranks: parameter as u32 }
    }
}

impl<E: Element> Made<E> for PreMulSum<E> {
    fn parameter(self) -> u64 {
        self.scalar.to_bits()
    }
    fn made(parameter: u64) -> Self {
        PreMulSum { scalar: E::from_bits(parameter) }
    }
}

impl Erased {
    /// The operation `op` on elements `E`.
    pub fn of<E: Element, R: Made<E>>(op: R) -> Self {
        Erased {
            parameter: op.parameter(),
            prepare: |parameter, e| R::made(parameter).prepare(E::from_bits(e)).to_bits(),
            combine: |parameter, a, b| R::made(parameter).combine(E::from_bits(a), E::from_bits(b)).to_bits(),
            finish: |parameter, e| R::made(parameter).finish(E::from_bits(e)).to_bits(),
            prepares: op.prepares(),
            finishes: op.finishes(),
            differs: op.differs_between_ranks(),
        }
    }
}

impl<S: Element> Reduce<S> for Erased {
    fn prepare(self, element: S) -> S {
        S::from_bits((self.prepare)(self.parameter, element.to_bits()))
    }

    fn combine(self, a: S, b: S) -> S {
        S::from_bits((self.combine)(self.parameter, a.to_bits(), b.to_bits()))
    }

    fn finish(self, element: S) -> S {
        S::from_bits((self.finish)(self.parameter, element.to_bits()))
    }

    fn prepares(self) -> bool {
        self.prepares
    }

    fn finishes(self) -> bool {
        self.finishes
    }

    fn differs_between_ranks(self) -> bool {
        self.differs
    }
}

/// [`Rank::call`] with a typed operation.
///
/// # Safety
/// As there.
pub unsafe fn call<B: Block, E: Element, R: Made<E>>(
    rank: &mut Rank<B>,
    what: Collective,
    how: Algorithm,
    op: R,
    data: Data<E>,
    call: u64,
) -> Result<(), Stop> {
    let op = Erased::of::<E, R>(op);
    // SAFETY: the caller's promise; elements of one size are aligned alike
    unsafe {
        match size_of::<E>() {
            1 => rank.call(what, how, op, sized::<E, u8>(data), call),
            2 => rank.call(what, how, op, sized::<E, F16>(data), call),
            4 => rank.call(what, how, op, sized::<E, u32>(data), call),
            _ => rank.call(what, how, op, sized::<E, u64>(data), call),
        }
    }
}

fn sized<E, S>(data: Data<E>) -> Data<S> {
    Data { send: data.send.cast(), receive: data.receive.cast(), count: data.count }
}
