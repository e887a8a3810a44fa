//! The one error type: what was seen, where, and what follows from it.

use std::fmt;
use std::sync::Arc;

use crate::diagnostics::decisions::Decision;

/// The result of a call of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of failure an [`Error`] is.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// The communicator was aborted, by this rank or another.
    Aborted,
    /// An invariant of this library does not hold: a bug in it.
    Internal,
    /// An argument is wrong by itself.
    InvalidArgument,
    /// The call is not allowed in this state, or does not fit what was called before.
    InvalidUsage,
    /// Ranks made calls that do not belong together.
    Mismatch,
    /// Another rank left, or a connection to it failed.
    Remote,
    /// The operating system refused something.
    System,
    /// Something did not happen in time.
    Timeout,
}

impl ErrorKind {
    /// The number NCCL's C interface has for this kind (`ncclResult_t`).
    pub fn nccl_code(self) -> i32 {
        match self {
            ErrorKind::System => 2,
            ErrorKind::Internal => 3,
            ErrorKind::InvalidArgument => 4,
            ErrorKind::InvalidUsage | ErrorKind::Mismatch => 5,
            ErrorKind::Aborted | ErrorKind::Remote => 6,
            ErrorKind::Timeout => 8,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Aborted => "aborted",
            ErrorKind::Internal => "internal error",
            ErrorKind::InvalidArgument => "invalid argument",
            ErrorKind::InvalidUsage => "invalid usage",
            ErrorKind::Mismatch => "mismatch between ranks",
            ErrorKind::Remote => "remote error",
            ErrorKind::System => "system error",
            ErrorKind::Timeout => "timeout",
        })
    }
}

/// A failure: what was seen, on which rank and device, in which call, and what to do about it.
///
/// Its `Display` is one line. [`decisions`](Self::decisions) are the last choices the communicator made before, which
/// often explain a failure that surfaces far from its cause.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    seen: String,
    call: Option<String>,
    code: Option<i32>,
    rank: Option<usize>,
    device: Option<u32>,
    decisions: Vec<Decision>,
    hint: Option<String>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, seen: impl Into<String>) -> Self {
        Error(Arc::new(Inner {
            kind,
            seen: seen.into(),
            call: None,
            code: None,
            rank: None,
            device: None,
            decisions: Vec::new(),
            hint: None,
        }))
    }

    /// A refused request to the operating system, with its error number. Where the machine or a limit has run out of
    /// something it says what would be right; a hint that is given nearer takes that place.
    pub(crate) fn system(request: &str, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        let failed = Error::new(ErrorKind::System, format!("{request} failed: {error}"));
        failed.change(|inner| {
            inner.code = error.raw_os_error();
            inner.hint = inner.code.and_then(want).map(String::from);
        })
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Says which call failed, unless a call nearer to the failure said so already.
    pub(crate) fn in_call(self, call: impl Into<String>) -> Self {
        self.change(|inner| {
            inner.call.get_or_insert(call.into());
        })
    }

    pub(crate) fn on(self, rank: usize, device: u32) -> Self {
        self.change(|inner| (inner.rank, inner.device) = (Some(rank), Some(device)))
    }

    pub(crate) fn after(self, decisions: &[Decision]) -> Self {
        self.change(|inner| inner.decisions = decisions.to_vec())
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        self.change(|inner| inner.hint = Some(hint.into()))
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What was seen, without the place and the advice.
    pub fn seen(&self) -> &str {
        &self.0.seen
    }

    /// The call that failed.
    pub fn call(&self) -> Option<&str> {
        self.0.call.as_deref()
    }

    /// The operating system's error number, if it was a request to it that failed.
    pub fn code(&self) -> Option<i32> {
        self.0.code
    }

    /// The rank on which it failed.
    pub fn rank(&self) -> Option<usize> {
        self.0.rank
    }

    /// The device on which it failed.
    pub fn device(&self) -> Option<u32> {
        self.0.device
    }

    /// The choices the communicator had made before.
    pub fn decisions(&self) -> &[Decision] {
        &self.0.decisions
    }

    /// What would be right.
    pub fn advice(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

/// What would be right where the operating system has run out of something.
fn want(code: i32) -> Option<&'static str> {
    match code {
        libc::EMFILE => Some("raise the limit of open files of the process (ulimit -n)"),
        libc::ENFILE => Some("raise the limit of open files of the machine (sysctl fs.file-max)"),
        libc::ENOMEM => Some("free memory, or raise the limit on it (ulimit -v)"),
        _ => None,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(call) = &self.0.call {
            write!(f, "{call}: ")?;
        }
        if let Some(rank) = self.0.rank {
            write!(f, "rank {rank}")?;
            if let Some(device) = self.0.device {
                write!(f, " on host device {device}")?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{}: {}", self.0.kind, self.0.seen)?;
        if let Some(hint) = &self.0.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `unwrap` prints this: the line, then what led to it
        write!(f, "{self}")?;
        for decision in &self.0.decisions {
            write!(f, "\n  before: {decision}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_where_what_and_what_to_do() {
        let error = Error::new(ErrorKind::InvalidArgument, "send has 3 elements, receive 2")
            .in_call("all_reduce")
            .in_call("group_end")
            .on(1, 4)
            .hint("give both the same length");
        assert_eq!(
            error.to_string(),
            "all_reduce: rank 1 on host device 4: invalid argument: send has 3 elements, receive 2; \
             give both the same length"
        );
        assert_eq!((error.kind().nccl_code(), error.rank(), error.call()), (4, Some(1), Some("all_reduce")));
    }

    #[test]
    fn a_system_error_keeps_its_number() {
        let error = Error::system("mmap", std::io::Error::from_raw_os_error(12));
        assert_eq!(error.code(), Some(12));
        assert!(error.to_string().starts_with("system error: mmap failed: "), "{error}");
        assert!(error.to_string().ends_with("; free memory, or raise the limit on it (ulimit -v)"), "{error}");
        assert_eq!(error.hint("ask for less").advice(), Some("ask for less"));
        let advice = |code| Error::system("open", std::io::Error::from_raw_os_error(code)).advice().map(String::from);
        assert!(advice(libc::EMFILE).unwrap().contains("ulimit -n") && advice(libc::EPERM).is_none());
    }
}
