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
use super::processes::{Outcome, Processes};
use super::report::Report;
use super::settings::Settings;
use super::supervisor::Supervisor;
use super::table::RankDevice;
use super::worker::{Run, Worker, library};
use crate::exit::{Code, Failure};

/// Runs the benchmark and writes its table to `out`. Of several processes one says, in the name of `program`, what
/// failed; a failure that is returned with a message is one that this process alone knows.
pub fn run<C: Collective>(
    asked: &Settings,
    config: &Config,
    processes: &Processes,
    collective: &C,
    out: &mut (dyn Write + Send),
    program: &str,
) -> Result<(), Failure> {
    let supervisor = &Supervisor::new(asked.threads as usize, asked.timeout);
    // not at once: the other processes are to learn of a failure, and this one of theirs
    supervisor.at_last(processes.abort());
    let mut report = None;
    let places = (out, &mut report);
    let all = move || {
        let (out, report) = places;
        from_start_to_verdict(asked, config, processes, collective, supervisor, out, report)
    };
    let Outcome { failure, is_common } = thread::scope(|scope| {
        spawn(scope, supervisor, || supervisor.watch(program));
        supervisor.oversee(0, all);
        let mut outcome = supervisor.timed(0, || processes.agree(supervisor.failure()));
        let seen = supervisor.finish();
        if !outcome.is_common {
            outcome.failure = seen.or(outcome.failure);
        }
        outcome
    });
    let Some(failure) = failure else { return processes.finalize() };
    if let Some(report) = &mut report {
        report.end_early(&failure);
    }
    if !is_common {
        return Err(failure);
    }
    if processes.reports() {
        failure.say(program);
    }
    // a launcher may end all processes when the first fails, so none goes before that was said
    processes.part();
    Err(failure.said())
}

