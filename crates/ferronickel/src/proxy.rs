//! The proxy: one thread of a rank that moves what its kernels send and receive through the network.
//!
//! A kernel fills and drains slots in its own memory and never sees a socket. The proxy carries a full slot to the
//! network, and from the network into an empty one, and moves the counters as a neighbour's kernel would.

use std::io::{self, ErrorKind as IoErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use ferronickel_kernels::protocol::simple::{HEADER_BYTES, slot_stride};
use ferronickel_kernels::protocol::{Link, SLOTS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::host::doze::Doze;
use crate::device::host::{sync, threads};
use crate::device::progress::{Failure, Progress};
use crate::error::{Error, ErrorKind, Result};

/// Bytes before a slot's payload on the wire: the call's description and the payload's length.
const WIRE_HEADER: usize = 16;
/// Turns without progress in which the processor is offered to others, before the proxy waits for the network.
const YIELDS: u32 = 200;
/// How long the proxy waits for the network at a time, since a kernel's next slot makes no network event.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000 };
/// How long a proxy that is told to end still tries to send what was filled.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The thread, and the way to call it.
#[derive(Debug)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    thread: Thread,
    handle: Option<JoinHandle<()>>,
    /// The links whose slots the proxy sends.
    sends: Vec<Link>,
}

// SAFETY: the links' pointers lead to memory that whoever has the proxy keeps; only their counters are looked at
unsafe impl Send for Proxy {}
// SAFETY: as above
unsafe impl Sync for Proxy {}

#[derive(Debug, Default)]
struct Shared {
    doze: Doze,
    ending: AtomicBool,
}

/// One end of a connection through the network.
pub(crate) struct End {
    pub stream: TcpStream,
    /// This end's slots and counters; the kernel uses the same.
    pub link: Link,
    /// Bytes of elements in a slot.
    pub slot_bytes: usize,
    pub channel: u32,
}

/// Everything the thread works with.
struct Engine {
    rank: usize,
    progress: Arc<Progress>,
    shared: Arc<Shared>,
    sends: Vec<Sending>,
    receives: Vec<Receiving>,
    /// Whatever must live as long as the slots are used.
    _keep: Vec<Arc<crate::device::region::Region>>,
}

struct Sending {
    end: End,
    /// Bytes of the current message that are on their way.
    sent: usize,
}

struct Receiving {
    end: End,
    header: [u8; WIRE_HEADER],
    /// Bytes of the current message that have come, header included.
    received: usize,
    /// The other end has closed the connection.
    closed: bool,
}

// SAFETY: the links' pointers lead to memory that `_keep` holds, and this thread follows them by the protocol's rules
unsafe impl Send for Engine {}

impl Proxy {
    /// Starts a proxy for `rank`; `keep` holds the memory of the ends' slots.
    pub fn start(
        rank: usize,
        progress: Arc<Progress>,
        sends: Vec<End>,
        receives: Vec<End>,
        keep: Vec<Arc<crate::device::region::Region>>,
    ) -> Result<Proxy> {
        for end in sends.iter().chain(&receives) {
            end.stream.set_nonblocking(true).map_err(|error| Error::system("making a socket non-blocking", error))?;
        }
        let shared = Arc::new(Shared::default());
        let links = sends.iter().map(|end| end.link).collect();
        let sends = sends.into_iter().map(|end| Sending { end, sent: 0 }).collect();
        let receiving = |end| Receiving { end, header: [0; WIRE_HEADER], received: 0, closed: false };
        let receives = receives.into_iter().map(receiving).collect();
        let mut engine = Engine { rank, progress, shared: shared.clone(), sends, receives, _keep: keep };
        let started = threads::spawn(&format!("fnickel net {rank}"), move || engine.run());
        let handle = started.map_err(|error| Error::system("starting the proxy's thread", error))?;
        Ok(Proxy { shared, thread: handle.thread().clone(), handle: Some(handle), sends: links })
    }

    /// Whether the network has taken everything that the kernels have filled.
    pub fn is_drained(&self) -> bool {
        self.sends
            .iter()
            .all(|link| counter(link.head).load(Ordering::Acquire) == counter(link.tail).load(Ordering::Acquire))
    }

    /// Tells the proxy that a kernel begins which uses the network.
    pub fn wake(&self) {
        self.shared.doze.wake(|| self.thread.unpark());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        self.thread.unpark();
        if let Some(handle) = self.handle.take() {
            // it ends within LAST_WORDS; a panic of it has been reported by the panic hook
            let _ = handle.join();
        }
    }
}

impl Engine {
    fn run(&mut self) {
        // a thread's naps are rounded up by 50 µs unless it asks for better
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
        self.shared.doze.rise();
        let mut idle = 0;
        let mut ending_since = None;
        loop {
            match self.turn() {
                Ok(true) => idle = 0,
                Ok(false) => idle += 1,
                Err(failure) => {
                    // a rank that has left closes its connections: then that is the cause, and the first one stays
                    self.progress.look_for_trouble_in_last_call(self.rank);
                    return self.progress.fail(failure);
                }
            }
            if self.shared.ending.load(Ordering::SeqCst) {
                let since = *ending_since.get_or_insert_with(Instant::now);
                if self.all_sent() || self.progress.stopped() || since.elapsed() > LAST_WORDS {
                    return;
                }
            }
            if idle == 0 {
                continue;
            }
            if self.has_rest() && ending_since.is_none() {
                self.sleep();
                idle = 0;
            } else if idle < YIELDS {
                std::thread::yield_now();
            } else {
                self.wait_for_network();
            }
        }
    }

    /// Moves what can be moved. Whether anything could.
    fn turn(&mut self) -> std::result::Result<bool, Failure> {
        let mut moved = false;
        for sending in &mut self.sends {
            moved |= sending.advance().map_err(|error| failure(&self.progress, &sending.end, "sending to", &error))?;
        }
        for receiving in &mut self.receives {
            moved |= receiving
                .advance()
                .map_err(|error| failure(&self.progress, &receiving.end, "receiving from", &error))?;
        }
        Ok(moved)
    }

    fn all_sent(&self) -> bool {
        self.sends.iter().all(|sending| sending.end.tail() == sending.end.link.step)
    }

    /// Whether there is nothing to do until the next kernel begins. What a kernel filled is seen once it has ended.
    fn has_rest(&self) -> bool {
        self.progress.is_between_calls(self.rank) && self.all_sent()
    }

    fn sleep(&self) {
        const LONGEST: Duration = Duration::from_millis(100);
        let has_work = || !self.has_rest() || self.shared.ending.load(Ordering::SeqCst);
        self.shared.doze.sleep(has_work, || sync::park(LONGEST));
    }

    fn wait_for_network(&self) {
        let receives = self.receives.iter().filter(|receiving| !receiving.closed);
        let readable = receives.map(|receiving| PollFd::from_borrowed_fd(receiving.end.stream.as_fd(), PollFlags::IN));
        let blocked = self.sends.iter().filter(|sending| sending.sent > 0);
        let writable = blocked.map(|sending| PollFd::from_borrowed_fd(sending.end.stream.as_fd(), PollFlags::OUT));
        let mut all: Vec<_> = readable.chain(writable).collect();
        // an interruption or an error shows again when the socket is used
        let _ = poll(&mut all, Some(&NAP));
    }
}

fn counter<'a>(at: *mut u64) -> &'a AtomicU64 {
    // SAFETY: a link's counters are valid as long as the link is used, aligned, and only ever used as flags
    unsafe { AtomicU64::from_ptr(at) }
}

impl End {
    fn slot(&self) -> *mut u8 {
        self.link.slots.wrapping_add((self.link.step % SLOTS) as usize * slot_stride(self.slot_bytes))
    }

    /// Slots filled so far.
    fn tail(&self) -> u64 {
        counter(self.link.tail).load(Ordering::Acquire)
    }
}

impl Sending {
    /// Sends from full slots what the socket takes.
    fn advance(&mut self) -> io::Result<bool> {
        let mut moved = false;
        while self.end.tail() > self.end.link.step {
            let slot = self.end.slot();
            // SAFETY: the slot is full, so its header and as many bytes as it says are written, and stay until the
            // head moves
            let (header, payload) = unsafe {
                let bytes = slot.cast::<u64>().add(1).read() as usize;
                let payload = slot.add(HEADER_BYTES).cast_const();
                (std::slice::from_raw_parts(slot, WIRE_HEADER), std::slice::from_raw_parts(payload, bytes))
            };
            let rest = [
                IoSlice::new(&header[self.sent.min(WIRE_HEADER)..]),
                IoSlice::new(&payload[self.sent.saturating_sub(WIRE_HEADER)..]),
            ];
            match (&self.end.stream).write_vectored(&rest) {
                Ok(0) => return Err(IoErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == IoErrorKind::WouldBlock => return Ok(moved),
                Err(error) if error.kind() == IoErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            moved = true;
            if self.sent == WIRE_HEADER + payload.len() {
                self.sent = 0;
                self.end.link.step += 1;
                counter(self.end.link.head).store(self.end.link.step, Ordering::Release);
            }
        }
        Ok(moved)
    }
}

impl Receiving {
    /// Fills empty slots with what the socket has.
    fn advance(&mut self) -> io::Result<bool> {
        let mut moved = false;
        while !self.closed && self.end.link.step - self.drained() < SLOTS {
            let payload_bytes = self.payload_bytes()?;
            let Receiving { end, header, received, .. } = self;
            match (&end.stream).read(wanted(end, header, *received, payload_bytes)) {
                // An end between messages is a rank that has left, which the kernels find out if they need it.
                Ok(0) if self.received == 0 => self.closed = true,
                Ok(0) => return Err(IoErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received += count,
                Err(error) if error.kind() == IoErrorKind::WouldBlock => return Ok(moved),
                Err(error) if error.kind() == IoErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            moved = true;
            if self.received >= WIRE_HEADER && self.received == WIRE_HEADER + self.payload_bytes()? {
                // SAFETY: the slot is empty, hence ours until the tail moves; its header is 16 aligned bytes
                unsafe { self.end.slot().copy_from_nonoverlapping(self.header.as_ptr(), WIRE_HEADER) };
                self.received = 0;
                self.end.link.step += 1;
                counter(self.end.link.tail).store(self.end.link.step, Ordering::Release);
            }
        }
        Ok(moved)
    }

    /// Slots drained so far.
    fn drained(&self) -> u64 {
        counter(self.end.link.head).load(Ordering::Acquire)
    }

    /// The length of the message's payload; 0 while its header has not come.
    fn payload_bytes(&self) -> io::Result<usize> {
        if self.received < WIRE_HEADER {
            return Ok(0);
        }
        let bytes = self.header[8..].iter().rev().fold(0u64, |value, &byte| value << 8 | byte as u64);
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= self.end.slot_bytes => Ok(bytes),
            _ => Err(io::Error::other(format!("a message of {bytes} bytes for a slot of {}", self.end.slot_bytes))),
        }
    }
}

/// Where the next bytes go: the header, then the payload, of `payload_bytes` bytes, in the slot.
fn wanted<'a>(end: &End, header: &'a mut [u8; WIRE_HEADER], received: usize, payload_bytes: usize) -> &'a mut [u8] {
    if received < WIRE_HEADER {
        return &mut header[received..];
    }
    let done = received - WIRE_HEADER;
    let payload = end.slot().wrapping_add(HEADER_BYTES + done);
    // SAFETY: the slot is empty, hence ours until the tail moves, and the payload fits it
    unsafe { std::slice::from_raw_parts_mut(payload, payload_bytes - done) }
}

fn failure(progress: &Progress, end: &End, doing: &str, error: &io::Error) -> Failure {
    let peer = progress.name(end.link.peer as usize);
    let seen = format!("{doing} {peer} on channel {} through NET/Socket failed: {error}", end.channel);
    Failure { kind: ErrorKind::Remote, seen, hint: None }
}
