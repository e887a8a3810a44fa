//! What waiting and waking are made of: the standard library's locks, atomics and threads.
//!
//! The modules that name them through here are compiled once more, from the same files, over a model checker's, which
//! then tries every order in which threads can run: `tests/loom.rs` does that.

use std::cell::UnsafeCell;
use std::sync::PoisonError;
use std::time::Duration;

pub use super::lock::{Guard, Lock};
pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub use std::sync::{Condvar, Mutex, MutexGuard};
pub use std::thread::Thread;

/// A value that only whoever may touches.
#[derive(Default, Debug)]
#[repr(transparent)]
pub struct SharedCell<T>(UnsafeCell<T>);

impl<T> SharedCell<T> {
    pub const fn new(value: T) -> Self {
        SharedCell(UnsafeCell::new(value))
    }

    /// Where the value is.
    #[inline(always)]
    pub fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// What a waiting loop does in turn number `turn`, where the wait should be over in no time.
pub fn relax(turn: u32) {
    const SPINS: u32 = 100;
    super::wait::turn(turn, SPINS);
}

/// Locks. A panic of another holder leaves nothing half done: what these locks guard changes by single assignments.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until notified. Timed, so that nothing can be lost for ever.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    const LONGEST: Duration = Duration::from_millis(100);
    condvar.wait_timeout(guard, LONGEST).map_or_else(|poisoned| poisoned.into_inner().0, |(guard, _)| guard)
}

/// Sleeps until unparked. Timed, so that nothing can be lost for ever.
pub fn park(longest: Duration) {
    std::thread::park_timeout(longest);
}
