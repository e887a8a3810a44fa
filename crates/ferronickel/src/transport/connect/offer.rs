//! What a rank tells the others: the memory in which it receives, and where the network finds it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::bootstrap::session::Exchanged;
use crate::device::region::Region;

#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub memory: Result<Memory, String>,
    pub addresses: Vec<SocketAddr>,
}

/// The memory in which a rank receives.
#[derive(Clone, Debug)]
pub(super) enum Memory {
    /// It lies in this process.
    Here(Arc<Region>),
    /// It lies in another. The file is there if it can be reached.
    There { file: Option<Arc<OwnedFd>>, bytes: usize },
}

impl Memory {
    /// A mapping of one's own.
    pub fn map(&self) -> io::Result<Arc<Region>> {
        let no_file = || io::Error::other("its memory cannot be shared");
        match self {
            Memory::Here(region) => Ok(Region::map(region).ok_or_else(no_file)??),
            Memory::There { file, bytes } => Ok(Region::from_file(file.as_ref().ok_or_else(no_file)?.as_fd(), *bytes)?),
        }
    }
}

impl Exchanged for Offer {
    fn pack(&self) -> (Vec<u8>, Vec<Arc<OwnedFd>>) {
        let (memory, file) = match &self.memory {
            Ok(Memory::Here(region)) => {
                (Ok(region.bytes()), region.file().and_then(|file| file.try_clone_to_owned().ok()).map(Arc::new))
            }
            Ok(Memory::There { file, bytes }) => (Ok(*bytes), file.clone()),
            Err(reason) => (Err(reason.clone()), None),
        };
        let plain = (memory, &self.addresses);
        // serialising plain values into memory cannot fail
        (postcard::to_allocvec(&plain).expect("plain values"), file.into_iter().collect())
    }

    fn unpack(bytes: &[u8], files: Vec<OwnedFd>) -> Option<Self> {
        let (memory, addresses): (Result<usize, String>, Vec<SocketAddr>) = postcard::from_bytes(bytes).ok()?;
        let file = files.into_iter().next().map(Arc::new);
        Some(Offer { memory: memory.map(|bytes| Memory::There { file, bytes }), addresses })
    }
}
