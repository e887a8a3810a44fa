//! Memory of a host device, and who uses it at the moment.
//!
//! A call is asynchronous, so that a buffer is in use after the call has returned. Each allocation counts its users:
//! a second stream may not write what a first one still uses, and the caller's own reads and writes wait until no
//! call is in the way. That is what makes the safe interface safe.

mod users;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

pub use self::users::LAST_STREAM;
use self::users::{HOST, Refusal, Users};
use super::Device;
use super::arena::Arena;
use super::host::wait::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;

/// Zeroed memory, aligned to a page, returned with the last reference.
#[derive(Debug)]
pub(crate) struct Allocation {
    base: *mut u8,
    bytes: usize,
    place: Place,
    device: Device,
    users: Users,
    /// Whether somebody may still write here whom nobody can wait for.
    quarantined: AtomicBool,
}

/// Where an allocation's memory comes from.
#[derive(Debug)]
enum Place {
    /// The arena, in which the other processes of the machine reach it.
    Arena(&'static Arena, Range<usize>),
    /// A mapping of this process alone: where there is no arena, or no room in it.
    Private,
}

// SAFETY: the memory is reached only through raw pointers, by calls that `users` keeps apart
unsafe impl Send for Allocation {}
// SAFETY: as above
unsafe impl Sync for Allocation {}

impl Allocation {
    /// At least one byte.
    pub fn new(device: &Device, bytes: usize) -> Result<Arc<Allocation>> {
        let in_arena = Arena::of_process().ok().and_then(|arena| Some((arena, arena.take(bytes)?)));
        let (base, place) = match in_arena {
            Some((arena, range)) => (arena.at(range.start), Place::Arena(arena, range)),
            None => (map(device, bytes.max(1))?, Place::Private),
        };
        let (device, users, quarantined) = (device.clone(), Users::default(), AtomicBool::new(false));
        Ok(Arc::new(Allocation { base, bytes: bytes.max(1), place, device, users, quarantined }))
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Allocation {
    #[cold]
    fn refused(&self, refusal: Refusal) -> Error {
        let device = &self.device;
        let (seen, hint) = match refusal {
            Refusal::InUse => (
                format!("a buffer of {device} is still in use by a call on another stream"),
                "synchronize that stream first, or give each stream an allocation of its own",
            ),
            Refusal::TooMany => (
                format!("so many calls that use a buffer of {device} are queued that no more can be counted"),
                "synchronize their stream first",
            ),
        };
        Error::new(ErrorKind::InvalidUsage, seen).hint(hint)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        match &self.place {
            // it is never handed out again
            _ if *self.quarantined.get_mut() => {}
            Place::Arena(arena, range) => arena.give_back(range.clone()),
            Place::Private => {
                // SAFETY: the mapping is ours, and nobody has a reference any more
                let unmapped = unsafe { munmap(self.base.cast(), self.bytes) };
                debug_assert!(unmapped.is_ok());
            }
        }
    }
}

/// Memory of this process alone.
fn map(device: &Device, bytes: usize) -> Result<*mut u8> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nobody's memory
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }.map_err(|error| {
        Error::system(&format!("mapping {bytes} bytes for {device}"), error)
            .hint("ask for less, or free what is no longer used")
    })?;
    prefer_huge_pages(base.cast(), bytes);
    Ok(base.cast())
}

/// Asks for huge pages where they pay: fewer page faults and TLB misses for buffers of several of them.
fn prefer_huge_pages(base: *mut u8, bytes: usize) {
    const HUGE_PAGE: usize = 2 << 20;
    if bytes >= 2 * HUGE_PAGE {
        // SAFETY: advice on a mapping that was just made; it changes no contents. A kernel without huge pages
        // refuses, which costs nothing but the speed.
        let _ = unsafe { rustix::mm::madvise(base.cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
    }
}

/// One use of an allocation, by a call or by the caller's own hand; ends when dropped.
#[derive(Debug)]
pub(crate) struct Use {
    allocation: Arc<Allocation>,
    writes: bool,
}

impl Use {
    /// A use by a call on `stream`.
    #[inline]
    pub fn by_stream(allocation: Arc<Allocation>, stream: u32, writes: bool) -> Result<Use> {
        match allocation.users.enter(stream, writes) {
            Ok(()) => Ok(Use { allocation, writes }),
            Err(refusal) => Err(allocation.refused(refusal)),
        }
    }

    /// A use by the caller's own thread, once no call is in the way.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) in a forked child: the memory is the parent's, and so are the threads
    /// that would end the calls.
    pub fn by_host(allocation: &Arc<Allocation>, writes: bool) -> Result<Use> {
        fork::refuse_child()?;
        let mut backoff = Backoff::new();
        while allocation.users.enter(HOST, writes).is_err() {
            backoff.wait();
        }
        Ok(Use { allocation: allocation.clone(), writes })
    }
}

impl Use {
    /// Says that a rank may still write here, some day, that nobody can wait for.
    pub fn quarantine(&self) {
        self.allocation.quarantined.store(true, Ordering::Relaxed);
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.allocation.users.leave(self.writes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(users: &Users, stream: u32, writes: bool) -> bool {
        users.enter(stream, writes).is_ok()
    }

    #[test]
    fn one_stream_may_pile_up_uses_and_another_may_only_share_reading() {
        let users = Users::default();
        assert!(may(&users, 1, true) && may(&users, 1, false) && may(&users, 1, true));
        assert!(!may(&users, 2, false) && !may(&users, 2, true) && !may(&users, HOST, false));
        users.leave(true);
        users.leave(true);
        assert!(may(&users, 2, false), "both only read");
        assert!(!may(&users, 2, true) && !may(&users, 1, true), "nobody may write what several read");
        assert!(may(&users, HOST, false));
        for _ in 0..3 {
            users.leave(false);
        }
        assert!(may(&users, 2, true), "nobody is left");
    }

    #[test]
    fn the_caller_does_not_join_its_own_write() {
        let users = Users::default();
        assert!(may(&users, HOST, true));
        assert!(!may(&users, HOST, true) && !may(&users, HOST, false));
        users.leave(true);
        assert!(may(&users, HOST, false));
    }

    #[test]
    fn a_full_count_is_told_from_a_buffer_that_another_stream_uses() {
        let buffer = Allocation::new(&Device::host(5), 8).unwrap();
        let uses = |stream: u32, count: usize| {
            (0..count).map(|_| Use::by_stream(buffer.clone(), stream, true)).collect::<Result<Vec<_>>>()
        };
        let held = uses(1, (1 << 20) - 1).expect("a million calls may be queued");
        let full = uses(1, 1).unwrap_err().to_string();
        assert!(full.contains("so many calls that use a buffer of host device 5 are queued"), "{full}");
        assert!(full.contains("synchronize"), "{full}");
        assert!(uses(2, 1).unwrap_err().to_string().contains("in use by a call on another stream"));
        drop(held);
        uses(LAST_STREAM, 1).expect("nobody is left");
    }

    #[test]
    fn an_absurd_size_is_refused_with_its_number() {
        let error = Allocation::new(&Device::host(3), 1 << 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.to_string().contains("1152921504606846976 bytes for host device 3"), "{error}");
    }
}
