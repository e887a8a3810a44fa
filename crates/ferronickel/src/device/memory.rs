//! Memory of a host device, and who uses it at the moment.
//!
//! A call is asynchronous, so that a buffer is in use after the call has returned. Each allocation counts its users:
//! a second stream may not write what a first one still uses, and the caller's own reads and writes wait until no
//! call is in the way. That is what makes the safe interface safe.

mod users;

use std::ops::Deref;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

pub use self::users::LAST_STREAM;
use self::users::{Entry, Refusal, User, Users};
use super::Device;
use super::arena::Arena;
use super::host::wait::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;

/// One owner of an allocation. Clones share it.
#[derive(Debug)]
pub(crate) struct Memory(NonNull<Allocation>);

/// Zeroed memory, aligned to a page, returned when it has neither owners nor users.
#[derive(Debug)]
pub(crate) struct Allocation {
    owners: AtomicUsize,
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
// SAFETY: it leads to an allocation, which may be shared between threads and freed by any
unsafe impl Send for Memory {}
// SAFETY: as above
unsafe impl Sync for Memory {}

impl Memory {
    /// At least one byte.
    pub fn new(device: &Device, bytes: usize) -> Result<Memory> {
        Memory::new_in(Arena::of_process().ok(), device, bytes)
    }

    /// In `arena` if there is room.
    fn new_in(arena: Option<&'static Arena>, device: &Device, bytes: usize) -> Result<Memory> {
        let in_arena = arena.and_then(|arena| Some((arena, arena.take(bytes)?)));
        let (base, place) = match in_arena {
            Some((arena, range)) => (arena.at(range.start), Place::Arena(arena, range)),
            None => (map(device, bytes.max(1))?, Place::Private),
        };
        let (owners, bytes, device, users) = (AtomicUsize::new(1), bytes.max(1), device.clone(), Users::default());
        let allocation = Box::new(Allocation { owners, base, bytes, place, device, users });
        Ok(Memory(NonNull::from(Box::leak(allocation))))
    }

    /// Whether both own the same allocation.
    pub fn is_same(&self, other: &Memory) -> bool {
        self.0 == other.0
    }
}

impl Deref for Memory {
    type Target = Allocation;

    #[inline(always)]
    fn deref(&self) -> &Allocation {
        // SAFETY: an allocation lives as long as it has owners
        unsafe { self.0.as_ref() }
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        // as with every reference count: nobody learns anything from it before it reaches zero
        self.owners.fetch_add(1, Ordering::Relaxed);
        Memory(self.0)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.owners.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            if self.users.abandon() {
                // SAFETY: there are neither owners nor users, and either comes only from an owner
                drop(unsafe { Box::from_raw(self.0.as_ptr()) });
            }
        }
    }
}

impl Allocation {
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

/// One use of an allocation, by a call or by the caller's own hand; ends when dropped. It keeps the allocation.
#[derive(Debug)]
pub(crate) struct Use {
    allocation: NonNull<Allocation>,
    /// Taken when dropped.
    entry: Option<Entry>,
}

// SAFETY: as for `Memory`
unsafe impl Send for Use {}

impl Use {
    /// A use by a call on `stream`.
    #[inline]
    pub fn by_stream(memory: &Memory, stream: u32, writes: bool) -> Result<Use> {
        match memory.users.enter(User::Stream(stream), writes) {
            Ok(entry) => Ok(Use { allocation: memory.0, entry: Some(entry) }),
            Err(refusal) => Err(memory.refused(refusal)),
        }
    }

    /// A use by the caller's own thread, once no call is in the way.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) in a forked child: the memory is the parent's, and so are the threads
    /// that would end the calls. [`Remote`](ErrorKind::Remote) when the memory is [quarantined](Self::quarantine).
    pub fn by_host(memory: &Memory, writes: bool) -> Result<Use> {
        fork::refuse_child()?;
        let mut backoff = Backoff::new();
        loop {
            match memory.users.enter(User::Host, writes) {
                Ok(entry) => return Ok(Use { allocation: memory.0, entry: Some(entry) }),
                Err(refusal @ Refusal::Closed) => return Err(memory.refused(refusal)),
                Err(Refusal::InUse | Refusal::TooMany) => backoff.wait(),
            }
        }
    }

    #[inline(always)]
    fn allocation(&self) -> &Allocation {
        // SAFETY: an allocation lives as long as it has users
        unsafe { self.allocation.as_ref() }
    }

