//! What one thread of a run does: it sets its ranks up, goes through all sizes, and measures.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use ferronickel::{Communicator, Config, DeviceBuffer, Error, ErrorKind, UniqueId};
use serde::{Deserialize, Serialize};

use super::calls::{Buffers, Calls, Collective, Rank, Size};
use super::collective::{Right, Task};
use super::data::{Recipe, Value, with_value_type};
use super::kind::{Op, Type};
use super::measure::{Half, Row};
use super::meeting::Meeting;
use super::processes::Processes;
use super::report::Report;
use super::settings::Settings;
use super::statistics::Iterations;
use super::supervisor::Supervisor;
use super::verify::{Checked, check, write_inputs, write_poison, write_some_inputs};
use crate::exit::{Code, Failure};

/// What the threads of a run share.
pub struct Run<'a, C> {
    pub settings: &'a Settings,
    pub collective: &'a C,
    pub config: &'a Config,
    pub supervisor: &'a Supervisor,
    pub meeting: Arc<Meeting<Share>>,
    pub processes: &'a Processes,
    /// What all threads get of what the processes exchanged.
    pub everyone: Arc<Meeting<Option<Arc<Vec<Share>>>>>,
    /// With it each thread initialises its own communicators.
    pub id: Option<UniqueId>,
}

/// What a thread brings to a meeting.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Share {
    /// Per collective, until they were complete.
    pub completed: Duration,
    /// Per collective, until they were started.
    pub started: Duration,
    /// Per collective, of each iteration.
    pub iterations: Vec<Duration>,
    pub checked: Checked,
}

/// A thread of a run, with the ranks it drives.
pub struct Worker<'a, C> {
    pub run: &'a Run<'a, C>,
    pub thread: usize,
    pub ranks: Vec<Rank>,
    /// Calls of the checks so far, for other inputs each time.
    checks: Cell<u64>,
}

impl<'a, C: Collective> Worker<'a, C> {
    /// Sets the ranks up: with communicators that exist already, or by initialising them. All ranks are ready then.
    pub fn new(run: &'a Run<'a, C>, thread: usize, communicators: Option<Vec<Communicator>>) -> Result<Self, Failure> {
        let communicators = match (communicators, &run.id) {
            (Some(communicators), _) => communicators,
            (None, Some(id)) => run.initialise(thread, id)?,
            (None, None) => Vec::new(),
        };
        let mut ranks = Vec::new();
        for communicator in communicators {
            let stream = communicator.device().stream().map_err(device)?;
            let communicator = Arc::new(communicator);
            let to_abort = Arc::downgrade(&communicator);
            run.supervisor.on_failure(move || {
                if let Some(communicator) = to_abort.upgrade() {
                    communicator.abort();
                }
            });
            ranks.push(Rank { communicator, stream });
        }
        let worker = Self { run, thread, ranks, checks: Cell::new(0) };
        worker.barrier()?;
        Ok(worker)
    }

    /// Goes through all types, operations and sizes; the thread that has the report writes the rows.
    pub fn work(&self, mut report: Option<&mut Report>) -> Result<(), Failure> {
        for &kind in &self.run.settings.types {
            with_value_type!(kind, T => self.work_with::<T>(report.as_deref_mut())?);
        }
        // every rank has let go of its buffers
        self.barrier()?;
        if let Some(report) = report {
            report.measured(self.run.resident_per_rank()?);
        }
        self.finalize()
    }

    /// Every call is complete, and no thread makes another.
    fn finalize(&self) -> Result<(), Failure> {
        self.barrier()?;
        let finalize = || self.ranks.iter().try_for_each(|rank| rank.communicator.finalize());
        self.run.supervisor.timed(self.thread, finalize).map_err(library)
    }

