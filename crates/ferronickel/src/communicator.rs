//! A communicator's life: init, calls, abort, finalize.

mod environment;
mod init;
mod report;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::Config;
use crate::device::context::RankContext;
use crate::device::host::lock::{Guard, Lock};
use crate::device::host::wait::Backoff;
use crate::device::progress::{Failure, StartWatch};
use crate::device::{BusId, Device};
use crate::diagnostics::decisions::Decision;
use crate::diagnostics::log;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::plan::{Plan, Planner};
use crate::types::Collective;

pub use crate::bootstrap::unique_id::UniqueId;

/// One rank of a communicator: the handle through which a program takes part in its collectives.
///
/// Any thread may use it. Dropping it without [`finalize`](Self::finalize) says that the rank makes no more calls;
/// what it has queued still runs.
pub struct Communicator {
    inner: Arc<Inner>,
}

/// What the handle and the calls that are under way share.
pub(crate) struct Inner {
    pub rank: usize,
    pub size: usize,
    pub device: Device,
    pub planner: Planner,
    pub context: Arc<RankContext>,
    /// The number that stands for the communicator in the log.
    pub number: u64,
    pub config: Config,
    finalized: AtomicBool,
    calls: Lock<Calls>,
}

/// The calls of a rank.
#[derive(Default)]
pub(crate) struct Calls {
    /// How much it has launched, of whatever kind.
    launches: u64,
    /// The collectives among it: as many on every rank.
    pub collectives: u64,
    /// What was planned for the last call: programs make the same call again and again.
    planned: Option<(Collective, usize, Plan)>,
}

impl Calls {
    /// Counts one more launch: its number, and that of the collectives begun.
    pub fn next(&mut self) -> (u64, u64) {
        self.launches += 1;
        (self.launches, self.collectives)
    }

    /// The plan for a call of `bytes` bytes, for which the planner's check has found something.
    #[inline]
    pub fn plan(&mut self, collective: Collective, bytes: usize, planner: &Planner) -> Plan {
        match self.planned {
            Some((last, size, plan)) if last == collective && size == bytes => plan,
            _ => self.planned.insert((collective, bytes, planner.plan(collective, bytes))).2,
        }
    }
}

impl Communicator {
    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.inner.size
    }

    /// The device on which this rank runs.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Which road was chosen to each peer, which were refused, and why.
    pub fn decisions(&self) -> &[Decision] {
        &self.inner.context.decisions
    }

    /// What would be chosen for an all-reduce of `bytes` bytes, what not, and why.
    pub fn all_reduce_decision(&self, bytes: usize) -> Decision {
        self.inner.planner.decision(Collective::AllReduce, bytes)
    }

    /// Stops every rank: calls that are under way end with an error, and no new ones are taken. Any thread may call
    /// it, at any moment; it does not wait. In a process forked from the one that made it nothing happens.
    pub fn abort(&self) {
        self.inner.abort();
    }

    /// What stopped the communicator, if something did. It may be asked again and again: as long as nothing has stopped the
    /// communicator it costs a look at memory. Once another process has given the word to stop, it may take up to two
    /// seconds until that process's reason is here.
    pub fn async_error(&self) -> Option<Error> {
        self.inner.failure()
    }

    /// Waits until every call made so far is done, and says that no more will come. Streams run what is queued on
    /// them, whether anyone waits for them or not.
    ///
    /// # Errors
    /// What stopped the communicator, if something did; [`InvalidUsage`](ErrorKind::InvalidUsage) the second time.
    pub fn finalize(&self) -> Result<()> {
        self.inner.finalize().map_err(|error| self.inner.place(error, "finalize"))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // a forked child's copy is not the rank: other processes would take the rank for gone
        if !fork::is_child() && !self.inner.finalized.swap(true, Ordering::Relaxed) {
            self.inner.depart();
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { rank, size, device, number, .. } = &*self.inner;
        write!(f, "Communicator({number:#x}, rank {rank} of {size}, {device})")
    }
}

impl Inner {
    /// Says of an error in which call, on which rank and device it happened.
    pub(crate) fn place(&self, error: Error, call: &'static str) -> Error {
        error.in_call(call).on(self.rank, self.device.index())
    }

    /// Refuses calls that cannot be carried out.
    pub(crate) fn usable(&self) -> Result<()> {
        fork::refuse_child()?;
        if self.finalized.load(Ordering::Relaxed) {
            let seen = "the communicator is finalized";
            return Err(Error::new(ErrorKind::InvalidUsage, seen).hint("make all calls before finalize"));
        }
        // a call on a stopped communicator would only wait for nobody
        if self.context.progress.stopped() { self.failure().map_or(Ok(()), Err) } else { Ok(()) }
    }

    fn failure(&self) -> Option<Error> {
        let error: Error = self.context.progress.cause()?.into();
        Some(error.on(self.rank, self.device.index()).after(&self.context.decisions))
    }

    fn abort(&self) {
        if fork::is_child() {
            // the word would reach other processes, whose rank is the parent
            return;
        }
        let seen = format!("{} called abort", self.context.progress.name(self.rank));
        self.context.progress.fail(Failure { kind: ErrorKind::Aborted, seen, hint: None });
        self.log_end("Abort");
    }

    fn finalize(&self) -> Result<()> {
        fork::refuse_child()?;
        if self.finalized.swap(true, Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::InvalidUsage, "the communicator is finalized already"));
        }
        let last = self.depart();
        let (mut backoff, mut watch) = (Backoff::new(), StartWatch::default());
        let RankContext { progress, proxy, mesh, .. } = &*self.context;
        while progress.finished(self.rank) < last {
            if !backoff.is_short() {
                watch.look(progress, self.rank).iter().for_each(|line| log::announce(line));
            }
            backoff.wait();
        }
        // From now on the process may end, whatever the others still need of this rank.
        while proxy.as_ref().is_some_and(|proxy| !proxy.is_drained()) && !progress.stopped() {
            backoff.wait();
        }
        if let Some(mesh) = mesh {
            mesh.say_farewell(self.rank);
        }
        self.failure().map_or(Ok(()), Err)
    }

    /// Says that this rank makes no more calls. Returns how many it has made.
    fn depart(&self) -> u64 {
        let calls = self.calls().launches;
        self.context.progress.depart(self.rank, calls);
        self.log_end("Destroy");
        calls
    }

    #[inline]
    pub(crate) fn calls(&self) -> Guard<'_, Calls> {
        self.calls.lock()
    }

    fn bus_id(&self) -> BusId {
        self.device.bus_id()
    }
}
