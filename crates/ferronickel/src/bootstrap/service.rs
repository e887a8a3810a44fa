//! Where this process is reached: one listener for everything that connects to its communicators.
//!
//! A connection first proves that it knows the secret of a communicator for which a door is open here. One that
//! proves nothing, or is too slow, costs its sender the connection and us a line in the log; it holds up nobody.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::alarm::Alarm;
use super::door::Door;
use super::handshake::{Acceptance, OPENING, PROOF, Purpose, purpose_of};
use super::stream::{Stream, is_passing};
use super::unique_id::random;
use crate::device::host::threads;
use crate::diagnostics::log::warn;
use crate::error::{Error, Result};

/// How long a stranger may take to prove that it is none.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long connections wait in the backlog when there are no descriptors for them; then they are let go.
const WANT: Duration = Duration::from_secs(1);
/// How much earlier that is told here, so that the cause is known before the other end sees its connection closed.
const TOLD_EARLIER: Duration = Duration::from_millis(200);
const OTHER_ADDRESS: &str =
    "free the port, or choose another address with NCCL_COMM_ID or another interface with NCCL_SOCKET_IFNAME";
/// Connections that may be proving themselves at a time; when more come, the oldest is dropped.
const MOST_PENDING: usize = 256;

/// A listener, and the thread that answers.
#[derive(Debug)]
pub(crate) struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Where it is reached through the network.
    pub addresses: Vec<SocketAddr>,
    /// The abstract name under which it is reached within the machine, or why it is not.
    pub unix: std::result::Result<String, String>,
    wanted: Vec<SocketAddr>,
    process: u32,
}

#[derive(Debug)]
struct Shared {
    doors: Mutex<HashMap<u64, Weak<Door>>>,
    alarm: Alarm,
    ending: AtomicBool,
    /// Why connections can no longer be accepted, once they could not for too long.
    want: Mutex<Option<Error>>,
}

/// The services of this process, by what they were asked to listen on.
static SERVICES: Mutex<Vec<Weak<Service>>> = Mutex::new(Vec::new());

impl Service {
    /// The service on these addresses; a port of zero is any.
    pub fn on(wanted: &[SocketAddr]) -> Result<Arc<Service>> {
        let mut services = SERVICES.lock().unwrap_or_else(PoisonError::into_inner);
        // a forked child has inherited the list, but not the threads
        let process = std::process::id();
        let mut alive = services.iter().filter_map(Weak::upgrade);
        let alive = alive.find(|service| service.wanted == wanted && service.process == process);
        if let Some(service) = alive {
            return Ok(service);
        }
        let service = Arc::new(Service::start(wanted)?);
        services.retain(|service| service.strong_count() > 0);
        services.push(Arc::downgrade(&service));
        Ok(service)
    }

    fn start(wanted: &[SocketAddr]) -> Result<Service> {
        let mut listeners = Vec::with_capacity(wanted.len());
        for &address in wanted {
            listeners.push(listen(address).map_err(|error| {
                let is_address = !is_want(&error);
                let failed = Error::system(&format!("listening on {address}"), error);
                if is_address { failed.hint(OTHER_ADDRESS) } else { failed }
            })?);
        }
        let local = |listener: &TcpListener| listener.local_addr();
        let addresses = listeners.iter().map(local).collect::<io::Result<_>>();
        let addresses = addresses.map_err(|error| Error::system("asking for a socket's address", error))?;
        let (unix, within) = match listen_within() {
            Ok((listener, name)) => (Some(listener), Ok(name)),
            Err(error) => (None, Err(format!("no Unix socket could be made: {error}"))),
        };
        let alarm = Alarm::new().map_err(|error| Error::system("making an eventfd", error))?;
        let spare = Some(Alarm::new().map_err(|error| Error::system("making an eventfd", error))?);
        let (doors, ending, want) = (Mutex::default(), AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { doors, alarm, ending, want });
        let mut host = Host { shared: shared.clone(), listeners, unix, pending: Vec::new(), spare, want_since: None };
        let thread = threads::spawn("fnickel service", move || host.run())
            .map_err(|error| Error::system("starting a thread that answers connections", error))?;
        let (thread, process) = (Some(thread), std::process::id());
        Ok(Service { shared, thread, addresses, unix: within, wanted: wanted.to_vec(), process })
    }

