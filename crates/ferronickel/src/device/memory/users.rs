//! Who uses an allocation at the moment.

use std::num::NonZeroU64;

use crate::device::host::sync::{AtomicU64, Ordering, fence};

/// The largest number that a stream may have. They begin at one.
pub const LAST_STREAM: u32 = SEVERAL - 1;
/// The number that stands for a caller's own thread that writes.
const HOST: u32 = 0;
/// The number that stands for several streams, all of which only read.
const SEVERAL: u32 = (1 << STREAM_BITS) - 1;

/// Bits of a stream's number: more streams than a process may have threads.
const STREAM_BITS: u32 = 16;
/// Bits of the counts of writers and of readers: a program that never synchronizes runs out of memory for its queued
/// calls at about the same time.
const COUNT_BITS: u32 = 20;
/// Bits of the count of callers' threads that read at the same time: more of them wait for each other.
const HOST_COUNT_BITS: u32 = 6;

/// Where each field of the word begins.
const STREAM: u32 = 64 - STREAM_BITS;
const WRITERS: u32 = STREAM - COUNT_BITS;
const READERS: u32 = WRITERS - COUNT_BITS;
const HOST_READERS: u32 = READERS - HOST_COUNT_BITS;
/// Set for good: nobody may use it any more.
const CLOSED: u64 = 1;
/// Set for good: nobody has the allocation any more but its users.
const ABANDONED: u64 = 2;
const _: () = assert!(HOST_READERS == 2, "the fields fill the word");
/// The bits of all counts.
const COUNTS: u64 = most(STREAM) & !most(HOST_READERS);

/// The most that a count of so many bits holds.
const fn most(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Users of an allocation, in one word: the stream, the number of writers, of readers, and of callers' threads that
/// read; whether it is closed, and whether it is abandoned. Callers that read are counted apart, so that the stream whose
/// readers they join is still known when they have gone.
///
/// The word also counts the users' share in the allocation, which lives as long as it has owners or users: so a use
/// costs one atomic access to begin and one to end.
#[derive(Default, Debug)]
pub struct Users(AtomicU64);

/// Who uses an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User {
    /// A call on the stream with this number.
    Stream(u32),
    /// A caller's own thread.
    Host,
}

/// That somebody has come in: what it added to the word.
#[must_use]
#[derive(Debug)]
pub struct Entry(NonZeroU64);

/// Why somebody may not use an allocation now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Somebody uses it who may not be joined.
    InUse,
    /// More uses than can be counted would be registered.
    TooMany,
    /// Nobody may use it any more.
    Closed,
}

impl User {
    /// What one use of this kind adds to the word.
    fn one(self, writes: bool) -> NonZeroU64 {
        const fn bit(number: u32) -> NonZeroU64 {
            NonZeroU64::new(1 << number).expect("a bit of the word")
        }
        match (self, writes) {
            (_, true) => const { bit(WRITERS) },
            (User::Stream(_), false) => const { bit(READERS) },
            (User::Host, false) => const { bit(HOST_READERS) },
        }
    }
}

impl Users {
    /// Registers a user, unless it may not join those that are there. By somebody who has the allocation.
    #[inline]
    pub fn enter(&self, user: User, writes: bool) -> Result<Entry, Refusal> {
        let mut refusal = Refusal::InUse;
        let joined = |now: u64| joined(now, user, writes).map_err(|why| refusal = why).ok();
        match self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, joined) {
            Ok(_) => Ok(Entry(user.one(writes))),
            Err(_) => Err(refusal),
        }
    }

    /// Ends a use. Whether nobody is left who has the allocation, so that this user must free it.
    #[inline]
    #[must_use]
    pub fn leave(&self, entry: Entry) -> bool {
        let one = entry.0.get();
        // whoever comes next, or frees it, finds what this user did there done
        let before = self.0.fetch_sub(one, Ordering::Release);
        if before & ABANDONED == 0 || (before - one) & COUNTS != 0 {
            return false;
        }
        fence(Ordering::Acquire);
        true
    }

    /// The last owner is gone. Whether no user is left either, so that the owner must free it.
    #[must_use]
    pub fn abandon(&self) -> bool {
        self.0.fetch_or(ABANDONED, Ordering::AcqRel) & COUNTS == 0
    }

    /// Lets nobody in from now on. By somebody who is inside, so that whoever comes next sees it.
    pub fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::Relaxed);
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & CLOSED != 0
    }
}

impl Entry {
    /// Whether it is that of a writer.
    pub fn writes(&self) -> bool {
        self.0.get() == 1 << WRITERS
    }
}

/// The word with one more user.
fn joined(now: u64, user: User, writes: bool) -> Result<u64, Refusal> {
    let field = |begin: u32, bits: u32| now >> begin & most(bits);
    let owner = (now >> STREAM) as u32;
    let (writers, readers) = (field(WRITERS, COUNT_BITS), field(READERS, COUNT_BITS));
    let host_readers = field(HOST_READERS, HOST_COUNT_BITS);
    if now & CLOSED != 0 {
        return Err(Refusal::Closed);
    }
    let no_stream = writers + readers == 0;
    let owner = match user {
        // whoever reads by hand is in the way of every writer
        _ if writes && host_readers > 0 => return Err(Refusal::InUse),
        User::Host if writes && no_stream => HOST,
        User::Host if !writes && writers == 0 => owner,
        User::Stream(stream) if no_stream || owner == stream => stream,
        User::Stream(_) if !writes && writers == 0 => SEVERAL,
        _ => return Err(Refusal::InUse),
    };
    let (count, bits) = match (user, writes) {
        (_, true) => (writers, COUNT_BITS),
        (User::Stream(_), false) => (readers, COUNT_BITS),
        (User::Host, false) => (host_readers, HOST_COUNT_BITS),
    };
    if count == most(bits) {
        return Err(Refusal::TooMany);
    }
    Ok((now & most(STREAM) | (owner as u64) << STREAM) + user.one(writes).get())
}
