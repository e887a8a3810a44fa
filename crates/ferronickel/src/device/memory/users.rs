//! Who uses an allocation at the moment.

use crate::device::host::sync::{AtomicU64, Ordering};

/// The number that stands for the caller's own thread in place of a stream's.
pub const HOST: u32 = 0;
/// The number that stands for several streams, all of which only read.
const SEVERAL: u32 = u32::MAX;

/// Users of an allocation: the stream in the upper half, then 16 bits of writers and 16 bits of readers.
#[derive(Default, Debug)]
pub struct Users(AtomicU64);

impl Users {
    const READER: u64 = 1;
    const WRITER: u64 = 1 << 16;

    /// Registers a user, unless it may not join those that are there.
    pub fn enter(&self, stream: u32, writes: bool) -> bool {
        let joined = |now: u64| {
            let (owner, writers, readers) = ((now >> 32) as u32, now >> 16 & 0xffff, now & 0xffff);
            let alone = writers + readers == 0;
            let same = owner == stream && stream != HOST;
            let owner = match () {
                () if alone || same => stream,
                () if !writes && writers == 0 => SEVERAL,
                () => return None,
            };
            // a full counter: as if somebody else held it
            if (if writes { writers } else { readers }) == 0xffff {
                return None;
            }
            let counts = now & 0xffff_ffff;
            Some((owner as u64) << 32 | (counts + if writes { Self::WRITER } else { Self::READER }))
        };
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, joined).is_ok()
    }

    /// Ends a use.
    pub fn leave(&self, writes: bool) {
        self.0.fetch_sub(if writes { Self::WRITER } else { Self::READER }, Ordering::Release);
    }
}
