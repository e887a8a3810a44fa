//! Flat: over links, with no rank between source and destination. One hop, and ranks are combined in rank order, so
//! that the bits do not depend on the road.
//!
//! This is what OneShot and TwoShot do where messages do not fit an inbox, or ranks are connected by links only.

use super::{after, for_pieces, share};
use crate::block::{Block, Stop};
use crate::element::Element;
use crate::protocol::{Link, PassOn, Peers, Step, Wire};
use crate::reduce::Reduce;

/// What a launch over links between any two ranks needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arguments<E> {
    /// This rank's elements.
    pub send: *const E,
    /// Where the result goes.
    pub receive: *mut E,
    /// Elements: for all-gather those of one rank, for reduce-scatter those of one result.
    pub count: usize,
    /// For each rank, the link from it.
    pub from: *mut Link,
    /// For each rank, the link to it.
    pub to: *mut Link,
    /// Elements between what belongs to one rank and to the next, in the one buffer of all-gather and reduce-scatter
    /// that has something for each.
    pub stride: usize,
    /// This rank.
    pub rank: u32,
    /// For broadcast and reduce: the root.
    pub root: u32,
    /// All ranks.
    pub ranks: u32,
}

impl<E> Arguments<E> {
    #[inline(always)]
    fn peers(&self, table: *mut Link) -> Peers {
        Peers { table, rank: self.rank as usize, ranks: self.ranks as usize }
    }

    #[inline(always)]
    fn to(&self, rank: usize) -> *mut Link {
        self.to.wrapping_add(rank)
    }

    #[inline(always)]
    fn from(&self, rank: usize) -> *mut Link {
        self.from.wrapping_add(rank)
    }
}

/// Broadcast: every rank's `receive` gets the root's `send`.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// For every function here: the pointers cover what [`Arguments`] says; every rank makes the same calls in the same
/// order.
#[inline(always)]
pub unsafe fn broadcast<B: Block, E: Element>(wire: impl Wire<B>, a: &Arguments<E>) -> Result<(), Stop> {
    let a = *a;
    let (rank, root) = (a.rank as usize, a.root as usize);
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        let step = Step::of(PassOn, n).keep(a.receive.wrapping_add(begin));
        // SAFETY: the piece lies within the caller's ranges
        unsafe {
            if rank == root {
                wire.step(step.with_own(a.send.wrapping_add(begin)).send(a.peers(a.to)))?;
            } else {
                wire.step(step.receive(a.from(root)))?;
            }
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    if rank == root { unsafe { wire.settle(a.peers(a.to), a.count * size_of::<E>()) } } else { Ok(()) }
}

/// Reduce: the root's `receive` gets the reduction of every rank's `send`. The others' `receive` is not used.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`broadcast`].
#[inline(always)]
pub unsafe fn reduce<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    let (rank, root) = (a.rank as usize, a.root as usize);
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        let step = Step::of(op, n).with_own(a.send.wrapping_add(begin));
        // SAFETY: the piece lies within the caller's ranges
        unsafe {
            if rank == root {
                let step = step.receive_around(a.peers(a.from), rank);
                wire.step(step.keep(a.receive.wrapping_add(begin)).last())?;
            } else {
                wire.step(step.send(a.to(root)))?;
            }
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    if rank == root { Ok(()) } else { unsafe { wire.settle(a.to(root), a.count * size_of::<E>()) } }
}

/// All-gather: `receive` gets every rank's `count` elements, `stride` apart, in rank order. `send` may be this rank's
/// part of `receive`.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`broadcast`].
#[inline(always)]
pub unsafe fn all_gather<B: Block, E: Element>(wire: impl Wire<B>, a: &Arguments<E>) -> Result<(), Stop> {
    let a = *a;
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        // SAFETY: the piece lies within each rank's part
        unsafe {
            let at = |rank: usize| a.receive.wrapping_add(rank * a.stride + begin);
            let own = Step::of(PassOn, n).with_own(a.send.wrapping_add(begin));
            wire.step(own.keep(at(rank)).send(a.peers(a.to)))?;
            let mut k = 1;
            while k < ranks {
                let peer = after(rank, k, ranks);
                wire.step(Step::of(PassOn, n).receive(a.from(peer)).keep(at(peer)))?;
                k += 1;
            }
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    unsafe { wire.settle(a.peers(a.to), a.count * size_of::<E>()) }
}

/// Reduce-scatter: `receive` gets the reduction of all ranks' elements for this rank, of which each has `count` in
/// `send`, `stride` apart, in rank order. `receive` may be this rank's part of `send`.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`broadcast`].
#[inline(always)]
pub unsafe fn reduce_scatter<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        // SAFETY: the piece lies within each rank's part
        unsafe {
            let step = |rank: usize| Step::of(op, n).with_own(a.send.wrapping_add(rank * a.stride + begin));
            let mut k = 1;
            while k < ranks {
                let peer = after(rank, k, ranks);
                wire.step(step(peer).send(a.to(peer)))?;
                k += 1;
            }
            let own = step(rank).receive_around(a.peers(a.from), rank);
            wire.step(own.keep(a.receive.wrapping_add(begin)).last())?;
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    unsafe { wire.settle(a.peers(a.to), a.count * size_of::<E>()) }
}

/// All-reduce in two hops: each rank reduces a share for all. `send` and `receive` may be the same.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`broadcast`].
#[inline(always)]
pub unsafe fn all_reduce<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    let slot = wire.slot::<E>();
    for_pieces(a.count, slot * ranks, |begin, piece| {
        // SAFETY: a communicator has at least one rank; shares lie within the piece and fit a slot
        unsafe {
            let share = |rank: usize| {
                let (from, to) = share::<E>(piece, rank, ranks);
                (begin + from, to - from)
            };
            let mut k = 1;
            while k < ranks {
                let peer = after(rank, k, ranks);
                let (at, n) = share(peer);
                wire.step(Step::of(op, n).with_own(a.send.wrapping_add(at)).send(a.to(peer)))?;
                k += 1;
            }
            let (at, n) = share(rank);
            let own = Step::of(op, n).with_own(a.send.wrapping_add(at)).receive_around(a.peers(a.from), rank);
            wire.step(own.keep(a.receive.wrapping_add(at)).send(a.peers(a.to)).last())?;
            let mut k = 1;
            while k < ranks {
                let peer = after(rank, k, ranks);
                let (at, n) = share(peer);
                wire.step(Step::of(PassOn, n).receive(a.from(peer)).keep(a.receive.wrapping_add(at)))?;
                k += 1;
            }
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    unsafe { wire.settle(a.peers(a.to), a.count * size_of::<E>()) }
}
