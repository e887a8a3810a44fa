//! The command line: which command is meant, and what to say when none is.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::env;
use crate::exit::Failure;
use crate::perf::{self, Kind};
use crate::run;

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

macro_rules! collectives {
    ($($(#[$doc:meta])* $name:ident: $word:literal [$($alias:literal)*] $program:literal;)*) => {
        #[derive(Debug, Subcommand)]
        enum Collective {
            $(
                $(#[$doc])*
                #[command(name = $word, visible_aliases = [$($alias,)*] as [&str; _], alias = $program, infer_long_args = true)]
                #[command(after_help = PERF_NOTES, after_long_help = [PERF_NOTES, "\n\n", EXIT_CODES].concat())]
                $name(Box<perf::Options>),
            )*
        }

        impl Collective {
            fn run(self) -> Result<(), Failure> {
                match self {
                    $(Collective::$name(options) => perf::run(Kind::$name, *options, FERRONICKEL),)*
                }
            }
        }

        /// The programs of nccl-tests; called by the name of one, the command is that.
        const PROGRAMS: &[Kind] = &[$(Kind::$name,)*];
    };
}

collectives! {
    /// Every rank gets the reduction of what all ranks have
    AllReduce: "all-reduce" ["all_reduce"] "all_reduce_perf";
    /// Every rank gets what all ranks have
    AllGather: "all-gather" ["all_gather"] "all_gather_perf";
    /// Every rank gets what the root has
    Broadcast: "broadcast" [] "broadcast_perf";
    /// The root gets the reduction of what all ranks have
    Reduce: "reduce" [] "reduce_perf";
    /// Every rank gets its part of the reduction of what all ranks have
    ReduceScatter: "reduce-scatter" ["reduce_scatter"] "reduce_scatter_perf";
    /// Every rank sends a part of what it has to every rank
    AllToAll: "alltoall" ["all-to-all"] "alltoall_perf";
    /// The root gets what all ranks have
    Gather: "gather" [] "gather_perf";
    /// Every rank gets its part of what the root has
    Scatter: "scatter" [] "scatter_perf";
    /// Every rank sends to the next
    SendRecv: "sendrecv" [] "sendrecv_perf";
    /// All-gather by messages, in log n steps; ranks are a power of two, each in a thread or process of its own
    Hypercube: "hypercube" [] "hypercube_perf";
}

/// A program of nccl-tests.
#[derive(Debug, Parser)]
#[command(infer_long_args = true, about = "Benchmark a collective, with nccl-tests' options and table")]
#[command(after_help = PERF_NOTES, after_long_help = [PERF_NOTES, "\n\n", EXIT_CODES].concat())]
struct Program {
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
    if let Some(&kind) = PROGRAMS.iter().find(|kind| called == Some(OsStr::new(kind.program()))) {
        return as_program(kind, args).map_err(|failure| (kind.program(), failure));
    }
    as_ferronickel(args).map_err(|failure| (FERRONICKEL, failure))
}

fn as_program(kind: Kind, args: Vec<OsString>) -> Result<ExitCode, Failure> {
    let command = Program::command().name(kind.program()).bin_name(kind.program());
    if let Some(Program { options }) = parse::<Program>(command, args)? {
        perf::run(kind, options, kind.program())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_ferronickel(args: Vec<OsString>) -> Result<ExitCode, Failure> {
    match parse::<Ferronickel>(Ferronickel::command(), args)?.map(|parsed| parsed.command) {
        Some(Command::Perf { collective }) => collective.run()?,
        Some(Command::Run(options)) => return run::run(&options),
        Some(Command::Env(options)) => env::run(&options)?,
        None => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the arguments; None if they asked for help or the version, which is printed then.
fn parse<P: FromArgMatches>(mut command: clap::Command, args: Vec<OsString>) -> Result<Option<P>, Failure> {
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
        Program::command().debug_assert();
    }

    const ALL: &str =
        "all-reduce, all-gather, broadcast, reduce, reduce-scatter, alltoall, gather, scatter, sendrecv, hypercube";

    #[test]
    fn a_wrong_command_is_answered_with_the_right_ones() {
        for (line, message) in [
            ("ferronickel", "a command is needed; choose one of perf, run, env"),
            ("ferronickel bench", "there is no command 'bench'; choose one of perf, run, env"),
            ("ferronickel perf", &format!("a command of perf is needed; choose one of {ALL}")),
            ("ferronickel perf allgather", &format!("there is no command 'allgather' of perf; choose one of {ALL}")),
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
