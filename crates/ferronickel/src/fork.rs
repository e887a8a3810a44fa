//! Whether this process is a forked child of the one that made a communicator.
//!
//! A child has the parent's memory but none of its threads, so a communicator in it could only hang. The kernel tells
//! a child apart for nothing: it gives it a zeroed copy of a page that is marked so.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::error::{Error, ErrorKind, Result};

/// Bytes of the marked page, at least.
const PAGE: usize = 4096;

/// The mark, set in the process that first asked; None where the kernel offers no such page.
fn mark() -> Option<&'static AtomicU32> {
    static MARK: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    *MARK.get_or_init(|| {
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
    })
}

/// Marks this process as one that has a communicator.
pub(crate) fn remember() {
    mark();
}

/// Whether this process is a child of the one that called [`remember`].
#[inline(always)]
pub(crate) fn is_child() -> bool {
    mark().is_some_and(|mark| mark.load(Ordering::Relaxed) == 0)
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
        assert!(!is_child());
        // SAFETY: the child does nothing but load an atomic and exit
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once
            unsafe { libc::_exit(i32::from(!is_child())) };
        }
        let mut status = 0;
        // SAFETY: `child` is ours to wait for, `status` is valid
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child took itself for the parent");
    }
}
