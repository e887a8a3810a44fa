//! Where lines go: whole, one at a time, and never at the program's expense.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::signals::Blocked;

/// A file or one of the standard streams.
pub(super) struct Sink {
    target: Target,
    /// Keeps lines apart. It guards an order and no data, so a forked child may go without it.
    turn: Mutex<()>,
    /// The process that made the sink.
    owner: u32,
    /// Whether the first failure has been told.
    told: AtomicBool,
    /// Whether the last line stopped half-way, so that the next must begin on a line of its own.
    torn: AtomicBool,
}

enum Target {
    File { file: File, path: String },
    Stdout,
    Stderr,
}

impl Sink {
    pub(super) fn stdout() -> Self {
        Self::new(Target::Stdout)
    }

    /// Opens a log file, emptying it. The error is a line for the user.
    ///
    /// The names of the standard streams mean those streams: a file behind one of them that is opened once more would
    /// be emptied, and written to at two places.
    pub(super) fn open(path: &str) -> Result<Self, String> {
        match path {
            "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => return Ok(Self::stdout()),
            "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => return Ok(Self::new(Target::Stderr)),
            _ => {}
        }
        match open_file(path) {
            Ok(file) => Ok(Self::new(Target::File { file, path: path.to_owned() })),
            Err(error) => Err(format!(
                "NCCL_DEBUG_FILE: {path} cannot be opened: {error}; the log goes to the standard output. Name a file in a \
                 directory that exists and that you may write to."
            )),
        }
    }

    fn new(target: Target) -> Self {
        Self {
            target,
            turn: Mutex::new(()),
            owner: std::process::id(),
            told: AtomicBool::new(false),
            torn: AtomicBool::new(false),
        }
    }

    /// Whether the user sees the lines, and need not look for them in a file.
    pub(super) fn is_seen(&self) -> bool {
        matches!(self.target, Target::Stdout | Target::Stderr)
    }

    /// Writes one whole line.
    pub(super) fn write(&self, line: &str) {
        // Another thread may have held the lock when this process was forked; nobody would ever release it here.
        let forked = std::process::id() != self.owner;
        let turn = (!forked).then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        let result = match &self.target {
            Target::File { file, .. } => self.write_apart(file.as_fd(), line),
            Target::Stdout => self.write_apart(io::stdout().as_fd(), line),
            Target::Stderr => self.write_apart(io::stderr().as_fd(), line),
        };
        drop(turn);
        if let Err(error) = result {
            self.tell(&error);
        }
    }

    /// Writes a line, on a line of its own even where the one before it was cut off.
    fn write_apart(&self, fd: BorrowedFd<'_>, line: &str) -> io::Result<()> {
        let mended;
        let line = if self.torn.load(Ordering::Relaxed) {
            mended = format!("\n{line}");
            &mended
        } else {
            line
        };
        let (written, result) = write_all(fd, line.as_bytes());
        if written > 0 {
            self.torn.store(written < line.len(), Ordering::Relaxed);
        }
        result
    }

    /// Tells of the first failure. Later lines are still tried, since a disk may have room again.
    fn tell(&self, error: &io::Error) {
        let target = match &self.target {
            Target::File { path, .. } => path.as_str(),
            // Whoever closed the standard output does not want to hear more.
            Target::Stdout if error.kind() == io::ErrorKind::BrokenPipe => return,
            Target::Stdout => "the standard output",
            // There is nobody left to tell.
            Target::Stderr => return,
        };
        if !self.told.swap(true, Ordering::Relaxed) {
            to_stderr(&format!(
                "the log cannot be written to {target}: {error}; lines are lost from here on, and nothing else is."
            ));
        }
    }
}

/// Writes one line to the standard error; where that fails there is nobody left to tell.
pub(super) fn to_stderr(text: &str) {
    let _ = write_all(io::stderr().as_fd(), format!("ferronickel: {text}\n").as_bytes());
}

/// How long a line waits for a reader that does not keep up on a descriptor that does not block.
const PATIENCE: Duration = Duration::from_secs(1);

fn open_file(path: &str) -> io::Result<File> {
    // A pipe without a reader must fail rather than hang. Appending keeps processes that share a file from writing over
    // each other's lines.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::APPEND;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

/// Writes all the bytes, in one call of the system where it takes them; says how many it took.
fn write_all(fd: BorrowedFd<'_>, bytes: &[u8]) -> (usize, io::Result<()>) {
    // innermost first: each restores the mask that it found
    let (pipe, size) = (Blocked::sigpipe(), Blocked::sigxfsz());
    let mut written = 0;
    let mut deadline = None;
    while written < bytes.len() {
        match rustix::io::write(fd, &bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
                if !wait_writable(fd, deadline) {
                    return (written, Err(io::ErrorKind::TimedOut.into()));
                }
            }
            Err(error) => {
                match error {
                    Errno::PIPE => pipe.discard(),
                    Errno::FBIG => size.discard(),
                    _ => {}
                }
                return (written, Err(error.into()));
            }
        }
    }
    (written, Ok(()))
}

/// Waits until the descriptor takes bytes again; false at the deadline.
fn wait_writable(fd: BorrowedFd<'_>, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return false;
    }
    let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
    let mut poll = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    // An interrupted wait is tried again by the write that follows.
    !matches!(rustix::event::poll(&mut poll, Some(&timeout)), Ok(0))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;

    /// A sink into a pipe that does not block, and the pipe's other end.
    fn pipe() -> (Sink, File) {
        let mut ends = [0; 2];
        // SAFETY: the array takes two descriptors, and each gets one owner.
        let (read, write) = unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC), 0);
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        (Sink::new(Target::File { file: write.into(), path: "pipe".to_owned() }), read.into())
    }

    fn drained(mut pipe: &File) -> String {
        let mut text = Vec::new();
        // The pipe is empty, and its writer still open, where the read would block.
        assert_eq!(pipe.read_to_end(&mut text).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_line_cut_off_does_not_spoil_the_next() {
        let (sink, pipe) = pipe();
        sink.write(&format!("{}\n", "x".repeat(1 << 20)));
        let cut = drained(&pipe);
        assert!(!cut.is_empty() && cut.len() < 1 << 20 && !cut.ends_with('\n'));
        sink.write("next\n");
        sink.write("and next\n");
        assert_eq!(drained(&pipe), "\nnext\nand next\n");
    }

    #[test]
    fn a_forked_child_does_not_wait_for_a_lock_that_nobody_holds() {
        let (mut sink, pipe) = pipe();
        sink.owner = 0;
        let _turn = sink.turn.lock();
        sink.write("alive\n");
        assert_eq!(drained(&pipe), "alive\n");
    }

    #[test]
    fn a_pipe_without_a_reader_is_an_error_and_no_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe").into_os_string().into_string().unwrap();
        let c_path = std::ffi::CString::new(path.as_str()).unwrap();
        // SAFETY: the path ends with a NUL.
        assert_eq!(unsafe { libc::mkfifo(c_path.as_ptr(), 0o600) }, 0);
        let Err(line) = Sink::open(&path) else { panic!("a pipe that nobody reads takes no log") };
        assert!(line.contains("No such device or address"), "{line}");
    }
}
