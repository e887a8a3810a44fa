//! What is left to do when the launcher is killed in a way that it cannot notice.
//!
//! The kernel kills the ranks then, but not the processes that they started. So a guard, which is this program under
//! another name, holds the end of a pipe from the launcher and keeps the list of its process groups; when the pipe
//! closes it kills what is still on the list. After a run that ended in order nothing is.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

/// The name under which this program is the guard.
pub const GUARD: &str = "ferronickel-guard";

/// The launcher's end.
pub struct Guard {
    running: Option<(Child, ChildStdin)>,
}

impl Guard {
    /// Starts the guard. Without one, as without /proc, a run is as good until its launcher is killed.
    pub fn start() -> Self {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(GUARD).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Out of reach of what the terminal sends to the launcher's group.
        let mut child = command.process_group(0).spawn().ok();
        let pipe = child.as_mut().and_then(|child| child.stdin.take());
        Self { running: child.zip(pipe) }
    }

    /// The guard's process.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|(child, _)| child.id())
    }

    /// Puts a group on the list.
    pub fn watch(&mut self, group: Pid) {
        self.say('+', group);
    }

    /// Takes a group off the list.
    pub fn release(&mut self, group: Pid) {
        self.say('-', group);
    }

    fn say(&mut self, sign: char, group: Pid) {
        if let Some((_, pipe)) = &mut self.running {
            // A guard that was killed is missed only if the launcher is killed too.
            let _ = writeln!(pipe, "{sign}{group}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((mut child, pipe)) = self.running.take() {
            drop(pipe);
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
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let Some((sign, Ok(group))) = line.split_at_checked(1).map(|(sign, group)| (sign, group.parse::<i32>())) else {
            continue;
        };
        match sign {
            "+" => groups.insert(group),
            _ => groups.remove(&group),
        };
    }
    // 0 and 1 would be everybody.
    for group in groups.into_iter().filter(|group| *group > 1) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}
