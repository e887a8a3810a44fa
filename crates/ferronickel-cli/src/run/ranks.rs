//! The processes of the ranks: how they start, how they are signalled, and how they end.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ferronickel::UniqueId;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::unistd::Pid;
use rustix::process::{WaitId, WaitIdOptions, getppid, set_parent_process_death_signal, waitid};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::guard::{Entry, Guard};
use super::orphans;
use crate::exit::{Code, Failure};
use crate::file_limit;

/// What is to be started.
pub struct Start<'s> {
    pub command: &'s [OsString],
    pub ranks: usize,
    /// The id of their first communicator, unless they meet at an address.
    pub id: Option<&'s UniqueId>,
    /// The processors of each rank, if ranks are bound.
    pub shares: Option<Vec<CpuSet>>,
    /// The signals that ranks begin with blocked.
    pub mask: SigSet,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Killed(i32),
}

impl End {
    /// What a shell would say.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
            Self::Killed(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => match Signal::try_from(signal) {
                Ok(name) => write!(f, "was killed by signal {signal} ({name})"),
                // Real-time signals have numbers only.
                Err(_) => write!(f, "was killed by signal {signal}"),
            },
        }
    }
}

/// One rank's process.
pub struct Rank {
    child: Child,
    /// Whether it leads a process group of its own.
    leads: bool,
    pub end: Option<End>,
}

impl Rank {
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("the system's numbers of processes are of this type"))
    }

    /// Sends a signal to the rank, and to what it started if that is in its group.
    ///
    /// The process is not taken leave of before the end of the run, so its number is nobody else's.
    fn signal(&self, signal: Signal) {
        // What has ended meanwhile needs no signal.
        let _ = match self.leads {
            true => killpg(self.pid(), signal),
            false if self.end.is_none() => kill(self.pid(), signal),
            false => Ok(()),
        };
    }

    /// Looks whether it has ended, and leaves it as it is.
    fn look(&mut self) -> io::Result<Option<End>> {
        let pid = rustix::process::Pid::from_child(&self.child);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(status) = waitid(WaitId::Pid(pid), options)? else { return Ok(None) };
        let exited = status.exit_status().map(End::Exited);
        self.end = exited.or_else(|| status.terminating_signal().map(End::Killed));
        Ok(self.end)
    }
}

/// All ranks.
pub struct Ranks {
    ranks: Vec<Rank>,
    guard: Guard,
}

impl Ranks {
    /// Starts them all, or none.
    pub fn start(start: &Start<'_>) -> Result<Self, Failure> {
        let mut started = Self { ranks: Vec::with_capacity(start.ranks), guard: Guard::start() };
        // Rank 0 reads what the launcher's standard input gives. If that is a terminal, it gives only to the group in
        // its foreground, and stops others that read: so rank 0 stays in the launcher's group, and hears directly what
        // is typed for all (Ctrl-C, Ctrl-Z). Every other rank leads a group of its own, so that what it started can be
        // ended with it.
        let shares_terminal = io::stdin().is_terminal();
        for rank in 0..start.ranks {
            let leads = rank != 0 || !shares_terminal;
            let entry = if leads { started.guard.entry() } else { None };
            match command(start, rank, leads, entry).spawn() {
                Ok(child) => started.ranks.push(Rank { child, leads, end: None }),
                Err(error) => {
                    started.signal(Signal::SIGKILL);
                    started.finish(true);
                    return Err(cannot_start(start, rank, &error));
                }
            }
        }
        Ok(started)
    }

    /// Sends a signal to all.
    pub fn signal(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
    }

    /// Sends on what a terminal has sent to the launcher's group.
    pub fn signal_other_groups(&self, signal: Signal) {
        self.ranks.iter().filter(|rank| rank.leads).for_each(|rank| rank.signal(signal));
    }

    /// Looks which have ended; gives those that had not before.
    pub fn look(&mut self) -> io::Result<Vec<(usize, Pid, End)>> {
        let mut ended = Vec::new();
        for (number, rank) in self.ranks.iter_mut().enumerate().filter(|(_, rank)| rank.end.is_none()) {
            ended.extend(rank.look()?.map(|end| (number, rank.pid(), end)));
        }
        orphans::reap(&|pid| self.knows(pid));
        Ok(ended)
    }

    /// The ranks that have not ended.
    pub fn running(&self) -> impl Iterator<Item = usize> {
        self.ranks.iter().enumerate().filter(|(_, rank)| rank.end.is_none()).map(|(number, _)| number)
    }

