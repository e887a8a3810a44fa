//! OneShot: every rank sends to every rank, and each reduces or sorts for itself what it gets. One hop.
//!
//! What arrives lies in the receiver's *inbox*: for each parity of the epoch and each source, a message (LL) or a
//! slot (Simple). A place is used again two epochs later, and by then its reader has passed: a rank sends in epoch
//! e + 1 only after it has finished epoch e, and nobody begins epoch e + 2 without having heard from everyone in
//! epoch e + 1. So an inbox has epochs of its own, which only the calls that use it count, and in each of them every
//! rank hears from every other.
//!
//! Every rank combines in rank order, so that all get the same bits.

use super::after;
use crate::block::{Block, Reduction, Sources, Stop};
use crate::element::Element;
use crate::protocol::{FLAG_STRIDE, PassOn, ll, simple};
use crate::reduce::Reduce;

/// What a launch of OneShot needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arguments<E> {
    /// This rank's elements.
    pub send: *const E,
    /// Where the result goes. For a reduction it may be what is sent to this rank itself.
    pub receive: *mut E,
    /// Elements that one rank sends to another.
    pub count: usize,
    /// Elements between what goes to one rank and to the next: zero where the same goes to all.
    pub send_stride: usize,
    /// Elements between what comes from one rank and from the next; not used where all are reduced into one.
    pub receive_stride: usize,
    /// For each rank, this channel's inbox there.
    pub inboxes: *const *mut u8,
    /// Bytes of elements that one place of an inbox holds; `count` elements fit.
    pub capacity: usize,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
    /// Grows by one with every call that uses these inboxes; starts at one.
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
    2 * ranks * simple::flagged_slot_stride(capacity)
}

#[inline(always)]
const fn ll_stride<B: Block>(capacity: usize) -> usize {
    // places of different sources share no line, so that no two ranks write one
    (ll::lines::<B>(capacity) * B::LINE_BYTES).next_multiple_of(FLAG_STRIDE)
}

impl<E> Arguments<E> {
    /// What goes to `rank`.
    #[inline(always)]
    fn to(&self, rank: usize) -> *const E {
        self.send.wrapping_add(rank * self.send_stride)
    }

    /// Where what comes from `rank` goes.
    #[inline(always)]
    fn from(&self, rank: usize) -> *mut E {
        self.receive.wrapping_add(rank * self.receive_stride)
    }
}

/// Sends every rank its message.
#[inline(always)]
unsafe fn send_ll<B: Block, E: Element, R: Reduce<E>>(block: B, op: R, a: &Arguments<E>) {
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    let lines = ll::lines::<B>(a.count * size_of::<E>());
    let stride = ll_stride::<B>(a.capacity);
    let mut i = block.thread();
    while i < lines {
        // SAFETY: the caller's promise
        unsafe {
            let mut line = ll::compose(block, op, a.call, a.to(after(rank, 1, ranks)), a.count, i);
            let mut k = 1;
            while k < ranks {
                let peer = after(rank, k, ranks);
                if k > 1 && a.send_stride > 0 {
                    line = ll::compose(block, op, a.call, a.to(peer), a.count, i);
                }
                block.store_line(a.place(peer, rank, stride).add(i * B::LINE_BYTES), line, a.epoch);
                k += 1;
            }
        }
        i += block.threads();
    }
}

/// With LL: `receive` gets the reduction of what all ranks sent to this one, in rank order. All-reduce if `send_stride`
/// is zero, reduce-scatter otherwise.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// The pointers cover what [`Arguments`] says; inboxes were zero before the first epoch, and are used by nothing
/// else; every rank makes the same calls in the same order.
#[inline(always)]
pub unsafe fn reduce_ll<B: Block, E: Element, R: Reduce<E>>(block: B, op: R, a: &Arguments<E>) -> Result<(), Stop> {
    // A copy: a store through a raw pointer could alias what is behind the reference, and each field would be read
    // again and again.
    let a = *a;
    // SAFETY: the caller's promise
    unsafe {
        send_ll(block, op, &a);
        ll::all_or_none(block, receive_and_reduce_ll(block, op, &a))
    }
}

#[inline(always)]
unsafe fn receive_and_reduce_ll<B: Block, E: Element, R: Reduce<E>>(
    block: B,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    let lines = ll::lines::<B>(a.count * size_of::<E>());
    let stride = ll_stride::<B>(a.capacity);
    let mut i = block.thread();
    while i < lines {
        // SAFETY: the caller's promise
        unsafe {
            let own = ll::compose(block, op, a.call, a.to(rank), a.count, i);
            let receive = |k: usize| {
                let from = a.place(rank, k, stride).add(i * B::LINE_BYTES);
                if k == rank { Ok(own) } else { ll::receive_line(block, from, a.epoch, i, a.call, k as u32) }
            };
            let mut sum = receive(0)?;
            let mut k = 1;
            while k < ranks {
                sum = ll::combine::<B, E, R>(op, sum, receive(k)?, a.count, i);
                k += 1;
            }
            ll::decompose::<B, E>(block, ll::finish::<B, E, R>(op, sum, a.count, i), a.receive, a.count, i);
        }
        i += block.threads();
    }
    Ok(())
}

