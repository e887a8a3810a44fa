//! What a run does: the options, checked against each other and with the environment's share.

use std::path::PathBuf;

use super::collective::Kind;
use super::kind::{Op, Type};
use super::options::Options;
use super::processes::Processes;
use super::size::{Step, Sweep};
use super::statistics::Combine;
use crate::exit::Failure;

/// More ranks than this in one process are a slip of the keyboard.
const MOST_RANKS: u32 = 256;

/// Times of more single iterations than this fill the memory rather than tell more.
const MOST_TIMED: u32 = 10_000_000;

/// How a call is awaited (`-z`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// All calls are queued, then awaited together.
    Off,
    /// Each is awaited, and the threads meet; both are timed.
    WaitAndMeet,
    /// Each is awaited.
    Wait,
    /// Each is awaited, and the threads meet; only the wait is timed.
    WaitAndMeetUntimed,
}

/// What a run does. Everything in it makes sense together.
#[derive(Clone, Debug)]
pub struct Settings {
    pub kind: Kind,
    pub threads: u32,
    /// Devices, and so ranks, that each thread drives.
    pub per_thread: u32,
    /// How many processes there are, each with as many threads and devices, and which of them this is.
    pub processes: u32,
    pub process: u32,
    /// The device of this process's first rank.
    pub first_device: u32,
    pub parallel_init: bool,
    pub sweep: Sweep,
    pub types: Vec<Type>,
    /// One that means nothing, where nothing is reduced.
    pub ops: Vec<Op>,
    /// -1 is every one in turn.
    pub root: i64,
    pub unalign: u32,
    pub iterations: u32,
    pub aggregated: u32,
    pub warmup: u32,
    /// None is for ever.
    pub cycles: Option<u32>,
    pub checks: u32,
    pub blocking: Blocking,
    /// Seconds.
    pub timeout: Option<u32>,
    pub combine: Combine,
    pub cpu_time: bool,
    pub timestamps: bool,
    /// How many iterations at the start are left out of the figures over single iterations; None if there are none.
    pub per_iteration: Option<u32>,
    pub memory: bool,
    pub json: Option<PathBuf>,
    /// The least mean bus bandwidth, of which 90% must be reached (`NCCL_TESTS_MIN_BW`).
    pub min_bandwidth: Option<f64>,
    /// What the user should know before the run starts.
    pub notes: Vec<String>,
}

impl Settings {
    /// Checks the options, and reads the variables of nccl-tests with `variable`.
    pub fn new(kind: Kind, options: Options, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let ranks = checked_ranks(&options)?;
        if options.per_iteration && options.iterations > MOST_TIMED {
            let message = format!("-n {}: -I keeps the time of every iteration", options.iterations);
            return Err(Failure::usage(format!("{message}; at most {MOST_TIMED} would be right")));
        }
        if options.per_iteration && options.skip >= options.iterations {
            let message = format!("-K {} leaves none of {} iterations", options.skip, options.iterations);
            return Err(Failure::usage(message).with_hint("give a smaller -K or a larger -n"));
        }
        if let Some(path) = &options.json
            && path.extension().is_none_or(|extension| extension != "json")
        {
            let message = format!("-J {}: the name must end in .json", path.display());
            return Err(Failure::usage(message));
        }
        if kind == Kind::Hypercube && (options.devices > 1 || options.aggregated > 1) {
            let message = "the steps of a hypercube follow each other, so they cannot be grouped as -g and -m do";
            return Err(Failure::usage(message).with_hint("give each rank a thread of its own (-t) or a process"));
        }
        Ok(Self {
            kind,
            root: options.root,
            sweep: checked_sweep(&options)?,
            processes: 1,
            process: 0,
            first_device: first_device(&variable, ranks)?,
            min_bandwidth: min_bandwidth(&variable)?,
            notes: notes(&options),
            threads: options.threads,
            per_thread: options.devices,
            parallel_init: options.parallel_init,
            types: options.types,
            // any bits can be moved
            ops: if kind.reduces() { options.ops } else { vec![Op::Max] },
            unalign: options.unalign,
            iterations: options.iterations,
            aggregated: options.aggregated,
            warmup: options.warmup,
            cycles: (options.cycles > 0).then_some(options.cycles),
            checks: options.checks,
            blocking: match options.blocking {
                0 => Blocking::Off,
                1 => Blocking::WaitAndMeet,
                2 => Blocking::Wait,
                _ => Blocking::WaitAndMeetUntimed,
            },
            timeout: (options.timeout > 0).then_some(options.timeout),
            combine: Combine::from_option(options.average),
            cpu_time: options.cpu_time,
            timestamps: options.timestamps,
            per_iteration: options.per_iteration.then_some(options.skip),
            memory: options.memory,
            json: options.json,
        })
    }

