//! Writing to a pipe that nobody reads, or beyond the size that a file may have (`ulimit -f`), without being killed.
//!
//! Rust programs ignore SIGPIPE, but the library also lives in programs that do not; hardly any ignores SIGXFSZ; and
//! neither `write` nor `ftruncate` has a flag to suppress them. So the signal is blocked in this thread for as long, and
//! taken away if it was raised: the call's own error says as much. No safe interface to `sigtimedwait` exists.

use std::mem::MaybeUninit;
use std::ptr;

/// While it lives, a signal does not reach this thread.
pub(crate) struct Blocked {
    signal: libc::c_int,
    /// The mask to restore; `None` where the signal was blocked already and stays so.
    before: Option<libc::sigset_t>,
    /// Whether a signal was waiting before any write, which is then the caller's.
    waiting: bool,
}

impl Blocked {
    /// Blocks the signal of a pipe without a reader.
    pub(crate) fn sigpipe() -> Self {
        Self::new(libc::SIGPIPE)
    }

    /// Blocks the signal of a file that would become too large.
    pub(crate) fn sigxfsz() -> Self {
        Self::new(libc::SIGXFSZ)
    }

    fn new(signal: libc::c_int) -> Self {
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        let only = only(signal);
        // SAFETY: both sets are valid for the call, and `before` is filled where it returns 0.
        let before = unsafe {
            (libc::pthread_sigmask(libc::SIG_BLOCK, &raw const only, before.as_mut_ptr()) == 0)
                .then(|| before.assume_init())
        };
        let before = before.filter(|set| !holds(set, signal));
        // A signal that was not blocked cannot have been waiting.
        Self { signal, before, waiting: before.is_none() && waits(signal) }
    }

    /// Takes away the signal that a call has just raised, so that nothing delivers it later.
    pub(crate) fn discard(&self) {
        if self.waiting {
            return;
        }
        let only = only(self.signal);
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are valid for the call, and no information about the signal is asked for. A time
        // of zero never waits.
        unsafe { libc::sigtimedwait(&raw const only, ptr::null_mut(), &raw const at_once) };
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the set was initialised by `pthread_sigmask`, and the old mask is not asked for.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
        }
    }
}

fn only(signal: libc::c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set, and the signal is a valid one to add to it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

fn holds(set: &libc::sigset_t, signal: libc::c_int) -> bool {
    // SAFETY: the set is initialised, as a reference to it promises.
    unsafe { libc::sigismember(set, signal) == 1 }
}

fn waits(signal: libc::c_int) -> bool {
    let mut waiting = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is valid for the call, and filled where it returns 0.
    unsafe { libc::sigpending(waiting.as_mut_ptr()) == 0 && holds(waiting.assume_init_ref(), signal) }
}
