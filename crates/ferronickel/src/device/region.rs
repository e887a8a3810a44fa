//! Memory that ranks share: where messages arrive.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, Result as IoResult};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::signals::Blocked;

/// A mapping, zeroed when it was made; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Region {
    base: *mut u8,
    bytes: usize,
    /// The memory's name for others, if it can be shared with a process.
    file: Option<OwnedFd>,
}

// SAFETY: a region only says where memory is; its contents are reached by the protocols' rules
unsafe impl Send for Region {}
// SAFETY: as above
unsafe impl Sync for Region {}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Region {
    /// Memory of this process. In small pages: most of a region is for calls that may never come.
    pub fn private(bytes: usize) -> IoResult<Arc<Region>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nobody's memory
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, READ_WRITE, flags)? };
        Ok(Arc::new(Region { base: base.cast(), bytes, file: None }))
    }

    /// Memory that others can map: anonymous, so that there is no name to be left behind and no `/dev/shm` to be
    /// full; sealed, so that nobody can shrink it under a reader.
    pub fn shared(bytes: usize) -> IoResult<Arc<Region>> {
        let file = memfd_create("ferronickel", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        resize(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let base = map_file(file.as_fd(), bytes)?;
        Ok(Arc::new(Region { base, bytes, file: Some(file) }))
    }

    /// A mapping of one's own of memory that another rank shares. None if it cannot be shared.
    pub fn map(other: &Region) -> Option<IoResult<Arc<Region>>> {
        let file = other.file.as_ref()?;
        let mapped = map_file(file.as_fd(), other.bytes);
        Some(mapped.map(|base| Arc::new(Region { base, bytes: other.bytes, file: None })))
    }

    /// A mapping of memory that another process shares: `bytes` bytes of `file`. Refused unless the file has as many
    /// and is sealed, so that its maker cannot take the memory away from under us.
    pub fn from_file(file: BorrowedFd<'_>, bytes: usize) -> IoResult<Arc<Region>> {
        let sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        let long_enough = u64::try_from(fstat(file)?.st_size).is_ok_and(|size| size >= bytes as u64);
        if !sealed || !long_enough {
            return Err(Errno::INVAL);
        }
        Ok(Arc::new(Region { base: map_file(file, bytes)?, bytes, file: None }))
    }

    /// The memory's name for other processes, if it can be shared.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Bytes of the mapping.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where byte `offset` is.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes, "offset {offset} in a region of {}", self.bytes);
        self.base.wrapping_add(offset)
    }
}

/// Gives a file a size; an error, not the end of the process, where a limit on files (`ulimit -f`) forbids it.
fn resize(file: &OwnedFd, bytes: u64) -> IoResult<()> {
    let blocked = Blocked::sigxfsz();
    ftruncate(file, bytes).inspect_err(|_| blocked.discard())
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever follows pointers into it holds a reference
        let unmapped = unsafe { munmap(self.base.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

fn map_file(file: BorrowedFd<'_>, bytes: usize) -> IoResult<*mut u8> {
    // SAFETY: as in `private`
    Ok(unsafe { mmap(std::ptr::null_mut(), bytes, READ_WRITE, MapFlags::SHARED, file, 0)? }.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_one_memory() {
        let ours = Region::shared(1 << 16).unwrap();
        let theirs = Region::map(&ours).unwrap().unwrap();
        assert_ne!(ours.at(0), theirs.at(0));
        // SAFETY: both lie in the mappings, and nobody else has them
        unsafe {
            ours.at(4097).write(77);
            assert_eq!(theirs.at(4097).read(), 77);
        }
    }

    #[test]
    fn private_memory_cannot_be_mapped() {
        assert!(Region::map(&Region::private(4096).unwrap()).is_none());
    }

    #[test]
    fn a_file_that_can_shrink_or_is_too_short_is_refused() {
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 8192).unwrap();
        assert!(Region::from_file(open.as_fd(), 8192).is_err());
        let ours = Region::shared(8192).unwrap();
        assert!(Region::from_file(ours.file().unwrap(), 8193).is_err());
        let theirs = Region::from_file(ours.file().unwrap(), 8192).unwrap();
        // SAFETY: as above
        unsafe {
            theirs.at(5).write(3);
            assert_eq!(ours.at(5).read(), 3);
        }
    }

    #[test]
    fn a_size_nobody_has_is_an_error() {
        assert!(Region::private(1 << 60).is_err() && Region::shared(1 << 60).is_err());
    }
}
