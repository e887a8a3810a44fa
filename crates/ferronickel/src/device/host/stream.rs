//! Streams of host devices.
//!
//! A call only queues its launch. Whoever then synchronizes the stream runs what is queued on its own thread, so
//! that a small call that is waited for at once costs no change of thread. What nobody waits for is taken over by
//! the stream's worker: at once when several ranks are driven by one thread ([`Shared::hasten`]), else some 20 µs
//! later, when the dispatcher notices it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::queue::{Queue, Turn};
use super::wait::Backoff;
use super::{dispatcher, threads};
use crate::device::Device;
use crate::device::launch::Launch;
use crate::device::progress::Failure;
use crate::error::{Error, ErrorKind, Result};

/// An ordered queue of calls on a device, which runs beside the caller.
///
/// Dropping a stream does not wait for it: what is queued still runs.
pub struct Stream {
    shared: Arc<Shared>,
}

/// What the stream's handle, its worker and the dispatcher share.
pub(crate) struct Shared {
    id: u32,
    device: Device,
    queue: Queue<Launch>,
    worker: Worker,
    /// The first failure since the last synchronize.
    failure: Mutex<Option<Error>>,
}

/// The thread that runs what nobody waits for; there is none until one is needed.
#[derive(Default)]
struct Worker {
    thread: Mutex<Option<Thread>>,
    /// Whether the worker is awake, so that it will see what is queued without being called.
    awake: AtomicBool,
    /// Whether the next launch is likely meant for the worker, so that it pays to keep looking for it.
    eager: AtomicBool,
}

/// How long an eager worker looks for more before it sleeps: longer than a caller takes between two groups.
const EAGER: Duration = Duration::from_micros(50);

impl Stream {
    pub(crate) fn new(device: &Device) -> Result<Stream> {
        // 0 stands for the caller's own thread, the largest number for several streams
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| (id < u32::MAX - 1).then_some(id + 1));
        let id = id.map_err(|_| Error::new(ErrorKind::System, "this process has made 2^32 streams"))?;
        let shared = Arc::new(Shared {
            id,
            device: device.clone(),
            queue: Queue::new(),
            worker: Worker::default(),
            failure: Mutex::new(None),
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
    /// The first failure of a call on this stream since the last time it was asked.
    pub fn synchronize(&self) -> Result<()> {
        let shared = &*self.shared;
        let last = shared.queue.standing().queued;
        let mut backoff = Backoff::new();
        while shared.queue.standing().finished < last {
            match shared.queue.begin() {
                Turn::Run(launch) => shared.run(launch),
                // the worker has it: look a while, then sleep until it says that it is done
                Turn::Busy | Turn::Empty | Turn::Closed if backoff.is_short() => backoff.wait(),
                Turn::Busy | Turn::Empty | Turn::Closed => shared.queue.sleep_until_finished(last),
            }
        }
        match shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Whether every call queued so far is done. Does not wait.
    ///
    /// # Errors
    /// As for [`synchronize`](Self::synchronize), once all is done.
    pub fn is_idle(&self) -> Result<bool> {
        let standing = self.shared.queue.standing();
        if standing.finished < standing.queued { Ok(false) } else { self.synchronize().map(|()| true) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.queue.close();
        let has_worker = self.shared.worker.lock().is_some();
        if has_worker || self.shared.queue.standing().stalled {
            self.shared.summon();
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} of {})", self.shared.id, self.shared.device)
    }
}

impl Shared {
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Queues a launch that the caller will most likely wait for itself.
    pub fn push(&self, launch: Launch) {
        self.worker.eager.store(false, Ordering::Relaxed);
        self.queue.push(launch);
        dispatcher::notice();
    }

    /// Queues a launch that the caller cannot run itself, since it has others to run at the same time.
    pub fn push_for_worker(self: &Arc<Self>, launch: Launch) {
        self.worker.eager.store(true, Ordering::Relaxed);
        self.queue.push(launch);
        self.hasten();
        dispatcher::notice();
    }

    /// Makes sure that the worker sees what is queued.
    fn hasten(self: &Arc<Self>) {
        // The worker looks at the queue once more after it has said that it sleeps, so one of the two notices.
        if !self.worker.awake.load(Ordering::SeqCst) {
            self.summon();
        }
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

    /// Calls the worker, or makes one.
    pub fn summon(self: &Arc<Self>) {
        let mut thread = self.worker.lock();
        if let Some(thread) = &*thread {
            return thread.unpark();
        }
        let shared = self.clone();
        match threads::spawn(&format!("fnickel str {}", self.id), move || shared.work()) {
            Ok(handle) => *thread = Some(handle.thread().clone()),
            // Whoever waits for the stream runs it all the same, and the dispatcher will try again.
            Err(error) => crate::diagnostics::log::warn!(self.device.index() as i32, "no thread for a stream: {error}"),
        }
    }

    /// The worker's life.
    fn work(self: Arc<Self>) {
        let mut idle_since = None;
        self.worker.awake.store(true, Ordering::SeqCst);
        loop {
            match self.queue.begin() {
                Turn::Run(launch) => {
                    self.run(launch);
                    idle_since = None;
                }
                Turn::Closed => return,
                Turn::Busy | Turn::Empty => {
                    let since = *idle_since.get_or_insert_with(Instant::now);
                    if self.worker.eager.load(Ordering::Relaxed) && since.elapsed() < EAGER {
                        std::thread::yield_now();
                        continue;
                    }
                    self.sleep();
                    idle_since = None;
                }
            }
        }
    }

    fn sleep(&self) {
        self.worker.awake.store(false, Ordering::SeqCst);
        if self.queue.standing().stalled {
            self.worker.awake.store(true, Ordering::SeqCst);
            return;
        }
        // timed, so that nothing can be lost for ever
        std::thread::park_timeout(Duration::from_secs(1));
        self.worker.awake.store(true, Ordering::SeqCst);
    }

    fn run(&self, launch: Launch) {
        let ran = catch_unwind(AssertUnwindSafe(|| launch.run())).unwrap_or_else(|_| {
            let seen = "a kernel panicked".to_string();
            let failure = Failure { kind: ErrorKind::Internal, seen, hint: None };
            launch.context.progress.fail(failure.clone());
            Err(failure.into())
        });
        if let Err(error) = ran {
            let error = error.on(launch.context.rank, self.device.index()).after(&launch.context.decisions);
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        // the buffers are free before anybody learns that the call is done
        drop(launch);
        self.queue.finish();
    }
}

impl Worker {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Thread>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
