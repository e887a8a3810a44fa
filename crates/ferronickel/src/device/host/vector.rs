//! Reducing as fast as the processor can: the widest vectors it has, chosen at run time, and stores that go past the
//! caches where the data would not stay in them anyway.

pub(super) mod halves;
pub(super) mod loops;

use ferronickel_kernels::block::{Reduction, Sources, Targets};
use ferronickel_kernels::element::Element;
use ferronickel_kernels::reduce::Reduce;

/// Bytes that are reduced at a time: two pieces of this size and their source stay in the first-level cache.
const PIECE_BYTES: usize = 8 << 10;

/// Bytes of a reduction from which its result is stored past the caches: far more than a core's own caches hold, so
/// that reading each line before it is overwritten would be traffic for nothing.
const STREAM_BYTES: usize = 1 << 20;

/// A piece on the stack, aligned for the widest vector.
#[repr(C, align(64))]
struct Piece([u8; PIECE_BYTES]);

impl Piece {
    /// Uninitialised: every piece is written before it is read.
    fn new() -> std::mem::MaybeUninit<Piece> {
        std::mem::MaybeUninit::uninit()
    }
}

/// Does what [`Block::reduce`](ferronickel_kernels::block::Block::reduce) says, with one thread.
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn reduce<E: Element, R: Reduce<E>>(work: Reduction<E, R, impl Sources<E>, impl Targets<E>>) {
    let per_piece = PIECE_BYTES / size_of::<E>();
    let stream = work.count * size_of::<E>() >= STREAM_BYTES && !is_in_place(&work);
    let (mut sum, mut scratch) = (Piece::new(), Piece::new());
    let (sum, scratch) = (sum.as_mut_ptr().cast::<E>(), scratch.as_mut_ptr().cast::<E>());
    let mut at = 0;
    while at < work.count {
        let count = per_piece.min(work.count - at);
        // SAFETY: the piece lies within the caller's ranges
        unsafe {
            accumulate(&work, at, count, sum, scratch);
            if work.last && work.op.finishes() {
                work.op.finish_range(sum, count);
            }
            for k in 0..work.to.targets() {
                let target = work.to.target(k).add(at);
                if stream {
                    store_past_caches(target.cast(), sum.cast(), count * size_of::<E>());
                } else {
                    std::ptr::copy_nonoverlapping(sum, target, count);
                }
            }
        }
        at += count;
    }
    if stream {
        order_stores();
    }
}

/// Whether a target is one of the sources: its lines are in the caches then, since they have just been read.
fn is_in_place<E, R>(work: &Reduction<E, R, impl Sources<E>, impl Targets<E>>) -> bool {
    let is_source = |target: *mut E| (0..work.from.sources()).any(|k| work.from.source(k) == target.cast_const());
    (0..work.to.targets()).any(|k| is_source(work.to.target(k)))
}

/// Combines `count` elements, from `at`, of all sources into `sum`.
///
/// # Safety
/// The ranges are valid; `sum` and `scratch` hold `count` elements and are nobody else's.
#[inline(always)]
unsafe fn accumulate<E: Element, R: Reduce<E>>(
    work: &Reduction<E, R, impl Sources<E>, impl Targets<E>>,
    at: usize,
    count: usize,
    sum: *mut E,
    scratch: *mut E,
) {
    let from = &work.from;
    // SAFETY: the caller's promise
    unsafe {
        // a source as it enters the sum: prepared, in `room`, if it is a caller's own
        let entering = |k: usize, room: *mut E| {
            let source = from.source(k).add(at);
            if work.op.prepares() && from.is_input(k) {
                work.op.prepare_range(room, source, count);
                return room.cast_const();
            }
            source
        };
        let first = entering(0, sum);
        if from.sources() == 1 {
            if first != sum.cast_const() {
                std::ptr::copy_nonoverlapping(first, sum, count);
            }
            return;
        }
        let second = entering(1, scratch);
        work.op.combine_ranges(sum, first, second, count);
        for k in 2..from.sources() {
            work.op.combine_ranges(sum, sum, entering(k, scratch), count);
        }
    }
}

/// Copies `bytes` bytes without taking the target's lines into the caches.
///
/// # Safety
/// The ranges are valid and do not overlap; [`order_stores`] follows before a flag tells of the bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn store_past_caches(to: *mut u8, from: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const VECTOR: usize = size_of::<__m128i>();
    // up to the target's first whole vector, the vectors, and what is left
    let head = to.align_offset(VECTOR).min(bytes);
    let vectors = (bytes - head) / VECTOR;
    // SAFETY: all three parts lie within the ranges; the second is aligned
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let (source, target) = (from.add(head).cast::<__m128i>(), to.add(head).cast::<__m128i>());
        for i in 0..vectors {
            _mm_stream_si128(target.add(i), _mm_loadu_si128(source.add(i)));
        }
        let done = head + vectors * VECTOR;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
    }
}

/// Stores that went past the caches come before whatever is stored from now on.
#[cfg(target_arch = "x86_64")]
fn order_stores() {
    // SAFETY: a fence has no precondition; every x86-64 processor has it
    unsafe { std::arch::x86_64::_mm_sfence() }
}

/// # Safety
/// The ranges are valid and do not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn store_past_caches(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

#[cfg(not(target_arch = "x86_64"))]
fn order_stores() {}