    /// Takes leave of all, which have ended or been killed; after a failure also of everything they started.
    pub fn finish(&mut self, failed: bool) {
        if failed {
            self.signal(Signal::SIGKILL);
        }
        for rank in &mut self.ranks {
            let pid = rank.pid();
            // It has ended, or is about to; the only other outcome is that somebody else took leave of it.
            let _ = rank.child.wait();
            if rank.leads {
                self.guard.release(pid);
            }
        }
        if failed {
            let guard = self.guard.pid();
            orphans::kill_all(&|pid| guard.is_some_and(|guard| i64::from(guard) == i64::from(pid)));
        }
    }

    fn knows(&self, pid: i32) -> bool {
        let is = |other: u32| i64::from(other) == i64::from(pid);
        self.guard.pid().is_some_and(is) || self.ranks.iter().any(|rank| is(rank.child.id()))
    }
}

/// The command of one rank.
fn command(start: &Start<'_>, rank: usize, leads: bool, entry: Option<Entry>) -> Command {
    let mut command = Command::new(&start.command[0]);
    let (number, ranks) = (rank.to_string(), start.ranks.to_string());
    command
        .args(&start.command[1..])
        .env("FERRONICKEL_RANK", &number)
        .env("FERRONICKEL_SIZE", &ranks)
        .env("FERRONICKEL_LOCAL_RANK", &number)
        .env("FERRONICKEL_LOCAL_SIZE", &ranks)
        .env_remove("FERRONICKEL_UNIQUE_ID");
    if let Some(id) = start.id {
        let digits: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        command.env("FERRONICKEL_UNIQUE_ID", digits);
    }
    if rank != 0 {
        command.stdin(Stdio::null());
    }
    if leads {
        command.process_group(0);
    }
    let launcher = rustix::process::getpid();
    let share = start.shares.as_ref().map(|shares| shares[rank]);
    let mask = start.mask;
    let prepare = move || {
        set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // Whoever died before that line sends no signal any more.
        if getppid() != Some(launcher) {
            return Err(io::Error::from_raw_os_error(Errno::ESRCH as i32));
        }
        if let Some(entry) = &entry {
            entry.take();
        }
        if let Some(share) = &share {
            // It fails only if the system took the processors away meanwhile; then it chooses itself.
            let _ = sched_setaffinity(None, share);
        }
        file_limit::restore();
        mask.thread_set_mask().map_err(io::Error::from)
    };
    // SAFETY: between fork and exec only what is safe in a signal handler may be done. The closure makes system calls
    // on values that it owns (prctl, getppid, send, sched_setaffinity, a signal and the mask of all) and neither allocates nor locks.
    unsafe { command.pre_exec(prepare) };
    command
}

/// Why a rank could not be started.
fn cannot_start(start: &Start<'_>, rank: usize, error: &io::Error) -> Failure {
    let program = Path::new(&start.command[0]);
    let shown = program.display();
    match (error.kind(), error.raw_os_error().map(Errno::from_raw)) {
        (ErrorKind::NotFound, _) if program.exists() && program.components().count() > 1 => Failure::new(
            Code::NotFound,
            format!("'{shown}' is there, but not the interpreter that its first line names"),
        ),
        (ErrorKind::NotFound, _) => Failure::new(Code::NotFound, format!("there is no program '{shown}'")),
        (ErrorKind::PermissionDenied, _) => {
            Failure::new(Code::NotExecutable, format!("'{shown}' cannot be executed: {error}"))
        }
        (_, Some(Errno::ENOEXEC | Errno::EISDIR | Errno::ETXTBSY | Errno::ELIBBAD)) => {
            Failure::new(Code::NotExecutable, format!("'{shown}' cannot be executed: {error}"))
        }
        (_, Some(Errno::EAGAIN)) => out_of(start, rank, "processes", "-u", error),
        (_, Some(Errno::EMFILE | Errno::ENFILE)) => out_of(start, rank, "open files", "-n", error),
        _ => Failure::new(Code::System, format!("cannot start rank {rank} of {}: {error}", start.ranks)),
    }
}

fn out_of(start: &Start<'_>, rank: usize, what: &str, option: &str, error: &io::Error) -> Failure {
    let message = format!(
        "cannot start rank {rank} of {}, the limit of {what} is reached (ulimit {option}): {error}",
        start.ranks
    );
    Failure::new(Code::System, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_as_a_shell_tells_it() {
        for (end, text, code) in [
            (End::Exited(0), "exited with code 0", 0),
            (End::Exited(3), "exited with code 3", 3),
            (End::Killed(9), "was killed by signal 9 (SIGKILL)", 137),
            (End::Killed(40), "was killed by signal 40", 168),
        ] {
            assert_eq!((end.to_string().as_str(), end.code()), (text, code));
        }
    }
}
