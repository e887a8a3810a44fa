//! Exchange: messages between pairs of ranks, any number of them at the same time.
//!
//! Each message moves as soon as it can, whatever the others do, so that any pattern in which every send has its
//! receive comes to an end. Messages along one link keep their order.

use crate::block::{Block, Stop};
use crate::protocol::simple::{self, HEADER_BYTES};
use crate::protocol::{Lending, Link, NOT_SHARED, SLOTS};

/// One message, as one of its ends sees it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Transfer {
    /// Along which link.
    pub link: *mut Link,
    /// The bytes to send, or where they are received.
    pub buffer: *mut u8,
    /// How many.
    pub bytes: usize,
    /// The description of the message, the same at both ends.
    pub call: u64,
    /// Whether this is the sender's end.
    pub sends: bool,
    /// Whether the transfer before this one in the list is along the same link.
    pub follows: bool,
    /// Bytes that have been moved. Zero at first.
    pub moved: usize,
    /// For a sender that has lent its bytes: the head that says that they have been read; zero if it has lent none.
    pub lent_until: u64,
    /// Whether it is done. False at first.
    pub done: bool,
}

/// Moves all `count` messages.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// The transfers are this rank's, their buffers cover what they say, and every message has another end, at which the
/// messages of the link are in the same order. No other block uses the links.
#[inline(always)]
pub unsafe fn exchange<B: Block>(
    block: B,
    transfers: *mut Transfer,
    count: usize,
    slot_bytes: usize,
    lending: &Lending,
) -> Result<(), Stop> {
    let mut turns = 0;
    loop {
        let (mut pending, mut moved) = (false, false);
        let mut ready = true;
        let mut i = 0;
        while i < count {
            let transfer = transfers.wrapping_add(i);
            // SAFETY: `i` is less than the count; all threads of the block see the same, since whoever changes a
            // transfer does so between barriers
            unsafe {
                // whether all before it on its link are done
                ready |= !(*transfer).follows;
                if !(*transfer).done {
                    if ready {
                        moved |= advance(block, transfer, slot_bytes, lending)?;
                    }
                    if !(*transfer).done {
                        pending = true;
                        // one that has only to be read needs nothing of the link any more
                        ready &= (*transfer).lent_until != 0;
                    }
                }
            }
            i += 1;
        }
        if !pending {
            return Ok(());
        }
        if moved {
            turns = 0;
        } else {
            block.pause_together(&mut turns)?;
        }
    }
}

/// Moves one slot of a message if it can. Whether it could.
#[inline(always)]
unsafe fn advance<B: Block>(
    block: B,
    transfer: *mut Transfer,
    slot_bytes: usize,
    lending: &Lending,
) -> Result<bool, Stop> {
    // SAFETY: the caller's promise
    unsafe {
        let link = (*transfer).link;
        let step = (*link).step;
        if (*transfer).lent_until != 0 {
            let read = block.has_reached((*link).head, (*transfer).lent_until);
            return Ok(read && change(block, || (*transfer).done = true));
        }
        if (*transfer).sends {
            if step >= SLOTS && !block.has_reached((*link).head, step - SLOTS + 1) {
                return Ok(false);
            }
            fill(block, transfer, slot_bytes, lending);
            return Ok(true);
        }
        if !block.has_reached((*link).tail, step + 1) {
            return Ok(false);
        }
        drain(block, transfer, slot_bytes)?;
        Ok(true)
    }
}

/// Fills the next slot of a message's link, or lends all its bytes with it.
#[inline(always)]
unsafe fn fill<B: Block>(block: B, transfer: *mut Transfer, slot_bytes: usize, lending: &Lending) {
    // SAFETY: the slot is empty, hence ours until the post
    unsafe {
        let Transfer { link, buffer, bytes, call, moved, .. } = *transfer;
        let step = (*link).step;
        let slot = simple::next_slot(link, slot_bytes);
        let place = simple::lent_place(link, buffer, lending, bytes);
        let part = if place == NOT_SHARED { (bytes - moved).min(slot_bytes) } else { bytes };
        if place == NOT_SHARED {
            block.copy_bytes(slot.wrapping_add(HEADER_BYTES), buffer.wrapping_add(moved).cast_const(), part);
        }
        simple::write_link_header(block, link, slot, [call, part as u64], place);
        block.post((*link).tail, step + 1);
        change(block, || {
            (*link).step = step + 1;
            (*transfer).moved = moved + part;
            if place == NOT_SHARED {
                (*transfer).done = moved + part == bytes;
            } else {
                (*transfer).lent_until = step + 1;
            }
        });
    }
}

/// Takes what the next slot of a message's link holds.
#[inline(always)]
unsafe fn drain<B: Block>(block: B, transfer: *mut Transfer, slot_bytes: usize) -> Result<(), Stop> {
    // SAFETY: the slot is full, hence ours until the post; equal descriptions mean equal lengths
    unsafe {
        let Transfer { link, buffer, bytes, call, moved, .. } = *transfer;
        let step = (*link).step;
        let slot = simple::next_slot(link, slot_bytes);
        simple::check_header(block, slot, call, (*link).peer)?;
        let part = simple::payload_bytes(block, slot).min(bytes - moved);
        block.copy_bytes(buffer.wrapping_add(moved), simple::payload(block, link, slot), part);
        block.post((*link).head, step + 1);
        change(block, || {
            (*link).step = step + 1;
            (*transfer).moved = moved + part;
            (*transfer).done = moved + part == bytes;
        });
    }
    Ok(())
}

/// Changes what all threads of the block read. Returns true.
#[inline(always)]
fn change<B: Block>(block: B, change: impl FnOnce()) -> bool {
    block.barrier();
    if block.thread() == 0 {
        change();
    }
    block.barrier();
    true
}
