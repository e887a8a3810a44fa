//! OneShot: every rank sends everything to every rank, and each reduces for itself. One hop.
//!
//! What arrives lies in the receiver's *inbox*: for each parity of the epoch and each source, a message (LL) or a
//! slot (Simple). A place is used again two epochs later, and by then its reader has passed: a rank sends in epoch
//! e + 1 only after it has finished epoch e, and nobody begins epoch e + 2 without having heard from everyone in
//! epoch e + 1. That needs every algorithm of a communicator to count the same epochs, and every call to be one in
//! which each rank hears, directly or not, from every other.
//!
//! Every rank combines in rank order, so that all get the same bits.

use super::after;
use crate::block::{Block, Reduction, Sources, Stop};
use crate::element::Element;
use crate::protocol::{FLAG_STRIDE, ll, simple};
use crate::reduce::Reduce;

/// What a launch of OneShot needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arguments<E> {
    /// This rank's elements.
    pub send: *const E,
    /// Where the result goes; may be the same as `send`.
    pub receive: *mut E,
    /// Elements.
    pub count: usize,
    /// For each rank, this channel's inbox there.
    pub inboxes: *const *mut u8,
    /// Bytes of elements that one place of an inbox holds; `count` elements fit.
    pub capacity: usize,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
    /// Grows by one with every call of the communicator; starts at one.
    pub epoch: u64,
    /// The description of the call, the same on every rank.
    pub call: u64,
}

impl<E> Arguments<E> {
    /// The place, `stride` bytes each, in the inbox of `reader` for what `source` sends in this epoch.
    #[inline(always)]
    unsafe fn place(&self, reader: usize, source: usize, stride: usize) -> *mut u8 {
        let index = (self.epoch & 1) as usize * self.ranks as usize + source;
        // SAFETY: there is an inbox for every rank
        unsafe { (*self.inboxes.add(reader)).wrapping_add(index * stride) }
    }
}

/// Bytes of an inbox whose places hold `capacity` bytes of elements each, with LL.
pub const fn ll_inbox_bytes<B: Block>(capacity: usize, ranks: usize) -> usize {
    2 * ranks * ll_stride::<B>(capacity)
}

/// Bytes of an inbox whose places hold `capacity` bytes of elements each, with Simple.
pub const fn simple_inbox_bytes(capacity: usize, ranks: usize) -> usize {
    2 * ranks * simple_stride(capacity)
}

#[inline(always)]
const fn ll_stride<B: Block>(capacity: usize) -> usize {
    // places of different sources share no line, so that no two ranks write one
    (ll::lines::<B>(capacity) * B::LINE_BYTES).next_multiple_of(FLAG_STRIDE)
}

#[inline(always)]
const fn simple_stride(capacity: usize) -> usize {
    // a flag of its own, then a slot
    FLAG_STRIDE + simple::slot_stride(capacity).next_multiple_of(FLAG_STRIDE)
}

/// All-reduce with LL.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// The pointers cover what [`Arguments`] says; inboxes were zero before the first epoch, and are used by nothing
/// else; every rank makes the same calls in the same order.
#[inline(always)]
pub unsafe fn all_reduce_ll<B: Block, E: Element, R: Reduce<E>>(block: B, op: R, a: &Arguments<E>) -> Result<(), Stop> {
    // A copy: a store through a raw pointer could alias what is behind the reference, and each field would be read
    // again and again.
    let a = *a;
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    let lines = ll::lines::<B>(a.count * size_of::<E>());
    let stride = ll_stride::<B>(a.capacity);
    // SAFETY: the caller's promise
    unsafe {
        let mut i = block.thread();
        while i < lines {
            let own = ll::compose(block, op, a.call, a.send, a.count, i);
            let mut k = 1;
            while k < ranks {
                let place = a.place(after(rank, k, ranks), rank, stride);
                block.store_line(place.add(i * B::LINE_BYTES), own, a.epoch);
                k += 1;
            }
            i += block.threads();
        }
        let mut i = block.thread();
        while i < lines {
            let own = ll::compose(block, op, a.call, a.send, a.count, i);
            let receive = |k: usize| {
                let from = a.place(rank, k, stride).add(i * B::LINE_BYTES);
                if k == rank { Ok(own) } else { ll::receive_line(block, from, a.epoch, i, a.call, k as u32) }
            };
            let mut sum = receive(0)?;
            let mut k = 1;
            while k < ranks {
                sum = ll::combine::<B, E, R>(sum, receive(k)?, a.count, i);
                k += 1;
            }
            ll::decompose::<B, E>(block, ll::finish::<B, E, R>(op, sum, a.count, i), a.receive, a.count, i);
            i += block.threads();
        }
    }
    Ok(())
}

/// The slots that the ranks filled in this rank's inbox, and this rank's own elements in place.
#[derive(Clone, Copy)]
struct Received<E> {
    arguments: Arguments<E>,
    stride: usize,
}

impl<E: Copy> Sources<E> for Received<E> {
    #[inline(always)]
    fn sources(&self) -> usize {
        self.arguments.ranks as usize
    }

    #[inline(always)]
    fn source(&self, k: usize) -> *const E {
        let a = &self.arguments;
        // SAFETY: there is an inbox for every rank
        let place = unsafe { a.place(a.rank as usize, k, self.stride) };
        let slot = place.wrapping_add(FLAG_STRIDE + simple::HEADER_BYTES);
        if k == a.rank as usize { a.send } else { slot.cast::<E>().cast_const() }
    }

    #[inline(always)]
    fn is_input(&self, k: usize) -> bool {
        k == self.arguments.rank as usize
    }
}

/// All-reduce with Simple.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`all_reduce_ll`].
#[inline(always)]
pub unsafe fn all_reduce_simple<B: Block, E: Element, R: Reduce<E>>(
    block: B,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    let stride = simple_stride(a.capacity);
    // SAFETY: the caller's promise
    unsafe {
        let mut k = 1;
        while k < ranks {
            let place = a.place(after(rank, k, ranks), rank, stride);
            let slot = place.add(FLAG_STRIDE);
            let payload = slot.add(simple::HEADER_BYTES).cast::<E>();
            if op.prepares() {
                block.reduce(Reduction::new(op, [payload], [a.send], a.count, false));
            } else {
                block.copy(payload, a.send, a.count);
            }
            simple::write_header(block, slot, a.call, a.count * size_of::<E>());
            block.post(place.cast(), a.epoch);
            k += 1;
        }
        let mut k = 0;
        while k < ranks {
            if k != rank {
                let place = a.place(rank, k, stride);
                block.wait(place.cast(), a.epoch)?;
                simple::check_header(block, place.add(FLAG_STRIDE), a.call, k as u32)?;
            }
            k += 1;
        }
        block.reduce(Reduction::new(op, [a.receive], Received { arguments: a, stride }, a.count, true));
    }
    Ok(())
}
