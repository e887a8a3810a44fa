//! How a call ends when it cannot be done: the communicator is aborted, or the ranks' calls differ.

use crate::machine::{CacheLine, Halves};
use crate::rank::Algorithm::{Direct, OneShotLl, OneShotSimple, RingLl, RingSimple, Staged};
use crate::scenario::{PLAIN, Scenario};

/// Whoever still waits when the abort comes ends with it, whoever was done has the right result.
const ABORTED: Scenario = Scenario { abort: true, ..PLAIN };
/// A rank that waits for one who never comes ends with the abort, its results untouched.
const ABSENT: Scenario = Scenario { absent: true, ..ABORTED };
/// Every rank learns that the calls differ, and none has results.
const DIFFER: Scenario = Scenario { differ: true, ..PLAIN };

macro_rules! endings {
    ($($name:ident: $how:ident, $count:expr, $kind:ident, $calls:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn aborted() {
                Scenario { calls: &[($how, $count); $calls], ..ABORTED }.explore::<$kind>();
            }

            #[test]
            fn absent() {
                Scenario { calls: &[($how, $count)], ..ABSENT }.explore::<$kind>();
            }

            #[test]
            fn differ() {
                Scenario { calls: &[($how, $count)], ..DIFFER }.explore::<$kind>();
            }
        }
    )*};
}

endings! {
    one_shot_ll_in_halves: OneShotLl, 0, Halves, 1;
    one_shot_ll_in_cache_lines: OneShotLl, 1, CacheLine, 3;
    one_shot_simple: OneShotSimple, 1, CacheLine, 3;
    direct: Direct, 3, CacheLine, 1;
    staged: Staged, 3, CacheLine, 1;
    ring_ll_in_halves: RingLl, 0, Halves, 1;
    ring_ll_in_cache_lines: RingLl, 3, CacheLine, 1;
    ring_simple: RingSimple, 3, CacheLine, 1;
}

/// An abort reaches every thread of a block.
#[test]
fn two_threads_are_aborted() {
    Scenario { calls: &[(OneShotSimple, 2)], wide: true, fewer: 1, ..ABORTED }.explore::<CacheLine>();
}

/// Every one of three ranks learns of a mismatch between two.
#[test]
fn three_ranks_differ() {
    Scenario { ranks: 3, calls: &[(Direct, 1)], fewer: 1, ..DIFFER }.explore::<CacheLine>();
}