    /// How many ranks there are in all processes.
    pub const fn ranks(&self) -> u32 {
        self.local_ranks() * self.processes
    }

    /// How many ranks this process has.
    pub const fn local_ranks(&self) -> u32 {
        self.threads * self.per_thread
    }

    /// This process's share of a run of several. All must have the same settings.
    pub fn of_process(mut self, processes: &Processes) -> Result<Settings, Failure> {
        let all = processes.exchange(&format!("{self:?}"))?;
        if let Some(other) = all.iter().position(|settings| *settings != all[0]) {
            let message = format!("process {other} was started with other options than process 0");
            return Err(Failure::usage(message).with_hint("give every process the same options"));
        }
        let number = |number: usize| u32::try_from(number).ok();
        let counted = number(processes.size).zip(number(processes.rank)).zip(number(processes.local_rank));
        let place = counted.and_then(|((size, rank), local_rank)| {
            self.local_ranks().checked_mul(size)?;
            let first = local_rank.checked_mul(self.local_ranks())?.checked_add(self.first_device)?;
            first.checked_add(self.local_ranks())?;
            Some((size, rank, first))
        });
        let (size, rank, first) = place.ok_or_else(|| {
            let message = format!("{} processes of {} ranks each are too many", processes.size, self.local_ranks());
            Failure::usage(message).with_hint("use fewer ranks (-t, -g) or fewer processes")
        })?;
        (self.processes, self.process, self.first_device) = (size, rank, first);
        if !processes.reports() {
            self.json = None;
        }
        let ranks = self.ranks();
        if self.root >= i64::from(ranks) {
            let message = format!("-r {}: there is no such rank; the last one is {}", self.root, ranks - 1);
            return Err(Failure::usage(message));
        }
        if self.kind == Kind::Hypercube && !ranks.is_power_of_two() {
            let message = format!("{ranks} ranks make no hypercube; a power of two would be right");
            return Err(Failure::usage(message));
        }
        Ok(self)
    }

    /// The roots, one after the other; one that means nothing, where there is none.
    pub fn roots(&self) -> std::ops::Range<usize> {
        match usize::try_from(self.root) {
            _ if !self.kind.has_root() => 0..1,
            Ok(root) => root..root + 1,
            Err(_) => 0..self.ranks() as usize,
        }
    }

    /// Bytes of the largest element that is run.
    pub fn largest_element(&self) -> u64 {
        self.types.iter().map(|kind| kind.size_of()).max().unwrap_or(1)
    }

    /// How many rows the table will have; None is for ever.
    pub fn rows(&self) -> Option<u64> {
        let kinds = self.types.len() as u64 * self.ops.len() as u64 * self.roots().len() as u64;
        self.cycles.map(|cycles| self.sweep.len().saturating_mul(kinds).saturating_mul(u64::from(cycles)))
    }
}

fn checked_ranks(options: &Options) -> Result<u32, Failure> {
    let ranks = options.threads.checked_mul(options.devices).filter(|&ranks| ranks <= MOST_RANKS);
    ranks.ok_or_else(|| {
        let ranks = u64::from(options.threads) * u64::from(options.devices);
        let message = format!("-t {} times -g {} is {ranks} ranks", options.threads, options.devices);
        Failure::usage(format!("{message}; at most {MOST_RANKS} can run in one process"))
    })
}

fn checked_sweep(options: &Options) -> Result<Sweep, Failure> {
    let (min, max) = (options.min_bytes, options.max_bytes);
    if max < min {
        let message = format!("-e {max} is smaller than -b {min}; the largest size must not be below the smallest");
        return Err(Failure::usage(message).with_hint("-b and -e are 32M unless given"));
    }
    let step = match options.step_factor {
        1 => Step::Bytes(options.step_bytes),
        factor => Step::Factor(factor),
    };
    match step {
        Step::Bytes(0) if min < max => {
            Err(Failure::usage("-i 0: a step of zero bytes never gets from -b to -e; give a larger -i, or use -f"))
        }
        Step::Factor(_) if min == 0 && max > 0 => Err(Failure::usage(
            "-b 0: no factor makes zero grow; start with a -b of 1 or more, or use -i instead of -f",
        )),
        _ => Ok(Sweep { min, max, step }),
    }
}