/// All that a process does by itself until the results are there.
fn from_start_to_verdict<'o, C: Collective>(
    asked: &Settings,
    config: &Config,
    processes: &Processes,
    collective: &C,
    supervisor: &Supervisor,
    out: &'o mut (dyn Write + Send),
    report: &mut Option<Report<'o>>,
) -> Result<(), Failure> {
    let asked = &supervisor.timed(0, || asked.clone().of_process(processes))?;
    let (min, max) = (asked.sweep.min, asked.sweep.max);
    let unaligned = u64::from(asked.unalign) * asked.largest_element();
    // the processes of a host share its memory
    let ranks = u64::from(asked.local_ranks()) * processes.local_size as u64;
    let fits = memory::largest_message(min, max, ranks, unaligned, memory::available())?;
    let fits = supervisor.timed(0, || processes.exchange(&fits))?.into_iter().min().unwrap_or(fits);
    let devices = supervisor.timed(0, || processes.exchange(&rank_devices(asked)))?;
    let devices: Vec<_> = devices.into_iter().flatten().collect();
    let mut settings = asked.clone();
    settings.sweep.max = fits;
    let report = report.insert(Report::new(settings.clone(), out)?);
    report.begin(asked, &devices, (fits < max).then_some(fits))?;
    measure(&settings, config, processes, collective, supervisor, report)?;
    report.end(&last_warning())?;
    verdict(&settings, report)
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

/// Has all threads go through all sizes, until they are done or one fails.
fn measure<C: Collective>(
    settings: &Settings,
    config: &Config,
    processes: &Processes,
    collective: &C,
    supervisor: &Supervisor,
    report: &mut Report,
) -> Result<(), Failure> {
    let threads = settings.threads as usize;
    let shared = supervisor.timed(0, || processes.shared_id(config))?;
    let id = match &shared {
        _ if !settings.parallel_init => None,
        Some(id) => Some(id.clone()),
        None => Some(UniqueId::new().map_err(library)?),
    };
    let ranks = settings.local_ranks() as usize;
    let (meeting, everyone) = (Arc::new(Meeting::new(threads, ranks)), Arc::new(Meeting::new(threads, ranks)));
    let to_break_off = (meeting.clone(), everyone.clone());
    supervisor.on_failure(move || {
        to_break_off.0.break_off();
        to_break_off.1.break_off();
    });
    let run = Run { settings, collective, config, supervisor, meeting, processes, everyone, id };
    thread::scope(|scope| {
        let mut helpers = Vec::new();
        run.supervisor.oversee(0, || {
            let resident = memory::resident();
            let mut sets = run.initialise_unless_parallel(shared.as_ref())?.into_iter();
            let first = sets.next().flatten();
            for (thread, communicators) in (1..).zip(sets) {
                let run = &run;
                let work = move || Worker::new(run, thread, communicators)?.work(None);
                helpers.extend(spawn(scope, supervisor, move || run.supervisor.oversee(thread, work)));
            }
            let worker = Worker::new(&run, 0, first)?;
            let taken = memory::resident().saturating_sub(resident);
            report.initialised(taken, run.resident_per_rank()?)?;
            worker.work(Some(report))
        });
        for helper in helpers {
            // The supervisor has recorded what went wrong, panics included.
            let _ = helper.join();
        }
    });
    supervisor.failure().map_or(Ok(()), Err)
}

/// Starts a thread; that it cannot be started is a failure of the run.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    supervisor: &Supervisor,
    work: impl FnOnce() + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, ()>> {
    let failed = |error| Failure::new(Code::System, format!("cannot start a thread: {error}"));
    thread::Builder::new().spawn_scoped(scope, work).map_err(|error| supervisor.fail(failed(error))).ok()
}

/// The rank and the device of each rank of this process.
fn places(settings: &Settings) -> impl Iterator<Item = (u32, Device)> {
    let first = settings.process * settings.local_ranks();
    (0..settings.local_ranks()).map(move |index| (first + index, Device::host(settings.first_device + index)))
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
    places(settings).map(describe).collect()
}

impl<C> Run<'_, C> {
    /// The communicators of each thread's ranks; none yet if each thread initialises its own.
    fn initialise_unless_parallel(&self, shared: Option<&UniqueId>) -> Result<Vec<Option<Vec<Communicator>>>, Failure> {
        let threads = self.settings.threads as usize;
        if self.id.is_some() {
            return Ok((0..threads).map(|_| None).collect());
        }
        let places = || places(self.settings).map(|(rank, device)| (rank as usize, device));
        let initialise = || match shared {
            Some(id) => {
                let own: Vec<_> = places().collect();
                Communicator::init_ranks(id, self.settings.ranks() as usize, &own, self.config)
            }
            None => Communicator::init_all(&places().map(|(_, device)| device).collect::<Vec<_>>(), self.config),
        };
        let mut all = self.supervisor.timed(0, initialise).map_err(library)?.into_iter();
        let per_thread = self.settings.per_thread as usize;
        Ok((0..threads).map(|_| Some(all.by_ref().take(per_thread).collect())).collect())
    }

    /// The communicators of a thread's ranks, initialised by it alone.
    pub fn initialise(&self, thread: usize, id: &UniqueId) -> Result<Vec<Communicator>, Failure> {
        let per_thread = self.settings.per_thread as usize;
        let own = places(self.settings).skip(thread * per_thread).take(per_thread);
        let own: Vec<_> = own.map(|(rank, device)| (rank as usize, device)).collect();
        let initialise = || Communicator::init_ranks(id, self.settings.ranks() as usize, &own, self.config);
        self.supervisor.timed(thread, initialise).map_err(library)
    }

    /// Bytes that a rank has resident now, program and all: the most of any process. For one thread of each.
    pub fn resident_per_rank(&self) -> Result<u64, Failure> {
        let own = memory::resident() / u64::from(self.settings.local_ranks());
        let all = self.supervisor.timed(0, || self.processes.exchange(&own))?;
        Ok(all.into_iter().max().unwrap_or(own))
    }
}

#[cfg(test)]
mod tests {
    use super::super::collective::Kind;
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use clap::Parser;
    use ferronickel::{DeviceBuffer, Error, Stream};

    use super::super::collective::{Library, Task};
    use super::super::data::Value;
    use super::super::kind::Op;
    use super::super::options::Options;
    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn settings(line: &str) -> Settings {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        Settings::new(Kind::AllReduce, Command::try_parse_from(words).unwrap().options, |_| None).unwrap()
    }

    fn run_with(line: &str, collective: &impl Collective) -> (Result<(), Failure>, String) {
        let mut out = Vec::new();
        let result = run(&settings(line), &Config::default(), &Processes::alone(), collective, &mut out, "test");
        (result, String::from_utf8(out).unwrap())
    }

    /// A collective that does something else in its call of rank 1 with this number.
    struct Faulty {
        calls: AtomicU32,
        at: u32,
        fault: Fault,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        OtherOperation,
        Overlong,
        Panic,
        Skipped,
    }

