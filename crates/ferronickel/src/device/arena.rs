//! The memory that this process's buffers come from: one piece, which the other processes of the machine can map, so
//! that they reach every buffer in it by its offset.
//!
//! It is sparse: it has room for more than the machine has memory, and takes what is in use. What is given back is
//! punched out of it.

mod ranges;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};

use self::ranges::Ranges;
use ferronickel_kernels::protocol;

use super::region::Region;
use crate::fork::Mark;

/// A process's arena.
#[derive(Debug)]
pub(crate) struct Arena {
    region: Arc<Region>,
    free: Mutex<Ranges>,
    /// Of the process that made it: a forked child has inherited it, but it is not the child's.
    mark: Mark,
}

/// Room that an arena has at least, or there is none.
const LEAST_BYTES: usize = 64 << 20;
/// Of the address space that the process may have, an arena takes no more than this part.
const LIMIT_SHARE: u64 = 16;

impl Arena {
    /// The arena of this process, made when it is first asked for; or why there is none.
    pub fn of_process() -> Result<&'static Arena, &'static str> {
        static ARENA: OnceLock<Result<Arena, String>> = OnceLock::new();
        let arena = ARENA.get_or_init(Arena::new).as_ref().map_err(String::as_str)?;
        if arena.mark.is_gone() {
            return Err("this process was forked from the one whose buffers can be shared");
        }
        Ok(arena)
    }

    /// As much as the machine has memory, and less where addresses are short.
    pub fn new() -> Result<Arena, String> {
        let info = rustix::system::sysinfo();
        let memory = usize::try_from(info.totalram).unwrap_or(usize::MAX).saturating_mul(info.mem_unit as usize);
        let mut bytes = memory.max(LEAST_BYTES).next_power_of_two();
        if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::As).current {
            // A limit on memory counts addresses, and the arenas of peers take some as well.
            let share = usize::try_from(limit / LIMIT_SHARE).unwrap_or(usize::MAX);
            if share < LEAST_BYTES {
                return Err(format!(
                    "a limit of {limit} bytes on the address space (ulimit -v) leaves no room to share"
                ));
            }
            bytes = bytes.min(share.next_power_of_two() / 2);
        }
        loop {
            match Region::shared(bytes) {
                Ok(region) => {
                    return Ok(Arena { region, free: Mutex::new(Ranges::new(bytes)), mark: Mark::new() });
                }
                Err(rustix::io::Errno::NOMEM) if bytes / 2 >= LEAST_BYTES => bytes /= 2,
                Err(error) => return Err(format!("no memory can be shared: {error}")),
            }
        }
    }

    /// Room for a buffer of `bytes` bytes, zeroed; None if there is none.
    pub fn take(&self, bytes: usize) -> Option<Range<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).take(bytes)
    }

    /// Gives back what was [taken](Self::take), once nobody uses it.
    pub fn give_back(&self, range: Range<usize>) {
        if self.mark.is_gone() {
            // it is the parent's
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let file = self.file();
        if fallocate(file, flags, range.start as u64, range.len() as u64).is_ok() {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).give_back(range);
        }
        // What could not be emptied is not handed out again: the next owner expects zeros.
    }

    /// Where byte `offset` is in this process.
    pub fn at(&self, offset: usize) -> *mut u8 {
        self.region.at(offset)
    }

    pub fn bytes(&self) -> usize {
        self.region.bytes()
    }

    /// The arena as kernels know it.
    pub fn range(&self) -> protocol::Arena {
        protocol::Arena { base: self.at(0), bytes: self.bytes() }
    }

    /// The arena's name for other processes.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.region.file().expect("an arena is shared memory")
    }
}

#[cfg(test)]
mod tests {
    use ferronickel_kernels::protocol::NOT_SHARED;

    use super::*;

    #[test]
    fn memory_comes_zeroed_and_goes_back_to_the_machine() {
        let arena = Arena::new().unwrap();
        let blocks = || rustix::fs::fstat(arena.file()).unwrap().st_blocks;
        let range = arena.take(5 << 20).unwrap();
        // SAFETY: the range was taken
        unsafe { std::slice::from_raw_parts_mut(arena.at(range.start), 5 << 20) }.fill(7);
        assert!(blocks() * 512 >= 5 << 20);
        assert_eq!(arena.range().offset_of(arena.at(range.start + 3)), range.start as u64 + 3);
        arena.give_back(range.clone());
        assert_eq!(blocks(), 0, "memory that nobody has is kept");
        assert_eq!(arena.take(5 << 20), Some(range.clone()));
        // SAFETY: as above
        assert!(unsafe { std::slice::from_raw_parts(arena.at(range.start), 5 << 20) }.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn addresses_outside_are_known_as_such() {
        let arena = Arena::new().unwrap();
        assert_eq!(arena.range().offset_of(std::ptr::from_ref(&arena).cast()), NOT_SHARED);
        assert_eq!(arena.range().offset_of(arena.at(0).wrapping_add(arena.bytes())), NOT_SHARED);
    }

    #[test]
    fn a_forked_child_neither_takes_nor_gives_back() {
        let inherited = Arena { mark: Mark::of_another(), ..Arena::new().unwrap() };
        let range = inherited.take(100).unwrap();
        // SAFETY: the range was taken
        unsafe { inherited.at(range.start).write(9) };
        inherited.give_back(range.clone());
        // SAFETY: as above
        assert_eq!(unsafe { inherited.at(range.start).read() }, 9, "the parent's memory was emptied");
    }
}
