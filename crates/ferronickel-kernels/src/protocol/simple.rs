//! Simple: a slot of bytes, then a flag that says the slot is full.
//!
//! Before its bytes a slot has a header: the description of the call they belong to, and how many they are, which a
//! network proxy needs to know. A sender whose buffer the receiver can reach may *lend* it: then the header says where
//! the bytes are, the slot stays empty, and the sender leaves its buffer alone until the slot is drained.

use super::{CallContext, FLAG_STRIDE, Lending, Lends, Link, Links, NOT_SHARED, SLOTS, Step, Wire, count_step};
use crate::block::{Block, Reduction, Sources, Stop, Targets};
use crate::element::Element;
use crate::reduce::Reduce;

/// Bytes before a slot's payload.
pub const HEADER_BYTES: usize = FLAG_STRIDE;

/// The header's words: the call, the payload's bytes, how the payload is lent if it is not in the slot, and where.
const CALL: usize = 0;
const BYTES: usize = 1;
const LENT: usize = 2;
const WHERE: usize = 3;

/// Bytes that a slot with `slot_bytes` of payload takes.
#[inline(always)]
pub const fn slot_stride(slot_bytes: usize) -> usize {
    HEADER_BYTES + slot_bytes
}

/// Bytes of a slot that has a flag of its own before it, up to the next.
#[inline(always)]
pub const fn flagged_slot_stride(slot_bytes: usize) -> usize {
    FLAG_STRIDE + slot_stride(slot_bytes).next_multiple_of(FLAG_STRIDE)
}

/// Writes a slot's header; the post that follows publishes it.
///
/// # Safety
/// `slot` is the start of a slot that the caller may fill.
#[inline(always)]
pub unsafe fn write_header<B: Block>(block: B, slot: *mut u8, call: u64, bytes: usize) {
    if block.thread() == 0 {
        let header = slot.cast::<u64>();
        // SAFETY: the header is the first bytes of the slot, which is aligned to FLAG_STRIDE
        unsafe {
            block.store(header.add(CALL), call);
            block.store(header.add(BYTES), bytes as u64);
        }
    }
}

/// Checks that a full slot belongs to this call.
///
/// # Errors
/// [`Stop::Mismatch`] if it does not.
///
/// # Safety
/// `slot` is the start of a slot whose flag has been acquired.
#[inline(always)]
pub unsafe fn check_header<B: Block>(block: B, slot: *const u8, call: u64, peer: u32) -> Result<(), Stop> {
    // SAFETY: as in `write_header`
    let theirs = unsafe { block.load(slot.cast::<u64>().add(CALL)) };
    if theirs == call { Ok(()) } else { Err(Stop::Mismatch { peer, theirs }) }
}

/// The protocol, for one call.
#[derive(Clone, Copy, Debug)]
pub struct Simple<B> {
    /// Who runs this.
    pub block: B,
    /// The call.
    pub context: CallContext,
}

/// The next slot of a link.
#[inline(always)]
pub(crate) unsafe fn next_slot(link: *const Link, slot_bytes: usize) -> *mut u8 {
    // SAFETY: the caller's link
    unsafe { (*link).slots.wrapping_add(((*link).step % SLOTS) as usize * slot_stride(slot_bytes)) }
}

/// The payload of a full slot: in it, or where its sender lends it.
#[inline(always)]
pub(crate) unsafe fn payload<B: Block>(block: B, link: *const Link, slot: *mut u8) -> *const u8 {
    let header = slot.cast::<u64>();
    // SAFETY: the slot has been acquired
    unsafe {
        let lent = block.load(header.add(LENT));
        if lent == Lends::Never as u64 {
            return slot.wrapping_add(HEADER_BYTES);
        }
        let place = block.load(header.add(WHERE)) as usize;
        if lent == Lends::Address as u64 {
            core::ptr::with_exposed_provenance(place)
        } else {
            (*link).arena.wrapping_add(place)
        }
    }
}

