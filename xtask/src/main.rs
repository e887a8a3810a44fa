//! Commands for the developers of ferronickel: `cargo xtask --help`.

mod compare;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Commands for the developers of ferronickel")]
struct Command {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Time ferronickel's collectives beside those of MPI libraries, in one run
    Compare(compare::Options),
}

fn main() -> ExitCode {
    let Task::Compare(options) = Command::parse().task;
    match compare::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cargo xtask compare: {message}");
            ExitCode::FAILURE
        }
    }
}
