//! TwoShot in the callers' own buffers: the ranks meet, each reads its share of every rank's input, reduces it, and
//! writes the result into every rank's output; then they meet again.
//!
//! Ranks may have address spaces of their own: then each reaches the others' buffers in their *arenas*, which it has
//! mapped, and an invitation says where in its arena a rank's buffers are. If the buffers of any rank are in no arena,
//! every rank sees that on the invitations, and none does anything. Nor do they if the operation
//! [differs between ranks](Reduce::differs_between_ranks), since here each prepares the others' elements.
//!
//! At every rank lies a *board*: for each other rank an invitation (which call, and where its buffers are), and for
//! each other rank a flag that says it has done its share. Both are free for the next call as soon as this one has
//! returned, since a rank that has seen every flag knows that all have read its invitation.

use crate::algorithm::{after, share};
use crate::block::{Block, Reduction, Sources, Stop, Targets};
use crate::element::Element;
use crate::protocol::{FLAG_STRIDE, NOT_SHARED};
use crate::reduce::Reduce;

/// What a launch needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arguments<E> {
    /// This rank's elements, all channels' parts of them: where the peers read.
    pub send: *const E,
    /// Where the result goes, all channels' parts of it; may be the same as `send`.
    pub receive: *mut E,
    /// Elements, in all channels together.
    pub count: usize,
    /// Where `send` begins in this rank's arena; [`NOT_SHARED`] if it is not in it.
    pub send_offset: u64,
    /// Where `receive` begins in this rank's arena; [`NOT_SHARED`] if it is not in it.
    pub receive_offset: u64,
    /// Whether any two ranks have different address spaces: the same on every rank.
    pub apart: bool,
    /// For each rank, its arena as this rank sees it; null for ranks in this rank's address space.
    pub arenas: *const *mut u8,
    /// For each rank, this channel's board there.
    pub boards: *const *mut u8,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
    /// This channel.
    pub channel: u32,
    /// Channels that share the work.
    pub channels: u32,
    /// Grows by one with every call of the communicator; starts at one.
    pub epoch: u64,
    /// The description of the call, the same on every rank.
    pub call: u64,
}

/// What came of a call.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// Not every rank can reach every buffer, or cannot prepare what is there; nothing has been done, on any rank, and
    /// the call can be made another way.
    OutOfReach,
}

/// Bytes of a board.
pub const fn board_bytes(ranks: usize) -> usize {
    2 * ranks * FLAG_STRIDE
}

/// An invitation's words: the flag, the call, the buffers' addresses, and their offsets.
const CALL: usize = 1;
const SEND: usize = 2;
const RECEIVE: usize = 3;
/// From a buffer's address to its offset.
const OFFSET: usize = 2;

impl<E> Arguments<E> {
    /// Where `from` leaves its invitation at `at`.
    #[inline(always)]
    fn invitation(&self, at: usize, from: usize) -> *mut u64 {
        // SAFETY: there is a board for every rank
        unsafe { (*self.boards.add(at)).wrapping_add(from * FLAG_STRIDE).cast() }
    }

    /// Where `from` says at `at` that its share is done.
    #[inline(always)]
    fn done(&self, at: usize, from: usize) -> *mut u64 {
        self.invitation(at, self.ranks as usize + from)
    }
}

/// Every rank's buffers, from element `begin`.
#[derive(Clone, Copy)]
struct Everyone<B, E> {
    block: B,
    arguments: Arguments<E>,
    begin: usize,
}

impl<B: Block, E> Everyone<B, E> {
    #[inline(always)]
    fn pointer(&self, rank: usize, word: usize) -> *mut E {
        let a = &self.arguments;
        let invitation = a.invitation(a.rank as usize, rank);
        // SAFETY: there is an entry for every rank, and the invitation has been acquired
        unsafe {
            let arena = *a.arenas.add(rank);
            let buffer = if arena.is_null() {
                core::ptr::with_exposed_provenance_mut(self.block.load(invitation.wrapping_add(word)) as usize)
            } else {
                arena.wrapping_add(self.block.load(invitation.wrapping_add(word + OFFSET)) as usize)
            };
            buffer.cast::<E>().wrapping_add(self.begin)
        }
    }
}

