//! How a thread that has nothing to do falls asleep, and how it is woken without a system call while it is awake.
//!
//! The sleeper says that it sleeps, looks for work once more, and only then parks. Whoever has work for it publishes
//! the work first, and then asks whether it sleeps. So one of the two notices the other, provided that both the work
//! and the question are in one order that all threads agree on: the work is behind a lock that the sleeper's look
//! takes as well, or both sides use nothing weaker than sequentially consistent accesses.

use super::sync::{AtomicBool, Ordering};

/// Whether a thread is awake. It is not before it says so.
#[derive(Default, Debug)]
pub struct Doze {
    awake: AtomicBool,
}

impl Doze {
    /// Over a flag that says whether the thread is awake.
    pub const fn new(awake: AtomicBool) -> Self {
        Doze { awake }
    }

    /// Calls the thread with `call`, which unparks it, if it sleeps. The work must have been published before.
    #[inline(always)]
    pub fn wake(&self, call: impl FnOnce()) {
        if !self.awake.load(Ordering::SeqCst) {
            self.wake_sleeper(call);
        }
    }

    #[cold]
    fn wake_sleeper(&self, call: impl FnOnce()) {
        // Others need not call it as well: woken once, the thread looks at all that is published until it lies down
        // again, and once more then.
        self.awake.store(true, Ordering::SeqCst);
        call();
    }

    /// The thread has begun, or goes on.
    pub fn rise(&self) {
        self.awake.store(true, Ordering::SeqCst);
    }

    /// The thread must be called from now on. It has to look for work once more after this.
    pub fn lie_down(&self) {
        self.awake.store(false, Ordering::SeqCst);
    }

    /// The thread sleeps in `park` until it is called, unless `has_work`, and may do so for no reason.
    pub fn sleep(&self, has_work: impl FnOnce() -> bool, park: impl FnOnce()) {
        self.lie_down();
        if !has_work() {
            park();
        }
        self.rise();
    }
}
