//! The command line: which command is meant, and what to say when none is.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::env;
use crate::exit::Failure;
use crate::perf;
use crate::run;

/// The name of nccl-tests' program; called by it, the command is `perf all-reduce`.
const ALL_REDUCE_PERF: &str = "all_reduce_perf";

/// The name of the command.
const FERRONICKEL: &str = "ferronickel";

const EXIT_CODES: &str = "\
Exit codes: 0 all is well; 1 the system refused something; 2 a device failed; 3 a call of the library failed;
4 timeout; 6 the command line is wrong; 7 results are wrong, or slower than NCCL_TESTS_MIN_BW; 141 standard
output was closed before all was written. `run` ends as the first rank that failed, with 128 and the number of
the signal that killed it, or with 127 if there is no such program, 126 if it cannot be executed.";

const PERF_NOTES: &str = "\
Variables: NCCL_TESTS_MIN_BW (the least mean bus bandwidth in GB/s, of which 90% must be reached),
NCCL_TESTS_DEVICE (the device of rank 0), and those that `ferronickel env` lists.
-z with -m: the wait follows the group. Results are checked to the bit; averages of floats to 2 units in the
last place.";

/// Collective communication between devices, honest about the road the data took.
#[derive(Debug, Parser)]
#[command(name = FERRONICKEL, version, propagate_version = false, infer_long_args = true, after_help = EXIT_CODES)]
struct Ferronickel {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
enum Command {
    /// Benchmark a collective, with nccl-tests' options and table
    #[command(disable_help_subcommand = true)]
    Perf {
        #[command(subcommand)]
        collective: Collective,
    },
    /// Start ranks on this host, and end them all when one fails
    Run(run::Options),
    /// Show every variable: its value, where it came from, its default, and what it means
    Env(env::Options),
}

#[derive(Debug, Subcommand)]
enum Collective {
    /// Every rank gets the reduction of what all ranks have
    #[command(visible_alias = "all_reduce", alias = "all_reduce_perf", infer_long_args = true)]
    #[command(after_help = PERF_NOTES, after_long_help = [PERF_NOTES, "\n\n", EXIT_CODES].concat())]
    AllReduce(Box<perf::Options>),
}

/// nccl-tests' program.
#[derive(Debug, Parser)]
#[command(name = ALL_REDUCE_PERF, infer_long_args = true)]
#[command(about = "Benchmark an all-reduce, with nccl-tests' options and table")]
#[command(after_help = PERF_NOTES, after_long_help = [PERF_NOTES, "\n\n", EXIT_CODES].concat())]
struct AllReducePerf {
    #[command(flatten)]
    options: perf::Options,
}

/// Does what the arguments say. A failure comes with the name of the program that speaks.
pub fn run(args: Vec<OsString>) -> Result<ExitCode, (&'static str, Failure)> {
    let called = args.first().map(Path::new).and_then(Path::file_name);
    if called == Some(OsStr::new(run::GUARD)) {
        run::guard();
        return Ok(ExitCode::SUCCESS);
    }
    if called == Some(OsStr::new(ALL_REDUCE_PERF)) {
        return as_all_reduce_perf(args).map_err(|failure| (ALL_REDUCE_PERF, failure));
    }
    as_ferronickel(args).map_err(|failure| (FERRONICKEL, failure))
}

fn as_all_reduce_perf(args: Vec<OsString>) -> Result<ExitCode, Failure> {
    if let Some(AllReducePerf { options }) = parse::<AllReducePerf>(args)? {
        perf::all_reduce(options, ALL_REDUCE_PERF)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_ferronickel(args: Vec<OsString>) -> Result<ExitCode, Failure> {
    match parse::<Ferronickel>(args)?.map(|parsed| parsed.command) {
        Some(Command::Perf { collective: Collective::AllReduce(options) }) => perf::all_reduce(*options, FERRONICKEL)?,
        Some(Command::Run(options)) => return run::run(&options),
        Some(Command::Env(options)) => env::run(&options)?,
        None => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the arguments; None if they asked for help or the version, which is printed then.
fn parse<P: CommandFactory + FromArgMatches>(args: Vec<OsString>) -> Result<Option<P>, Failure> {
    let mut command = P::command();
    let parsed = command.try_get_matches_from_mut(&args).and_then(|matches| P::from_arg_matches(&matches));
    let error = match parsed {
        Ok(parsed) => return Ok(Some(parsed)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = error.render().to_string();
            let mut out = io::stdout().lock();
            let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            printed.map(|()| None).map_err(|error| Failure::output(&error))
        }
        ErrorKind::InvalidSubcommand
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Err(wrong_command(&command, &args)),
        _ => Err(in_one_line(&error)),
    }
}

/// There is no such command, or none at all: says which ones there are.
fn wrong_command(command: &clap::Command, args: &[OsString]) -> Failure {
    let mut parent = command;
    let mut words = args.iter().skip(1).map(|word| word.to_string_lossy());
    let wrong = loop {
        let Some(word) = words.next() else { break None };
        match parent.find_subcommand(&*word) {
            Some(found) => parent = found,
            None => break Some(word),
        }
    };
    let names: Vec<_> = parent.get_subcommands().map(clap::Command::get_name).collect();
    let choice = match names[..] {
        [only] => format!("the only one is {only}"),
        _ => format!("choose one of {}", names.join(", ")),
    };
    let of = if std::ptr::eq(parent, command) { String::new() } else { format!(" of {}", parent.get_name()) };
    Failure::usage(match wrong {
        Some(word) => format!("there is no command '{word}'{of}; {choice}"),
        None => format!("a command{of} is needed; {choice}"),
    })
}

/// What is wrong with the arguments, in one line and a hint.
fn in_one_line(error: &clap::Error) -> Failure {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let message = match (error.kind(), text(ContextKind::InvalidArg), text(ContextKind::SuggestedArg)) {
        (ErrorKind::UnknownArgument, Some(argument), _) if !argument.starts_with('-') => {
            format!("'{argument}' is one argument too many, since there are only options here")
        }
        (ErrorKind::UnknownArgument, Some(argument), Some(suggestion)) => {
            format!("there is no option '{argument}'; did you mean '{suggestion}'?")
        }
        (ErrorKind::UnknownArgument, Some(argument), None) => format!("there is no option '{argument}'"),
        _ => {
            let rendered = error.to_string();
            let lines: Vec<_> = rendered.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            lines.join(" ").trim_start_matches("error: ").to_owned()
        }
    };
    Failure::usage(message).with_hint("--help lists the options and what they take")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    fn refused(line: &str) -> Failure {
        let (_, failure) = run(line.split_whitespace().map(OsString::from).collect()).expect_err(line);
        assert_eq!(failure.code, Code::Usage, "{line}");
        assert!(!failure.message.contains('\n'), "{line}: {}", failure.message);
        failure
    }

    #[test]
    fn the_definitions_hold_together() {
        Ferronickel::command().debug_assert();
        AllReducePerf::command().debug_assert();
    }

    #[test]
    fn a_wrong_command_is_answered_with_the_right_ones() {
        for (line, message) in [
            ("ferronickel", "a command is needed; choose one of perf, run, env"),
            ("ferronickel bench", "there is no command 'bench'; choose one of perf, run, env"),
            ("ferronickel perf", "a command of perf is needed; the only one is all-reduce"),
            ("ferronickel perf all-gather", "there is no command 'all-gather' of perf; the only one is all-reduce"),
        ] {
            assert_eq!(refused(line).message, message);
        }
    }

    #[test]
    fn a_wrong_option_is_one_line_that_names_it() {
        for (line, words) in [
            ("ferronickel perf all-reduce --minbyte 8 --foo", ["'--foo'", "no option"]),
            ("ferronickel perf all-reduce -q", ["'-q'", "no option"]),
            ("ferronickel perf all-reduce stray", ["'stray'", "one argument too many"]),
            ("ferronickel perf all-reduce --opp sum", ["'--opp'", "did you mean '--op'"]),
            ("ferronickel perf all-reduce -o", ["--op", "none was supplied"]),
            ("all_reduce_perf -b nonsense", ["'nonsense'", "4K"]),
            ("/usr/bin/all_reduce_perf -b 8 -e 4", ["-e 4", "-b 8"]),
            ("ferronickel env --yaml", ["'--yaml'", "no option"]),
        ] {
            let failure = refused(line);
            for word in words {
                assert!(failure.message.contains(word), "{line}: {failure}");
            }
        }
    }
}
