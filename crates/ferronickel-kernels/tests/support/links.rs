//! The links of a rank: where each is, and the memory in which the rank counts its steps.

use crate::rank::{Areas, Shape};
use ferronickel_kernels::block::Block;
use ferronickel_kernels::protocol::{FLAG_STRIDE, Lends, Link, SLOTS, ll, simple};
use std::cell::UnsafeCell;

/// The four tables of a rank: for each other rank, the link from it and to it, with LL and with Simple.
pub struct Tables(UnsafeCell<Vec<Link>>);

// SAFETY: only the threads of the rank's own block use the links, between their barriers
unsafe impl Send for Tables {}
// SAFETY: as above
unsafe impl Sync for Tables {}

/// A rank's flags for one other: the head of LL, the head of Simple, the tail of Simple.
pub const FLAGS: usize = 3;

/// Where at rank `at` its flag number `flag` for `peer` is.
pub fn flag(areas: &Areas, bases: &[*mut u8], at: usize, peer: usize, flag: usize) -> *mut u64 {
    bases[at].wrapping_add(areas.flags + (peer * FLAGS + flag) * FLAG_STRIDE).cast()
}

impl Tables {
    /// The tables of `rank`, all of whose links have taken `start` steps. Ranks lend to each other as `lends` says; the
    /// arena of rank `r` is seen by the others at `arenas[r]`.
    pub fn new<B: Block>(
        rank: usize,
        shape: Shape,
        bases: &[*mut u8],
        start: u64,
        lends: Lends,
        arenas: &[*mut u8],
    ) -> Self {
        let areas = Areas::of::<B>(shape);
        let ll_stride = SLOTS as usize * ll::lines::<B>(shape.slot_bytes) * B::LINE_BYTES;
        let simple_stride = SLOTS as usize * simple::slot_stride(shape.slot_bytes);
        let link = |from: usize, to: usize, is_ll: bool| {
            let (slots, stride) = if is_ll { (areas.ll_slots, ll_stride) } else { (areas.simple_slots, simple_stride) };
            Link {
                slots: bases[to].wrapping_add(slots + from * stride),
                tail: flag(&areas, bases, to, from, 2),
                head: flag(&areas, bases, from, to, !is_ll as usize),
                arena: arenas.get(from).copied().unwrap_or(std::ptr::null_mut()),
                lends: if is_ll { Lends::Never } else { lends },
                peer: (if from == rank { to } else { from }) as u32,
                step: start,
            }
        };
        let mut links = Vec::new();
        for is_ll in [true, false] {
            links.extend((0..shape.ranks).map(|peer| link(peer, rank, is_ll)));
            links.extend((0..shape.ranks).map(|peer| link(rank, peer, is_ll)));
        }
        Tables(UnsafeCell::new(links))
    }

    /// Their start: from and to each rank with LL, then with Simple.
    pub fn start(&self) -> *mut Link {
        // SAFETY: the vector is never resized
        unsafe { (*self.0.get()).as_mut_ptr() }
    }
}
