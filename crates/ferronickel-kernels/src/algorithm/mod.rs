//! Who sends what to whom.
//!
//! Each algorithm has its arguments, a plain structure that a launch passes by value, and a function for each
//! collective. An algorithm runs on one channel: a call that is spread over several channels is several runs, each
//! with its own part of the elements and its own connections.

pub mod one_shot;
pub mod ring;
pub mod two_shot;

/// The half-open range of elements that falls to `index` of `shares`: whole packs, but for the last.
#[inline(always)]
pub fn share<E>(count: usize, index: usize, shares: usize) -> (usize, usize) {
    // SAFETY: a communicator has at least one rank; said so that no division check remains on a GPU
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
