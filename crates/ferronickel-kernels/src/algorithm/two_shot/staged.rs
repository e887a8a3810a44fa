//! TwoShot through staging memory: each rank pushes its elements to the owner of their share, the owner reduces and
//! pushes the result to everyone.
//!
//! At every rank lies a *stage*: for each rank a place for what it contributes to this rank's share, and a place for
//! the result of that rank's share. No acknowledgements are needed. A contribution to the owner is overwritten only
//! after the owner's result of the same step has come, and the owner read the contribution before that. A result is
//! overwritten only after the reader's contribution of the next step has come, and the reader had taken the result
//! before that.

use crate::algorithm::{after, share};
use crate::block::{Block, Reduction, Sources, Stop};
use crate::element::Element;
use crate::protocol::{FLAG_STRIDE, simple};
use crate::reduce::Reduce;

/// What a launch needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arguments<E> {
    /// This rank's elements.
    pub send: *const E,
    /// Where the result goes; may be the same as `send`.
    pub receive: *mut E,
    /// Elements.
    pub count: usize,
    /// For each rank, this channel's stage there.
    pub stages: *const *mut u8,
    /// Bytes of elements that one place of a stage holds.
    pub slot_bytes: usize,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
    /// Steps this channel took before this call.
    pub step: u64,
    /// The description of the call, the same on every rank.
    pub call: u64,
}

/// Bytes of a stage whose places hold `slot_bytes` each.
pub const fn stage_bytes(slot_bytes: usize, ranks: usize) -> usize {
    2 * ranks * simple::flagged_slot_stride(slot_bytes)
}

/// A place of a stage: a flag, a header, a payload.
#[derive(Clone, Copy)]
struct Place(*mut u8);

impl Place {
    #[inline(always)]
    fn payload<E>(self) -> *mut E {
        self.0.wrapping_add(FLAG_STRIDE + simple::HEADER_BYTES).cast()
    }

    /// Publishes a filled place.
    #[inline(always)]
    unsafe fn post<B: Block>(self, block: B, step: u64, call: u64, bytes: usize) {
        // SAFETY: the place is the caller's until this post
        unsafe {
            simple::write_header(block, self.0.wrapping_add(FLAG_STRIDE), call, bytes);
            block.post(self.0.cast(), step);
        }
    }

    /// Waits until the place is filled for `step`, by `peer`, for `call`.
    #[inline(always)]
    unsafe fn wait<B: Block>(self, block: B, step: u64, call: u64, peer: usize) -> Result<(), Stop> {
        // SAFETY: the place is valid; its header is read after its flag
        unsafe {
            block.wait(self.0.cast(), step)?;
            simple::check_header(block, self.0.wrapping_add(FLAG_STRIDE), call, peer as u32)
        }
    }
}

impl<E> Arguments<E> {
    /// Where `source` puts, at `at`, its contribution to `at`'s share.
    #[inline(always)]
    fn contribution(&self, at: usize, source: usize) -> Place {
        // SAFETY: there is a stage for every rank
        Place(unsafe { (*self.stages.add(at)).wrapping_add(source * simple::flagged_slot_stride(self.slot_bytes)) })
    }

    /// Where `owner` puts, at `at`, the result of `owner`'s share.
    #[inline(always)]
    fn result(&self, at: usize, owner: usize) -> Place {
        self.contribution(at, self.ranks as usize + owner)
    }
}

/// What all ranks contribute to this rank's share, in rank order.
#[derive(Clone, Copy)]
struct Contributions<E> {
    arguments: Arguments<E>,
    own: *const E,
}

impl<E: Copy> Sources<E> for Contributions<E> {
    #[inline(always)]
    fn sources(&self) -> usize {
        self.arguments.ranks as usize
    }

    #[inline(always)]
    fn source(&self, k: usize) -> *const E {
        let rank = self.arguments.rank as usize;
        if k == rank { self.own } else { self.arguments.contribution(rank, k).payload::<E>().cast_const() }
    }

    #[inline(always)]
    fn is_input(&self, k: usize) -> bool {
        k == self.arguments.rank as usize
    }
}

