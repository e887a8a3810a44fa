//! Memory of a host device, and who uses it at the moment.
//!
//! A call is asynchronous, so that a buffer is in use after the call has returned. Each allocation counts its users:
//! a second stream may not write what a first one still uses, and the caller's own reads and writes wait until no
//! call is in the way. That is what makes the safe interface safe.

mod users;

use std::ops::Range;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

pub use self::users::LAST_STREAM;
use self::users::{Refusal, User, Users};
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
    /// Closed when somebody may still write here whom nobody can wait for.
    users: Users,
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
        Allocation::new_in(Arena::of_process().ok(), device, bytes)
    }

    /// In `arena` if there is room.
    fn new_in(arena: Option<&'static Arena>, device: &Device, bytes: usize) -> Result<Arc<Allocation>> {
        let in_arena = arena.and_then(|arena| Some((arena, arena.take(bytes)?)));
        let (base, place) = match in_arena {
            Some((arena, range)) => (arena.at(range.start), Place::Arena(arena, range)),
            None => (map(device, bytes.max(1))?, Place::Private),
        };
        Ok(Arc::new(Allocation { base, bytes: bytes.max(1), place, device: device.clone(), users: Users::default() }))
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
        let (kind, seen, hint) = match refusal {
            Refusal::InUse => (
                ErrorKind::InvalidUsage,
                format!("a buffer of {device} is still in use by a call on another stream"),
                "synchronize that stream first, or give each stream an allocation of its own",
            ),
            Refusal::TooMany => (
                ErrorKind::InvalidUsage,
                format!("so many calls that use a buffer of {device} are queued that no more can be counted"),
                "synchronize their stream first",
            ),
            Refusal::Closed => (
                ErrorKind::Remote,
                format!("a buffer of {device} may still be written by a rank that fell silent in the midst of a call"),
                "allocate another buffer; this one's memory is not used again",
            ),
        };
        Error::new(kind, seen).hint(hint)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        match &self.place {
            // it is never handed out again
            _ if self.users.is_closed() => {}
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
    user: User,
    writes: bool,
}

impl Use {
    /// A use by a call on `stream`.
    #[inline]
    pub fn by_stream(allocation: Arc<Allocation>, stream: u32, writes: bool) -> Result<Use> {
        let user = User::Stream(stream);
        match allocation.users.enter(user, writes) {
            Ok(()) => Ok(Use { allocation, user, writes }),
            Err(refusal) => Err(allocation.refused(refusal)),
        }
    }

    /// A use by the caller's own thread, once no call is in the way.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) in a forked child: the memory is the parent's, and so are the threads
    /// that would end the calls. [`Remote`](ErrorKind::Remote) when the memory is [quarantined](Self::quarantine).
    pub fn by_host(allocation: &Arc<Allocation>, writes: bool) -> Result<Use> {
        fork::refuse_child()?;
        let (user, mut backoff) = (User::Host, Backoff::new());
        loop {
            match allocation.users.enter(user, writes) {
                Ok(()) => return Ok(Use { allocation: allocation.clone(), user, writes }),
                Err(refusal @ Refusal::Closed) => return Err(allocation.refused(refusal)),
                Err(Refusal::InUse | Refusal::TooMany) => backoff.wait(),
            }
        }
    }

    /// Says that a rank may still write here, some day, that nobody can wait for, if this use lets it: then nobody may
    /// use the memory any more, and it is never handed out again.
    pub fn quarantine(&self) {
        if self.writes {
            self.allocation.users.close();
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.allocation.users.leave(self.user, self.writes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: User = User::Stream(1);
    const TWO: User = User::Stream(2);

    fn may(users: &Users, user: User, writes: bool) -> bool {
        users.enter(user, writes).is_ok()
    }

    #[test]
    fn one_stream_may_pile_up_uses_and_another_may_only_share_reading() {
        let users = Users::default();
        assert!(may(&users, ONE, true) && may(&users, ONE, false) && may(&users, ONE, true));
        assert!(!may(&users, TWO, false) && !may(&users, TWO, true) && !may(&users, User::Host, false));
        users.leave(ONE, true);
        users.leave(ONE, true);
        assert!(may(&users, TWO, false), "both only read");
        assert!(!may(&users, TWO, true) && !may(&users, ONE, true), "nobody may write what several read");
        assert!(may(&users, User::Host, false));
        users.leave(ONE, false);
        users.leave(TWO, false);
        assert!(!may(&users, TWO, true), "nobody may write what the caller reads");
        users.leave(User::Host, false);
        assert!(may(&users, TWO, true), "nobody is left");
    }

    #[test]
    fn the_caller_does_not_join_its_own_write() {
        let users = Users::default();
        assert!(may(&users, User::Host, true));
        assert!(!may(&users, User::Host, true) && !may(&users, User::Host, false) && !may(&users, ONE, false));
        users.leave(User::Host, true);
        assert!(may(&users, User::Host, false));
    }

    #[test]
    fn a_stream_is_still_known_when_the_caller_has_read_beside_it() {
        let users = Users::default();
        assert!(may(&users, ONE, false) && may(&users, User::Host, false) && may(&users, ONE, false));
        assert!(!may(&users, ONE, true), "the caller reads");
        users.leave(User::Host, false);
        assert!(may(&users, ONE, true), "only the stream's own calls are left");
        for writes in [false, false, true] {
            users.leave(ONE, writes);
        }
        assert!(may(&users, User::Host, true), "nobody is left");
    }

    #[test]
    fn callers_that_cannot_be_counted_are_told_so_and_harm_no_other_count() {
        let users = Users::default();
        let readers = (0..).take_while(|_| may(&users, User::Host, false)).count();
        assert_eq!((readers, users.enter(User::Host, false)), (127, Err(Refusal::TooMany)));
        assert!(may(&users, ONE, false), "the stream has a count of its own");
        (0..readers).for_each(|_| users.leave(User::Host, false));
        assert!(may(&users, ONE, true) && !may(&users, TWO, false));
    }

    #[test]
    fn quarantined_memory_is_neither_used_nor_handed_out_again() {
        let arena: &'static Arena = Box::leak(Box::new(Arena::new().unwrap()));
        let new = || Allocation::new_in(Some(arena), &Device::host(5), 100_000).unwrap();
        let (buffer, input) = (new(), new());
        let uses = [(&input, false), (&buffer, true)].map(|(a, writes)| Use::by_stream(a.clone(), 1, writes).unwrap());
        uses.iter().for_each(Use::quarantine);
        let refused = |used: Result<Use>| {
            let error = used.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Remote);
            assert!(error.to_string().contains("a buffer of host device 5 may still be written"), "{error}");
        };
        // before the call is over and after it
        for _ in 0..2 {
            for writes in [false, true] {
                refused(Use::by_stream(buffer.clone(), 1, writes));
                refused(Use::by_host(&buffer, writes));
            }
        }
        drop(uses);
        refused(Use::by_host(&buffer, false));
        Use::by_host(&input, true).expect("a rank that only reads here does no harm");
        let (tainted, clean) = (buffer.base() as usize, input.base() as usize);
        drop((buffer, input));
        let others: Vec<_> = (0..50).map(|_| new()).collect();
        let has = |base: usize| others.iter().any(|other| (other.base() as usize).abs_diff(base) < 100_000);
        assert!(has(clean) && !has(tainted));
    }

    #[test]
    fn without_room_in_the_arena_memory_is_of_this_process_alone() {
        let arena: &'static Arena = Box::leak(Box::new(Arena::new().unwrap()));
        let all = arena.take(arena.bytes()).unwrap();
        let outside = Allocation::new_in(Some(arena), &Device::host(0), 10_000).unwrap();
        assert_eq!(arena.offset_of(outside.base()), None);
        {
            let _use = Use::by_host(&outside, true).unwrap();
            // SAFETY: the allocation is as large, and nobody else uses it
            let bytes = unsafe { std::slice::from_raw_parts_mut(outside.base(), 10_000) };
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(7);
        }
        arena.give_back(all);
        let inside = Allocation::new_in(Some(arena), &Device::host(0), 10_000).unwrap();
        assert!(arena.offset_of(inside.base()).is_some());
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
