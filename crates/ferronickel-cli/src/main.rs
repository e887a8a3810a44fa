//! The command `ferronickel`; called as `all_reduce_perf`, it is `ferronickel perf all-reduce`.

mod command;
mod env;
mod exit;
mod perf;

use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    match command::run(std::env::args_os().collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err((program, failure)) => {
            if !failure.message.is_empty() {
                // There is nowhere else to say it.
                let _ = writeln!(io::stderr(), "{program}: {failure}");
            }
            ExitCode::from(failure.code as u8)
        }
    }
}
