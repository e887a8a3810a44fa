//! The locks of the queue: the standard library's. A model checker brings its own in their place.

use std::sync::PoisonError;
use std::time::Duration;

pub use std::sync::{Condvar, Mutex, MutexGuard};

/// Locks. A panic of another holder leaves nothing half done: the queue's changes are single assignments.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until notified. Timed, so that nothing can be lost for ever.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    const LONGEST: Duration = Duration::from_millis(100);
    condvar.wait_timeout(guard, LONGEST).map_or_else(|poisoned| poisoned.into_inner().0, |(guard, _)| guard)
}
