//! The command `ferronickel`, as a library so that its documentation has a name of its own; called as
//! `all_reduce_perf`, the command is `ferronickel perf all-reduce`.

mod command;
mod env;
mod exit;
mod file_limit;
mod perf;
mod run;

use std::process::ExitCode;

/// Runs the command with this process's arguments and gives the code to exit with.
pub fn main() -> ExitCode {
    file_limit::ignore();
    match command::run(std::env::args_os().collect()) {
        Ok(code) => code,
        Err((program, failure)) => {
            failure.say(program);
            ExitCode::from(failure.code as u8)
        }
    }
}
