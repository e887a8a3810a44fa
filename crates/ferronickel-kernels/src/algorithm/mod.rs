//! Who sends what to whom.
//!
//! Each algorithm has its arguments, a plain structure that a launch passes by value, and a function for each
//! collective. An algorithm runs on one channel: a call that is spread over several channels is several runs, each
//! with its own part of the elements and its own connections.

pub mod exchange;
pub mod flat;
pub mod hierarchical;
pub mod one_shot;
pub mod pat;
pub mod ring;
pub mod tree;
pub mod two_shot;

use crate::block::Stop;

/// The half-open range of elements that falls to `index` of `shares`: whole packs, but for the last.
///
/// # Safety
/// There is at least one share.
#[inline(always)]
pub unsafe fn share<E>(count: usize, index: usize, shares: usize) -> (usize, usize) {
    // SAFETY: the caller's promise; said so that no division check remains on a GPU
    unsafe { core::hint::assert_unchecked(shares != 0) };
    let each = count.div_ceil(shares).next_multiple_of(16 / size_of::<E>());
    let begin = (each * index).min(count);
    (begin, (begin + each).min(count))
}

/// The rank `k` places after `rank` among `ranks`.
#[inline(always)]
pub(crate) fn after(rank: usize, k: usize, ranks: usize) -> usize {
    if rank + k < ranks { rank + k } else { rank + k - ranks }
}

/// Calls `f` with the beginning and the length of each piece, of at most `most`, of `count` elements. At least once: an
/// empty call still meets its peers, who may have made another one.
#[inline(always)]
pub(crate) fn for_pieces(
    count: usize,
    most: usize,
    mut f: impl FnMut(usize, usize) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut begin = 0;
    loop {
        let piece = (count - begin).min(most);
        f(begin, piece)?;
        begin += piece;
        if begin >= count {
            return Ok(());
        }
    }
}