/// The bytes of a full slot's payload.
#[inline(always)]
pub(crate) unsafe fn payload_bytes<B: Block>(block: B, slot: *const u8) -> usize {
    // SAFETY: the slot has been acquired
    unsafe { block.load(slot.cast::<u64>().add(BYTES)) as usize }
}

/// Where the receiver of `link` finds `bytes` bytes at `buffer` if they are lent; [`NOT_SHARED`] if they must be copied.
#[inline(always)]
pub(crate) unsafe fn lent_place(link: *const Link, buffer: *const u8, lending: &Lending, bytes: usize) -> u64 {
    if buffer.is_null() || bytes < lending.least {
        return NOT_SHARED;
    }
    // SAFETY: the caller's link
    match unsafe { (*link).lends } {
        Lends::Never => NOT_SHARED,
        Lends::Address => buffer.expose_provenance() as u64,
        Lends::Offset => lending.arena.offset_of(buffer),
    }
}

/// Writes the header of a link's slot; if the payload is lent, `place` says where it is.
#[inline(always)]
pub(crate) unsafe fn write_link_header<B: Block>(
    block: B,
    link: *const Link,
    slot: *mut u8,
    header: [u64; 2],
    place: u64,
) {
    if block.thread() == 0 {
        let words = slot.cast::<u64>();
        // SAFETY: the slot is the caller's to fill; a receiver that is never lent anything has no such words
        unsafe {
            block.store(words.add(CALL), header[0]);
            block.store(words.add(BYTES), header[1]);
            let lends = (*link).lends;
            if lends != Lends::Never {
                block.store(words.add(LENT), if place == NOT_SHARED { 0 } else { lends as u64 });
                block.store(words.add(WHERE), place);
            }
        }
    }
}

/// What a step combines.
#[derive(Clone, Copy)]
struct Received<B, E, F> {
    wire: Simple<B>,
    own: *const E,
    before: usize,
    from: F,
}

impl<B: Block, E: Element, F: Links> Sources<E> for Received<B, E, F> {
    #[inline(always)]
    fn sources(&self) -> usize {
        self.from.links() + !self.own.is_null() as usize
    }

    #[inline(always)]
    fn source(&self, k: usize) -> *const E {
        if self.is_input(k) {
            return self.own;
        }
        let link = self.from.link(k - (!self.own.is_null() && k > self.before) as usize);
        // SAFETY: the step has acquired the slot
        unsafe { payload(self.wire.block, link, next_slot(link, self.wire.context.slot_bytes)).cast() }
    }

    #[inline(always)]
    fn is_input(&self, k: usize) -> bool {
        !self.own.is_null() && k == self.before
    }
}

/// Where a step's result goes.
#[derive(Clone, Copy)]
struct Sent<B, E, T> {
    wire: Simple<B>,
    keep: *mut E,
    to: T,
}

impl<B: Block, E: Element, T: Links> Targets<E> for Sent<B, E, T> {
    #[inline(always)]
    fn targets(&self) -> usize {
        self.to.links() + !self.keep.is_null() as usize
    }

    #[inline(always)]
    fn target(&self, k: usize) -> *mut E {
        if k == self.to.links() {
            return self.keep;
        }
        let link = self.to.link(k);
        // SAFETY: the step's links are the caller's
        unsafe { next_slot(link, self.wire.context.slot_bytes).wrapping_add(HEADER_BYTES).cast() }
    }
}

impl<B: Block> Simple<B> {
    /// Waits until the next slot of each link is full, and checks that it belongs to the call.
    #[inline(always)]
    unsafe fn await_full(self, from: impl Links) -> Result<(), Stop> {
        let mut k = 0;
        while k < from.links() {
            let link = from.link(k);
            // SAFETY: a link's flags are valid for the whole call
            unsafe {
                self.block.wait((*link).tail, (*link).step + 1)?;
                let slot = next_slot(link, self.context.slot_bytes);
                check_header(self.block, slot, self.context.call, (*link).peer)?;
            }
            k += 1;
        }
        Ok(())
    }

