//! Runs the built command.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};

/// The command with these arguments, and none of nccl-tests' or the library's variables.
pub fn command(args: &str) -> Command {
    plain(env!("CARGO_BIN_EXE_ferronickel"), args)
}

/// A program with these arguments, and none of nccl-tests' or the library's variables.
pub fn plain(program: impl AsRef<OsStr>, args: &str) -> Command {
    let mut command = Command::new(program);
    command.args(args.split_whitespace()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("NCCL_") || text.starts_with("FERRONICKEL_") {
            command.env_remove(&name);
        }
    }
    command
}

/// What the command did.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs it to its end.
pub fn run(command: &mut Command) -> Done {
    let Output { status, stdout, stderr } = command.output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("the output is text");
    Done { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// Runs `perf all-reduce` with these options to its end.
pub fn perf(options: &str) -> Done {
    run(&mut command(&format!("perf all-reduce {options}")))
}

/// The rows of a table.
pub fn rows(out: &str) -> Vec<Vec<&str>> {
    out.lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| line.split_whitespace().collect())
        .collect()
}