    impl Faulty {
        fn new(fault: Fault, at: u32) -> Self {
            Self { calls: AtomicU32::new(0), at, fault }
        }
    }

    impl Collective for Faulty {
        fn start<T: Value>(
            &self,
            communicator: &Communicator,
            send: &DeviceBuffer<T>,
            receive: &DeviceBuffer<T>,
            task: Task,
            stream: &Stream,
        ) -> Result<(), Error> {
            // All ranks agree on another operation; the other faults are those of rank 1.
            if self.fault == Fault::OtherOperation {
                return Library(Kind::AllReduce).start(
                    communicator,
                    send,
                    receive,
                    Task { op: Op::Max, ..task },
                    stream,
                );
            }
            let is_due = communicator.rank() == 1 && self.calls.fetch_add(1, Ordering::Relaxed) == self.at;
            match self.fault {
                Fault::Skipped if is_due => Ok(()),
                Fault::Panic if is_due => panic!("on purpose"),
                Fault::Overlong if is_due => send.slice(0..send.len() + 1).map(drop),
                _ => Library(Kind::AllReduce).start(communicator, send, receive, task, stream),
            }
        }
    }

    #[test]
    fn right_results_are_a_success() {
        for line in ["-b 8 -e 1K -f 4 -g 2", "-b 8 -e 1K -f 4 -t 2 -p 1 -n 3 -m 2 -u 1", "-b 64 -e 64 -t 2 -g 2 -c 3"] {
            let (result, out) = run_with(line, &Library(Kind::AllReduce));
            assert_eq!(result, Ok(()), "{line}");
            assert!(out.contains("# Out of bounds values : 0 OK\n"), "{out}");
        }
    }

    fn run_kind(kind: Kind, line: &str, collective: &impl Collective) -> (Result<(), Failure>, String) {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        let settings = Settings::new(kind, Command::try_parse_from(words).unwrap().options, |_| None).unwrap();
        let mut out = Vec::new();
        let result = run(&settings, &Config::default(), &Processes::alone(), collective, &mut out, "test");
        (result, String::from_utf8(out).unwrap())
    }

    #[test]
    fn every_collective_is_right() {
        for kind in Kind::ALL {
            for line in ["-b 4 -e 64K -f 16 -t 4 -r -1 -n 2 -d int32", "-b 1K -e 1K -t 2 -d half -o all -u 3 -c 2"] {
                let (result, out) = run_kind(kind, line, &Library(kind));
                assert_eq!(result, Ok(()), "{kind:?} {line}: {out}");
                assert!(out.contains("# Out of bounds values : 0 OK\n"), "{out}");
                assert!(out.contains(&format!("# Collective test starting: {}\n", kind.program())), "{out}");
                let roots = out.lines().filter(|line| line.contains("  int32  ")).count();
                // four sizes, with every root in turn where there is one
                assert!(!line.contains("int32") || roots == if kind.has_root() { 16 } else { 4 }, "{out}");
                assert_eq!(out.contains("N/A"), !kind.has_in_place(), "{kind:?}: {out}");
            }
        }
    }

    /// A collective of which rank 0 leaves its results as they were.
    struct Idle(Kind);

    impl Collective for Idle {
        fn start<T: Value>(
            &self,
            communicator: &Communicator,
            send: &DeviceBuffer<T>,
            receive: &DeviceBuffer<T>,
            task: Task,
            stream: &Stream,
        ) -> Result<(), Error> {
            let elsewhere = communicator.device().alloc::<T>(receive.len())?;
            let receive = if communicator.rank() == 0 { &elsewhere } else { receive };
            Library(self.0).start(communicator, send, receive, task, stream)
        }
    }

    #[test]
    fn results_that_do_not_come_are_noticed_with_every_collective() {
        // in place the library would find that what belongs together is apart
        for kind in [Kind::AllReduce, Kind::Broadcast, Kind::Reduce, Kind::AllToAll, Kind::SendRecv, Kind::Scatter] {
            let (result, out) = run_kind(kind, "-b 4K -e 4K -t 2 -n 1 -w 0", &Idle(kind));
            assert_eq!(result.unwrap_err().code, Code::WrongResults, "{kind:?}: {out}");
        }
    }