    /// Says that a rank may still write here, some day, that nobody can wait for, if this use lets it: then nobody may
    /// use the memory any more, and it is never handed out again.
    pub fn quarantine(&self) {
        if self.entry.as_ref().is_some_and(Entry::writes) {
            self.allocation().users.close();
        }
    }
}

impl Drop for Use {
    #[inline]
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take()
            && self.allocation().users.leave(entry)
        {
            // SAFETY: the last owner has gone, and so has the last user
            drop(unsafe { Box::from_raw(self.allocation.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use ferronickel_kernels::protocol::NOT_SHARED;

    use super::*;

    const ONE: User = User::Stream(1);
    const TWO: User = User::Stream(2);

    /// Users and those who are inside.
    #[derive(Default)]
    struct Inside(Users, Vec<(User, bool, Entry)>);

    impl Inside {
        fn may(&mut self, user: User, writes: bool) -> bool {
            let entered = self.0.enter(user, writes);
            entered.map(|entry| self.1.push((user, writes, entry))).is_ok()
        }

        fn leave(&mut self, user: User, writes: bool) {
            let place = self.1.iter().position(|inside| (inside.0, inside.1) == (user, writes)).unwrap();
            assert!(!self.0.leave(self.1.remove(place).2), "it has an owner");
        }
    }

    #[test]
    fn one_stream_may_pile_up_uses_and_another_may_only_share_reading() {
        let mut users = Inside::default();
        assert!(users.may(ONE, true) && users.may(ONE, false) && users.may(ONE, true));
        assert!(!users.may(TWO, false) && !users.may(TWO, true) && !users.may(User::Host, false));
        users.leave(ONE, true);
        users.leave(ONE, true);
        assert!(users.may(TWO, false), "both only read");
        assert!(!users.may(TWO, true) && !users.may(ONE, true), "nobody may write what several read");
        assert!(users.may(User::Host, false));
        users.leave(ONE, false);
        users.leave(TWO, false);
        assert!(!users.may(TWO, true), "nobody may write what the caller reads");
        users.leave(User::Host, false);
        assert!(users.may(TWO, true), "nobody is left");
    }

    #[test]
    fn the_caller_does_not_join_its_own_write() {
        let mut users = Inside::default();
        assert!(users.may(User::Host, true));
        assert!(!users.may(User::Host, true) && !users.may(User::Host, false) && !users.may(ONE, false));
        users.leave(User::Host, true);
        assert!(users.may(User::Host, false));
    }

    #[test]
    fn a_stream_is_still_known_when_the_caller_has_read_beside_it() {
        let mut users = Inside::default();
        assert!(users.may(ONE, false) && users.may(User::Host, false) && users.may(ONE, false));
        assert!(!users.may(ONE, true), "the caller reads");
        users.leave(User::Host, false);
        assert!(users.may(ONE, true), "only the stream's own calls are left");
        for writes in [false, false, true] {
            users.leave(ONE, writes);
        }
        assert!(users.may(User::Host, true), "nobody is left");
    }

    #[test]
    fn callers_that_cannot_be_counted_are_told_so_and_harm_no_other_count() {
        let mut users = Inside::default();
        let readers = (0..).take_while(|_| users.may(User::Host, false)).count();
        assert_eq!((readers, users.0.enter(User::Host, false).unwrap_err()), (63, Refusal::TooMany));
        assert!(users.may(ONE, false), "the stream has a count of its own");
        (0..readers).for_each(|_| users.leave(User::Host, false));
        assert!(users.may(ONE, true) && !users.may(TWO, false));
    }

    #[test]
    fn memory_lives_as_long_as_it_has_owners_or_users() {
        let arena: &'static Arena = Box::leak(Box::new(Arena::new().unwrap()));
        let new = || Memory::new_in(Some(arena), &Device::host(0), 4096).unwrap();
        let (first, second) = (new(), new());
        let places = [first.base(), second.base()];
        let [one, two] = [1, 2].map(|_| Use::by_stream(&first, 1, true).unwrap());
        let (clone, used) = (second.clone(), Use::by_host(&second, false).unwrap());
        drop((first, second, one, used));
        let taken: Vec<_> = (0..9).map(|_| new()).collect();
        assert!(taken.iter().all(|other| !places.contains(&other.base())), "the memory was handed out again");
        drop((two, clone));
        let again = [new(), new()];
        assert!(again.iter().all(|other| places.contains(&other.base())), "the memory was kept");
    }

    #[test]
    fn quarantined_memory_is_neither_used_nor_handed_out_again() {
        let arena: &'static Arena = Box::leak(Box::new(Arena::new().unwrap()));
        let new = || Memory::new_in(Some(arena), &Device::host(5), 100_000).unwrap();
        let (buffer, input) = (new(), new());
        let uses = [(&input, false), (&buffer, true)].map(|(a, writes)| Use::by_stream(a, 1, writes).unwrap());
        uses.iter().for_each(Use::quarantine);
        let refused = |used: Result<Use>| {
            let error = used.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Remote);
            assert!(error.to_string().contains("a buffer of host device 5 may still be written"), "{error}");
        };
        // before the call is over and after it
        for _ in 0..2 {
            for writes in [false, true] {
                refused(Use::by_stream(&buffer, 1, writes));
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
        let outside = Memory::new_in(Some(arena), &Device::host(0), 10_000).unwrap();
        assert_eq!(arena.range().offset_of(outside.base()), NOT_SHARED);
        {
            let _use = Use::by_host(&outside, true).unwrap();
            // SAFETY: the allocation is as large, and nobody else uses it
            let bytes = unsafe { std::slice::from_raw_parts_mut(outside.base(), 10_000) };
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(7);
        }
        arena.give_back(all);
        let inside = Memory::new_in(Some(arena), &Device::host(0), 10_000).unwrap();
        assert_ne!(arena.range().offset_of(inside.base()), NOT_SHARED);
    }

    #[test]
    fn a_full_count_is_told_from_a_buffer_that_another_stream_uses() {
        let buffer = Memory::new(&Device::host(5), 8).unwrap();
        let uses = |stream: u32, count: usize| {
            (0..count).map(|_| Use::by_stream(&buffer, stream, true)).collect::<Result<Vec<_>>>()
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
        let error = Memory::new(&Device::host(3), 1 << 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.to_string().contains("1152921504606846976 bytes for host device 3"), "{error}");
    }
}