fn first_device(variable: impl Fn(&str) -> Option<String>, ranks: u32) -> Result<u32, Failure> {
    let Some(text) = variable("NCCL_TESTS_DEVICE") else { return Ok(0) };
    let index = text.trim().parse::<u32>().ok().filter(|first| first.checked_add(ranks).is_some());
    index.ok_or_else(|| Failure::usage(format!("NCCL_TESTS_DEVICE={text}: give the number of the first device, as 0")))
}

fn min_bandwidth(variable: impl Fn(&str) -> Option<String>) -> Result<Option<f64>, Failure> {
    let Some(text) = variable("NCCL_TESTS_MIN_BW") else { return Ok(None) };
    let bandwidth = text.trim().parse::<f64>().ok().filter(|&bandwidth| bandwidth.is_finite() && bandwidth >= 0.0);
    let wrong = || Failure::usage(format!("NCCL_TESTS_MIN_BW={text}: give a bandwidth in GB/s, as 12.5"));
    bandwidth.map(Some).ok_or_else(wrong)
}

fn notes(options: &Options) -> Vec<String> {
    let mut notes = Vec::new();
    if options.local_register > 0 {
        let option = options.local_register;
        notes.push(format!("-R {option}: nothing to register; ranks on host devices reach all memory as it is"));
    }
    if options.null_stream {
        notes.push("-y 1: a host device has one kind of stream, which is used here too".into());
    }
    notes
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::exit::Code;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn settings_with(line: &str, variables: &[(&str, &str)]) -> Result<Settings, Failure> {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        let options = Command::try_parse_from(words).unwrap().options;
        let variable =
            |name: &str| variables.iter().find(|(found, _)| *found == name).map(|(_, value)| (*value).to_owned());
        Settings::new(Kind::AllReduce, options, variable)
    }

    fn refused(line: &str, variables: &[(&str, &str)]) -> String {
        let failure = settings_with(line, variables).expect_err(line);
        assert_eq!(failure.code, Code::Usage);
        failure.message
    }

    #[test]
    fn options_that_do_not_go_together_say_why() {
        for (line, word) in [
            ("-b 8 -e 4", "-e 4 is smaller than -b 8"),
            ("-b 1G", "-e 33554432 is smaller"),
            ("-b 0 -e 8 -f 2", "-b 0"),
            ("-b 4 -e 8 -i 0", "-i 0"),
            ("-t 65536 -g 65536", "4294967296 ranks"),
            ("-t 257", "at most 256"),
            ("-I 1 -n 5 -K 5", "-K 5 leaves none"),
            ("-I 1 -n 10000001", "at most 10000000"),
            ("-J results.txt", "results.txt: the name must end in .json"),
        ] {
            let message = refused(line, &[]);
            assert!(message.contains(word), "{line}: {message}");
        }
    }

    #[test]
    fn variables_are_read_or_refused() {
        let settings = settings_with("", &[("NCCL_TESTS_MIN_BW", "1.5"), ("NCCL_TESTS_DEVICE", "3")]).unwrap();
        assert_eq!((settings.min_bandwidth, settings.first_device), (Some(1.5), 3));
        for value in ["fast", "", "-1", "inf", "nan"] {
            assert!(refused("", &[("NCCL_TESTS_MIN_BW", value)]).contains("GB/s"), "{value}");
        }
        for value in ["-1", "x", "4294967295"] {
            assert!(refused("", &[("NCCL_TESTS_DEVICE", value)]).contains("NCCL_TESTS_DEVICE"), "{value}");
        }
    }

    #[test]
    fn rows_are_counted_ahead() {
        let rows = |line| settings_with(line, &[]).unwrap().rows();
        assert_eq!(rows("-b 8 -e 128 -f 2"), Some(5));
        assert_eq!(rows("-b 8 -e 128 -f 2 -d all -o all -N 2"), Some(600));
        assert_eq!(rows("-N 0"), None);
        assert_eq!(rows("-b 1 -e 8191P -i 1".replace("8191P", "8000000T").as_str()), Some(8_000_000 << 40));
    }

    #[test]
    fn what_host_devices_do_not_need_is_noted() {
        assert!(settings_with("", &[]).unwrap().notes.is_empty());
        let notes = settings_with("-R 2 -y 1", &[]).unwrap().notes;
        assert!(notes[0].contains("-R 2") && notes[1].contains("-y 1"), "{notes:?}");
    }
}
