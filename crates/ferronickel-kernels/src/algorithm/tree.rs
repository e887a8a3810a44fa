//! Tree: partial results climb to the root, results come down again. 2 log n hops.
//!
//! An all-reduce uses two trees, in which every rank is inside at most one, so that every rank has the same to do: its
//! pieces take one and the other in turn. Several pieces are on their way at a time, the later ones climbing while the
//! earlier come down.

use super::for_pieces;
use crate::block::{Block, Stop};
use crate::element::Element;
use crate::protocol::{Link, Links, PassOn, Step, Wire};
use crate::reduce::Reduce;

/// A rank's place in a tree: the links that climb or those that come down, which lead the other way.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Node {
    /// To and from the parent; null at the root.
    pub to_parent: *mut Link,
    /// See [`to_parent`](Self::to_parent).
    pub from_parent: *mut Link,
    /// From the children; null where there is none, the first one first.
    pub from_children: [*mut Link; 2],
    /// To the children, as [`from_children`](Self::from_children).
    pub to_children: [*mut Link; 2],
}

/// Up to two links, the first one first.
#[derive(Clone, Copy)]
struct Few([*mut Link; 2]);

impl Links for Few {
    #[inline(always)]
    fn links(&self) -> usize {
        !self.0[0].is_null() as usize + !self.0[1].is_null() as usize
    }

    #[inline(always)]
    fn link(&self, k: usize) -> *mut Link {
        // a choice, not an index, so that the links can stay in registers
        if k == 0 { self.0[0] } else { self.0[1] }
    }
}

/// What a launch of Tree needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arguments<E> {
    /// This rank's elements.
    pub send: *const E,
    /// Where the result goes.
    pub receive: *mut E,
    /// Elements.
    pub count: usize,
    /// This rank's places in the trees. Broadcast and reduce use the first, whose root is the call's.
    pub trees: [Node; 2],
}

/// Pieces that may climb before the first of them has come down: fewer than a link has slots.
const AHEAD: usize = 3;

/// A piece of a rank's partial result climbs.
#[inline(always)]
unsafe fn climb<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    node: &Node,
    own: *const E,
    keep: *mut E,
    count: usize,
) -> Result<(), Stop> {
    let step = Step::of(op, count).with_own(own).receive(Few(node.from_children));
    // SAFETY: the caller's promise
    unsafe {
        if node.to_parent.is_null() { wire.step(step.keep(keep).last()) } else { wire.step(step.send(node.to_parent)) }
    }
}

/// A piece of the result comes down.
#[inline(always)]
unsafe fn descend<B: Block, E: Element>(
    wire: impl Wire<B>,
    node: &Node,
    own: *const E,
    keep: *mut E,
    count: usize,
) -> Result<(), Stop> {
    let step = Step::of(PassOn, count).keep(keep).send(Few(node.to_children));
    // SAFETY: the caller's promise
    unsafe {
        if node.from_parent.is_null() {
            wire.step(step.with_own(own))
        } else {
            wire.step(step.receive(node.from_parent))
        }
    }
}

/// All-reduce over two or more ranks. `send` and `receive` may be the same.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// For every function here: the pointers cover what [`Arguments`] says; the ranks' nodes make trees; every rank makes
/// the same calls in the same order.
#[inline(always)]
pub unsafe fn all_reduce<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    // Every rank takes the same steps in the same order, each of which waits only for steps before it on other ranks:
    // a slot to fill for the step that drained it, at most as many steps ago as there are slots.
    let slot = wire.slot::<E>();
    let pieces = a.count.div_ceil(slot).max(1);
    let at = |piece: usize| (piece * slot, (a.count - piece * slot).min(slot));
    let mut turn = 0;
    while turn < pieces + AHEAD {
        // SAFETY: the piece lies within the caller's ranges
        unsafe {
            if turn < pieces {
                let (begin, n) = at(turn);
                let node = if turn & 1 == 0 { &a.trees[0] } else { &a.trees[1] };
                climb(wire, op, node, a.send.wrapping_add(begin), a.receive.wrapping_add(begin), n)?;
            }
            if turn >= AHEAD {
                let (begin, n) = at(turn - AHEAD);
                let node = if (turn - AHEAD) & 1 == 0 { &a.trees[0] } else { &a.trees[1] };
                let keep = a.receive.wrapping_add(begin);
                descend(wire, node, keep.cast_const(), keep, n)?;
            }
        }
        turn += 1;
    }
    // SAFETY: the caller's promise; a leaf lends its elements to its parent, a root its result to its children
    unsafe {
        settle(wire, &a.trees[0], a.count * size_of::<E>())?;
        settle(wire, &a.trees[1], a.count * size_of::<E>())
    }
}

#[inline(always)]
unsafe fn settle<B: Block>(wire: impl Wire<B>, node: &Node, bytes: usize) -> Result<(), Stop> {
    // SAFETY: the caller's promise
    unsafe {
        if node.to_parent.is_null() {
            return wire.settle(Few(node.to_children), bytes);
        }
        wire.settle(node.to_parent, bytes)
    }
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
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        // SAFETY: the piece lies within the caller's ranges
        unsafe { descend(wire, &a.trees[0], a.send.wrapping_add(begin), a.receive.wrapping_add(begin), n) }
    })?;
    // SAFETY: the caller's promise
    unsafe { wire.settle(Few(a.trees[0].to_children), a.count * size_of::<E>()) }
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
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        // SAFETY: the piece lies within the caller's ranges
        unsafe { climb(wire, op, &a.trees[0], a.send.wrapping_add(begin), a.receive.wrapping_add(begin), n) }
    })?;
    if a.trees[0].to_parent.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise
    unsafe { wire.settle(a.trees[0].to_parent, a.count * size_of::<E>()) }
}
