//! Ring: partial results go around the ranks once, final results once more. 2(n - 1) hops, each byte sent twice.

use super::share;
use crate::block::{Block, Stop};
use crate::element::Element;
use crate::protocol::Wire;
use crate::reduce::Reduce;

/// What a launch of Ring needs, besides the links in its [`Wire`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arguments<E> {
    /// This rank's elements.
    pub send: *const E,
    /// Where the result goes; may be the same as `send`.
    pub receive: *mut E,
    /// Elements.
    pub count: usize,
    /// Bytes of elements that one slot holds.
    pub slot_bytes: usize,
    /// This rank's place on the ring.
    pub position: u32,
    /// All ranks.
    pub ranks: u32,
}

/// All-reduce over two or more ranks.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// The pointers cover what [`Arguments`] says; the wire's links lead to this rank's neighbours on the ring; every
/// rank makes the same calls in the same order.
#[inline(always)]
pub unsafe fn all_reduce<B: Block, E: Element, R: Reduce<E>>(
    wire: &mut impl Wire<B>,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    let (position, ranks) = (a.position as usize, a.ranks as usize);
    // whole packs, so that shares that begin within a slot stay aligned
    let slot = a.slot_bytes / 16 * 16 / size_of::<E>();
    let mut begin = 0;
    // at least once: an empty call still meets its neighbours, who may have made another one
    loop {
        let piece = (a.count - begin).min(slot * ranks);
        let (send, receive) = (a.send.wrapping_add(begin), a.receive.wrapping_add(begin));
        // the share of the rank `back` places behind us
        let at = |back: usize| {
            let index = if position >= back { position - back } else { position + ranks - back };
            let (from, to) = share::<E>(piece, index, ranks);
            (from, to - from)
        };
        // SAFETY: shares lie within the piece, the piece within the caller's ranges; a share fits a slot
        unsafe {
            let (from, n) = at(1);
            wire.send(op, send.wrapping_add(from), n)?;
            let mut k = 2;
            while k < ranks {
                let (from, n) = at(k);
                wire.receive_reduce_send(op, send.wrapping_add(from), n)?;
                k += 1;
            }
            let (from, n) = at(0);
            wire.receive_reduce_copy_send(op, send.wrapping_add(from), receive.wrapping_add(from), n)?;
            let mut k = 1;
            while k < ranks - 1 {
                let (from, n) = at(k);
                wire.receive_copy_send(receive.wrapping_add(from), n)?;
                k += 1;
            }
            let (from, n) = at(ranks - 1);
            wire.receive(receive.wrapping_add(from), n)?;
        }
        begin += piece;
        if begin >= a.count {
            return Ok(());
        }
    }
}
