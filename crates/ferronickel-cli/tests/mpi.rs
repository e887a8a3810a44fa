//! The benchmark under the launchers of Open MPI and MPICH, where they are installed.

mod common;

use std::process::{Command, Stdio};

use common::{Done, plain, rows, run};

/// The launchers, by the names that tell them apart where both are installed, and what lets each start four ranks on
/// a small machine, whoever asks.
const LAUNCHERS: [(&str, &str); 2] = [("mpirun.openmpi", "--oversubscribe -np 4"), ("mpirun.mpich", "-np 4")];

/// Runs `perf all-reduce` under each launcher that is there.
fn under_each(options: &str, variable: Option<(&str, &str)>, check: impl Fn(&str, Done)) {
    for (launcher, launch) in LAUNCHERS {
        if Command::new(launcher).arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("skipped: there is no {launcher}");
            continue;
        }
        let itself = env!("CARGO_BIN_EXE_ferronickel");
        let mut command = plain(launcher, &format!("{launch} {itself} perf all-reduce {options}"));
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("FERRONICKEL_ANNOUNCE", "0").envs(variable);
        check(launcher, run(&mut command));
    }
}

#[test]
fn four_ranks_run_and_one_reports() {
    under_each("-b 8 -e 64K -f 16 -n 3 -w 1", None, |launcher, done| {
        assert_eq!((done.code, rows(&done.out).len()), (Some(0), 4), "{launcher}: {done:?}");
        let devices: Vec<_> = done.out.lines().filter(|line| line.contains("Host device")).collect();
        assert!(devices.len() == 4 && devices[3].starts_with("#  Rank  3 "), "{launcher}: {done:?}");
        assert_eq!(done.out.matches("# Out of bounds values : 0 OK").count(), 1, "{launcher}: {done:?}");
    });
}

#[test]
fn a_verdict_is_said_once_and_is_the_exit_code() {
    under_each("-b 8 -e 8 -n 2", Some(("NCCL_TESTS_MIN_BW", "1e9")), |launcher, done| {
        let times = done.err.matches("is below 90% of NCCL_TESTS_MIN_BW").count();
        assert_eq!((done.code, times), (Some(7), 1), "{launcher}: {done:?}");
    });
}

#[test]
fn a_time_limit_is_said_once_and_is_the_exit_code() {
    under_each("-b 64M -e 64M -w 0 -n 4000 -c 0 -T 3", None, |launcher, done| {
        let times = done.err.matches("Test timeout (3s)").count();
        assert_eq!((done.code, times), (Some(4), 1), "{launcher}: {done:?}");
    });
}
