//! Simple: a slot of bytes, then a flag that says the slot is full.
//!
//! Before its bytes a slot has a header: the description of the call they belong to, and how many they are, which a
//! network proxy needs to know.

use super::{CallContext, FLAG_STRIDE, Link, SLOTS, Wire};
use crate::block::{Block, Reduction, Stop};
use crate::element::Element;
use crate::reduce::Reduce;

/// Bytes before a slot's payload.
pub const HEADER_BYTES: usize = FLAG_STRIDE;

/// The header of a slot.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    /// The description of the call.
    pub call: u64,
    /// Bytes of payload in the slot.
    pub bytes: u64,
}

/// Bytes that a slot with `slot_bytes` of payload takes.
#[inline(always)]
pub const fn slot_stride(slot_bytes: usize) -> usize {
    HEADER_BYTES + slot_bytes
}

/// Writes a slot's header; the post that follows publishes it.
///
/// # Safety
/// `slot` is the start of a slot that the caller may fill.
#[inline(always)]
pub unsafe fn write_header<B: Block>(block: B, slot: *mut u8, call: u64, bytes: usize) {
    if block.thread() == 0 {
        // SAFETY: the header is the first 16 bytes of the slot, which is aligned to FLAG_STRIDE
        unsafe {
            block.store(slot.cast::<u64>(), call);
            block.store(slot.cast::<u64>().add(1), bytes as u64);
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
    let theirs = unsafe { block.load(slot.cast::<u64>()) };
    if theirs == call { Ok(()) } else { Err(Stop::Mismatch { peer, theirs }) }
}

/// The two links of a rank in a ring.
#[derive(Clone, Copy, Debug)]
pub struct Simple<B> {
    /// Who runs this.
    pub block: B,
    /// From the previous rank.
    pub from_previous: Link,
    /// To the next rank.
    pub to_next: Link,
    /// The call.
    pub context: CallContext,
}

impl<B: Block> Simple<B> {
    #[inline(always)]
    fn slot(&self, link: &Link) -> *mut u8 {
        link.slots.wrapping_add((link.step % SLOTS) as usize * slot_stride(self.context.slot_bytes))
    }

    /// The payload of the slot to read, once it is full.
    #[inline(always)]
    unsafe fn await_full<E>(&self) -> Result<*const E, Stop> {
        let link = &self.from_previous;
        let slot = self.slot(link);
        // SAFETY: a link's flags are valid for the whole call
        unsafe {
            self.block.wait(link.tail, link.step + 1)?;
            check_header(self.block, slot, self.context.call, link.peer)?;
        }
        Ok(slot.wrapping_add(HEADER_BYTES).cast::<E>().cast_const())
    }

    /// The payload of the slot to fill, once it is empty.
    #[inline(always)]
    unsafe fn await_empty<E>(&self) -> Result<*mut E, Stop> {
        let link = &self.to_next;
        if link.step >= SLOTS {
            // SAFETY: a link's flags are valid for the whole call
            unsafe { self.block.wait(link.head, link.step - SLOTS + 1)? };
        }
        Ok(self.slot(link).wrapping_add(HEADER_BYTES).cast())
    }

    #[inline(always)]
    unsafe fn filled<E>(&mut self, count: usize) {
        let slot = self.slot(&self.to_next);
        self.to_next.step += 1;
        // SAFETY: the slot is ours until this post
        unsafe {
            write_header(self.block, slot, self.context.call, count * size_of::<E>());
            self.block.post(self.to_next.tail, self.to_next.step);
        }
    }

    #[inline(always)]
    unsafe fn drained(&mut self) {
        self.from_previous.step += 1;
        // SAFETY: the head is ours to write
        unsafe { self.block.post(self.from_previous.head, self.from_previous.step) }
    }
}

impl<B: Block> Wire<B> for Simple<B> {
    #[inline(always)]
    unsafe fn send<E: Element, R: Reduce<E>>(&mut self, op: R, from: *const E, count: usize) -> Result<(), Stop> {
        // SAFETY: the caller's promise, and the slot is ours between await_empty and filled
        unsafe {
            let slot = self.await_empty::<E>()?;
            if op.prepares() {
                self.block.reduce(Reduction::new(op, [slot], [from], count, false));
            } else {
                self.block.copy(slot, from, count);
            }
            self.filled::<E>(count);
        }
        Ok(())
    }

    #[inline(always)]
    unsafe fn receive<E: Element>(&mut self, to: *mut E, count: usize) -> Result<(), Stop> {
        // SAFETY: the caller's promise, and the slot is ours between await_full and drained
        unsafe {
            let slot = self.await_full::<E>()?;
            self.block.copy(to, slot, count);
            self.drained();
        }
        Ok(())
    }

    #[inline(always)]
    unsafe fn receive_reduce_send<E: Element, R: Reduce<E>>(
        &mut self,
        op: R,
        from: *const E,
        count: usize,
    ) -> Result<(), Stop> {
        // SAFETY: as in send and receive
        unsafe {
            let source = self.await_full::<E>()?;
            let target = self.await_empty::<E>()?;
            self.block.reduce(Reduction::new(op, [target], [from, source], count, false));
            self.drained();
            self.filled::<E>(count);
        }
        Ok(())
    }

    #[inline(always)]
    unsafe fn receive_reduce_copy_send<E: Element, R: Reduce<E>>(
        &mut self,
        op: R,
        from: *const E,
        to: *mut E,
        count: usize,
    ) -> Result<(), Stop> {
        // SAFETY: as in send and receive
        unsafe {
            let source = self.await_full::<E>()?;
            let target = self.await_empty::<E>()?;
            self.block.reduce(Reduction::new(op, [to, target], [from, source], count, true));
            self.drained();
            self.filled::<E>(count);
        }
        Ok(())
    }

    #[inline(always)]
    unsafe fn receive_copy_send<E: Element>(&mut self, to: *mut E, count: usize) -> Result<(), Stop> {
        // SAFETY: as in send and receive
        unsafe {
            let source = self.await_full::<E>()?;
            let target = self.await_empty::<E>()?;
            self.block.copy(target, source, count);
            self.block.copy(to, source, count);
            self.drained();
            self.filled::<E>(count);
        }
        Ok(())
    }

    #[inline(always)]
    fn steps(&self) -> (u64, u64) {
        (self.from_previous.step, self.to_next.step)
    }
}
