//! `ferronickel perf`: benchmarks with the options, the table and the exit codes of nccl-tests.

mod calls;
mod collective;
mod data;
mod json;
mod kind;
mod measure;
mod meeting;
mod memory;
mod number;
mod options;
mod processes;
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

pub use self::collective::Kind;
use self::collective::Library;
pub use self::options::Options;
use self::processes::Processes;
use self::settings::Settings;
use crate::exit::{Failure, say};

/// Runs the benchmark of a collective.
pub fn run(kind: Kind, options: Options, program: &str) -> Result<(), Failure> {
    let settings = Settings::new(kind, options, |name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))?;
    let config = Config::from_environment();
    let processes = Processes::find(&config)?;
    for note in settings.notes.iter().filter(|_| processes.reports()) {
        say(format_args!("{program}: {note}"));
    }
    let (mut stdout, mut sink) = (io::stdout(), io::sink());
    let out: &mut (dyn Write + Send) = if processes.reports() { &mut stdout } else { &mut sink };
    run::run(&settings, &config, &processes, &Library(kind), out, program)
}
