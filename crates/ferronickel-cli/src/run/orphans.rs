//! Processes that ranks started and left behind.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{WaitId, WaitIdOptions, set_child_subreaper, waitid};

/// How often those that are killed may leave children of their own before this gives up.
const MOST_ROUNDS: usize = 100;

/// From now on a process that loses its parent becomes this one's child, whatever group it is in.
pub fn adopt() {
    // Where the kernel does not know of it, orphans are found by their groups only.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
}

/// The children of this process that `known` does not know.
fn orphans(known: &dyn Fn(i32) -> bool) -> Vec<i32> {
    let Ok(children) = fs::read_to_string("/proc/thread-self/children") else { return Vec::new() };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| !known(*pid)).collect()
}

/// Takes leave of those that have ended, which would stay in the table of processes otherwise.
pub fn reap(known: &dyn Fn(i32) -> bool) {
    for pid in orphans(known).into_iter().filter_map(rustix::process::Pid::from_raw) {
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// Kills them all, and those that become orphans by it.
pub fn kill_all(known: &dyn Fn(i32) -> bool) {
    for _ in 0..MOST_ROUNDS {
        let found = orphans(known);
        if found.is_empty() {
            return;
        }
        for pid in found {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
            }
        }
    }
}
