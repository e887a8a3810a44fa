//! The signals that the launcher takes instead of dying of them.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Those that are passed on to the ranks.
const FORWARDED: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub signal: Signal,
    /// A terminal sent it, to every process of the launcher's group.
    pub by_terminal: bool,
}

/// Signals wait here until they are asked for.
pub struct Signals {
    descriptor: SignalFd,
    before: SigSet,
}

impl Signals {
    /// Takes the signals, in this thread and those that it will start.
    pub fn take() -> nix::Result<Self> {
        // SAFETY: no handler is installed, only the default put back. Were it ignored, as a parent may leave it, the
        // kernel would throw away how the ranks ended.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
        let mut taken: SigSet = FORWARDED.into_iter().collect();
        taken.add(Signal::SIGCHLD);
        let before = taken.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let descriptor = SignalFd::with_flags(&taken, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { descriptor, before })
    }

    /// The mask as it was, which the ranks shall have.
    pub fn before(&self) -> SigSet {
        self.before
    }

    /// Waits for signals, at most so long, and gives those to pass on. A child that ended also ends the wait.
    pub fn wait(&self, longest: Option<Duration>) -> rustix::io::Result<Vec<Received>> {
        let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
        match poll(&mut [PollFd::from_borrowed_fd(self.descriptor.as_fd(), PollFlags::IN)], longest.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let mut received = Vec::new();
        while let Ok(Some(info)) = self.descriptor.read_signal() {
            let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
            let by_terminal = info.ssi_code == SI_KERNEL;
            received.extend(
                signal.filter(|signal| FORWARDED.contains(signal)).map(|signal| Received { signal, by_terminal }),
            );
        }
        Ok(received)
    }
}

/// The code of a signal that the kernel sends by itself.
const SI_KERNEL: i32 = 0x80;
