//! Writing to a pipe that nobody reads, without being killed for it.
//!
//! Rust programs ignore SIGPIPE, but the library also lives in programs that do not, and `write` has no flag to suppress
//! it. So the signal is blocked in this thread while a line is written, and taken away if the write raised it. This is
//! the one place outside the devices and transports that needs `unsafe`: no safe interface to `sigtimedwait` exists.

use std::mem::MaybeUninit;
use std::ptr;

/// While it lives, SIGPIPE does not reach this thread.
pub(super) struct Blocked {
    /// The mask to restore; `None` where SIGPIPE was blocked already and stays so.
    before: Option<libc::sigset_t>,
    /// Whether a signal was waiting before any write, which is then the caller's.
    waiting: bool,
}

impl Blocked {
    pub(super) fn new() -> Self {
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        let sigpipe = only_sigpipe();
        // SAFETY: both sets are valid for the call, and `before` is filled where it returns 0.
        let before = unsafe {
            (libc::pthread_sigmask(libc::SIG_BLOCK, &raw const sigpipe, before.as_mut_ptr()) == 0)
                .then(|| before.assume_init())
        };
        let before = before.filter(|set| !holds_sigpipe(set));
        // A signal that was not blocked cannot have been waiting.
        Self { before, waiting: before.is_none() && sigpipe_waits() }
    }

    /// Takes away the signal that a write has just raised, so that nothing delivers it later.
    pub(super) fn discard(&self) {
        if self.waiting {
            return;
        }
        let sigpipe = only_sigpipe();
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are valid for the call, and no information about the signal is asked for. A time
        // of zero never waits.
        unsafe { libc::sigtimedwait(&raw const sigpipe, ptr::null_mut(), &raw const at_once) };
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

fn only_sigpipe() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set, and SIGPIPE is a valid signal to add to it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

fn holds_sigpipe(set: &libc::sigset_t) -> bool {
    // SAFETY: the set is initialised, as a reference to it promises.
    unsafe { libc::sigismember(set, libc::SIGPIPE) == 1 }
}

fn sigpipe_waits() -> bool {
    let mut waiting = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is valid for the call, and filled where it returns 0.
    unsafe { libc::sigpending(waiting.as_mut_ptr()) == 0 && holds_sigpipe(waiting.assume_init_ref()) }
}
