//! Streams of host devices.
//!
//! A call only queues its launch. Whoever then synchronizes the stream runs what is queued on its own thread, so
//! that a small call that is waited for at once costs no change of thread. What nobody waits for is taken over by
//! the stream's worker: at once when several ranks are driven by one thread ([`Shared::push_for_worker`]), else when the
//! dispatcher notices it: some 20 µs later, or up to two milliseconds after a spell in which every call was waited for.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::numbers::{Number, Numbers};
use super::queue::Queue;
use super::wait::Backoff;
use super::worker::Worker;
use super::{dispatcher, threads};
use crate::device::launch::Launch;
use crate::device::{Device, LAST_STREAM};
use crate::error::{Error, Result};
use crate::fork;

/// An ordered queue of calls on a device, which runs beside the caller.
///
/// Dropping a stream does not wait for it: what is queued still runs. Only where the system gives the process no thread
/// that could run it, whoever drops the stream does.
pub struct Stream {
    shared: Arc<Shared>,
}

/// What the stream's handle, its worker and the dispatcher share.
pub(crate) struct Shared {
    device: Device,
    queue: Queue<Launch>,
    worker: Worker,
    /// Whether the next launch is likely meant for the worker, so that it pays to keep looking for it.
    eager: AtomicBool,
    /// The first failure since the last synchronize, and whether there is one.
    failure: Mutex<Option<Error>>,
    failed: AtomicBool,
    /// Given back last, when no launch in the queue uses a buffer under this number any more.
    number: Number,
}

/// How long an eager worker looks for more before it sleeps: longer than a caller takes between two groups.
const EAGER: Duration = Duration::from_micros(50);

impl Stream {
    pub(crate) fn new(device: &Device) -> Result<Stream> {
        static NUMBERS: Numbers = Numbers::up_to(LAST_STREAM);
        let shared = Arc::new(Shared {
            device: device.clone(),
            queue: Queue::new(),
            worker: Worker::default(),
            eager: AtomicBool::new(false),
            failure: Mutex::new(None),
            failed: AtomicBool::new(false),
            number: NUMBERS.take()?,
        });
        dispatcher::watch(&shared);
        Ok(Stream { shared })
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Waits until every call queued so far is done, and helps with it.
    ///
    /// # Errors
    /// The first failure of a call on this stream since the last time it was asked;
    /// [`InvalidUsage`](crate::ErrorKind::InvalidUsage) in a process forked from the one that had the communicator.
    pub fn synchronize(&self) -> Result<()> {
        // before anything that another thread may have held at the fork
        fork::refuse_child().map_err(|error| error.in_call("synchronize"))?;
        let shared = &*self.shared;
        if shared.run_queued() {
            dispatcher::notice();
        }
        if !shared.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut failure = shared.failure();
        shared.failed.store(false, Ordering::Relaxed);
        failure.take().map_or(Ok(()), Err)
    }

    /// Whether every call queued so far is done. Does not wait.
    ///
    /// # Errors
    /// As for [`synchronize`](Self::synchronize), once all is done.
    pub fn is_idle(&self) -> Result<bool> {
        fork::refuse_child().map_err(|error| error.in_call("is_idle"))?;
        let standing = self.shared.queue.standing();
        if standing.finished < standing.queued { Ok(false) } else { self.synchronize().map(|()| true) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if fork::is_child() {
            // what is queued is the parent's to run
            return;
        }
        self.shared.queue.close();
        self.shared.see_off();
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} of {})", self.shared.id(), self.shared.device)
    }
}

impl Shared {
    pub fn id(&self) -> u32 {
        self.number.0
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a launch that the caller will most likely wait for itself. Whether the stream was dropped before, while a
    /// group held the call back: then it must be [seen off](Self::see_off) once the group is queued.
    pub fn push(self: &Arc<Self>, launch: Launch) -> bool {
        self.eager.store(false, Ordering::Relaxed);
        let closed = self.queue.push(launch);
        dispatcher::notice();
        closed
    }

    /// The same for a launch that the caller cannot run itself, since it has others to run at the same time.
    pub fn push_for_worker(self: &Arc<Self>, launch: Launch) -> bool {
        self.eager.store(true, Ordering::Relaxed);
        let closed = self.queue.push(launch);
        self.worker.hasten(|| self.start_worker());
        dispatcher::notice();
        closed
    }

    /// After the handle is gone: nobody else will wait for what is queued, and nothing but a worker keeps the queue
    /// alive. It is run here if there can be no worker.
    pub fn see_off(self: &Arc<Self>) {
        if (self.worker.exists() || self.queue.standing().stalled) && !self.summon() {
            // and what comes meanwhile, whose caller finds somebody at work
            while self.run_queued() {}
        }
    }

    /// Runs what is queued so far, or waits while another party does. Whether more may lie still.
    fn run_queued(&self) -> bool {
        let mut backoff = Backoff::new();
        // while another party has it: look a while, then sleep until it says that it is done
        let looks_again = || {
            let is_short = backoff.is_short();
            if is_short {
                backoff.wait();
            }
            is_short
        };
        self.queue.help(u64::MAX, |launch| self.run(launch), looks_again)
    }

    /// The number of finished launches if one waits and nobody runs it.
    pub fn stalled_at(&self) -> Option<u64> {
        let standing = self.queue.standing();
        standing.stalled.then_some(standing.finished)
    }

    /// The number of launches ever queued.
    pub fn queued(&self) -> u64 {
        self.queue.standing().queued
    }

    /// Calls the worker, or makes one. Whether there is one.
    pub fn summon(self: &Arc<Self>) -> bool {
        self.worker.summon(|| self.start_worker())
    }

    fn start_worker(self: &Arc<Self>) -> Option<Thread> {
        let shared = self.clone();
        match threads::spawn(&format!("fnickel str {}", self.id()), move || shared.work()) {
            Ok(handle) => Some(handle.thread().clone()),
            // Whoever waits for the stream runs it all the same, and the dispatcher will try again.
            Err(error) => {
                crate::diagnostics::log::warn!(self.device.index() as i32, "no thread for a stream: {error}");
                None
            }
        }
    }

    fn work(&self) {
        let mut idle_since = Instant::now();
        let lingers = |turns| {
            if turns == 0 {
                idle_since = Instant::now();
            }
            let lingers = self.eager.load(Ordering::Relaxed) && idle_since.elapsed() < EAGER;
            if lingers {
                std::thread::yield_now();
            }
            lingers
        };
        self.worker.work(&self.queue, |launch| self.run(launch), lingers);
    }

    /// Runs a launch.
    fn run(&self, launch: &Launch) {
        if let Err(error) = launch.run() {
            let error = error.on(launch.context.rank, self.device.index()).after(&launch.context.decisions);
            self.failure().get_or_insert(error);
            self.failed.store(true, Ordering::Release);
        }
    }
}
