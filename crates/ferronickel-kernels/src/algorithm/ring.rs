//! Ring: each rank hears from the one before it and speaks to the one after it.
//!
//! * all-reduce: partial results go around once, final results once more; 2(n - 1) hops, each byte sent twice;
//! * reduce-scatter and all-gather: one of these rounds; n - 1 hops;
//! * broadcast and reduce: from the root, or to it, in pieces that follow each other.

use super::{for_pieces, share};
use crate::block::{Block, Stop};
use crate::element::Element;
use crate::protocol::{Link, PassOn, Step, Wire};
use crate::reduce::Reduce;

/// What a launch of Ring needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arguments<E> {
    /// This rank's elements.
    pub send: *const E,
    /// Where the result goes.
    pub receive: *mut E,
    /// Elements: for all-gather those of one rank, for reduce-scatter those of one result.
    pub count: usize,
    /// From the previous rank.
    pub from_previous: *mut Link,
    /// To the next rank.
    pub to_next: *mut Link,
    /// For each place on the ring, the rank at it.
    pub order: *const u32,
    /// Elements between what belongs to one rank and to the next, in the one buffer of all-gather and reduce-scatter
    /// that has something for each.
    pub stride: usize,
    /// This rank's place on the ring.
    pub position: u32,
    /// For broadcast and reduce: the root's place.
    pub root: u32,
    /// All ranks, at least two.
    pub ranks: u32,
}

impl<E> Arguments<E> {
    /// The place `back` places behind this rank's.
    #[inline(always)]
    fn behind(&self, back: usize) -> usize {
        let position = self.position as usize;
        if position >= back { position - back } else { position + self.ranks as usize - back }
    }

    /// The rank at the place `back` places behind this rank's.
    #[inline(always)]
    unsafe fn rank_behind(&self, back: usize) -> usize {
        // SAFETY: there is an entry for every place
        unsafe { *self.order.add(self.behind(back)) as usize }
    }
}

/// All-reduce. `send` and `receive` may be the same.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// For every function here: the pointers cover what [`Arguments`] says; the links lead to this rank's neighbours on the
/// ring; every rank makes the same calls in the same order.
#[inline(always)]
pub unsafe fn all_reduce<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    let ranks = a.ranks as usize;
    let slot = wire.slot::<E>();
    for_pieces(a.count, slot * ranks, |begin, piece| {
        // SAFETY: a communicator has at least one rank; shares lie within the piece, the piece within the caller's
        // ranges, and a share fits a slot
        unsafe {
            let at = |back: usize| {
                let (from, to) = share::<E>(piece, a.behind(back), ranks);
                (a.send.wrapping_add(begin + from), a.receive.wrapping_add(begin + from), to - from)
            };
            let (own, _, n) = at(1);
            wire.step(Step::of(op, n).with_own(own).send(a.to_next))?;
            let mut k = 2;
            while k < ranks {
                let (own, _, n) = at(k);
                wire.step(Step::of(op, n).with_own(own).receive(a.from_previous).send(a.to_next))?;
                k += 1;
            }
            let (own, keep, n) = at(0);
            wire.step(Step::of(op, n).with_own(own).receive(a.from_previous).keep(keep).send(a.to_next).last())?;
            let mut k = 1;
            while k < ranks - 1 {
                let (_, keep, n) = at(k);
                wire.step(Step::of(PassOn, n).receive(a.from_previous).keep(keep).send(a.to_next))?;
                k += 1;
            }
            let (_, keep, n) = at(ranks - 1);
            wire.step(Step::of(PassOn, n).receive(a.from_previous).keep(keep))?;
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    unsafe { wire.settle(a.to_next, a.count * size_of::<E>()) }
}

/// All-gather: `receive` gets every rank's `count` elements, `stride` apart, in rank order. `send` may be this rank's
/// part of `receive`.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`all_reduce`].
#[inline(always)]
pub unsafe fn all_gather<B: Block, E: Element>(wire: impl Wire<B>, a: &Arguments<E>) -> Result<(), Stop> {
    let a = *a;
    let ranks = a.ranks as usize;
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        // SAFETY: the piece lies within each rank's part
        unsafe {
            let at = |back: usize| a.receive.wrapping_add(a.rank_behind(back) * a.stride + begin);
            let own = a.send.wrapping_add(begin);
            wire.step(Step::of(PassOn, n).with_own(own).keep(at(0)).send(a.to_next))?;
            let mut k = 1;
            while k < ranks - 1 {
                wire.step(Step::of(PassOn, n).receive(a.from_previous).keep(at(k)).send(a.to_next))?;
                k += 1;
            }
            wire.step(Step::of(PassOn, n).receive(a.from_previous).keep(at(ranks - 1)))?;
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    unsafe { wire.settle(a.to_next, a.count * size_of::<E>()) }
}

/// Reduce-scatter: `receive` gets the reduction of all ranks' elements for this rank, of which each has `count` in
/// `send`, `stride` apart, in rank order. `receive` may be this rank's part of `send`.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`all_reduce`].
#[inline(always)]
pub unsafe fn reduce_scatter<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    let ranks = a.ranks as usize;
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        // SAFETY: the piece lies within each rank's part
        unsafe {
            let at = |back: usize| a.send.wrapping_add(a.rank_behind(back) * a.stride + begin);
            wire.step(Step::of(op, n).with_own(at(1)).send(a.to_next))?;
            let mut k = 2;
            while k < ranks {
                wire.step(Step::of(op, n).with_own(at(k)).receive(a.from_previous).send(a.to_next))?;
                k += 1;
            }
            let keep = a.receive.wrapping_add(begin);
            wire.step(Step::of(op, n).with_own(at(0)).receive(a.from_previous).keep(keep).last())?;
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    unsafe { wire.settle(a.to_next, a.count * size_of::<E>()) }
}

/// Broadcast: every rank's `receive` gets the root's `send`.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`all_reduce`].
#[inline(always)]
pub unsafe fn broadcast<B: Block, E: Element>(wire: impl Wire<B>, a: &Arguments<E>) -> Result<(), Stop> {
    let a = *a;
    let is_root = a.position == a.root;
    let is_last = a.behind(0) == (a.root + a.ranks - 1) as usize % a.ranks as usize;
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        let step = Step::of(PassOn, n).keep(a.receive.wrapping_add(begin));
        // SAFETY: the piece lies within the caller's ranges
        unsafe {
            if is_root {
                wire.step(step.with_own(a.send.wrapping_add(begin)).send(a.to_next))?;
            } else if is_last {
                wire.step(step.receive(a.from_previous))?;
            } else {
                wire.step(step.receive(a.from_previous).send(a.to_next))?;
            }
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    if is_root { unsafe { wire.settle(a.to_next, a.count * size_of::<E>()) } } else { Ok(()) }
}

/// Reduce: the root's `receive` gets the reduction of every rank's `send`. The others' `receive` is not used.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`all_reduce`].
#[inline(always)]
pub unsafe fn reduce<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    let is_root = a.position == a.root;
    // who speaks first comes right after the root
    let is_first = a.behind(1) == a.root as usize;
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        let step = Step::of(op, n).with_own(a.send.wrapping_add(begin));
        // SAFETY: the piece lies within the caller's ranges
        unsafe {
            if is_root {
                wire.step(step.receive(a.from_previous).keep(a.receive.wrapping_add(begin)).last())?;
            } else if is_first {
                wire.step(step.send(a.to_next))?;
            } else {
                wire.step(step.receive(a.from_previous).send(a.to_next))?;
            }
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    if is_first { unsafe { wire.settle(a.to_next, a.count * size_of::<E>()) } } else { Ok(()) }
}
