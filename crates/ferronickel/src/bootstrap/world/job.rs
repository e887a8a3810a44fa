//! What tells the ranks of one job from those of another on the same host.

use std::fs;

use crate::error::{Error, ErrorKind, Result};

use super::launchers::Lookup;

/// A job, as far as its ranks can say the same of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A hash of what the launcher says.
    Key([u8; 32]),
    /// The launcher says nothing: the process that started the ranks stands for the job. It is the nearest ancestor
    /// that has no such variable in its environment, which a shell or a wrapper between the two has.
    Ancestor(&'static str),
}

impl Job {
    /// The job that these variables name.
    pub(super) fn of(names: &[&str], lookup: Lookup<'_>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ferronickel job by variables");
        for name in names {
            if let Some(value) = lookup(name) {
                // Lengths keep a value from being taken for the next name.
                hasher.update(&name.len().to_le_bytes()).update(name.as_bytes());
                hasher.update(&value.len().to_le_bytes()).update(value.as_bytes());
            }
        }
        Self::Key(*hasher.finalize().as_bytes())
    }

    /// The same bytes for every rank of the job.
    pub(super) fn key(self) -> Result<[u8; 32]> {
        match self {
            Self::Key(key) => Ok(key),
            Self::Ancestor(variable) => {
                let process = ancestor(variable)?;
                let mut hasher = blake3::Hasher::new_derive_key("ferronickel job by process");
                hasher.update(&process.pid.to_le_bytes()).update(&process.started.to_le_bytes());
                Ok(*hasher.finalize().as_bytes())
            }
        }
    }
}

/// A process; a number that is used again comes with another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    /// When it started, in ticks since the machine did.
    started: u64,
}

impl Process {
    fn read(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read(&path).map_err(|error| {
            Error::system(&format!("reading {path}"), error)
                .hint("the launcher's process names the job; without /proc set NCCL_COMM_ID and FERRONICKEL_SECRET")
        })?;
        Self::parse(pid, &stat).ok_or_else(|| {
            Error::new(ErrorKind::System, format!("{path} does not say the parent and the start"))
                .hint("set NCCL_COMM_ID and FERRONICKEL_SECRET")
        })
    }

    /// The second field is the command in parentheses and may hold anything, so what follows its last one counts.
    fn parse(pid: u32, stat: &[u8]) -> Option<Self> {
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let fields: Vec<_> = std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace().collect();
        Some(Self { pid, parent: fields.get(1)?.parse().ok()?, started: fields.get(19)?.parse().ok()? })
    }
}

/// The nearest ancestor without this variable in the environment it was started with.
fn ancestor(variable: &str) -> Result<Process> {
    let mut process = Process::read(std::process::id())?;
    loop {
        // 0 is no process: the parent is outside this PID namespace.
        if process.parent == 0 {
            return Ok(process);
        }
        // Another user's process may be hidden; its number will do.
        let Ok(parent) = Process::read(process.parent) else {
            return Ok(Process { pid: process.parent, parent: 0, started: 0 });
        };
        let environment = fs::read(format!("/proc/{}/environ", parent.pid)).unwrap_or_default();
        let has = |entry: &[u8]| entry.strip_prefix(variable.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        if !environment.split(|byte| *byte == 0).any(has) {
            return Ok(parent);
        }
        process = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_any_name_does_no_harm() {
        let numbers = "1 ".repeat(17);
        let stat = format!("7 (a) R 1 (b)) S 42 {numbers}4711 0 0");
        assert_eq!(Process::parse(7, stat.as_bytes()), Some(Process { pid: 7, parent: 42, started: 4711 }));
        for wrong in ["", "7 (a", "7 (a) S", "7 (a) S x 1", "7 (a) S 1 2 3"] {
            assert_eq!(Process::parse(7, wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn the_nearest_ancestor_without_the_variable_is_found() {
        let me = Process::read(std::process::id()).unwrap();
        assert_eq!(ancestor("FERRONICKEL_NOBODY_HAS_THIS").unwrap(), Process::read(me.parent).unwrap());
        let key = |variable| Job::Ancestor(variable).key().unwrap();
        assert_eq!(key("FERRONICKEL_NOBODY_HAS_THIS"), key("FERRONICKEL_NOR_THIS"));
    }

    #[test]
    fn jobs_differ_by_any_of_their_variables() {
        let job = |a: &str, b: Option<&str>| {
            Job::of(&["A", "B"], &|name| if name == "A" { Some(a.to_owned()) } else { b.map(str::to_owned) })
        };
        let jobs = [job("1", None), job("1", Some("")), job("1", Some("2")), job("12", None), job("1", Some("3"))];
        for (index, one) in jobs.iter().enumerate() {
            assert!(jobs[index + 1..].iter().all(|other| one != other));
        }
        assert_eq!(job("1", Some("2")), job("1", Some("2")));
    }
}