    /// The door for the communicator with this number; everyone who asks gets the same.
    pub fn open(self: &Arc<Self>, number: u64, secret: &[u8; 32]) -> Arc<Door> {
        let mut doors = self.shared.doors();
        if let Some(door) = doors.get(&number).and_then(Weak::upgrade) {
            return door;
        }
        let door = Arc::new(Door::new(number, *secret, self.clone()));
        doors.retain(|_, door| door.strong_count() > 0);
        doors.insert(number, Arc::downgrade(&door));
        door
    }

    /// Why connections cannot be accepted, if that has been so for a while.
    pub fn want(&self) -> Option<Error> {
        self.shared.want().clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        self.shared.alarm.raise();
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        // the thread of a parent does not exist in a forked child; the service's own thread ends by itself
        if let Some(thread) = self.thread.take().filter(|thread| self.process == std::process::id() && !is_own(thread))
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn want(&self) -> MutexGuard<'_, Option<Error>> {
        self.want.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doors(&self) -> MutexGuard<'_, HashMap<u64, Weak<Door>>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Listens under an abstract name, which is gone with the last process that has it open.
fn listen_within() -> io::Result<(UnixListener, String)> {
    let random = random().map_err(|error| io::Error::other(error.seen().to_string()))?;
    let name = format!("ferronickel-{}", blake3::Hash::from_bytes(random).to_hex());
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name)?)?;
    listener.set_nonblocking(true)?;
    Ok((listener, name))
}

/// What the thread works with.
struct Host {
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
    unix: Option<UnixListener>,
    pending: Vec<Pending>,
    /// A descriptor to give up when there are none left, so that a connection can be accepted and closed.
    spare: Option<Alarm>,
    /// Since when there were no descriptors.
    want_since: Option<Instant>,
}

impl Host {
    fn run(&mut self) {
        while !self.shared.ending.load(Ordering::Acquire) {
            self.wait();
            self.shared.alarm.clear();
            self.accept();
            self.advance();
        }
    }

    /// Lets every connection that is proving itself go on as far as it can.
    fn advance(&mut self) {
        let mut index = 0;
        while let Some(pending) = self.pending.get_mut(index) {
            let advanced = match pending.advance(&self.shared) {
                Ok(None) if Instant::now() < pending.deadline => {
                    index += 1;
                    continue;
                }
                Ok(None) => Err(io::Error::other("it was too slow to prove who it is")),
                Ok(Some(proved)) => Ok(proved),
                Err(error) => Err(error),
            };
            let pending = self.pending.remove(index);
            match advanced {
                Ok((purpose, door)) => door.deliver(purpose, pending.stream),
                Err(error) => warn!(-1, "Bootstrap : dropped a connection from {}: {error}", pending.from),
            }
        }
    }

