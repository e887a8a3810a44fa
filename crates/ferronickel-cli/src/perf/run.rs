//! A run from its start to its verdict.

use std::io::Write;
use std::process;
use std::sync::Arc;
use std::thread::{self, Scope, ScopedJoinHandle};

use ferronickel::{Communicator, Config, Device, UniqueId, last_warning};

use super::calls::Collective;
use super::meeting::Meeting;
use super::memory;
use super::number::general;
use super::report::Report;
use super::settings::Settings;
use super::supervisor::Supervisor;
use super::table::RankDevice;
use super::worker::{Run, Worker, library};
use crate::exit::{Code, Failure};

/// Runs the benchmark and writes its table to `out`.
pub fn run<C: Collective>(
    asked: &Settings,
    config: &Config,
    collective: &C,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let (min, max) = (asked.sweep.min, asked.sweep.max);
    let (ranks, unaligned) = (u64::from(asked.ranks()), u64::from(asked.unalign) * asked.largest_element());
    let fits = memory::largest_message(min, max, ranks, unaligned, memory::available())?;
    let mut settings = asked.clone();
    settings.sweep.max = fits;
    let mut report = Report::new(&settings, out)?;
    let result = report
        .begin(asked, &rank_devices(asked), (fits < max).then_some(fits))
        .and_then(|()| measure(&settings, config, collective, &mut report))
        .and_then(|()| report.end(&last_warning()));
    match result {
        Ok(()) => verdict(&settings, &report),
        Err(failure) => {
            report.end_early(&failure);
            Err(failure)
        }
    }
}

/// What the results mean for the exit code.
fn verdict(settings: &Settings, report: &Report) -> Result<(), Failure> {
    let wrong = report.summary.wrong;
    if wrong > 0 {
        let elements = if wrong == 1 { "1 element is" } else { &format!("{wrong} elements are") };
        let first = report.first_wrong.as_deref().unwrap_or_default();
        return Err(Failure::new(Code::WrongResults, format!("{elements} wrong; the first: {first}")));
    }
    match (report.summary.is_fast_enough(settings.min_bandwidth), settings.min_bandwidth) {
        (Some(false), Some(min)) => {
            let bandwidth = general(report.summary.bandwidth());
            let message = format!("the mean bus bandwidth, {bandwidth} GB/s, is below 90% of NCCL_TESTS_MIN_BW={min}");
            Err(Failure::new(Code::WrongResults, message))
        }
        _ => Ok(()),
    }
}

/// Sets the ranks up and has all threads go through all sizes.
fn measure<C: Collective>(
    settings: &Settings,
    config: &Config,
    collective: &C,
    report: &mut Report,
) -> Result<(), Failure> {
    let threads = settings.threads as usize;
    let resident = memory::resident();
    let id = if settings.parallel_init { Some(UniqueId::new().map_err(library)?) } else { None };
    let mut communicators = match id {
        Some(_) => Vec::new(),
        None => Communicator::init_all(&devices(settings), config).map_err(library)?,
    }
    .into_iter();
    let mut of_thread: Vec<_> = (0..threads)
        .map(|_| id.is_none().then(|| communicators.by_ref().take(settings.per_thread as usize).collect()))
        .collect();
    let meeting = Arc::new(Meeting::new(threads));
    let supervisor = Supervisor::new(threads, settings.timeout);
    let to_break_off = meeting.clone();
    supervisor.on_failure(move || to_break_off.break_off());
    let run = Run { settings, collective, config, supervisor, meeting, id };
    let failure = thread::scope(|scope| {
        let mut helpers = vec![spawn(scope, &run, "watch", || run.supervisor.watch())];
        let first = of_thread.remove(0);
        for (thread, communicators) in (1..).zip(of_thread) {
            let run = &run;
            let work = move || run.supervisor.oversee(thread, || Worker::new(run, thread, communicators)?.work(None));
            helpers.push(spawn(scope, run, "perf", work));
        }
        run.supervisor.oversee(0, || {
            let worker = Worker::new(&run, 0, first)?;
            report.initialised(memory::resident().saturating_sub(resident))?;
            worker.work(Some(report))
        });
        // The one that watches comes last: it ends when the others have.
        for helper in helpers.into_iter().flatten().rev().collect::<Vec<_>>() {
            if helper.thread().name() == Some("watch") {
                run.supervisor.finish();
            }
            // Panics are recorded by the supervisor.
            let _ = helper.join();
        }
        run.supervisor.finish()
    });
    failure.map_or(Ok(()), Err)
}

fn spawn<'scope, C>(
    scope: &'scope Scope<'scope, '_>,
    run: &Run<'_, C>,
    name: &str,
    work: impl FnOnce() + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, ()>> {
    let spawned = thread::Builder::new().name(name.into()).spawn_scoped(scope, work);
    spawned
        .map_err(|error| run.supervisor.fail(Failure::new(Code::System, format!("cannot start a thread: {error}"))))
        .ok()
}

/// The device of each rank.
fn devices(settings: &Settings) -> Vec<Device> {
    (0..settings.ranks()).map(|rank| Device::host(settings.first_device + rank)).collect()
}

/// The devices as the table names them.
fn rank_devices(settings: &Settings) -> Vec<RankDevice> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = host.split('.').next().unwrap_or_default().to_owned();
    let describe = |(rank, device): (u32, Device)| {
        let id = device.bus_id();
        RankDevice {
            rank,
            pid: process::id(),
            host: host.clone(),
            device: device.index(),
            bus_id: format!("{:04x}:{:02x}:{:02x}", id.domain, id.bus, id.device),
            name: device.name(),
        }
    };
    (0..).zip(devices(settings)).map(describe).collect()
}

impl<C> Run<'_, C> {
    /// The communicators of a thread's ranks, initialised by it alone.
    pub fn initialise(&self, thread: usize, id: &UniqueId) -> Result<Vec<Communicator>, Failure> {
        let (all, per_thread) = (devices(self.settings), self.settings.per_thread as usize);
        let size = all.len();
        let own: Vec<_> = all.into_iter().enumerate().skip(thread * per_thread).take(per_thread).collect();
        let initialise = || Communicator::init_ranks(id, size, &own, self.config);
        self.supervisor.timed(thread, initialise).map_err(library)
    }
}
