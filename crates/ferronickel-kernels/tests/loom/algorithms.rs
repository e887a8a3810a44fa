//! Whole algorithms of two or three ranks over a few epochs.

use crate::machine::{CacheLine, Halves, LineKind, Machine};
use crate::memory::Fault;
use crate::rank::Algorithm::{
    Direct, DirectApart, DirectOutOfReach, OneShotLl, OneShotSimple, RingLl, RingSimple, Staged,
};
use crate::rank::Areas;
use crate::scenario::{LoomBlock, PLAIN, Scenario};
use std::sync::atomic::Ordering::Relaxed;

/// A flag and a payload that are written and read one after the other.
#[derive(Clone, Copy)]
struct Torn;

impl LineKind for Torn {
    type Payload = [u64; 1];
    const BYTES: usize = 16;

    fn is_atomic(_word: usize) -> bool {
        true
    }

    unsafe fn load<M: Machine>(machine: M, from: *const u64, flag: u64) -> Option<[u64; 1]> {
        // SAFETY: the caller's promise
        unsafe { (machine.load_atomic(from.add(1), Relaxed) == flag).then(|| [machine.load_atomic(from, Relaxed)]) }
    }

    unsafe fn store<M: Machine>(machine: M, to: *mut u64, payload: [u64; 1], flag: u64) {
        // SAFETY: the caller's promise
        unsafe {
            machine.store_atomic(to, payload[0], Relaxed);
            machine.store_atomic(to.add(1), flag, Relaxed);
        }
    }
}

/// Messages of one line, whose word tells the epochs apart.
#[test]
fn one_shot_ll_in_halves() {
    Scenario { calls: &[(OneShotLl, 0); 3], ..PLAIN }.explore::<Halves>();
}

#[test]
fn one_shot_ll_in_halves_of_two_lines() {
    Scenario { calls: &[(OneShotLl, 1)], ..PLAIN }.explore::<Halves>();
    Scenario { calls: &[(OneShotLl, 1); 3], fewer: 1, ..PLAIN }.explore::<Halves>();
}

