//! `ferronickel perf all-reduce` as a process: its table, its JSON, and how it ends.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{command, perf, plain, rows, run};
use serde_json::Value;

/// The table with everything that differs from run to run replaced by letters of the same width.
fn normalised(out: &str) -> String {
    let row = |line: &str| {
        let (left, right) = line.split_at(52);
        let letters = right.chars().enumerate().map(|(at, character)| match at % 33 {
            // Two spaces stand before each of the four fields of a half; the last is the number of wrong elements.
            0 | 1 | 9 | 10 | 17 | 18 | 25..33 => character,
            2..9 => 't',
            _ => 'b',
        });
        left.chars().chain(letters).collect::<String>()
    };
    let device = |line: &str| {
        let (left, _) = line.split_once(" Pid").expect("a pid");
        let (_, right) = line.split_once(" device").expect("a device");
        format!("{left} Pid PID on HOST device{right}")
    };
    let line = |line: &str| match line {
        line if line.starts_with("#  Rank") => device(line),
        line if line.starts_with("# Avg bus bandwidth    : ") => "# Avg bus bandwidth    : GB/s ".to_owned(),
        line if line.starts_with("# ferronickel perf ") => line.replace(env!("CARGO_PKG_VERSION"), "VERSION"),
        line if line.starts_with("  ") => row(line),
        line => line.to_owned(),
    };
    out.lines().map(|text| line(text) + "|\n").collect()
}

#[test]
fn the_table_looks_like_nccl_tests() {
    let done = perf("-b 8 -e 128K -f 16 -g 2 -n 2");
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    insta::assert_snapshot!(normalised(&done.out));
}

#[test]
fn called_by_the_name_of_nccl_tests_program_it_is_that_program() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("all_reduce_perf");
    symlink(env!("CARGO_BIN_EXE_ferronickel"), &link).unwrap();
    let done = run(&mut plain(&link, "-b8 -e8 -g2 -n1"));
    assert_eq!((done.code, done.err.as_str(), rows(&done.out).len()), (Some(0), "", 1));
    let done = run(&mut plain(&link, "-o mulsum"));
    assert!(done.code == Some(6) && done.err.starts_with("all_reduce_perf: "), "{done:?}");
    let done = run(&mut plain(&link, "-h"));
    assert!(done.code == Some(0) && done.out.contains("Usage: all_reduce_perf"), "{done:?}");
}

#[test]
fn all_types_and_operations_are_right() {
    for ranks in ["-g 2", "-t 3", "-g 5"] {
        let done = perf(&format!("-b 1000 -e 1000 -n 1 -d all -o all {ranks}"));
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{}", done.out);
        let rows = rows(&done.out);
        assert_eq!(rows.len(), 60);
        assert!(rows.iter().all(|row| row[8] == "0" && row[12] == "0"), "{}", done.out);
        assert_eq!((rows[0][2], rows[0][3], rows[59][2], rows[59][3]), ("int8", "sum", "f8e5m2", "avg"));
    }
}

#[test]
fn threads_drive_groups_of_devices() {
    for options in [
        "-t 2 -g 2",
        "-t 2 -g 2 -p 1",
        "-t 4 -p 1 -m 3",
        "-t 2 -g 2 -z 1",
        "-t 2 -z 2 -I 1 -K 1",
        "-t 2 -z 3 -a 0",
        "-g 4 -u 3 -c 2 -a 2",
        "-t 2 -N 2 -w 0 -C 1 -a 3",
        "-g 1",
    ] {
        let done = perf(&format!("-b 4 -e 4K -f 32 -n 3 {options}"));
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{options}: {}", done.out);
        let cycles = if options.contains("-N 2") { 2 } else { 1 };
        assert_eq!(rows(&done.out).len(), 3 * cycles, "{options}: {}", done.out);
        assert!(done.out.contains("# Out of bounds values : 0 OK\n"), "{options}: {}", done.out);
    }
}

#[test]
fn sizes_may_be_odd_or_hold_nothing() {
    let done = perf("-b 0 -e 21 -i 7 -g 2 -n 2");
    assert_eq!(done.code, Some(0), "{done:?}");
    let sizes: Vec<_> = rows(&done.out).iter().map(|row| (row[0].to_owned(), row[1].to_owned())).collect();
    assert_eq!(sizes, [("0", "0"), ("4", "1"), ("12", "3"), ("20", "5")].map(|(a, b)| (a.into(), b.into())));
}

#[test]
fn unchecked_says_so() {
    let done = perf("-b 8 -e 8 -g 2 -n 1 -c 0");
    let rows = rows(&done.out);
    assert_eq!((done.code, rows[0][8], rows[0][12]), (Some(0), "N/A", "N/A"));
}

#[test]
fn more_columns_are_there_when_asked_for() {
    let done = perf("-b 8 -e 8 -g 2 -n 3 -I 1 -S 1 -C 1 -M 1");
    assert_eq!(done.code, Some(0));
    let rows = rows(&done.out);
    assert_eq!(rows[0].len(), 5 + 2 * 8 + 2, "{}", done.out);
    for text in ["i_p99", "timestamp", "cputime", "# Host memory usage    : "] {
        assert!(done.out.contains(text), "{text}: {}", done.out);
    }
}

#[test]
fn an_absurd_size_is_reduced_and_said() {
    // The step leaves the first size alone, so that the test does not fill the machine.
    let done = perf("-b 8 -e 1000T -f 1000000000000 -g 2 -n 1");
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.out.contains("\n# Reducing maxBytes to "), "{}", done.out);
    assert_eq!(rows(&done.out).len(), 1);
}

