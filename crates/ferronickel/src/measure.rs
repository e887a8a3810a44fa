//! Inner parts, for the benchmarks to time by themselves. Not part of the interface.

use ferronickel_kernels::block::Reduction;
use ferronickel_kernels::element::Element as KernelElement;
use ferronickel_kernels::reduce::Reduce;

use crate::device::host::vector;
use crate::types::{Element, RedOp, with_element, with_reduction};

/// `target[i] = a[i] op b[i]`, as a kernel of two ranks does it.
///
/// # Panics
/// When the lengths differ.
pub fn reduce_copy<T: Element>(op: RedOp, target: &mut [T], a: &[T], b: &[T]) {
    assert!(target.len() == a.len() && a.len() == b.len());
    with_element!(T::DATA_TYPE, E => with_reduction!(op, 2, op => typed::<T, E, _>(op, target, a, b)));
}

fn typed<T: Element, E: KernelElement, R: Reduce<E>>(op: R, target: &mut [T], a: &[T], b: &[T]) {
    let to = [target.as_mut_ptr().cast::<E>()];
    let from = [a.as_ptr().cast::<E>(), b.as_ptr().cast::<E>()];
    // SAFETY: the slices have one length, and `E` is the kernels' name for `T`
    unsafe { vector::reduce(Reduction::new(op, to, from, target.len(), true)) }
}
