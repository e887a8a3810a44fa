//! `ferronickel perf`: benchmarks with the options, the table and the exit codes of nccl-tests.

mod calls;
mod data;
mod json;
mod kind;
mod measure;
mod meeting;
mod memory;
mod number;
mod options;
mod report;
mod run;
mod settings;
mod size;
mod statistics;
mod supervisor;
mod table;
mod timing;
mod verify;
mod worker;

use std::io::{self, Write};

use ferronickel::Config;

pub use self::options::Options;
use self::settings::Settings;
use crate::exit::Failure;

/// Runs `perf all-reduce`.
pub fn all_reduce(options: Options, program: &str) -> Result<(), Failure> {
    let settings = Settings::new(options, |name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))?;
    for note in &settings.notes {
        // Whoever closed standard error does not want the note.
        let _ = writeln!(io::stderr(), "{program}: {note}");
    }
    run::run(&settings, &Config::from_environment(), &calls::AllReduce, &mut io::stdout())
}
