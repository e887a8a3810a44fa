//! How the command ends: its exit codes, and the failure that carries one.
//!
//! The codes of `perf` are nccl-tests' codes; the other commands use the same numbers, and `run` those of a shell.

use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// An exit code of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Code {
    /// Something outside the library failed: a file, a thread, the operating system.
    System = 1,
    /// A device failed: its memory or its stream.
    Device = 2,
    /// A call of the library failed.
    Library = 3,
    /// A call did not complete in the time that `--timeout` allows.
    Timeout = 4,
    /// The command line asks for something that does not exist or cannot be.
    Usage = 6,
    /// Results were wrong, or the bandwidth was below `NCCL_TESTS_MIN_BW`.
    WrongResults = 7,
    /// A program was found that cannot be executed.
    NotExecutable = 126,
    /// There is no such program.
    NotFound = 127,
    /// Standard output was closed before all was written; what a shell reports for a program
    /// that SIGPIPE ended, since the run was cut short and nothing can be said about the rest.
    ClosedPipe = 141,
}

/// Why the command cannot go on: an exit code, one line that says what was wrong, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What the process exits with.
    pub code: Code,
    /// One line; empty where nobody is left to read it, or it has been said.
    pub message: String,
    /// What to do about it, if the message does not say so already.
    pub hint: Option<String>,
    /// Whether it only follows from what another rank, process or thread did, and may know better.
    pub follows: bool,
}

impl Failure {
    /// A failure with its code and its line.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, follows: false }
    }

    /// The command line asks for something that does not exist or cannot be.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// Writing to standard output failed: a closed pipe ends the command quietly, anything else is said.
    pub fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Code::ClosedPipe, ""),
            _ => Self::new(Code::System, format!("cannot write to standard output: {error}")),
        }
    }

    /// The same failure with advice.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same failure, as one that follows from another.
    pub fn that_follows(mut self) -> Self {
        self.follows = true;
        self
    }

    /// The same failure with nothing left to say.
    pub fn said(self) -> Self {
        Self { message: String::new(), hint: None, ..self }
    }

    /// Says it on standard error, in the name of `program`.
    pub fn say(&self, program: &str) {
        if !self.message.is_empty() {
            say(format_args!("{program}: {self}"));
        }
    }
}

/// Writes a line on standard error, in one piece: other processes write there too. Whoever closed it does not want to
/// know.
pub fn say(line: impl fmt::Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_has_nothing_to_say() {
        let failure = Failure::output(&io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure, Failure::new(Code::ClosedPipe, ""));
    }

    #[test]
    fn a_full_disk_is_said() {
        let failure = Failure::output(&io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(failure.code, Code::System);
        assert!(failure.message.contains("standard output"), "{failure}");
    }

    #[test]
    fn a_hint_stands_on_its_own_line() {
        let failure = Failure::usage("no such size").with_hint("try 8M");
        assert_eq!(failure.to_string(), "no such size\n  hint: try 8M");
    }
}
