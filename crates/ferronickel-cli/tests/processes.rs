//! The benchmark over several processes.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Done, command, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Runs `perf all-reduce` with these options in so many processes.
fn perf_in(processes: u32, options: &str) -> Done {
    let itself = env!("CARGO_BIN_EXE_ferronickel");
    run(&mut command(&format!("run -n {processes} -- {itself} perf all-reduce {options}")))
}

fn rows(done: &Done) -> usize {
    done.out.lines().filter(|line| line.starts_with("  ")).count()
}

#[test]
fn one_process_reports_for_all() {
    for (processes, options, ranks) in
        [(2, "-b 8 -e 1M -f 32", 2), (3, "-b 8 -e 32K -f 64 -d int32", 3), (2, "-t 2 -g 2 -b 8 -e 4K -f 8 -p 1", 8)]
    {
        let done = perf_in(processes, &format!("{options} -n 3 -w 1"));
        assert_eq!(done.code, Some(0), "{done:?}");
        let devices: Vec<_> = done.out.lines().filter(|line| line.contains("Host device")).collect();
        assert_eq!(devices.len(), ranks, "{}", done.out);
        for (rank, device) in devices.iter().enumerate() {
            assert!(device.starts_with(&format!("#  Rank {rank:2} ")) && device.contains(&format!("device {rank:2}")));
        }
        assert!(rows(&done) >= 2 && done.out.matches("# Out of bounds values : 0 OK").count() == 1, "{}", done.out);
    }
}

#[test]
fn every_collective_is_right_over_processes() {
    let itself = env!("CARGO_BIN_EXE_ferronickel");
    let collectives =
        "all-gather broadcast reduce reduce-scatter alltoall gather scatter sendrecv hypercube all_gather";
    for collective in collectives.split(' ') {
        let line = format!("run -n 4 -- {itself} perf {collective} -b 8 -e 2M -f 64 -n 2 -w 1 -r -1 -d bfloat16");
        let done = run(&mut command(&line));
        assert_eq!(done.code, Some(0), "{collective}: {done:?}");
        assert!(done.out.contains("# Out of bounds values : 0 OK"), "{collective}: {}", done.out);
    }
}

#[test]
fn every_blocking_mode_and_average_works() {
    for options in ["-z 1 -a 0", "-z 2 -a 2", "-z 3 -a 3", "-I 1 -K 1", "-t 2 -z 1"] {
        let done = perf_in(2, &format!("-b 64 -e 64 -n 5 -w 1 {options}"));
        assert_eq!((done.code, rows(&done)), (Some(0), 1), "{done:?}");
    }
}

#[test]
fn json_is_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.json");
    let done = perf_in(2, &format!("-b 8 -e 64 -f 8 -n 2 -w 1 --json {}", path.display()));
    assert_eq!(done.code, Some(0), "{done:?}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(report["results"].as_array().unwrap().len(), 2);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn memory_is_told_for_the_rank_that_has_most() {
    let done = perf_in(2, "--memory -b 8 -e 8 -n 2 -w 1");
    let line = done.out.lines().find(|line| line.starts_with("# Resident per rank    : ")).unwrap();
    let words: Vec<_> = line.split_whitespace().skip(5).collect();
    let [start, end] = [words[0], words[5]].map(|mebibytes| mebibytes.parse::<f64>().unwrap());
    assert_eq!([&words[1..5], &words[6..]].concat().join(" "), "MiB after init | MiB after the last size");
    assert!(start > 1.0 && start < 16.0 && end >= start && end < 16.0, "{line}");
}

#[test]
fn json_tells_the_memory_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.json");
    let done = perf_in(2, &format!("--memory -b 1M -e 1M -n 2 -w 1 --json {}", path.display()));
    assert_eq!(done.code, Some(0), "{done:?}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let bytes = |key: &str| report["memory"][key].as_u64().unwrap_or_else(|| panic!("{key} in {report}"));
    assert_eq!(bytes("user_allocated"), 2 << 20);
    assert_eq!(bytes("total"), bytes("initialization") + bytes("user_allocated"));
    let (start, end) = (bytes("resident_per_rank_after_init"), bytes("resident_per_rank_after_last_size"));
    assert!(start > 1 << 20 && end > 1 << 20 && start < 16 << 20, "{report}");
}

