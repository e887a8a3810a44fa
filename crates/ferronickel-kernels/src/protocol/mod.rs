//! How bytes pass from one rank to another.
//!
//! A *link* is one direction between two ranks on one channel: a ring of [`SLOTS`] slots that lie at the receiver,
//! and a count of drained slots, the *head*, that lies at the sender. Both protocols give the same five steps
//! ([`Wire`]), so that an algorithm is written once for either.

pub mod ll;
pub mod simple;

use crate::block::{Block, Stop};
use crate::element::Element;
use crate::reduce::Reduce;

/// Slots in a link.
pub const SLOTS: u64 = 4;

/// Flags that different ranks write lie this many bytes apart, so that no two share a cache line or its neighbour.
pub const FLAG_STRIDE: usize = 128;

/// One direction between two ranks, as one of its ends sees it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Link {
    /// At the receiver: [`SLOTS`] slots.
    pub slots: *mut u8,
    /// At the receiver: slots filled so far. The LL protocol does not use it.
    pub tail: *mut u64,
    /// At the sender: slots drained so far.
    pub head: *mut u64,
    /// The rank at the other end.
    pub peer: u32,
    /// Slots filled (by a sender) or drained (by a receiver) before this call.
    pub step: u64,
}

/// What a whole call has in common for every step of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallContext {
    /// The description of the call, the same on every rank.
    pub call: u64,
    /// Elements' bytes in a slot.
    pub slot_bytes: usize,
}

/// The steps a rank of a ring takes: each receives at most one slot and sends at most one.
pub trait Wire<B: Block> {
    /// Sends a rank's own elements.
    ///
    /// # Errors
    /// See [`Stop`].
    ///
    /// # Safety
    /// For every step: the pointers cover `count` elements, `count` elements fit a slot, and both ends of each link
    /// take the same steps.
    unsafe fn send<E: Element, R: Reduce<E>>(&mut self, op: R, from: *const E, count: usize) -> Result<(), Stop>;
    /// Receives final elements.
    ///
    /// # Errors
    /// See [`Stop`].
    ///
    /// # Safety
    /// As for [`send`](Self::send).
    unsafe fn receive<E: Element>(&mut self, to: *mut E, count: usize) -> Result<(), Stop>;
    /// Receives a partial result, adds a rank's own elements, sends it on.
    ///
    /// # Errors
    /// See [`Stop`].
    ///
    /// # Safety
    /// As for [`send`](Self::send).
    unsafe fn receive_reduce_send<E: Element, R: Reduce<E>>(
        &mut self,
        op: R,
        from: *const E,
        count: usize,
    ) -> Result<(), Stop>;
    /// Receives a partial result, adds a rank's own elements, which makes it final, keeps it and sends it on.
    ///
    /// # Errors
    /// See [`Stop`].
    ///
    /// # Safety
    /// As for [`send`](Self::send).
    unsafe fn receive_reduce_copy_send<E: Element, R: Reduce<E>>(
        &mut self,
        op: R,
        from: *const E,
        to: *mut E,
        count: usize,
    ) -> Result<(), Stop>;
    /// Receives final elements, keeps them and sends them on.
    ///
    /// # Errors
    /// See [`Stop`].
    ///
    /// # Safety
    /// As for [`send`](Self::send).
    unsafe fn receive_copy_send<E: Element>(&mut self, to: *mut E, count: usize) -> Result<(), Stop>;
    /// Slots drained and filled so far, to be handed to the next call's links.
    fn steps(&self) -> (u64, u64);
}
