//! How a call reduces, as a program says it.

use crate::device::DeviceBuffer;
use crate::types::RedOp;

/// A reduction: one of NCCL's own operations, or a sum of scaled elements.
///
/// A [`RedOp`] is one; where a scalar is needed, say [`Operation::scaled`].
#[derive(Clone, Copy)]
pub enum Operation<'a, T> {
    /// One of NCCL's own.
    Plain(RedOp),
    /// Each rank multiplies its elements by its scalar, then they are added (`ncclRedOpCreatePreMulSum`). Ranks may have
    /// different scalars.
    PreMulSum(Scalar<'a, T>),
}

/// Where the scalar of [`Operation::PreMulSum`] is.
#[derive(Clone, Copy)]
pub enum Scalar<'a, T> {
    /// In the call.
    Host(T),
    /// In the device's memory, a buffer of one element that is read when the call runs.
    Device(&'a DeviceBuffer<T>),
}

impl<T> Operation<'_, T> {
    /// Elements times `scalar`, added.
    pub fn scaled(scalar: T) -> Self {
        Operation::PreMulSum(Scalar::Host(scalar))
    }
}

impl<'a, T> Operation<'a, T> {
    /// Elements times what `scalar` holds when the call runs, added.
    pub fn scaled_by(scalar: &'a DeviceBuffer<T>) -> Self {
        Operation::PreMulSum(Scalar::Device(scalar))
    }
}

impl<T> From<RedOp> for Operation<'_, T> {
    fn from(op: RedOp) -> Self {
        Operation::Plain(op)
    }
}
