//! A lock for moments: for what takes some nanoseconds and is seldom wanted by two.
//!
//! To take it costs one atomic access, to give it back a plain store; a mutex needs another for that, to
//! learn whether somebody sleeps. Here nobody does who would have to be woken: whoever finds it taken spins, then lets
//! others run, then naps, for the holder may have been put off its processor.

use std::ops::{Deref, DerefMut};

use super::sync::{AtomicBool, Ordering, SharedCell, relax};

/// A value that one thread has at a time.
#[derive(Default, Debug)]
pub struct Lock<T> {
    held: AtomicBool,
    value: SharedCell<T>,
}

/// The value, until this is dropped.
pub struct Guard<'a, T>(&'a Lock<T>);

// SAFETY: the lock hands the value from thread to thread, and never to two at a time
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A lock that nobody holds.
    pub fn new(value: T) -> Self {
        Lock { held: AtomicBool::default(), value: SharedCell::new(value) }
    }

    /// Waits until nobody has the value. A panic of another holder leaves it as it was then.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        if !self.try_take() {
            self.wait();
        }
        Guard(self)
    }

    #[inline(always)]
    fn try_take(&self) -> bool {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut turns = 0u32;
        loop {
            turns = turns.saturating_add(1);
            relax(turns);
            // looking leaves the holder its cache line, trying takes it away
            if !self.held.load(Ordering::Relaxed) && self.try_take() {
                return;
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}