    #[test]
    fn roots_and_hypercubes_that_cannot_be_are_refused() {
        let refused = |kind, line: &str| {
            let failure = run_kind(kind, line, &Library(kind)).0.unwrap_err();
            assert_eq!(failure.code, Code::Usage, "{failure}");
            failure.message
        };
        assert!(refused(Kind::Broadcast, "-r 2 -g 2").contains("-r 2: there is no such rank"));
        assert!(refused(Kind::Hypercube, "-t 3").contains("3 ranks make no hypercube"));
    }

    #[test]
    fn wrong_results_are_counted_and_exit_with_their_own_code() {
        let (result, out) = run_with("-b 400 -e 400 -g 2 -d int32", &Faulty::new(Fault::OtherOperation, 0));
        let failure = result.unwrap_err();
        assert_eq!(failure.code, Code::WrongResults);
        assert!(
            failure
                .message
                .starts_with("400 elements are wrong; the first: 400 B out of place, int32 sum: element 0 on rank 0"),
            "{failure}"
        );
        assert!(out.contains("     200  "), "{out}");
        assert!(out.contains("# Out of bounds values : 400 FAILED\n"), "{out}");
    }

    #[test]
    fn unchecked_results_are_not_called_right_or_wrong() {
        let (result, out) = run_with("-b 400 -e 400 -g 2 -c 0", &Faulty::new(Fault::OtherOperation, 0));
        assert_eq!(result, Ok(()));
        assert_eq!(out.matches("    N/A").count(), 2, "{out}");
    }

    #[test]
    fn too_slow_is_a_failure_too() {
        let mut slow = settings("-b 8 -e 8 -g 2");
        slow.min_bandwidth = Some(1e9);
        let mut out = Vec::new();
        let failure = run(&slow, &Config::default(), &Processes::alone(), &Library(Kind::AllReduce), &mut out, "test")
            .unwrap_err();
        assert_eq!(failure.code, Code::WrongResults);
        assert!(failure.message.contains("below 90% of NCCL_TESTS_MIN_BW=1000000000"), "{failure}");
        assert!(String::from_utf8(out).unwrap().contains(" FAILED\n"));
    }

    #[test]
    fn a_failing_call_of_one_thread_ends_all() {
        for at in [0, 1, 7] {
            let (result, _) = run_with("-b 64 -e 64 -t 2 -n 5", &Faulty::new(Fault::Overlong, at));
            let failure = result.unwrap_err();
            assert_eq!(failure.code, Code::Library, "{failure}");
        }
    }

    #[test]
    fn a_panicking_thread_ends_all() {
        let (result, _) = run_with("-b 64 -e 64 -t 2 -n 5", &Faulty::new(Fault::Panic, 3));
        let failure = result.unwrap_err();
        assert_eq!((failure.code, failure.message.as_str()), (Code::System, "thread 1 panicked; this is a bug"));
    }

    #[test]
    fn a_call_that_never_completes_is_a_timeout() {
        let begin = Instant::now();
        let (result, _) = run_with("-b 64 -e 64 -t 2 -n 5 -T 1", &Faulty::new(Fault::Skipped, 4));
        assert_eq!(result.unwrap_err(), Failure::new(Code::Timeout, "Test timeout (1s)"));
        assert!(begin.elapsed() < Duration::from_secs(8));
    }

    /// An output that takes so many bytes.
    struct Full(usize, io::ErrorKind);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(self.1)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_output_that_takes_no_more_ends_all() {
        for (kind, code) in [(io::ErrorKind::BrokenPipe, Code::ClosedPipe), (io::ErrorKind::StorageFull, Code::System)]
        {
            for room in [0, 600, 1500] {
                let settings = settings("-b 8 -e 1M -f 2 -t 2 -n 2");
                let failure = run(
                    &settings,
                    &Config::default(),
                    &Processes::alone(),
                    &Library(Kind::AllReduce),
                    &mut Full(room, kind),
                    "test",
                )
                .unwrap_err();
                assert_eq!((failure.code, failure.message.is_empty()), (code, code == Code::ClosedPipe));
            }
        }
    }

    #[test]
    fn a_failed_run_leaves_a_whole_report() {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings("-b 64 -e 64 -t 2 -n 5");
        settings.json = Some(directory.path().join("a.json"));
        let result = run(
            &settings,
            &Config::default(),
            &Processes::alone(),
            &Faulty::new(Fault::Overlong, 7),
            &mut Vec::new(),
            "test",
        );
        let text = std::fs::read_to_string(directory.path().join("a.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["errors"][0].as_str(), Some(result.unwrap_err().message.as_str()));
    }
}
