//! Threads of the library in somebody else's process: named, and deaf to signals, which are the program's to handle.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Starts a thread on which no signal is delivered.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let mut before = MaybeUninit::uninit();
    // A thread inherits its maker's mask: block everything, make it, put the mask back.
    // SAFETY: both sets are valid; sigfillset initialises the first, pthread_sigmask the second
    unsafe {
        let mut all = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = Builder::new().name(name.into()).spawn(body);
    // SAFETY: `before` was written above
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    thread
}
