//! Who uses an allocation at the moment.

use crate::device::host::sync::{AtomicU64, Ordering};

/// The number that stands for the caller's own thread in place of a stream's.
pub const HOST: u32 = 0;
/// The number that stands for several streams, all of which only read.
const SEVERAL: u32 = (1 << STREAM_BITS) - 1;
/// The largest number that a stream may have.
pub const LAST_STREAM: u32 = SEVERAL - 1;

/// Bits of a stream's number.
const STREAM_BITS: u32 = 24;
/// Bits of each count: a program that never synchronizes runs out of memory for its queued calls at about the same
/// time.
const COUNT_BITS: u32 = 20;
/// The most readers, and the most writers, at a time.
const MOST: u64 = (1 << COUNT_BITS) - 1;

/// Users of an allocation: the stream in the upper bits, then the number of writers, then that of readers.
#[derive(Default, Debug)]
pub struct Users(AtomicU64);

/// Why somebody may not use an allocation now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Somebody uses it who may not be joined.
    InUse,
    /// More uses than can be counted would be registered.
    TooMany,
}

impl Users {
    const READER: u64 = 1;
    const WRITER: u64 = 1 << COUNT_BITS;

    /// Registers a user, unless it may not join those that are there.
    pub fn enter(&self, stream: u32, writes: bool) -> Result<(), Refusal> {
        debug_assert!(stream <= LAST_STREAM);
        let mut refusal = Refusal::InUse;
        let joined = |now: u64| {
            let (owner, counts) = ((now >> (2 * COUNT_BITS)) as u32, now & ((1 << (2 * COUNT_BITS)) - 1));
            let (writers, readers) = (counts >> COUNT_BITS, counts & MOST);
            let alone = writers + readers == 0;
            let same = owner == stream && stream != HOST;
            let owner = match () {
                () if alone || same => stream,
                () if !writes && writers == 0 => SEVERAL,
                () => {
                    refusal = Refusal::InUse;
                    return None;
                }
            };
            if (if writes { writers } else { readers }) == MOST {
                refusal = Refusal::TooMany;
                return None;
            }
            let counts = counts + if writes { Self::WRITER } else { Self::READER };
            Some((owner as u64) << (2 * COUNT_BITS) | counts)
        };
        match self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, joined) {
            Ok(_) => Ok(()),
            Err(_) => Err(refusal),
        }
    }

    /// Ends a use.
    pub fn leave(&self, writes: bool) {
        self.0.fetch_sub(if writes { Self::WRITER } else { Self::READER }, Ordering::Release);
    }
}
