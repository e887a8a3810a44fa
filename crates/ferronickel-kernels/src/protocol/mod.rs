//! How bytes pass from one rank to another.
//!
//! A *link* is one direction between two ranks on one channel: a ring of [`SLOTS`] slots that lie at the receiver,
//! and a count of drained slots, the *head*, that lies at the sender. Both protocols give the same step ([`Wire`]):
//! receive a slot from some links, add one's own, keep the result, send it along some other links. Every algorithm
//! over links is a sequence of such steps, written once for either protocol.

pub mod ll;
pub mod simple;

use crate::block::{Block, Stop};
use crate::element::Element;
use crate::reduce::Reduce;

/// Slots in a link.
pub const SLOTS: u64 = 4;

/// Flags that different ranks write lie this many bytes apart, so that no two share a cache line or its neighbour.
pub const FLAG_STRIDE: usize = 128;

/// Stands for the offset of a buffer that is in no arena.
pub const NOT_SHARED: u64 = u64::MAX;

/// One direction between two ranks, as one of its ends sees it. Belongs to that end, which counts its steps.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Link {
    /// At the receiver: [`SLOTS`] slots.
    pub slots: *mut u8,
    /// At the receiver: slots filled so far. The LL protocol does not use it.
    pub tail: *mut u64,
    /// At the sender: slots drained so far.
    pub head: *mut u64,
    /// For a receiver: the sender's arena as the receiver sees it, where the two have address spaces of their own.
    pub arena: *mut u8,
    /// For a sender: how it may lend a buffer of its own instead of filling a slot.
    pub lends: Lends,
    /// The rank at the other end.
    pub peer: u32,
    /// Slots filled (by a sender) or drained (by a receiver) so far.
    pub step: u64,
}

/// How a sender may let its receiver read from the sender's buffer itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Lends {
    /// Not at all: the receiver reaches slots only.
    Never = 0,
    /// By address: both are in one address space.
    Address = 1,
    /// By offset in the sender's arena, if the buffer is in it.
    Offset = 2,
}

/// What a whole call has in common for every step of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallContext {
    /// The description of the call, the same on every rank.
    pub call: u64,
    /// Elements' bytes in a slot.
    pub slot_bytes: usize,
    /// What may be lent.
    pub lending: Lending,
}

/// Which of its buffers a rank may lend.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Lending {
    /// This rank's arena, from which buffers may be lent to ranks with other address spaces.
    pub arena: Arena,
    /// The least bytes that are lent: below, a copy costs less than to wait until the receiver has read.
    pub least: usize,
}

impl Lending {
    /// Nothing is lent.
    pub const NONE: Lending = Lending { arena: Arena::NONE, least: usize::MAX };
}

/// Memory that ranks with other address spaces have mapped.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arena {
    /// Where it begins; null if there is none.
    pub base: *const u8,
    /// Its bytes.
    pub bytes: usize,
}

impl Arena {
    /// None.
    pub const NONE: Arena = Arena { base: core::ptr::null(), bytes: 0 };

    /// Where `address` lies in it; [`NOT_SHARED`] if it does not. A buffer lies in it altogether or not at all.
    #[inline(always)]
    pub fn offset_of(&self, address: *const u8) -> u64 {
        let offset = (address as usize).wrapping_sub(self.base as usize);
        if offset < self.bytes { offset as u64 } else { NOT_SHARED }
    }
}

/// Some of a rank's links, in one direction. No link is in it twice.
pub trait Links: Copy {
    /// How many.
    fn links(&self) -> usize;
    /// Link `k`.
    fn link(&self, k: usize) -> *mut Link;
}

/// None.
impl Links for () {
    #[inline(always)]
    fn links(&self) -> usize {
        0
    }

    #[inline(always)]
    fn link(&self, _k: usize) -> *mut Link {
        core::ptr::null_mut()
    }
}

/// One.
impl Links for *mut Link {
    #[inline(always)]
    fn links(&self) -> usize {
        1
    }

    #[inline(always)]
    fn link(&self, _k: usize) -> *mut Link {
        *self
    }
}

/// Those to or from every rank but one's own, in rank order.
#[derive(Clone, Copy, Debug)]
pub struct Peers {
    /// For each rank, the link to it or from it; the one at the rank's own place is not used.
    pub table: *mut Link,
    /// This rank.
    pub rank: usize,
    /// All ranks.
    pub ranks: usize,
}

impl Links for Peers {
    #[inline(always)]
    fn links(&self) -> usize {
        self.ranks - 1
    }

    #[inline(always)]
    fn link(&self, k: usize) -> *mut Link {
        self.table.wrapping_add(k + (k >= self.rank) as usize)
    }
}