    fn wait(&self) {
        let listeners = self.listeners.iter().map(AsFd::as_fd).chain(self.unix.iter().map(AsFd::as_fd));
        let all = std::iter::once(self.shared.alarm.as_fd()).chain(listeners);
        let all = all.chain(self.pending.iter().map(|pending| pending.stream.as_fd()));
        let mut all: Vec<_> = all.map(|fd: BorrowedFd<'_>| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let next = self.pending.iter().map(|pending| pending.deadline).min();
        let left = next.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let limit = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        // an interruption or an error shows again when the socket is used
        let _ = poll(&mut all, limit.as_ref());
    }

    fn accept(&mut self) {
        loop {
            let mut any = false;
            for index in 0..self.listeners.len() {
                let accepted = self.listeners[index].accept();
                any |= self.admit(accepted, |(stream, from)| Ok((Stream::tcp(stream)?, from.to_string())));
            }
            if let Some(accepted) = self.unix.as_ref().map(UnixListener::accept) {
                any |= self.admit(accepted, |(stream, _)| Ok((Stream::unix(stream)?, "within this machine".into())));
            }
            if !any {
                return;
            }
        }
    }

    /// Takes a connection in. Whether there may be more.
    fn admit<T>(&mut self, accepted: io::Result<T>, make: impl FnOnce(T) -> io::Result<(Stream, String)>) -> bool {
        match accepted.and_then(make) {
            Ok((stream, from)) => {
                if self.pending.len() >= MOST_PENDING {
                    let oldest = self.pending.remove(0);
                    warn!(-1, "Bootstrap : dropped a connection from {}: too many at a time", oldest.from);
                }
                self.pending.push(Pending::new(stream, from));
                if self.want_since.take().is_some() {
                    *self.shared.want() = None;
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) if is_passing(&error) || concerns_one(&error) => true,
            Err(error) => {
                self.endure(error);
                false
            }
        }
    }

    /// Out of descriptors or memory: whoever connects waits in the backlog for a while. After that it would only wait
    /// for its own limit, and never learn why: the cause is told here, and the connections are closed.
    fn endure(&mut self, error: io::Error) {
        let since = *self.want_since.get_or_insert_with(|| {
            warn!(-1, "Bootstrap : cannot accept connections: {error}");
            Instant::now()
        });
        if since.elapsed() >= WANT - TOLD_EARLIER {
            self.shared.want().get_or_insert_with(|| Error::system("accepting connections", error));
        }
        if since.elapsed() >= WANT {
            self.let_go();
        }
        std::thread::sleep(Duration::from_millis(20));
    }

    /// Accepts what waits, with the spare descriptor, and closes it.
    fn let_go(&mut self) {
        self.spare = None;
        for listener in &self.listeners {
            while listener.accept().is_ok() {}
        }
        if let Some(listener) = &self.unix {
            while listener.accept().is_ok() {}
        }
        // somebody else may have been faster; the next round tries again
        self.spare = Alarm::new().ok();
    }
}

/// Whether the machine or a limit has run out of something, which says nothing about what was asked for.
pub(crate) fn is_want(error: &io::Error) -> bool {
    let wants = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| wants.contains(&code))
}

/// Errors of `accept` that concern the connection that was to be accepted, not the listener.
fn concerns_one(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// A connection that is proving itself.
struct Pending {
    stream: Stream,
    from: String,
    deadline: Instant,
    bytes: [u8; OPENING],
    filled: usize,
    proving: Option<(Acceptance, Arc<Door>)>,
}

impl Pending {
    fn new(stream: Stream, from: String) -> Pending {
        let deadline = Instant::now() + PATIENCE;
        Pending { stream, from, deadline, bytes: [0; OPENING], filled: 0, proving: None }
    }

    /// Goes on as far as it can. Tells what the connection is for, once it has proved to belong to that door.
    fn advance(&mut self, shared: &Shared) -> io::Result<Option<(Purpose, Arc<Door>)>> {
        loop {
            let wanted = if self.proving.is_some() { PROOF } else { OPENING };
            while self.filled < wanted {
                match self.stream.read(&mut self.bytes[self.filled..wanted], &mut Vec::new()) {
                    Ok(0) => return Err(io::Error::other("it closed before it had proved who it is")),
                    Ok(count) => self.filled += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            self.filled = 0;
            match self.proving.take() {
                None => self.proving = Some(self.begin(shared)?),
                Some((acceptance, door)) => {
                    let proof = self.bytes.first_chunk::<PROOF>().expect("an opening is longer than a proof");
                    return Ok(Some((acceptance.finish(proof)?, door)));
                }
            }
        }
    }

    fn begin(&self, shared: &Shared) -> io::Result<(Acceptance, Arc<Door>)> {
        let purpose = purpose_of(&self.bytes).ok_or_else(|| io::Error::other("it does not speak our language"))?;
        let door = shared.doors().get(&purpose.id).and_then(Weak::upgrade);
        let door =
            door.ok_or_else(|| io::Error::other("it asks for a communicator that is not, or no longer, here"))?;
        let (acceptance, answer) = Acceptance::begin(&self.bytes, purpose, door.secret())?;
        // a few bytes into an empty socket buffer
        if self.stream.write(&answer, &[])? < answer.len() {
            return Err(io::Error::other("it takes no answer"));
        }
        Ok((acceptance, door))
    }
}

#[cfg(test)]
mod tests;
