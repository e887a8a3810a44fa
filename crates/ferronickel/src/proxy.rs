//! The proxy: the threads of a rank that move what its kernels send and receive through the network.
//!
//! A kernel fills and drains slots in its own memory and never sees a socket. The proxy carries a full slot to the
//! network, and from the network into an empty one, and moves the counters as a neighbour's kernel would.

mod lane;

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use self::lane::End;
use self::lane::{Receiving, Sending};
use crate::device::host::doze::Doze;
use crate::device::host::{sync, threads};
use crate::device::progress::{Failure, Progress};
use crate::device::region::Region;
use crate::error::{Error, ErrorKind, Result};

/// Turns without progress in which the processor is offered to others, before a proxy waits for the network.
const YIELDS: u32 = 200;
/// How long a proxy waits for the network at a time, since a kernel's next slot makes no network event.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000 };
/// How long a proxy that is told to end still tries to send what was filled.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The threads, and the way to call them.
#[derive(Debug)]
pub(crate) struct Proxy {
    threads: Vec<Worker>,
    /// The ends whose slots are sent.
    sends: Vec<Arc<End>>,
    /// The memory of the ends' slots.
    _keep: Arc<[Arc<Region>]>,
}

#[derive(Debug)]
struct Worker {
    shared: Arc<Shared>,
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    doze: Doze,
    ending: AtomicBool,
}

/// A connection: an end, and its sockets, one for each lane. A lane without one is connected when it is first used.
pub(crate) type Connection = (End, Vec<Option<TcpStream>>);

/// Makes connections that are first used.
pub(crate) trait Connector: Send + Sync {
    /// Connects, on `channel`, to rank `peer`.
    fn connect(&self, channel: u32, peer: usize) -> io::Result<TcpStream>;
    /// The connection on `channel` from rank `peer`, if it has come.
    fn take(&self, channel: u32, peer: usize) -> Option<io::Result<TcpStream>>;
    /// What is behind a connection that did not come about, if more is known than that.
    fn cause(&self) -> Option<Error>;
}

/// What a proxy is to carry.
pub(crate) struct Work {
    pub sends: Vec<Connection>,
    pub receives: Vec<Connection>,
    pub connector: Arc<dyn Connector>,
}

/// Everything one thread works with.
struct Engine {
    rank: usize,
    progress: Arc<Progress>,
    shared: Arc<Shared>,
    sends: Vec<Sending>,
    receives: Vec<Receiving>,
    connector: Arc<dyn Connector>,
    /// Whatever must live as long as the slots are used.
    _keep: Arc<[Arc<Region>]>,
}

impl Proxy {
    /// Starts the `threads` threads of a proxy for `rank`, among which lanes are shared out; `keep` holds the memory of
    /// the ends' slots.
    pub fn start(
        rank: usize,
        progress: &Arc<Progress>,
        work: Work,
        keep: Vec<Arc<Region>>,
        threads: usize,
    ) -> Result<Proxy> {
        let Work { sends, receives, connector } = work;
        for stream in sends.iter().chain(&receives).flat_map(|(_, streams)| streams).flatten() {
            stream.set_nonblocking(true).map_err(|error| Error::system("making a socket non-blocking", error))?;
        }
        let keep: Arc<[_]> = keep.into();
        let engine = |_| Engine {
            rank,
            progress: progress.clone(),
            shared: Arc::default(),
            sends: Vec::new(),
            receives: Vec::new(),
            connector: connector.clone(),
            _keep: keep.clone(),
        };
        let mut engines: Vec<_> = (0..threads.max(1)).map(engine).collect();
        let threads = engines.len();
        let mut proxy = Proxy { threads: Vec::new(), sends: Vec::new(), _keep: keep };
        for (end, streams) in sends {
            let end = Arc::new(end);
            proxy.sends.push(end.clone());
            for (lane, stream) in streams.into_iter().enumerate() {
                engines[lane % threads].sends.push(Sending::new(end.clone(), lane, stream, connector.clone()));
            }
        }
        for (end, streams) in receives {
            let end = Arc::new(end);
            for (lane, stream) in streams.into_iter().enumerate() {
                engines[lane % threads].receives.push(Receiving::new(end.clone(), lane, stream, connector.clone()));
            }
        }
        for mut engine in engines {
            let shared = engine.shared.clone();
            let started = threads::spawn(&format!("fnickel net {rank}"), move || engine.run());
            let handle = started.map_err(|error| Error::system("starting the proxy's thread", error))?;
            proxy.threads.push(Worker { shared, thread: handle.thread().clone(), handle: Some(handle) });
        }
        Ok(proxy)
    }

    /// Whether the network has taken everything that the kernels have filled.
    pub fn is_drained(&self) -> bool {
        self.sends.iter().all(|end| end.drained() == end.filled())
    }

    /// Tells the proxy that a kernel begins which uses the network.
    pub fn wake(&self) {
        self.threads.iter().for_each(|worker| worker.shared.doze.wake(|| worker.thread.unpark()));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for worker in &self.threads {
            worker.shared.ending.store(true, Ordering::SeqCst);
            worker.thread.unpark();
        }
        for handle in self.threads.iter_mut().filter_map(|worker| worker.handle.take()) {
            // it ends within LAST_WORDS; a panic of it has been reported by the panic hook
            let _ = handle.join();
        }
    }
}

impl Engine {
    fn run(&mut self) {
        let progress = self.progress.clone();
        progress.fail_if_it_panics("the thread that serves the network", || self.serve());
    }

    fn serve(&mut self) {
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
        let failure = |end: &End, doing, error| failure(&self.progress, &*self.connector, end, doing, error);
        for sending in &mut self.sends {
            moved |= sending.advance().map_err(|error| failure(&sending.end, "sending to", error))?;
        }
        for receiving in &mut self.receives {
            moved |= receiving.advance().map_err(|error| failure(&receiving.end, "receiving from", error))?;
        }
        Ok(moved)
    }

    fn all_sent(&self) -> bool {
        self.sends.iter().all(Sending::is_drained)
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
        let open = receives.filter_map(|receiving| receiving.stream.as_ref());
        let readable = open.map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN));
        let blocked = self.sends.iter().filter(|sending| sending.is_blocked());
        let full = blocked.filter_map(|sending| sending.stream.as_ref());
        let writable = full.map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::OUT));
        let mut all: Vec<_> = readable.chain(writable).collect();
        // an interruption or an error shows again when the socket is used
        let _ = poll(&mut all, Some(&NAP));
    }
}

fn failure(
    progress: &Progress,
    connector: &dyn Connector,
    end: &End,
    doing: &'static str,
    error: io::Error,
) -> Failure {
    let peer = progress.name(end.link.peer as usize);
    let what = format!("{doing} {peer} on channel {} through NET/Socket", end.channel);
    let seen = format!("{what} failed: {error}");
    // what this process is short of is not the peer's fault
    let want = connector.cause().or_else(|| Some(Error::system(&what, error)).filter(|error| error.advice().is_some()));
    match want {
        Some(want) => Failure { kind: want.kind(), seen: want.seen().into(), hint: want.advice().map(String::from) },
        None => Failure { kind: ErrorKind::Remote, seen, hint: None },
    }
}
