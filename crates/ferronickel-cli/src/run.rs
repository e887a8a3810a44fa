//! `ferronickel run`: starts ranks on this host, passes signals on to them, and ends them all when one fails.
//!
//! The launcher makes the unique id, and so hosts the meeting of the ranks, unless `NCCL_COMM_ID` says where they meet;
//! it stays until all of them have ended.
//! Nothing passes through it: the ranks have its standard output and error, and rank 0 its standard input.

mod binding;
mod guard;
mod orphans;
mod ranks;
mod signals;
mod supervise;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ferronickel::config::variables;
use ferronickel::{Config, UniqueId};

pub use self::guard::{GUARD, guard};
use self::ranks::{Ranks, Start};
use self::signals::Signals;
use crate::exit::{Code, Failure};

/// More ranks than any host has use for.
const MOST_RANKS: usize = 65_536;

/// Options of `run`.
#[derive(Args, Debug)]
pub struct Options {
    /// How many ranks to start
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = parse_ranks)]
    ranks: usize,
    /// Which processors each rank may use: its share of the cores where there are enough, or any
    #[arg(long, value_enum, default_value_t = Bind::Cores)]
    bind: Bind,
    /// How long ranks have to end once another has failed, before they are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = parse_seconds)]
    grace: u32,
    /// The program that every rank runs, and its arguments
    #[arg(value_name = "CMD", required = true, num_args = 1.., trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// What ranks are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bind {
    /// Each to its share of the cores, if there are as many as ranks
    Cores,
    /// Nothing
    None,
}

/// Runs the ranks to their end; the exit code is that of the first that failed.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| Failure::new(Code::System, format!("{what}: {error}"));
    // Before any other thread is there, so that all of them leave the signals to this one.
    let signals = Signals::take().map_err(|error| failed("cannot wait for signals", &error))?;
    orphans::adopt();
    // Who says where ranks meet wants rank 0 to listen there, not this process.
    let meet_elsewhere = Config::from_environment().text(&variables::COMM_ID).is_set();
    let id = (!meet_elsewhere).then(UniqueId::new).transpose();
    let id = id.map_err(|error| Failure::new(Code::Library, error.to_string()))?;
    let shares = match options.bind {
        Bind::Cores => binding::shares(options.ranks),
        Bind::None => None,
    };
    let start =
        Start { command: &options.command, ranks: options.ranks, id: id.as_ref(), shares, mask: signals.before() };
    let mut ranks = Ranks::start(&start)?;
    let grace = Duration::from_secs(options.grace.into());
    let ended = supervise::supervise(&mut ranks, &signals, grace);
    ended.map(ExitCode::from).map_err(|error| failed("cannot wait for the ranks", &error))
}

fn parse_ranks(text: &str) -> Result<usize, String> {
    let ranks = text.parse().ok().filter(|ranks| (1..=MOST_RANKS).contains(ranks));
    ranks.ok_or_else(|| format!("an integer from 1 to {MOST_RANKS} would be right"))
}

fn parse_seconds(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "a whole number of seconds would be right, 0 to kill at once".to_owned())
}
