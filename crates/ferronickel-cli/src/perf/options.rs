//! The options as they are typed: nccl-tests' letters, long names and defaults.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::kind::{Op, Type, parse_ops, parse_types};
use super::size;

/// The one value that an option may have on host devices.
#[derive(Clone, Debug)]
pub struct Accepted;

/// Options of a benchmark. Names and defaults are those of nccl-tests.
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true, disable_version_flag = true)]
pub struct Options {
    /// Where the ranks run
    #[arg(long, value_name = "host|cuda", default_value = "host", value_parser = parse_device, help_heading = "Ranks")]
    pub device: Accepted,

    /// Threads
    #[arg(short = 't', long = "nthreads", value_name = "N", default_value = "1",
           value_parser = at_least_one, allow_hyphen_values = true, help_heading = "Ranks")]
    pub threads: u32,

    /// Devices that each thread drives, one rank each
    #[arg(short = 'g', long = "ngpus", value_name = "N", default_value = "1",
           value_parser = at_least_one, allow_hyphen_values = true, help_heading = "Ranks")]
    pub devices: u32,

    /// 1: each thread initialises its own communicators
    #[arg(short = 'p', long = "parallel_init", value_name = "0|1", default_value = "0",
           value_parser = switch, action = ArgAction::Set, allow_hyphen_values = true, help_heading = "Ranks")]
    pub parallel_init: bool,

    /// Smallest size; sizes take the suffixes K, M, G and T (powers of 1024)
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "32M",
           value_parser = size::parse, allow_hyphen_values = true, help_heading = "Sizes")]
    pub min_bytes: u64,

    /// Largest size; reduced to what the memory holds
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "32M",
           value_parser = size::parse, allow_hyphen_values = true, help_heading = "Sizes")]
    pub max_bytes: u64,

    /// Bytes from one size to the next
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", default_value = "1M",
           value_parser = size::parse, allow_hyphen_values = true, help_heading = "Sizes")]
    pub step_bytes: u64,

    /// Factor from one size to the next, instead of -i; 1 is off
    #[arg(short = 'f', long = "stepfactor", value_name = "N", default_value = "1",
           value_parser = factor, allow_hyphen_values = true, help_heading = "Sizes")]
    pub step_factor: u64,

    /// Operation: sum, prod, max, min, avg or all
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum",
           value_parser = parse_ops, allow_hyphen_values = true, help_heading = "What is reduced")]
    pub ops: std::vec::Vec<Op>,

    /// Type: int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2 or
    /// all
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float",
           value_parser = parse_types, allow_hyphen_values = true, help_heading = "What is reduced")]
    pub types: std::vec::Vec<Type>,

    /// Root, for collectives that have one; -1 is all of them
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value = "0",
           value_parser = root, allow_hyphen_values = true, help_heading = "What is reduced")]
    pub root: i64,

    /// Misalign the buffers by so many elements
    #[arg(short = 'u', long = "unalign", value_name = "N", default_value = "0",
           value_parser = whole, allow_hyphen_values = true, help_heading = "What is reduced")]
    pub unalign: u32,

    /// 1 or 2: register the buffers; host devices need no registration
    #[arg(short = 'R', long = "local_register", value_name = "0|1|2", default_value = "0",
           value_parser = up_to_two, allow_hyphen_values = true, help_heading = "What is reduced")]
    pub local_register: u8,

    /// Timed iterations
    #[arg(short = 'n', long = "iters", value_name = "N", default_value = "20",
           value_parser = at_least_one, allow_hyphen_values = true, help_heading = "Measuring")]
    pub iterations: u32,

    /// Collectives that an iteration aggregates in one group
    #[arg(short = 'm', long = "agg_iters", value_name = "N", default_value = "1",
           value_parser = group_size, allow_hyphen_values = true, help_heading = "Measuring")]
    pub aggregated: u32,

    /// Warm-up iterations, which are not timed
    #[arg(short = 'w', long = "warmup_iters", value_name = "N", default_value = "1",
           value_parser = whole, allow_hyphen_values = true, help_heading = "Measuring")]
    pub warmup: u32,

    /// Times to go through all sizes; 0 is for ever
    #[arg(short = 'N', long = "run_cycles", value_name = "N", default_value = "1",
           value_parser = whole, allow_hyphen_values = true, help_heading = "Measuring")]
    pub cycles: u32,

    /// Calls whose results are checked, each with other inputs; 0 checks nothing
    #[arg(short = 'c', long = "check", value_name = "N", default_value = "1",
           value_parser = whole, allow_hyphen_values = true, help_heading = "Measuring")]
    pub checks: u32,

    /// 1: after each collective wait, and meet the other threads; 2: wait; 3: as 1, the meeting not timed
    #[arg(short = 'z', long = "blocking", value_name = "0|1|2|3", default_value = "0",
           value_parser = up_to_three, allow_hyphen_values = true, help_heading = "Measuring")]
    pub blocking: u8,

    /// 1: use the NULL stream; on a host device this is its one stream
    #[arg(short = 'y', long = "stream_null", value_name = "0|1", default_value = "0",
           value_parser = switch, action = ArgAction::Set, allow_hyphen_values = true, help_heading = "Measuring")]
    pub null_stream: bool,

    /// Seconds that one wait may take; 0 is no limit
    #[arg(short = 'T', long = "timeout", value_name = "SECONDS", default_value = "0",
           value_parser = whole, allow_hyphen_values = true, help_heading = "Measuring")]
    pub timeout: u32,

    /// Which thread's time counts: 0 the first's, 1 the average, 2 the least, 3 the greatest
    #[arg(short = 'a', long = "average", value_name = "0|1|2|3", default_value = "1",
           value_parser = up_to_three, allow_hyphen_values = true, help_heading = "Measuring")]
    pub average: u8,

    /// 1: report the time to start the calls, not to complete them
    #[arg(short = 'C', long = "report_cputime", value_name = "0|1", default_value = "0",
           value_parser = switch, action = ArgAction::Set, allow_hyphen_values = true, help_heading = "Report")]
    pub cpu_time: bool,

    /// 1: add the time of day to each row
    #[arg(short = 'S', long = "report_timestamps", value_name = "0|1", default_value = "0",
           value_parser = switch, action = ArgAction::Set, allow_hyphen_values = true, help_heading = "Report")]
    pub timestamps: bool,

    /// 1: time each iteration on its own, awaiting it, and add its least, greatest, 99th percentile and variation
    #[arg(short = 'I', long = "per_iter_timing", value_name = "0|1", default_value = "0",
           value_parser = switch, action = ArgAction::Set, allow_hyphen_values = true, help_heading = "Report")]
    pub per_iteration: bool,

    /// Iterations at the start that -I leaves out
    #[arg(short = 'K', long = "per_iter_skip", value_name = "N", default_value = "0",
           value_parser = whole, allow_hyphen_values = true, help_heading = "Report")]
    pub skip: u32,

    /// 1: report the memory used, and what a rank has resident after init and after the last size
    #[arg(short = 'M', long = "memory", value_name = "0|1", default_value = "0", num_args = 0..=1,
           default_missing_value = "1", value_parser = switch, action = ArgAction::Set, help_heading = "Report")]
    pub memory: bool,

    /// Write the results as JSON too; if FILE.json exists, to FILE.json.0, .1, ...
    #[arg(
        short = 'J',
        long = "output_file",
        visible_alias = "json",
        value_name = "FILE.json",
        help_heading = "Report"
    )]
    pub json: Option<PathBuf>,

    /// Launches of a CUDA graph; only 0 on host devices
    #[arg(short = 'G', long = "cudagraph", value_name = "N", default_value = "0",
           value_parser = no_graph, allow_hyphen_values = true, help_heading = "For CUDA devices only")]
    pub graph: Accepted,

    /// Device-side implementation; only 0 on host devices
    #[arg(short = 'D', long = "device_implementation", value_name = "N", default_value = "0",
           value_parser = no_device_implementation, allow_hyphen_values = true, help_heading = "For CUDA devices only")]
    pub device_implementation: Accepted,

    /// Blocks of the device-side implementation
    #[arg(short = 'V', long = "device_cta_count", value_name = "N",
           value_parser = no_cta_count, allow_hyphen_values = true, help_heading = "For CUDA devices only")]
    pub cta_count: Option<Accepted>,

    /// How many blocks a collective may use
    #[arg(short = 'x', long = "cta_policy", value_name = "N",
           value_parser = no_cta_policy, allow_hyphen_values = true, help_heading = "For CUDA devices only")]
    pub cta_policy: Option<Accepted>,
}

