//! PAT, parallel trees: for each rank a binomial tree of which it is the root, all of them at the same time. log n
//! hops, and every rank sends and receives as much as in a ring.
//!
//! In the tree of a root, the rank `o` places after it has the parent `o` less its lowest bit, and the children `o`
//! plus each power of two that is less than its lowest bit. So a rank speaks only to those a power of two away.

use super::{after, for_pieces};
use crate::block::{Block, Stop};
use crate::element::Element;
use crate::protocol::{Link, Links, PassOn, Step, Wire};
use crate::reduce::Reduce;

/// What a launch of PAT needs; the root is not used.
pub use super::flat::Arguments;

/// The links of a rank to its children, or from them, in the tree in which it is `offset` places after the root.
#[derive(Clone, Copy)]
struct Children {
    table: *mut Link,
    rank: usize,
    ranks: usize,
    count: usize,
}

impl Children {
    #[inline(always)]
    fn of(table: *mut Link, rank: usize, ranks: usize, offset: usize) -> Self {
        let lowest = if offset == 0 { ranks } else { lowest_bit(offset) };
        let mut count = 0;
        while 1 << count < lowest && offset + (1 << count) < ranks {
            count += 1;
        }
        Children { table, rank, ranks, count }
    }
}

impl Links for Children {
    #[inline(always)]
    fn links(&self) -> usize {
        self.count
    }

    #[inline(always)]
    fn link(&self, k: usize) -> *mut Link {
        self.table.wrapping_add(after(self.rank, 1 << k, self.ranks))
    }
}

#[inline(always)]
const fn lowest_bit(n: usize) -> usize {
    n & n.wrapping_neg()
}

/// The rank `k` places before `rank`.
#[inline(always)]
fn before(rank: usize, k: usize, ranks: usize) -> usize {
    if rank >= k { rank - k } else { rank + ranks - k }
}

/// All-gather: `receive` gets every rank's `count` elements, `stride` apart, in rank order. `send` may be this rank's
/// part of `receive`.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// The pointers cover what [`Arguments`] says; every rank makes the same calls in the same order.
#[inline(always)]
pub unsafe fn all_gather<B: Block, E: Element>(wire: impl Wire<B>, a: &Arguments<E>) -> Result<(), Stop> {
    let a = *a;
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    // Trees in which this rank comes earlier come first: what it receives in a turn was sent in an earlier turn.
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        let mut offset = 0;
        while offset < ranks {
            let keep = a.receive.wrapping_add(before(rank, offset, ranks) * a.stride + begin);
            let step = Step::of(PassOn, n).keep(keep).send(Children::of(a.to, rank, ranks, offset));
            // SAFETY: the piece lies within each rank's part
            unsafe {
                if offset == 0 {
                    wire.step(step.with_own(a.send.wrapping_add(begin)))?;
                } else {
                    let parent = before(rank, lowest_bit(offset), ranks);
                    wire.step(step.receive(a.from.wrapping_add(parent)))?;
                }
            }
            offset += 1;
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    unsafe { wire.settle(Children::of(a.to, rank, ranks, 0), a.count * size_of::<E>()) }
}

/// Reduce-scatter: `receive` gets the reduction of all ranks' elements for this rank, of which each has `count` in
/// `send`, `stride` apart, in rank order. `receive` may be this rank's part of `send`.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// As for [`all_gather`].
#[inline(always)]
pub unsafe fn reduce_scatter<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    let (rank, ranks) = (a.rank as usize, a.ranks as usize);
    // The trees of all-gather, climbed in the opposite order.
    for_pieces(a.count, wire.slot::<E>(), |begin, n| {
        let mut offset = ranks;
        while offset > 0 {
            offset -= 1;
            let own = a.send.wrapping_add(before(rank, offset, ranks) * a.stride + begin);
            let step = Step::of(op, n).with_own(own).receive(Children::of(a.from, rank, ranks, offset));
            // SAFETY: the piece lies within each rank's part
            unsafe {
                if offset == 0 {
                    wire.step(step.keep(a.receive.wrapping_add(begin)).last())?;
                } else {
                    let parent = before(rank, lowest_bit(offset), ranks);
                    wire.step(step.send(a.to.wrapping_add(parent)))?;
                }
            }
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise; whatever a leaf lent, it lent to a parent a power of two away
    unsafe { wire.settle(Parents { table: a.to, rank, ranks }, a.count * size_of::<E>()) }
}

/// The links to all parents that a rank has in any tree.
#[derive(Clone, Copy)]
struct Parents {
    table: *mut Link,
    rank: usize,
    ranks: usize,
}

impl Links for Parents {
    #[inline(always)]
    fn links(&self) -> usize {
        // the powers of two less than the ranks
        (usize::BITS - (self.ranks - 1).leading_zeros()) as usize
    }

    #[inline(always)]
    fn link(&self, k: usize) -> *mut Link {
        self.table.wrapping_add(before(self.rank, 1 << k, self.ranks))
    }
}
