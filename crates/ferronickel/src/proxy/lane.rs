//! What a proxy moves: the slots of a link, over one socket or several.
//!
//! With *n* sockets a link has *n* lanes: lane *j* moves the slots of steps *j*, *j + n*, *j + 2n*, and so on, in
//! order. What all lanes have moved is what the kernel is told.

use std::io::{self, ErrorKind as IoErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferronickel_kernels::protocol::simple::{HEADER_BYTES, slot_stride};
use ferronickel_kernels::protocol::{Link, SLOTS};

use super::Connector;

/// Bytes before a slot's payload on the wire: the call's description and the payload's length.
const WIRE_HEADER: usize = 16;

/// One end of a connection through the network.
#[derive(Debug)]
pub(crate) struct End {
    /// This end's slots and counters; the kernel uses the same.
    pub link: Link,
    /// Bytes of elements in a slot.
    pub slot_bytes: usize,
    pub channel: u32,
    /// The next step of each lane.
    steps: Box<[AtomicU64]>,
}

// SAFETY: the pointers lead to memory that whoever has the end keeps, and are followed by the protocol's rules
unsafe impl Send for End {}
// SAFETY: as above; what lanes share is atomic
unsafe impl Sync for End {}

impl End {
    /// An end of `lanes` lanes.
    pub fn new(link: Link, slot_bytes: usize, channel: u32, lanes: usize) -> End {
        let steps = (0..lanes as u64).map(|lane| AtomicU64::new(link.step + lane)).collect();
        End { link, slot_bytes, channel, steps }
    }

    fn slot(&self, step: u64) -> *mut u8 {
        self.link.slots.wrapping_add((step % SLOTS) as usize * slot_stride(self.slot_bytes))
    }

    /// Slots filled so far.
    pub fn filled(&self) -> u64 {
        counter(self.link.tail).load(Ordering::Acquire)
    }

    /// Slots drained so far.
    pub fn drained(&self) -> u64 {
        counter(self.link.head).load(Ordering::Acquire)
    }

    /// Says that a lane has moved its slot, and so perhaps that all have moved theirs up to some step.
    fn advance(&self, lane: usize, counted: *mut u64) -> u64 {
        let next = self.steps[lane].load(Ordering::Relaxed) + self.steps.len() as u64;
        // whoever comes last must see what the others have moved, slots included
        self.steps[lane].store(next, Ordering::SeqCst);
        let all = self.steps.iter().map(|step| step.load(Ordering::SeqCst)).min().unwrap_or(next);
        counter(counted).fetch_max(all, Ordering::AcqRel);
        next
    }
}

fn counter<'a>(at: *mut u64) -> &'a AtomicU64 {
    // SAFETY: a link's counters are valid as long as the link is used, aligned, and only ever used as flags
    unsafe { AtomicU64::from_ptr(at) }
}

/// A lane that carries full slots to the network.
pub(super) struct Sending {
    pub end: Arc<End>,
    /// None before its first message.
    pub stream: Option<TcpStream>,
    connector: Arc<dyn Connector>,
    lane: usize,
    step: u64,
    /// Bytes of the current message that are on their way.
    sent: usize,
}

/// A lane that carries what the network has into empty slots.
pub(super) struct Receiving {
    pub end: Arc<End>,
    /// None before its first message.
    pub stream: Option<TcpStream>,
    connector: Arc<dyn Connector>,
    lane: usize,
    step: u64,
    header: [u8; WIRE_HEADER],
    /// Bytes of the current message that have come, header included.
    received: usize,
    /// The other end has closed the connection.
    pub closed: bool,
}

impl Sending {
    pub fn new(end: Arc<End>, lane: usize, stream: Option<TcpStream>, connector: Arc<dyn Connector>) -> Sending {
        let step = end.steps[lane].load(Ordering::Relaxed);
        Sending { end, stream, connector, lane, step, sent: 0 }
    }

    /// Whether the network has taken all that the kernel has filled for this lane.
    pub fn is_drained(&self) -> bool {
        self.end.filled() <= self.step
    }

    /// Whether a message is under way that the network does not take.
    pub fn is_blocked(&self) -> bool {
        self.sent > 0
    }

    /// Sends from full slots what the socket takes.
    pub fn advance(&mut self) -> io::Result<bool> {
        let mut moved = false;
        while self.end.filled() > self.step {
            let mut stream = match &self.stream {
                Some(stream) => stream,
                None => {
                    let stream = self.connector.connect(self.end.channel, self.end.link.peer as usize)?;
                    stream.set_nonblocking(true)?;
                    self.stream.insert(stream)
                }
            };
            let slot = self.end.slot(self.step);
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
            match stream.write_vectored(&rest) {
                Ok(0) => return Err(IoErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == IoErrorKind::WouldBlock => return Ok(moved),
                Err(error) if error.kind() == IoErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            moved = true;
            if self.sent == WIRE_HEADER + payload.len() {
                self.sent = 0;
                self.step = self.end.advance(self.lane, self.end.link.head);
            }
        }
        Ok(moved)
    }
}

impl Receiving {
    pub fn new(end: Arc<End>, lane: usize, stream: Option<TcpStream>, connector: Arc<dyn Connector>) -> Receiving {
        let step = end.steps[lane].load(Ordering::Relaxed);
        Receiving { end, stream, connector, lane, step, header: [0; WIRE_HEADER], received: 0, closed: false }
    }

    /// Fills empty slots with what the socket has.
    pub fn advance(&mut self) -> io::Result<bool> {
        let mut moved = false;
        if self.stream.is_none() {
            let Some(arrived) = self.connector.take(self.end.channel, self.end.link.peer as usize) else {
                return Ok(false);
            };
            let arrived = arrived?;
            arrived.set_nonblocking(true)?;
            self.stream = Some(arrived);
        }
        while !self.closed && self.step - self.end.drained() < SLOTS {
            let payload_bytes = self.payload_bytes()?;
            let Receiving { end, header, received, step, stream, .. } = self;
            let Some(mut stream) = stream.as_ref() else { break };
            match stream.read(wanted(end, *step, header, *received, payload_bytes)) {
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
                unsafe { self.end.slot(self.step).copy_from_nonoverlapping(self.header.as_ptr(), WIRE_HEADER) };
                self.received = 0;
                self.step = self.end.advance(self.lane, self.end.link.tail);
            }
        }
        Ok(moved)
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
fn wanted<'a>(
    end: &End,
    step: u64,
    header: &'a mut [u8; WIRE_HEADER],
    received: usize,
    payload_bytes: usize,
) -> &'a mut [u8] {
    if received < WIRE_HEADER {
        return &mut header[received..];
    }
    let done = received - WIRE_HEADER;
    let payload = end.slot(step).wrapping_add(HEADER_BYTES + done);
    // SAFETY: the slot is empty, hence ours until the tail moves, and the payload fits it
    unsafe { std::slice::from_raw_parts_mut(payload, payload_bytes - done) }
}
