//! Files that would grow beyond a limit (`ulimit -f`): an error of the write that meets it, instead of the end of the
//! process by SIGXFSZ, so that the command can say what happened.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigHandler, Signal, signal};

/// Whether the signal had its default before, which is what a rank shall find.
static HAD_DEFAULT: AtomicBool = AtomicBool::new(false);

/// Ignores the signal in this process, and in those it starts unless they [`restore`] it.
pub fn ignore() {
    // SAFETY: no handler is installed. It fails for signals that do not exist only.
    let before = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    HAD_DEFAULT.store(matches!(before, Ok(SigHandler::SigDfl)), Ordering::Relaxed);
}

/// In a child that becomes another program: puts back what [`ignore`] found. Neither allocates nor locks.
pub fn restore() {
    if HAD_DEFAULT.load(Ordering::Relaxed) {
        // SAFETY: as in `ignore`
        let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigDfl) };
    }
}