#[test]
fn the_bandwidth_has_to_be_reached() {
    let options = "perf all-reduce -b 8 -e 8 -g 2 -n 1";
    let done = run(command(options).env("NCCL_TESTS_MIN_BW", "1e9"));
    assert_eq!(done.code, Some(7));
    assert!(done.out.contains(" FAILED\n") && done.err.contains("NCCL_TESTS_MIN_BW"), "{done:?}");
    let done = run(command(options).env("NCCL_TESTS_MIN_BW", "0"));
    assert_eq!(done.code, Some(0));
    assert!(done.out.lines().any(|line| line.starts_with("# Avg bus bandwidth") && line.ends_with(" OK")), "{done:?}");
}

#[test]
fn the_first_device_can_be_chosen() {
    let done = run(command("perf all-reduce -b 8 -e 8 -g 2 -n 1").env("NCCL_TESTS_DEVICE", "3"));
    assert!(done.out.contains(" device  3 ") && done.out.contains(" device  4 "), "{}", done.out);
}

#[test]
fn what_needs_no_doing_is_noted() {
    let done = perf("-b 8 -e 8 -g 2 -n 1 -R 1 -y 1");
    assert_eq!(done.code, Some(0));
    assert_eq!(done.err.lines().count(), 2, "{}", done.err);
}

#[test]
fn json_is_well_formed_and_has_the_same_figures() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.json");
    let line = format!("-b 8 -e 128 -f 4 -g 2 -n 3 -I 1 -J {}", path.display());
    let done = perf(&line);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert!(done.out.starts_with(&format!("# Writing JSON output to {}\n", path.display())), "{}", done.out);
    let report: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let keys: Vec<_> = report.as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        keys,
        [
            "version",
            "start_time",
            "args",
            "env",
            "nccl_version",
            "ferronickel_version",
            "config",
            "results",
            "out_of_bounds",
            "average_bus_bandwidth",
            "errors",
            "end_time"
        ]
    );
    let results = report["results"].as_array().unwrap();
    let rows = rows(&done.out);
    assert_eq!(results.len(), rows.len());
    for (result, row) in results.iter().zip(&rows) {
        assert_eq!(result["size"].to_string(), row[0]);
        assert_eq!(result["in_place"]["nwrong"], 0);
        assert_eq!(result["out_of_place_per_iter"]["times_us"].as_array().unwrap().len(), 3);
    }
    assert_eq!(report["config"]["devices"].as_array().unwrap().len(), 2);
    // A second run does not touch the first one's file.
    let before = fs::read(&path).unwrap();
    assert_eq!(perf(&line).code, Some(0));
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(directory.path().join("out.json.0").exists());
}

#[test]
fn a_json_file_that_cannot_be_written_is_said_before_the_run() {
    let done = perf("-b 8 -e 8 -g 2 -J /nowhere/at/all.json");
    assert_eq!((done.code, done.out.as_str(), done.err.lines().count()), (Some(6), "", 1), "{done:?}");
    assert!(done.err.contains("/nowhere/at/all.json"));
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    let mut child = command("perf all-reduce -b 8 -e 8M -f 2 -t 2 -N 0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..12 {
        lines.next().unwrap().unwrap();
    }
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(141), ""));
}

#[test]
fn a_full_disk_is_said() {
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let done = run(command("perf all-reduce -b 8 -e 8 -g 2").stdout(full));
    assert_eq!((done.code, done.err.lines().count()), (Some(1), 1), "{done:?}");
    assert!(done.err.contains("cannot write to standard output"), "{done:?}");
}

#[test]
fn a_run_that_takes_too_long_is_a_timeout() {
    let done = perf("-b 16M -e 16M -g 2 -n 4000 -c 0 -T 1");
    assert_eq!((done.code, done.err.as_str()), (Some(4), "ferronickel: Test timeout (1s)\n"), "{done:?}");
}

#[test]
fn a_file_of_results_that_grows_too_large_is_said_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("results.json");
    let mut shell = plain("sh", "-c");
    shell.arg("ulimit -f 1; exec \"$0\" perf all-reduce -b 8 -e 8 -n 1 -w 0 -J \"$1\"");
    let done = run(shell.arg(env!("CARGO_BIN_EXE_ferronickel")).arg(&path));
    assert_eq!((done.code, done.err.lines().count()), (Some(1), 1), "{done:?}");
    assert!(done.err.contains("results.json") && done.err.contains("File too large"), "{done:?}");
}

#[test]
fn want_of_descriptors_is_said_soon_and_before_what_follows_from_it() {
    let mut ended_well = Vec::new();
    // At some point on the way it is enough.
    for limit in (6..32).step_by(2).chain([48, 64]) {
        let mut shell = plain("sh", "-c");
        shell.arg(format!("ulimit -n {limit}; exec \"$0\" perf all-reduce -t 4 -n 2 -w 1 -b 8 -e 8"));
        shell.arg(env!("CARGO_BIN_EXE_ferronickel")).env("FERRONICKEL_ANNOUNCE", "0");
        let began = Instant::now();
        let done = run(shell.env("NCCL_P2P_DISABLE", "1").env("NCCL_SHM_DISABLE", "1"));
        assert!(began.elapsed() < Duration::from_secs(20), "{limit}: {done:?}");
        ended_well.push(done.code == Some(0));
        if done.code != Some(0) {
            let said = done.err.contains("Too many open files") && done.err.contains("ulimit -n");
            assert!(said && done.err.lines().count() == 1, "{limit}: {done:?}");
        }
    }
    assert!(!ended_well[0] && ended_well.contains(&true), "{ended_well:?}");
}
