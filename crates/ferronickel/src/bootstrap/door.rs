//! The door of one communicator in one process: where connections arrive that have proved to belong to it.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::handshake::{self, Kind, Purpose};
use super::root::Root;
use super::service::{Service, is_want};
use super::stream::{Stop, Stream, connect_to};
use crate::diagnostics::log::warn;

/// Closed when the last reference is dropped.
#[derive(Debug)]
pub(crate) struct Door {
    number: u64,
    secret: [u8; 32],
    /// Kept running as long as there is a door.
    service: Arc<Service>,
    arrivals: Mutex<Vec<(Purpose, Stream)>>,
    /// How many they are, for those who ask again and again.
    waiting: AtomicUsize,
    arrived: Condvar,
    /// Whom ranks are shown to that want to join.
    root: OnceLock<Arc<Root>>,
}

/// Arrivals that may wait to be taken: more come only from a member that has gone mad.
const MOST_ARRIVALS: usize = 65_536;
/// How long a machine may take to answer that it is there.
const REACH: Duration = Duration::from_secs(4);
/// Whoever waits looks this often whether it should stop.
const LOOK: Duration = Duration::from_millis(20);

impl Door {
    pub(super) fn new(number: u64, secret: [u8; 32], service: Arc<Service>) -> Door {
        let (arrivals, arrived, root) = (Mutex::default(), Condvar::new(), OnceLock::new());
        Door { number, secret, service, arrivals, waiting: AtomicUsize::new(0), arrived, root }
    }

    pub(super) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Where the process is reached.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Shows ranks that come to `root`.
    pub fn serve(&self, root: Arc<Root>) {
        let _ = self.root.set(root);
    }

    pub(super) fn deliver(self: &Arc<Self>, purpose: Purpose, stream: Stream) {
        if purpose.kind == Kind::Join {
            match self.root.get() {
                Some(root) => root.arrive(stream, self),
                None => warn!(-1, "Bootstrap : rank {} came to a process that is not the root", purpose.from),
            }
            return;
        }
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if arrivals.len() < MOST_ARRIVALS {
            arrivals.push((purpose, stream));
            self.waiting.store(arrivals.len(), Ordering::Release);
        }
        self.arrived.notify_all();
    }

    /// Waits for the connection with this purpose.
    pub fn take(&self, purpose: Purpose, limit: Duration, stop: Stop<'_>) -> io::Result<Stream> {
        let deadline = Instant::now() + limit;
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(at) = arrivals.iter().position(|(other, _)| *other == purpose) {
                return Ok(self.hand_out(&mut arrivals, at));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || stop() {
                let seen = format!("rank {} did not connect", purpose.from);
                return Err(io::Error::new(io::ErrorKind::TimedOut, seen));
            }
            arrivals = self.arrived.wait_timeout(arrivals, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The connection with this purpose, if it has come.
    pub fn take_arrived(&self, purpose: Purpose) -> Option<Stream> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let at = arrivals.iter().position(|(other, _)| *other == purpose)?;
        Some(self.hand_out(&mut arrivals, at))
    }

    fn hand_out(&self, arrivals: &mut Vec<(Purpose, Stream)>, at: usize) -> Stream {
        let (_, stream) = arrivals.swap_remove(at);
        self.waiting.store(arrivals.len(), Ordering::Release);
        stream
    }

    /// The purpose of a connection of this communicator.
    pub fn purpose(&self, kind: Kind, from: usize, to: usize) -> Purpose {
        Purpose { id: self.number, kind, from: from as u32, to: to as u32 }
    }

    /// Connects through the network, within `limit`, to a process that listens at one of `addresses`.
    pub fn connect(
        &self,
        addresses: &[SocketAddr],
        purpose: Purpose,
        limit: Duration,
        stop: Stop<'_>,
    ) -> io::Result<Stream> {
        connect(addresses, &self.secret, purpose, limit, stop)
    }

    /// Connects within the machine to a process that listens under `name`.
    pub fn connect_within(&self, name: &str, purpose: Purpose, limit: Duration, stop: Stop<'_>) -> io::Result<Stream> {
        let deadline = Instant::now() + limit;
        let stream = loop {
            match connect_to(name) {
                Ok(stream) => break Stream::unix(stream)?,
                // it is busy with others
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline && !stop() => {
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(error),
            }
        };
        handshake::connect(&stream, &self.secret, purpose, limit, stop)?;
        Ok(stream)
    }
}

/// Connects to the first of `addresses` that answers and proves to know `secret`.
pub(super) fn connect(
    addresses: &[SocketAddr],
    secret: &[u8; 32],
    purpose: Purpose,
    limit: Duration,
    stop: Stop<'_>,
) -> io::Result<Stream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it listens nowhere");
    for address in addresses {
        let reach = limit.clamp(Duration::from_millis(1), REACH);
        let connected = TcpStream::connect_timeout(address, reach).and_then(|stream| {
            let stream = Stream::tcp(stream)?;
            handshake::connect(&stream, secret, purpose, limit, stop)?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => return Ok(stream),
            // whatever the address
            Err(error) if is_want(&error) => return Err(error),
            Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
        }
    }
    Err(last)
}