#[test]
fn one_shot_ll_in_cache_lines() {
    Scenario { calls: &[(OneShotLl, 1); 3], ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn one_shot_ll_of_three_ranks() {
    Scenario { ranks: 3, calls: &[(OneShotLl, 1)], fewer: 1, ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn one_shot_ll_in_place() {
    Scenario { calls: &[(OneShotLl, 2); 2], in_place: true, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "no call differs, yet Mismatch")]
fn one_shot_ll_torn() {
    Scenario { calls: &[(OneShotLl, 1); 3], ..PLAIN }.explore::<Torn>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn one_shot_ll_cache_line_posted_relaxed() {
    Scenario { calls: &[(OneShotLl, 1); 3], fault: Fault::RelaxedPost, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn one_shot_ll_cache_line_awaited_relaxed() {
    Scenario { calls: &[(OneShotLl, 1); 3], fault: Fault::RelaxedWait, ..PLAIN }.explore::<CacheLine>();
}

/// The line is overwritten before it is read, so its flag is never seen.
#[test]
#[should_panic(expected = "a wait without end")]
fn one_shot_ll_halves_reused_too_early() {
    Scenario { calls: &[(OneShotLl, 1); 3], one_parity: true, ..PLAIN }.explore::<Halves>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn one_shot_ll_cache_line_reused_too_early() {
    Scenario { calls: &[(OneShotLl, 1); 3], one_parity: true, ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn one_shot_simple() {
    Scenario { calls: &[(OneShotSimple, 1); 3], ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn one_shot_simple_of_three_ranks() {
    Scenario { ranks: 3, calls: &[(OneShotSimple, 1)], fewer: 1, ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn one_shot_simple_of_two_threads() {
    Scenario { calls: &[(OneShotSimple, 2); 2], wide: true, fewer: 1, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn one_shot_simple_posted_relaxed() {
    Scenario { calls: &[(OneShotSimple, 1); 3], fault: Fault::RelaxedPost, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn one_shot_simple_awaited_relaxed() {
    Scenario { calls: &[(OneShotSimple, 1); 3], fault: Fault::RelaxedWait, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn one_shot_simple_reused_too_early() {
    Scenario { calls: &[(OneShotSimple, 1); 3], one_parity: true, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn one_shot_simple_without_barrier() {
    Scenario { calls: &[(OneShotSimple, 4)], wide: true, fault: Fault::NoBarrier, ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn direct() {
    Scenario { calls: &[(Direct, 3); 3], ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn direct_in_place() {
    Scenario { calls: &[(Direct, 3); 2], in_place: true, ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn direct_of_two_threads() {
    Scenario { calls: &[(Direct, 4)], wide: true, fewer: 1, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn direct_posted_relaxed() {
    Scenario { calls: &[(Direct, 3)], fault: Fault::RelaxedPost, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn direct_awaited_relaxed() {
    Scenario { calls: &[(Direct, 3)], fault: Fault::RelaxedWait, ..PLAIN }.explore::<CacheLine>();
}

/// The second meeting is skipped: a rank leaves while the other still reads its elements and writes its results.
#[test]
#[should_panic(expected = "wrong data")]
fn direct_without_second_meeting() {
    let good = Scenario { calls: &[(Direct, 3)], ..PLAIN };
    let areas = Areas::of::<LoomBlock<CacheLine>>(good.shape());
    let (begin, end) = (areas.boards, areas.stage);
    Scenario { fault: Fault::Ignore(begin + (end - begin) / 2, end), ..good }.explore::<CacheLine>();
}

/// Four elements a step.
#[test]
fn staged() {
    Scenario { calls: &[(Staged, 7)], ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn staged_in_place_over_two_calls() {
    Scenario { calls: &[(Staged, 3), (Staged, 4)], in_place: true, ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn staged_of_two_threads() {
    Scenario { calls: &[(Staged, 4)], wide: true, fewer: 1, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn staged_posted_relaxed() {
    Scenario { calls: &[(Staged, 3)], fault: Fault::RelaxedPost, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn staged_awaited_relaxed() {
    Scenario { calls: &[(Staged, 3)], fault: Fault::RelaxedWait, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn staged_without_barrier() {
    Scenario { calls: &[(Staged, 4)], wide: true, fault: Fault::NoBarrier, ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn ring_simple() {
    Scenario { calls: &[(RingSimple, 3); 2], ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn ring_ll_in_halves() {
    Scenario { calls: &[(RingLl, 1)], fewer: 1, ..PLAIN }.explore::<Halves>();
}

#[test]
fn ring_ll_in_cache_lines() {
    Scenario { calls: &[(RingLl, 3); 2], ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn ring_simple_posted_relaxed() {
    Scenario { calls: &[(RingSimple, 3)], fault: Fault::RelaxedPost, ..PLAIN }.explore::<CacheLine>();
}

#[test]
#[should_panic(expected = "no call differs, yet Mismatch")]
fn ring_ll_torn() {
    Scenario { calls: &[(RingLl, 3)], ..PLAIN }.explore::<Torn>();
}

#[test]
fn direct_in_arenas() {
    Scenario { calls: &[(DirectApart, 3); 2], ..PLAIN }.explore::<CacheLine>();
}

/// The invitation to a call that came to nothing is replaced by the next: all have read it by then.
#[test]
fn direct_out_of_reach_then_direct() {
    Scenario { calls: &[(DirectOutOfReach, 1), (DirectApart, 1)], ..PLAIN }.explore::<CacheLine>();
}

/// Algorithms take turns on one count of epochs: what one heard is what lets the next reuse a place.
#[test]
fn one_shot_direct_one_shot() {
    Scenario { calls: &[(OneShotLl, 1), (Direct, 3), (OneShotLl, 1)], ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn one_shot_staged_one_shot() {
    Scenario { calls: &[(OneShotSimple, 1), (Staged, 1), (OneShotSimple, 1)], ..PLAIN }.explore::<CacheLine>();
}

#[test]
fn one_shot_ring_one_shot() {
    Scenario { calls: &[(OneShotLl, 0), (RingLl, 0), (OneShotLl, 0)], fewer: 1, ..PLAIN }.explore::<Halves>();
}

/// A call without elements is a call too: the ranks must hear from each other, since the epoch grows.
#[test]
fn one_shot_nothing_one_shot() {
    for nothing in [OneShotSimple, Direct, Staged, RingSimple] {
        let calls: &'static [_] = Box::leak(Box::new([(OneShotLl, 1), (nothing, 0), (OneShotLl, 1)]));
        Scenario { calls, ..PLAIN }.explore::<CacheLine>();
    }
}
