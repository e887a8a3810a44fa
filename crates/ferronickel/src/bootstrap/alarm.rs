//! A way to call a thread that waits for sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// Readable once it has been raised, until it is cleared. Clones are one alarm.
#[derive(Clone, Debug)]
pub(crate) struct Alarm(Arc<OwnedFd>);

impl Alarm {
    pub fn new() -> io::Result<Alarm> {
        Ok(Alarm(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub fn raise(&self) {
        // it fails only if the counter is full, and then it is raised
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