/// All-reduce. Returns the steps this channel has taken so far.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// The pointers cover what [`Arguments`] says; stages were zero before the first step, and are used by nothing else;
/// every rank makes the same calls in the same order.
#[inline(always)]
pub unsafe fn all_reduce<B: Block, E: Element, R: Reduce<E>>(block: B, op: R, a: &Arguments<E>) -> Result<u64, Stop> {
    let a = *a;
    // whole packs, so that shares stay aligned
    let slot = a.slot_bytes / 16 * 16 / size_of::<E>();
    let mut step = a.step;
    let mut begin = 0;
    // at least once: an empty call still meets its peers, who may have made another one
    loop {
        let piece = (a.count - begin).min(slot * a.ranks as usize);
        step += 1;
        // SAFETY: the piece lies within the caller's ranges, and its shares fit a slot
        unsafe {
            contribute(block, op, &a, begin, piece, step);
            reduce_own_share(block, op, &a, begin, piece, step)?;
            collect(block, &a, begin, piece, step)?;
        }
        begin += piece;
        if begin >= a.count {
            return Ok(step);
        }
    }
}

/// Pushes this rank's elements to the owners of their shares.
#[inline(always)]
unsafe fn contribute<B: Block, E: Element, R: Reduce<E>>(
    block: B,
    op: R,
    a: &Arguments<E>,
    begin: usize,
    piece: usize,
    step: u64,
) {
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    let mut k = 1;
    while k < ranks {
        let owner = after(rank, k, ranks);
        // SAFETY: see `all_reduce`
        unsafe {
            let (from, to) = share::<E>(piece, owner, ranks);
            let place = a.contribution(owner, rank);
            let own = a.send.wrapping_add(begin + from);
            if op.prepares() {
                block.reduce(Reduction::new(op, [place.payload()], [own], to - from, false));
            } else {
                block.copy(place.payload(), own, to - from);
            }
            place.post(block, step, a.call, (to - from) * size_of::<E>());
        }
        k += 1;
    }
}

/// Reduces this rank's share and pushes the result to everyone.
#[inline(always)]
unsafe fn reduce_own_share<B: Block, E: Element, R: Reduce<E>>(
    block: B,
    op: R,
    a: &Arguments<E>,
    begin: usize,
    piece: usize,
    step: u64,
) -> Result<(), Stop> {
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    // SAFETY: see `all_reduce`
    unsafe {
        let (from, to) = share::<E>(piece, rank, ranks);
        let mut k = 1;
        while k < ranks {
            let peer = after(rank, k, ranks);
            a.contribution(rank, peer).wait(block, step, a.call, peer)?;
            k += 1;
        }
        let sources = Contributions { arguments: *a, own: a.send.wrapping_add(begin + from) };
        let target = a.receive.wrapping_add(begin + from);
        block.reduce(Reduction::new(op, [target], sources, to - from, true));
        // the result is copied by other threads than those that wrote it
        block.barrier();
        let mut k = 1;
        while k < ranks {
            let place = a.result(after(rank, k, ranks), rank);
            block.copy(place.payload(), target.cast_const(), to - from);
            place.post(block, step, a.call, (to - from) * size_of::<E>());
            k += 1;
        }
    }
    Ok(())
}

/// Takes the results of the other ranks' shares.
#[inline(always)]
unsafe fn collect<B: Block, E: Element>(
    block: B,
    a: &Arguments<E>,
    begin: usize,
    piece: usize,
    step: u64,
) -> Result<(), Stop> {
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    let mut k = 1;
    while k < ranks {
        let owner = after(rank, k, ranks);
        // SAFETY: see `all_reduce`
        unsafe {
            let (from, to) = share::<E>(piece, owner, ranks);
            let place = a.result(rank, owner);
            place.wait(block, step, a.call, owner)?;
            block.copy(a.receive.wrapping_add(begin + from), place.payload::<E>().cast_const(), to - from);
        }
        k += 1;
    }
    block.barrier();
    Ok(())
}