    fn work_with<T: Value>(&self, mut report: Option<&mut Report>) -> Result<(), Failure> {
        let settings = self.run.settings;
        let buffers = self.buffers::<T>()?;
        let tasks = settings.ops.iter().flat_map(|&op| settings.roots().map(move |root| Task { op, root }));
        for task in tasks {
            self.warm_up(&buffers, task)?;
            let mut cycle = 0;
            while settings.cycles.is_none_or(|cycles| cycle < cycles) {
                for bytes in settings.sweep.sizes() {
                    self.measure_size(&buffers, task, bytes, report.as_deref_mut())?;
                }
                cycle = cycle.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Buffers for the largest message, with something in every page of them.
    fn buffers<T: Value>(&self) -> Result<Vec<Buffers<T>>, Failure> {
        let settings = self.run.settings;
        let elements = (settings.sweep.largest() / size_of::<T>() as u64) as usize + settings.unalign as usize;
        let recipe = Recipe { seed: 0, op: Op::Sum, ranks: u64::from(settings.ranks()) };
        let of_rank = |rank: &Rank| -> Result<_, Error> {
            let buffer = || -> Result<DeviceBuffer<T>, Error> {
                let buffer = rank.communicator.device().alloc::<T>(elements)?;
                write_some_inputs(recipe, rank.communicator.rank() as u64, &buffer)?;
                Ok(buffer)
            };
            Ok(Buffers { send: buffer()?, receive: buffer()? })
        };
        self.ranks.iter().map(|rank| of_rank(rank).map_err(device)).collect()
    }

    /// Untimed iterations, with sizes that double from the smallest to the largest.
    fn warm_up<T: Value>(&self, buffers: &[Buffers<T>], task: Task) -> Result<(), Failure> {
        let settings = self.run.settings;
        let doubled = |&size: &u64| size.max(1).checked_mul(2).filter(|&next| next <= settings.sweep.largest());
        for bytes in std::iter::successors(Some(settings.sweep.min), doubled) {
            let calls = self.calls(buffers, task, bytes, false)?;
            self.queue(settings.warmup, |iteration| calls.start(u64::from(iteration), 1))?;
        }
        self.complete()?;
        self.barrier()
    }

    /// Measures a size both ways.
    fn measure_size<T: Value>(
        &self,
        buffers: &[Buffers<T>],
        task: Task,
        bytes: u64,
        report: Option<&mut Report>,
    ) -> Result<(), Failure> {
        let (kind, settings): (Type, _) = (T::TYPE, self.run.settings);
        let op = settings.kind.reduces().then_some(task.op);
        let root = settings.kind.has_root().then_some(task.root);
        if let Some(report) = &report {
            report.measuring(bytes, &format!("{} {}", kind.name(), op.map_or("", Op::name)));
        }
        let (out_of_place, first_wrong) = self.measure_half(buffers, task, bytes, false)?;
        let in_place =
            settings.kind.has_in_place().then(|| self.measure_half(buffers, task, bytes, true)).transpose()?;
        let (in_place, other_wrong) = in_place.unzip();
        match report {
            Some(report) => {
                let shape = settings.kind.shape(bytes, size_of::<T>(), settings.ranks() as usize);
                let (bytes, count) = (shape.send.max(shape.receive) as u64 * kind.size_of(), shape.count as u64);
                report.row(&Row { bytes, count, kind, op, root, out_of_place, in_place })?;
                report.wrong(first_wrong.or(other_wrong.flatten()));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Measures a size with separate buffers or with one, then checks its results; also tells of the first element
    /// that was wrong.
    fn measure_half<T: Value>(
        &self,
        buffers: &[Buffers<T>],
        task: Task,
        bytes: u64,
        in_place: bool,
    ) -> Result<(Half, Option<String>), Failure> {
        let settings = self.run.settings;
        let calls = self.calls(buffers, task, bytes, in_place)?;
        calls.start(0, 1).map_err(library)?;
        self.complete()?;
        self.barrier()?;
        let mut share = self.time(&calls)?;
        for _ in 0..settings.checks {
            share.checked += self.check(&calls, task, bytes)?;
        }
        let met = self.meet(share)?;
        let seconds = |time: fn(&Share) -> Duration| {
            let times: Vec<_> = met.iter().map(|share| time(share).as_secs_f64()).collect();
            settings.combine.of(&times)
        };
        let completed = seconds(|share| share.completed);
        let shown = if settings.cpu_time { seconds(|share| share.started) } else { completed };
        let (element, ranks) = (T::TYPE.size_of(), settings.ranks());
        let shape = settings.kind.shape(bytes, size_of::<T>(), ranks as usize);
        let (algorithm_bandwidth, bus_bandwidth) =
            settings.kind.bandwidth(shape.count as u64, element, u64::from(ranks), completed);
        let bytes = shape.send.max(shape.receive) as u64 * element;
        let mut checked = Checked::default();
        met.iter().for_each(|share| checked += share.checked.clone());
        let half = Half {
            microseconds: shown * 1e6,
            algorithm_bandwidth,
            bus_bandwidth,
            wrong: (settings.checks > 0).then_some(checked.wrong),
            iterations: settings.per_iteration.map(|skip| slowest_of_each(&met, skip as usize)),
        };
        let way = if in_place { "in place" } else { "out of place" };
        Ok((half, checked.first.map(|first| format!("{bytes} B {way}, {first}"))))
    }

    /// Calls once with inputs that were not there before, and checks what comes of it.
    fn check<T: Value>(&self, calls: &Calls<C, T>, task: Task, bytes: u64) -> Result<Checked, Failure> {
        let (kind, ranks) = (self.run.settings.kind, self.run.settings.ranks());
        let call = self.checks.replace(self.checks.get() + 1);
        let recipe = Recipe { seed: call + 1, op: task.op, ranks: u64::from(ranks) };
        let count = kind.shape(bytes, size_of::<T>(), ranks as usize).count;
        let right = Right { kind, recipe, root: task.root, count };
        let number = |rank: &Rank| rank.communicator.rank();
        for (rank, (send, receive)) in self.ranks.iter().zip(calls.at(call)) {
            // In place the inputs replace the poison.
            write_poison(receive).and_then(|()| write_inputs(recipe, number(rank) as u64, send)).map_err(device)?;
        }
        calls.start(call, 1).map_err(library)?;
        self.complete()?;
        let results = self.ranks.iter().zip(calls.at(call)).map(|(rank, (_, receive))| (number(rank), receive.clone()));
        let results: Vec<_> = results.filter(|&(rank, _)| kind.gets(rank, task.root)).collect();
        check(&right, &results).map_err(device)
    }

    fn calls<'b, T: Value>(
        &'b self,
        buffers: &[Buffers<T>],
        task: Task,
        bytes: u64,
        in_place: bool,
    ) -> Result<Calls<'b, C, T>, Failure> {
        let settings = self.run.settings;
        let shape = settings.kind.shape(bytes, size_of::<T>(), settings.ranks() as usize);
        let most = settings.iterations as usize * settings.aggregated as usize;
        let size = Size { shape, shift: settings.unalign as usize, in_place };
        Calls::new(self.run.collective, &self.ranks, buffers, (settings.kind, task), size, most).map_err(device)
    }
}

/// The figures over iterations, each as long as its slowest thread took.
fn slowest_of_each(shares: &[Share], skip: usize) -> Iterations {
    let iterations = shares.iter().map(|share| share.iterations.len()).max().unwrap_or(0);
    let slowest = |iteration: usize| {
        let times = shares.iter().filter_map(|share| share.iterations.get(iteration));
        times.max().map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    Iterations::new(&(0..iterations).map(slowest).collect::<Vec<_>>(), skip)
}

/// A device's failure.
pub fn device(error: Error) -> Failure {
    Failure::new(Code::Device, error.to_string())
}

/// A failure of one of the library's calls.
pub fn library(error: Error) -> Failure {
    let failure = Failure::new(Code::Library, error.to_string());
    match error.kind() {
        ErrorKind::Aborted | ErrorKind::Remote => failure.that_follows(),
        _ => failure,
    }
}