    /// Waits until the next slot of each link is empty.
    #[inline(always)]
    unsafe fn await_empty(self, to: impl Links) -> Result<(), Stop> {
        let mut k = 0;
        while k < to.links() {
            let link = to.link(k);
            // SAFETY: a link's flags are valid for the whole call
            unsafe {
                if (*link).step >= SLOTS {
                    self.block.wait((*link).head, (*link).step - SLOTS + 1)?;
                }
            }
            k += 1;
        }
        Ok(())
    }

    /// Sends elements on as they are, but for those that are lent.
    #[inline(always)]
    unsafe fn pass_on<E: Element>(self, source: *const E, own: *const u8, to: impl Links, keep: *mut E, count: usize) {
        let (block, bytes) = (self.block, count * size_of::<E>());
        let mut k = 0;
        // SAFETY: the slots are empty, hence ours, and the ranges are the caller's
        unsafe {
            while k < to.links() {
                let link = to.link(k);
                if lent_place(link, own, &self.context.lending, bytes) == NOT_SHARED {
                    let slot = next_slot(link, self.context.slot_bytes);
                    block.copy(slot.wrapping_add(HEADER_BYTES).cast(), source, count);
                }
                k += 1;
            }
            if !keep.is_null() && !core::ptr::eq(keep, source) {
                block.copy(keep, source, count);
            }
        }
    }

    /// Says that each link's slot is drained, or filled with `bytes` bytes; with those at `own`, if that is not null.
    #[inline(always)]
    unsafe fn publish(self, from: impl Links, to: impl Links, own: *const u8, bytes: usize) {
        let block = self.block;
        // SAFETY: the slots are ours until these posts, and the flags ours to write
        unsafe {
            let mut k = 0;
            while k < from.links() {
                let link = from.link(k);
                block.post((*link).head, (*link).step + 1);
                k += 1;
            }
            let mut k = 0;
            while k < to.links() {
                let link = to.link(k);
                let place = lent_place(link, own, &self.context.lending, bytes);
                let slot = next_slot(link, self.context.slot_bytes);
                write_link_header(block, link, slot, [self.context.call, bytes as u64], place);
                block.post((*link).tail, (*link).step + 1);
                k += 1;
            }
            count_step(block, from);
            count_step(block, to);
            block.barrier();
        }
    }
}

impl<B: Block> Wire<B> for Simple<B> {
    // unoptimised, an algorithm would have every step on its stack at once
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn step<E: Element, R: Reduce<E>>(self, step: Step<E, R, impl Links, impl Links>) -> Result<(), Stop> {
        let Step { op, own, before, from, to, keep, count, last } = step;
        // SAFETY: the caller's promise, and slots are ours between the waits and the posts
        unsafe {
            self.await_full(from)?;
            self.await_empty(to)?;
            let received = Received { wire: self, own, before, from };
            let sent = Sent { wire: self, keep, to };
            let changes = (!own.is_null() && op.prepares()) || (last && op.finishes());
            let own = if received.sources() == 1 && !changes {
                self.pass_on(received.source(0), own.cast(), to, keep, count);
                own.cast::<u8>()
            } else {
                if received.sources() > 0 && sent.targets() > 0 {
                    self.block.reduce(Reduction::new(op, sent, received, count, last));
                }
                core::ptr::null()
            };
            self.publish(from, to, own, count * size_of::<E>());
        }
        Ok(())
    }

    #[inline(always)]
    unsafe fn settle(self, to: impl Links, bytes: usize) -> Result<(), Stop> {
        if bytes < self.context.lending.least {
            return Ok(());
        }
        let mut k = 0;
        while k < to.links() {
            let link = to.link(k);
            // SAFETY: a link's flags are valid for the whole call
            unsafe {
                if (*link).lends != Lends::Never {
                    self.block.wait((*link).head, (*link).step)?;
                }
            }
            k += 1;
        }
        Ok(())
    }

    #[inline(always)]
    fn slot<E: Element>(&self) -> usize {
        self.context.slot_bytes / 16 * 16 / size_of::<E>()
    }
}