/// What a rank does in one step: at most one slot of each link is drained and filled.
#[derive(Clone, Copy, Debug)]
pub struct Step<E, R, F, T> {
    /// The operation.
    pub op: R,
    /// This rank's own elements; null if it adds none.
    pub own: *const E,
    /// How many of the received slots come before the own elements in the order in which they are combined.
    pub before: usize,
    /// Where to receive from.
    pub from: F,
    /// Where to send the result.
    pub to: T,
    /// Where to keep the result; null if nowhere. May be `own`.
    pub keep: *mut E,
    /// Elements.
    pub count: usize,
    /// Whether the result is final.
    pub last: bool,
}

impl<E, R> Step<E, R, (), ()> {
    /// Nothing is received, added, kept or sent yet.
    #[inline(always)]
    pub fn of(op: R, count: usize) -> Self {
        let (own, keep) = (core::ptr::null(), core::ptr::null_mut());
        Step { op, own, before: 0, from: (), to: (), keep, count, last: false }
    }
}

impl<E, R, F, T> Step<E, R, F, T> {
    /// Adds this rank's own elements.
    #[inline(always)]
    pub fn with_own(self, own: *const E) -> Self {
        Step { own, ..self }
    }

    /// Receives from `from`.
    #[inline(always)]
    pub fn receive<G>(self, from: G) -> Step<E, R, G, T> {
        let Step { op, own, before, to, keep, count, last, .. } = self;
        Step { op, own, before, from, to, keep, count, last }
    }

    /// Receives from `from`, whose first `before` links come before the own elements when they are combined.
    #[inline(always)]
    pub fn receive_around<G>(self, from: G, before: usize) -> Step<E, R, G, T> {
        Step { before, ..self }.receive(from)
    }

    /// Sends the result along `to`.
    #[inline(always)]
    pub fn send<U>(self, to: U) -> Step<E, R, F, U> {
        let Step { op, own, before, from, keep, count, last, .. } = self;
        Step { op, own, before, from, to, keep, count, last }
    }

    /// Keeps the result.
    #[inline(always)]
    pub fn keep(self, keep: *mut E) -> Self {
        Step { keep, ..self }
    }

    /// Says that the result is final.
    #[inline(always)]
    pub fn last(self) -> Self {
        Step { last: true, ..self }
    }
}

/// A protocol, for one call.
pub trait Wire<B: Block>: Copy {
    /// Takes a step.
    ///
    /// # Errors
    /// See [`Stop`].
    ///
    /// # Safety
    /// The pointers cover `count` elements, which fit a slot; the links are this rank's, no other block uses them,
    /// and both ends of each take the same steps. The own elements stay as they are until [`settle`](Self::settle).
    unsafe fn step<E: Element, R: Reduce<E>>(self, step: Step<E, R, impl Links, impl Links>) -> Result<(), Stop>;

    /// Waits until nothing that was lent along `to` is read any more: at the end of a call that sent own elements there,
    /// at most `bytes` bytes at a time.
    ///
    /// # Errors
    /// See [`Stop`].
    ///
    /// # Safety
    /// As for [`step`](Self::step).
    unsafe fn settle(self, to: impl Links, bytes: usize) -> Result<(), Stop>;

    /// Elements that fit a slot: whole packs of them.
    fn slot<E: Element>(&self) -> usize;
}

/// Counts a step of every link in `links`.
///
/// # Safety
/// The links are this rank's, and no thread of the block reads their steps before the barrier that follows.
#[inline(always)]
unsafe fn count_step<B: Block>(block: B, links: impl Links) {
    if block.thread() == 0 {
        let mut k = 0;
        while k < links.links() {
            // SAFETY: the caller's promise
            unsafe { (*links.link(k)).step += 1 };
            k += 1;
        }
    }
}

/// Stands for "no operation" where elements only pass through.
#[derive(Clone, Copy, Debug)]
pub struct PassOn;

impl<E: Element> Reduce<E> for PassOn {
    #[inline(always)]
    fn combine(self, a: E, _b: E) -> E {
        a
    }
}

/// An operation whose own elements have been prepared already.
#[derive(Clone, Copy, Debug)]
pub struct Prepared<R>(pub R);

impl<E: Element, R: Reduce<E>> Reduce<E> for Prepared<R> {
    #[inline(always)]
    fn combine(self, a: E, b: E) -> E {
        self.0.combine(a, b)
    }

    #[inline(always)]
    fn finish(self, element: E) -> E {
        self.0.finish(element)
    }

    #[inline(always)]
    fn finishes(self) -> bool {
        self.0.finishes()
    }

    #[inline(always)]
    fn combine_words(self, a: u64, b: u64) -> u64 {
        self.0.combine_words(a, b)
    }

    #[inline(always)]
    fn finish_word(self, word: u64) -> u64 {
        self.0.finish_word(word)
    }

    #[inline(always)]
    unsafe fn combine_ranges(self, to: *mut E, a: *const E, b: *const E, count: usize) {
        // SAFETY: the caller's promise
        unsafe { self.0.combine_ranges(to, a, b, count) }
    }

    #[inline(always)]
    unsafe fn finish_range(self, range: *mut E, count: usize) {
        // SAFETY: the caller's promise
        unsafe { self.0.finish_range(range, count) }
    }
}