fn number(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let right = || match (min, max) {
        (min, max) if max <= 3 => {
            let choices: Vec<_> = (min..=max).map(|choice| choice.to_string()).collect();
            format!("choose one of {}", choices.join(", "))
        }
        (min, max) => format!("give a whole number from {min} to {max}"),
    };
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(right());
    }
    text.parse().ok().filter(|number| (min..=max).contains(number)).ok_or_else(right)
}

fn whole(text: &str) -> Result<u32, String> {
    number(text, 0, i32::MAX as u64).map(|number| number as u32)
}

fn at_least_one(text: &str) -> Result<u32, String> {
    number(text, 1, i32::MAX as u64).map(|number| number as u32)
}

/// What one group may hold.
fn group_size(text: &str) -> Result<u32, String> {
    number(text, 1, 65_536).map(|number| number as u32)
}

fn factor(text: &str) -> Result<u64, String> {
    number(text, 1, i64::MAX as u64)
}

fn switch(text: &str) -> Result<bool, String> {
    number(text, 0, 1).map(|number| number == 1)
}

fn up_to_two(text: &str) -> Result<u8, String> {
    number(text, 0, 2).map(|number| number as u8)
}

fn up_to_three(text: &str) -> Result<u8, String> {
    number(text, 0, 3).map(|number| number as u8)
}