/// Runs a shell script in three ranks, and says how often a text is on standard error.
fn said(script: &str, text: &str) -> (Done, usize) {
    let mut command = command("run -n 3 -- sh -c");
    command.arg(script.replace("PERF", &perf_program())).env("FERRONICKEL_ANNOUNCE", "0");
    let done = run(&mut command);
    let times = done.err.matches(text).count();
    (done, times)
}

fn perf_program() -> String {
    format!("{} perf all-reduce", env!("CARGO_BIN_EXE_ferronickel"))
}

#[test]
fn what_all_know_is_said_once() {
    for (script, text, code) in [
        ("NCCL_TESTS_MIN_BW=1e9 exec PERF -b 8 -e 8 -n 2", "is below 90% of NCCL_TESTS_MIN_BW", 7),
        ("exec PERF -b 64M -e 64M -w 0 -n 4000 -c 0 -T 3", "Test timeout (3s)", 4),
        ("exec PERF -b 8 -e 8 -n $((5+$FERRONICKEL_RANK))", "started with other options than process 0", 6),
        ("exec PERF -b 1000T -e 1000T", "of memory that are available", 6),
        ("exec PERF -b 8 -e 8 -R 1", "nothing to register", 0),
    ] {
        let (done, times) = said(script, text);
        assert_eq!((done.code, times), (Some(code), 1), "{script}: {done:?}");
    }
}

#[test]
fn what_one_knows_is_said_once_and_ends_all() {
    for (script, text, code) in [
        ("exec PERF -b 8 -e 8 -J /nowhere/at/all.json", "cannot create the file", 6),
        ("[ $FERRONICKEL_RANK = 0 ] && exec >/dev/full; exec PERF -b 8 -e 8", "cannot write to standard output", 1),
        ("[ $FERRONICKEL_RANK = 2 ] && ulimit -v 6000000; exec PERF -b 1G -e 1G", "of memory that are", 6),
    ] {
        let (done, times) = said(script, text);
        assert_eq!((done.code, times), (Some(code), 1), "{script}: {done:?}");
        // and nothing that follows from it, but that the launcher names the first to end
        assert_eq!(done.err.matches("ferronickel: ").count(), 1, "{script}: {done:?}");
    }
}

#[test]
fn a_time_limit_is_said_though_the_process_that_reports_is_stopped() {
    let line = format!("run -n 2 --grace 1 -- {} -b 1M -e 1M -N 0 -T 2", perf_program());
    let mut launcher = command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap);
    let device = lines.find(|line| line.starts_with("#  Rank  0 ")).expect("a line for rank 0");
    let pid = device.split_whitespace().nth(6).unwrap().parse().unwrap();
    // From the first row on all are measuring.
    lines.find(|line| line.starts_with("     1048576 ")).expect("a row");
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    assert_eq!(lines.filter(|line| line.contains("concluded")).count(), 0);
    let output = launcher.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), err.matches("Test timeout (2s)").count()), (Some(4), 1), "{err}");
}

#[test]
fn options_that_differ_are_an_error_of_all() {
    let itself = env!("CARGO_BIN_EXE_ferronickel");
    let script = format!("exec {itself} perf all-reduce -b 8 -e 8 -n $((5+$FERRONICKEL_RANK))");
    let done = run(command("run -n 2 -- sh -c").arg(script));
    assert_eq!(done.code, Some(6), "{done:?}");
    assert!(done.err.contains("process 1 was started with other options than process 0"), "{}", done.err);
}

#[test]
fn a_process_that_is_killed_ends_all_and_is_named() {
    let itself = env!("CARGO_BIN_EXE_ferronickel");
    let script = format!(
        "if [ $FERRONICKEL_RANK = 1 ]; then (sleep 1; kill -9 $$) & fi; exec {itself} perf all-reduce -b 1M -e 1M -N 0"
    );
    let began = Instant::now();
    let done = run(command("run -n 3 -- sh -c").arg(script));
    assert_eq!(done.code, Some(128 + 9), "{done:?}");
    assert!(done.err.contains("rank 1 (pid ") && done.err.contains("was killed by signal 9 (SIGKILL)"), "{}", done.err);
    assert!(began.elapsed() < Duration::from_secs(20));
}