/// With LL: `receive` gets what every rank sent to this one, `receive_stride` apart, in rank order. All-gather if
/// `send_stride` is zero, all-to-all otherwise.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`reduce_ll`].
#[inline(always)]
pub unsafe fn gather_ll<B: Block, E: Element>(block: B, a: &Arguments<E>) -> Result<(), Stop> {
    let a = *a;
    // SAFETY: the caller's promise
    unsafe {
        send_ll(block, PassOn, &a);
        copy_own(block, &a);
        ll::all_or_none(block, receive_and_sort_ll(block, &a))
    }
}

#[inline(always)]
unsafe fn receive_and_sort_ll<B: Block, E: Element>(block: B, a: &Arguments<E>) -> Result<(), Stop> {
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    let lines = ll::lines::<B>(a.count * size_of::<E>());
    let stride = ll_stride::<B>(a.capacity);
    let mut k = 1;
    while k < ranks {
        let peer = after(rank, k, ranks);
        let mut i = block.thread();
        while i < lines {
            // SAFETY: the caller's promise
            unsafe {
                let from = a.place(rank, peer, stride).add(i * B::LINE_BYTES);
                let line = ll::receive_line(block, from, a.epoch, i, a.call, peer as u32)?;
                ll::decompose::<B, E>(block, line, a.from(peer), a.count, i);
            }
            i += block.threads();
        }
        k += 1;
    }
    Ok(())
}

/// Copies what a rank sends to itself, unless it is there already.
#[inline(always)]
unsafe fn copy_own<B: Block, E: Element>(block: B, a: &Arguments<E>) {
    let (from, to) = (a.to(a.rank as usize), a.from(a.rank as usize));
    if !core::ptr::eq(from, to) {
        // SAFETY: the caller's ranges
        unsafe { block.copy(to, from, a.count) };
    }
}

/// The slots that the ranks filled in this rank's inbox, and this rank's own elements in place.
#[derive(Clone, Copy)]
struct Received<E> {
    arguments: Arguments<E>,
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
        let place = unsafe { a.place(a.rank as usize, k, simple::flagged_slot_stride(a.capacity)) };
        let slot = place.wrapping_add(FLAG_STRIDE + simple::HEADER_BYTES);
        if k == a.rank as usize { a.to(k) } else { slot.cast::<E>().cast_const() }
    }

    #[inline(always)]
    fn is_input(&self, k: usize) -> bool {
        k == self.arguments.rank as usize
    }
}

/// Fills every rank's slot, and waits until every rank's has come.
#[inline(always)]
unsafe fn meet_simple<B: Block, E: Element, R: Reduce<E>>(block: B, op: R, a: &Arguments<E>) -> Result<(), Stop> {
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    let stride = simple::flagged_slot_stride(a.capacity);
    // SAFETY: the caller's promise
    unsafe {
        let mut k = 1;
        while k < ranks {
            let peer = after(rank, k, ranks);
            let place = a.place(peer, rank, stride);
            let slot = place.add(FLAG_STRIDE);
            let payload = slot.add(simple::HEADER_BYTES).cast::<E>();
            if op.prepares() {
                block.reduce(Reduction::new(op, [payload], [a.to(peer)], a.count, false));
            } else {
                block.copy(payload, a.to(peer), a.count);
            }
            simple::write_header(block, slot, a.call, a.count * size_of::<E>());
            block.post(place.cast(), a.epoch);
            k += 1;
        }
        let mut k = 1;
        while k < ranks {
            let peer = after(rank, k, ranks);
            let place = a.place(rank, peer, stride);
            block.wait(place.cast(), a.epoch)?;
            simple::check_header(block, place.add(FLAG_STRIDE), a.call, peer as u32)?;
            k += 1;
        }
    }
    Ok(())
}

/// With Simple: what [`reduce_ll`] does.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`reduce_ll`].
#[inline(always)]
pub unsafe fn reduce_simple<B: Block, E: Element, R: Reduce<E>>(block: B, op: R, a: &Arguments<E>) -> Result<(), Stop> {
    let a = *a;
    // SAFETY: the caller's promise
    unsafe {
        meet_simple(block, op, &a)?;
        block.reduce(Reduction::new(op, [a.receive], Received { arguments: a }, a.count, true));
    }
    Ok(())
}

/// With Simple: what [`gather_ll`] does.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`reduce_ll`].
#[inline(always)]
pub unsafe fn gather_simple<B: Block, E: Element>(block: B, a: &Arguments<E>) -> Result<(), Stop> {
    let a = *a;
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    let received = Received { arguments: a };
    // SAFETY: the caller's promise
    unsafe {
        meet_simple(block, PassOn, &a)?;
        copy_own(block, &a);
        let mut k = 1;
        while k < ranks {
            let peer = after(rank, k, ranks);
            block.copy(a.from(peer), received.source(peer), a.count);
            k += 1;
        }
    }
    Ok(())
}
