//! What is left to do when the launcher is killed in a way that it cannot notice.
//!
//! The kernel kills the ranks then, but not the processes that they started. So a guard, which is this program under
//! another name, holds one end of a pair of sockets and keeps the list of the ranks' process groups. When the other end
//! closes it kills what is still on the list. After a run that ended in order nothing is.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use rustix::net::{SendFlags, send};

/// The name under which this program is the guard.
pub const GUARD: &str = "ferronickel-guard";

/// The launcher's end.
pub struct Guard {
    running: Option<(Child, UnixStream)>,
}

impl Guard {
    /// Starts the guard. Without one, as without /proc, a run is as good until its launcher is killed.
    pub fn start() -> Self {
        Self { running: Self::try_start().ok() }
    }

    fn try_start() -> io::Result<(Child, UnixStream)> {
        let (ours, its) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(GUARD).stdin(OwnedFd::from(its)).stdout(Stdio::null()).stderr(Stdio::null());
        // Out of reach of what the terminal sends to the launcher's group.
        Ok((command.process_group(0).spawn()?, ours))
    }

    /// The guard's process.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|(child, _)| child.id())
    }

    /// For a rank, to put itself on the list before it becomes the program: the launcher might be killed before it
    /// knows that there is one.
    pub fn entry(&self) -> Option<Entry> {
        self.running.as_ref().and_then(|(_, socket)| Some(Entry(socket.as_fd().try_clone_to_owned().ok()?)))
    }

    /// Takes a group off the list.
    pub fn release(&self, group: Pid) {
        if let Some((_, socket)) = &self.running {
            say(socket, -group.as_raw());
        }
    }
}

/// A place on the list, not taken yet.
pub struct Entry(OwnedFd);

impl Entry {
    /// Puts the group of this process on the list. Neither allocates nor locks.
    pub fn take(&self) {
        say(&self.0, rustix::process::getpid().as_raw_nonzero().get());
    }
}

/// Says a group, positive if it is to be watched. A guard that was killed is missed only if the launcher is killed too.
fn say(socket: impl AsFd, group: i32) {
    let _ = send(socket, &group.to_ne_bytes(), SendFlags::NOSIGNAL);
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((mut child, socket)) = self.running.take() {
            drop(socket);
            // It ends at once now, and leaves no zombie.
            let _ = child.wait();
        }
    }
}

/// Is the guard: reads the list until the launcher is gone.
pub fn guard() {
    // Whoever ends it with a polite signal would leave the ranks' processes without it.
    let _ = SigSet::all().thread_block();
    let mut groups = BTreeSet::new();
    let mut input = io::stdin().lock();
    let mut word = [0; 4];
    while input.read_exact(&mut word).is_ok() {
        match i32::from_ne_bytes(word) {
            // 0 and 1 would be everybody.
            group @ 2.. => groups.insert(group),
            group => groups.remove(&group.saturating_neg()),
        };
    }
    for group in groups {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}
