//! Whether this process is a forked child of the one that made something: a communicator, an arena.
//!
//! A child has the parent's memory but none of its threads, so a communicator in it could only hang. The kernel tells
//! a child apart for nothing: it gives it a zeroed copy of a page that is marked so.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::error::{Error, ErrorKind, Result};

/// Bytes of the marked page, at least.
const PAGE: usize = 4096;

/// What a process leaves behind that no child of it finds.
#[derive(Debug)]
pub(crate) struct Mark {
    /// None where the kernel offers no such page.
    page: Option<&'static AtomicU32>,
    /// The process; a child may have got its number only where that process has ended.
    process: u32,
}

impl Mark {
    /// Marks this process.
    pub fn new() -> Mark {
        Mark { page: Mark::page(), process: std::process::id() }
    }

    /// As the mark of another process is seen in this one.
    #[cfg(test)]
    pub fn of_another() -> Mark {
        let mark = Mark::new();
        mark.page.expect("this kernel has such pages").store(0, Ordering::Relaxed);
        mark
    }

    /// One page, which lives as long as the process.
    fn page() -> Option<&'static AtomicU32> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nobody's memory; it is never unmapped
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let page = page.ok()?;
        // SAFETY: advice on the mapping just made
        unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.ok()?;
        // SAFETY: the page is valid, aligned, zeroed, and lives as long as the process
        let mark = unsafe { AtomicU32::from_ptr(page.cast()) };
        mark.store(1, Ordering::Relaxed);
        Some(mark)
    }

    /// Whether this process is not the one that was marked, but a child of it.
    #[inline(always)]
    pub fn is_gone(&self) -> bool {
        match self.page {
            Some(page) => page.load(Ordering::Relaxed) == 0,
            None => self.process != std::process::id(),
        }
    }
}

/// The mark of the process that has communicators.
static MARK: OnceLock<Mark> = OnceLock::new();

/// Marks this process as one that has a communicator.
pub(crate) fn remember() {
    MARK.get_or_init(Mark::new);
}

/// Whether this process is a child of the one that called [`remember`].
#[inline(always)]
pub(crate) fn is_child() -> bool {
    MARK.get().is_some_and(Mark::is_gone)
}

/// Refuses what a child cannot do with what its parent had: the threads that would finish it are not there.
///
/// # Errors
/// [`InvalidUsage`](ErrorKind::InvalidUsage) in a child.
#[inline(always)]
pub(crate) fn refuse_child() -> Result<()> {
    if is_child() { Err(refusal()) } else { Ok(()) }
}

#[cold]
fn refusal() -> Error {
    let seen = "this process was forked from the one that made the communicator";
    Error::new(ErrorKind::InvalidUsage, seen).hint("fork before the first communicator is made, or start a new program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        remember();
        let marks = [Mark::new(), Mark { page: None, ..Mark::new() }];
        assert!(!is_child() && !marks.iter().any(Mark::is_gone));
        // SAFETY: the child does nothing but load an atomic, ask for its number and exit
        let child = unsafe { libc::fork() };
        if child == 0 {
            let knows = is_child() && marks.iter().all(Mark::is_gone);
            // SAFETY: ends the child at once
            unsafe { libc::_exit(i32::from(!knows)) };
        }
        let mut status = 0;
        // SAFETY: `child` is ours to wait for, `status` is valid
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child took itself for the parent");
    }
}