impl<B: Block, E: Copy> Sources<E> for Everyone<B, E> {
    #[inline(always)]
    fn sources(&self) -> usize {
        self.arguments.ranks as usize
    }

    #[inline(always)]
    fn source(&self, k: usize) -> *const E {
        if k == self.arguments.rank as usize {
            self.arguments.send.wrapping_add(self.begin)
        } else {
            self.pointer(k, SEND).cast_const()
        }
    }

    #[inline(always)]
    fn is_input(&self, _k: usize) -> bool {
        true
    }
}

impl<B: Block, E: Copy> Targets<E> for Everyone<B, E> {
    #[inline(always)]
    fn targets(&self) -> usize {
        self.arguments.ranks as usize
    }

    #[inline(always)]
    fn target(&self, k: usize) -> *mut E {
        if k == self.arguments.rank as usize {
            self.arguments.receive.wrapping_add(self.begin)
        } else {
            self.pointer(k, RECEIVE)
        }
    }
}

/// All-reduce.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// The pointers cover what [`Arguments`] says, and every rank can reach them, by address or in an arena; boards were
/// zero before the first epoch, and are used by nothing else; every rank makes the same calls in the same order, and
/// one that came to nothing is made another way, in which every rank hears from every other.
#[inline(always)]
pub unsafe fn all_reduce<B: Block, E: Element, R: Reduce<E>>(
    block: B,
    op: R,
    a: &Arguments<E>,
) -> Result<Outcome, Stop> {
    let a = *a;
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    // SAFETY: the caller's promise; an invitation is written before its flag is posted, read after it is acquired
    unsafe {
        let mut k = 1;
        while k < ranks {
            let at = a.invitation(after(rank, k, ranks), rank);
            if block.thread() == 0 {
                block.store(at.wrapping_add(CALL), a.call);
                block.store(at.wrapping_add(SEND), a.send.expose_provenance() as u64);
                block.store(at.wrapping_add(RECEIVE), a.receive.expose_provenance() as u64);
                block.store(at.wrapping_add(SEND + OFFSET), a.send_offset);
                block.store(at.wrapping_add(RECEIVE + OFFSET), a.receive_offset);
            }
            block.post(at, a.epoch);
            k += 1;
        }
        let mut shared = a.send_offset != NOT_SHARED && a.receive_offset != NOT_SHARED;
        let mut k = 1;
        while k < ranks {
            let peer = after(rank, k, ranks);
            let at = a.invitation(rank, peer);
            block.wait(at, a.epoch)?;
            let theirs = block.load(at.wrapping_add(CALL));
            if theirs != a.call {
                return Err(Stop::Mismatch { peer: peer as u32, theirs });
            }
            shared &= block.load(at.wrapping_add(SEND + OFFSET)) != NOT_SHARED;
            shared &= block.load(at.wrapping_add(RECEIVE + OFFSET)) != NOT_SHARED;
            k += 1;
        }
        // Every rank has seen the same invitations, and so all come to the same conclusion. The next invitation may
        // replace this one as soon as this rank has heard from everyone again, since all have read it by then.
        if a.apart && !shared || ranks > 1 && op.differs_between_ranks() {
            return Ok(Outcome::OutOfReach);
        }
        let (from, to) = share::<E>(a.count, rank, ranks);
        let (begin, end) = share::<E>(to - from, a.channel as usize, a.channels as usize);
        let everyone = Everyone { block, arguments: a, begin: from + begin };
        block.reduce(Reduction::new(op, everyone, everyone, end - begin, true));
        let mut k = 1;
        while k < ranks {
            block.post(a.done(after(rank, k, ranks), rank), a.epoch);
            k += 1;
        }
        let mut k = 1;
        while k < ranks {
            block.wait(a.done(rank, after(rank, k, ranks)), a.epoch)?;
            k += 1;
        }
    }
    Ok(Outcome::Done)
}
