//! The command `ferronickel`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferronickel_cli::main()
}