fn root(text: &str) -> Result<i64, String> {
    let wrong = || "give a rank, or -1 for all".to_owned();
    text.parse().ok().filter(|&root| (-1..=i64::from(i32::MAX)).contains(&root)).ok_or_else(wrong)
}

fn parse_device(text: &str) -> Result<Accepted, String> {
    match text {
        "host" => Ok(Accepted),
        "cuda" => Err("this build drives host devices only; use --device host".into()),
        _ => Err("not a kind of device; use --device host".into()),
    }
}

fn only_zero(text: &str, why: &str) -> Result<Accepted, String> {
    match number(text, 0, i32::MAX as u64)? {
        0 => Ok(Accepted),
        _ => Err(why.into()),
    }
}

fn no_graph(text: &str) -> Result<Accepted, String> {
    only_zero(text, "host devices have no CUDA graphs to launch; leave -G out, and use -m to aggregate calls")
}

fn no_device_implementation(text: &str) -> Result<Accepted, String> {
    only_zero(text, "host devices have no device-side implementation; leave -D out")
}

fn no_cta_count(_: &str) -> Result<Accepted, String> {
    Err("host devices have no device-side implementation whose blocks could be counted; leave -V out".into())
}

fn no_cta_policy(_: &str) -> Result<Accepted, String> {
    Err("host devices have no such policy; leave -x out".into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn parse(line: &str) -> Result<Options, String> {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        Command::try_parse_from(words).map(|command| command.options).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_holds_together() {
        use clap::CommandFactory;
        Command::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_nccl_tests() {
        let options = parse("").unwrap();
        assert_eq!(
            (options.threads, options.devices, options.min_bytes, options.max_bytes),
            (1, 1, 32 << 20, 32 << 20)
        );
        assert_eq!(
            (options.step_bytes, options.step_factor, options.iterations, options.aggregated),
            (1 << 20, 1, 20, 1)
        );
        assert_eq!((options.warmup, options.cycles, options.checks, options.average), (1, 1, 1, 1));
        assert_eq!((options.blocking, options.timeout, options.skip, options.unalign, options.root), (0, 0, 0, 0, 0));
        assert_eq!((options.types, options.ops), (vec![Type::Float], vec![Op::Sum]));
    }

    #[test]
    fn values_may_stick_to_their_letters_and_the_last_one_counts() {
        let options = parse("-b8 -e 128M -f2 -g4 -g2 -n5 -r-1").unwrap();
        assert_eq!((options.min_bytes, options.max_bytes, options.step_factor), (8, 128 << 20, 2));
        assert_eq!((options.devices, options.iterations, options.root), (2, 5, -1));
    }

    #[test]
    fn long_names_are_nccl_tests_names() {
        let options = parse(
            "--nthreads 2 --ngpus 2 --minbytes 8 --maxbytes 1K --stepbytes 8 --stepfactor 2 --iters 3 --agg_iters 2 \
             --warmup_iters 0 --run_cycles 2 --parallel_init 1 --check 2 --op all --datatype all --root 1 --blocking 3 \
             --stream_null 1 --timeout 9 --cudagraph 0 --report_cputime 1 --report_timestamps 1 --output_file a.json \
             --average 3 --local_register 2 --device_implementation 0 --memory 1 --unalign 1 --per_iter_timing 1 \
             --per_iter_skip 1 --device host",
        )
        .unwrap();
        assert_eq!((options.timeout, options.average, options.local_register), (9, 3, 2));
        assert_eq!(parse("--json b.json").unwrap().json, Some("b.json".into()));
        assert_eq!(parse("-J b.json").unwrap().json, Some("b.json".into()));
    }

    #[test]
    fn what_is_wrong_names_the_value_and_what_would_be_right() {
        for (line, words) in [
            ("-b -8", ["'-8'", "negative"]),
            ("-b x", ["'x'", "4K"]),
            ("-t 0", ["'0'", "from 1"]),
            ("-g -1", ["'-1'", "from 1"]),
            ("-f 0", ["'0'", "from 1"]),
            ("-f 0.5", ["'0.5'", "from 1"]),
            ("-n 99999999999999999999", ["'99999999999999999999'", "2147483647"]),
            ("-m 65537", ["'65537'", "65536"]),
            ("-z 4", ["'4'", "0, 1, 2, 3"]),
            ("-a x", ["'x'", "0, 1, 2, 3"]),
            ("-r -2", ["'-2'", "-1 for all"]),
            ("-p yes", ["'yes'", "0, 1"]),
            ("-o mulsum", ["'mulsum'", "sum, prod"]),
            ("-d f8", ["'f8'", "f8e5m2"]),
            ("-G 1", ["'1'", "leave -G out"]),
            ("-D 2", ["'2'", "leave -D out"]),
            ("-V 16", ["'16'", "leave -V out"]),
            ("-x 1", ["'1'", "leave -x out"]),
            ("--device cuda", ["'cuda'", "--device host"]),
            ("-R 3", ["'3'", "0, 1, 2"]),
        ] {
            let error = parse(line).expect_err(line);
            for word in words {
                assert!(error.contains(word), "{line}: {error}");
            }
        }
    }
}
