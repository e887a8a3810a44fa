//! The log of a whole process: each test starts this test program again as a child whose log it reads.

use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use super::*;

/// Names the part that the child plays.
const PART: &str = "LOG_TEST_PART";

/// Ends what the test program says before the child's part begins.
const BEGIN: &str = "--- the child begins";

/// The child: does one thing with the log and leaves. As a test of its own it does nothing.
#[test]
fn child() {
    let Ok(part) = std::env::var(PART) else { return };
    println!("{BEGIN}");
    match part.as_str() {
        "announce" => {
            init(&Config::from_environment());
            announce("SHM instead of P2P");
            assert_eq!(last_warning(), "");
        }
        "closed" => write_to_closed_pipe(),
        "limited" => write_beyond_the_limit(),
        "lines" => {
            start();
            info!(3_usize, Subsys::INIT | Subsys::P2P, "shown {}", 1);
            info!(None::<i32>, Subsys::GRAPH, "hidden {}", 2);
            warn!(0, "went {}", "wrong");
            info!(0, Subsys::INIT, "after");
            assert_eq!(last_warning(), "went wrong");
        }
        "pid" => {
            start();
            info!(-1, Subsys::INIT, "hello");
            info!(-1, Subsys::INIT, "again");
            println!("pid={}", std::process::id());
        }
        "threads" => {
            start();
            std::thread::scope(|scope| {
                for thread in 0..8 {
                    scope.spawn(move || {
                        for line in 0..50 {
                            // Longer than a pipe takes in one piece.
                            info!(thread, Subsys::INIT, "{thread}.{line} {} end", "x".repeat(6000));
                        }
                    });
                }
            });
        }
        part => panic!("no such part: {part}"),
    }
    // The test program's own words about this test are not wanted in the output.
    std::process::exit(0);
}

fn start() {
    let config = Config::from_environment();
    init(&config);
    log_settings(&config);
    log_settings(&config);
    version!("NCCL version {}", "2.30.7");
}

/// A log into a pipe that nobody reads, in a process that a SIGPIPE would kill.
fn write_to_closed_pipe() {
    let mut ends = [0; 2];
    // SAFETY: the array takes two descriptors, the read end is closed once, and the default of a signal may be restored.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(libc::dup2(ends[1], 1), 1);
        assert_eq!(libc::close(ends[0]), 0);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    start();
    info!(0, Subsys::INIT, "nobody reads this");
    warn!(0, "nor this");
    assert!(!is_pending(libc::SIGPIPE), "the signal must not wait for the caller either");
    eprintln!("still here");
}

/// A log, and memory to share, that are larger than files may be, in a process that a SIGXFSZ would kill.
fn write_beyond_the_limit() {
    let limit = libc::rlimit { rlim_cur: 100, rlim_max: 100 };
    // SAFETY: the limit is valid for the call, and the default of a signal may be restored.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
    }
    start();
    info!(0, Subsys::INIT, "{}", "x".repeat(200));
    info!(0, Subsys::INIT, "nobody reads this");
    let shared = crate::device::region::Region::shared(4096);
    assert_eq!(shared.err(), Some(rustix::io::Errno::FBIG));
    assert!(!is_pending(libc::SIGXFSZ), "the signal must not wait for the caller either");
    eprintln!("still here");
}

fn is_pending(signal: i32) -> bool {
    // SAFETY: the set is valid for the calls.
    unsafe {
        let mut pending = std::mem::zeroed();
        libc::sigpending(&raw mut pending);
        libc::sigismember(&raw const pending, signal) != 0
    }
}

fn command(part: &str, environment: &[(&str, &str)]) -> Command {
    let module = module_path!().split_once("::").unwrap().1;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{module}::child"), "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NCCL_") || name.to_string_lossy().starts_with("FERRONICKEL_") {
            command.env_remove(name);
        }
    }
    command.env("HOME", "/nonexistent").env(PART, part).envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What the child wrote to its outputs and the log, with the numbers that differ each time replaced.
fn run(part: &str, environment: &[(&str, &str)]) -> (String, String) {
    let mut child = command(part, environment);
    let Output { status, stdout, stderr } = child.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    let (_, stdout) = stdout.split_once(&format!("{BEGIN}\n")).unwrap();
    (stdout.to_owned(), stderr)
}

/// Host, process, thread, line and time differ each time.
fn normalised(log: &str) -> String {
    let host = format::host(&rustix::system::uname().nodename().to_string_lossy());
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut lines = String::new();
    for line in log.lines() {
        let words = line.split(' ').map(|word| match word.split(':').collect::<Vec<_>>()[..] {
            [start, pid, tid] if start == host && number(pid) && number(tid) => "HOST:PID:TID".to_owned(),
            [file, line] if number(line) && file.ends_with(".rs") => format!("{file}:LINE"),
            [start, _, end] if number(start) && end.ends_with(']') => "TIME]".to_owned(),
            [day] if day.starts_with("[20") => "[DAY".to_owned(),
            _ => word.to_owned(),
        });
        lines.push_str(&words.collect::<Vec<_>>().join(" "));
        lines.push('\n');
    }
    lines
}

#[test]
fn the_log_is_off_by_default() {
    let (stdout, stderr) = run("lines", &[]);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("", ""));
}

#[test]
fn each_level_shows_what_nccl_shows() {
    let (stdout, stderr) = run("lines", &[("NCCL_DEBUG", "version")]);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("NCCL version 2.30.7\n", ""));

    let (stdout, stderr) = run("lines", &[("NCCL_DEBUG", "WARN")]);
    assert_eq!(stderr, "");
    insta::assert_snapshot!(normalised(&stdout), @"
    NCCL version 2.30.7

    [DAY TIME] HOST:PID:TID [0] diagnostics/log/tests/process.rs:LINE (child) NCCL WARN went wrong
    ");

    let (stdout, stderr) = run("lines", &[("NCCL_DEBUG", "INFO"), ("NCCL_IB_HCA", "mlx5"), ("NCCL_BUFFSIZE", "4M")]);
    assert_eq!(stderr, "");
    insta::assert_snapshot!(normalised(&stdout), @"
    HOST:PID:TID [-1] NCCL INFO NCCL_DEBUG set by environment to INFO
    HOST:PID:TID [-1] NCCL INFO NCCL_IB_HCA is set but ferronickel does not read it

    [DAY TIME] HOST:PID:TID [-1] diagnostics/log.rs:LINE (log_settings) NCCL WARN Invalid value 4M for NCCL_BUFFSIZE, using default 1048576. It is set in the environment; an integer from 4096 to 1073741824 would be right.
    HOST:PID:TID [-1] NCCL INFO NCCL version 2.30.7
    HOST:PID:TID [3] NCCL INFO shown 1

    [DAY TIME] HOST:PID:TID [0] diagnostics/log/tests/process.rs:LINE (child) NCCL WARN went wrong
    HOST:PID:TID [0] NCCL INFO after
    ");
}

#[test]
fn subsystems_choose_among_info_lines_only() {
    let (stdout, _) = run("lines", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "GRAPH")]);
    assert!(stdout.contains("hidden 2") && !stdout.contains("shown 1") && stdout.contains("went wrong"), "{stdout}");
    let (stdout, _) = run("lines", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "P2P")]);
    assert!(stdout.contains("shown 1"), "a line about two subsystems shows for either\n{stdout}");
    let (stdout, _) = run("lines", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "^ALL")]);
    assert!(stdout.contains("went wrong") && !stdout.contains("after"), "{stdout}");
}

#[test]
fn the_first_warning_can_raise_the_level() {
    let (stdout, _) = run("lines", &[("NCCL_DEBUG", "WARN"), ("NCCL_WARN_ENABLE_DEBUG_INFO", "1")]);
    assert!(!stdout.contains("shown 1") && stdout.contains("NCCL INFO after"), "{stdout}");
}

#[test]
fn lines_never_interleave() {
    let mut child = command("threads", &[("NCCL_DEBUG", "INFO")]).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut next = [0; 8];
    let mut shown = 0;
    for line in stdout.lines().map(Result::unwrap).filter(|line| line.contains("xxx")) {
        let (_, message) = line.split_once("NCCL INFO ").unwrap();
        let (number, rest) = message.split_once(' ').unwrap();
        let (thread, number) = number.split_once('.').unwrap();
        let thread: usize = thread.parse().unwrap();
        assert_eq!(number, next[thread].to_string());
        assert_eq!(rest, format!("{} end", "x".repeat(6000)));
        next[thread] += 1;
        shown += 1;
    }
    assert_eq!(shown, 400);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_closed_pipe_kills_nobody() {
    let (_, stderr) = run("closed", &[("NCCL_DEBUG", "INFO")]);
    assert_eq!(stderr, "still here\n");
}

#[test]
fn a_file_that_grows_too_large_kills_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let (_, stderr) = run("limited", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", path.to_str().unwrap())]);
    let (told, rest) = stderr.split_once('\n').unwrap();
    assert!(told.contains("cannot be written to") && told.contains("File too large"), "{stderr}");
    assert_eq!(rest, "still here\n");
}

#[test]
fn a_file_is_named_by_its_pattern_and_takes_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let pattern = directory.path().join("log.%h.%p");
    let (stdout, stderr) = run("pid", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", pattern.to_str().unwrap())]);
    let pid = stdout.trim().strip_prefix("pid=").unwrap();
    let host = format::host(&rustix::system::uname().nodename().to_string_lossy());
    let log = std::fs::read_to_string(directory.path().join(format!("log.{host}.{pid}"))).unwrap();
    assert!(log.starts_with(&format!("{host}:{pid}:")), "{log}");
    assert!(log.contains("NCCL INFO hello\n") && log.ends_with("NCCL INFO again\n"), "{log}");
    assert_eq!(stderr, "");
}

#[test]
fn the_names_of_the_standard_streams_mean_those_streams() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    for name in ["/dev/stdout", "/dev/stderr", "/dev/fd/1"] {
        std::fs::write(&path, "precious\n").unwrap();
        // as a shell's `>>` has it, but without the flag that would mend what is written at two places
        let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        let environment = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", name)];
        let mut child = command("pid", &environment);
        assert!(child.stdout(file.try_clone().unwrap()).stderr(file).status().unwrap().success());
        let text = std::fs::read_to_string(&path).unwrap();
        let places: Vec<_> = ["precious\n", BEGIN, "NCCL INFO hello\n", "NCCL INFO again\n", "pid="]
            .into_iter()
            .map(|line| text.find(line))
            .collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{name}: {text}");
    }
    let (stdout, stderr) = run("announce", &[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", "/dev/stderr")]);
    assert!(stderr.ends_with(" NCCL WARN SHM instead of P2P\n") && stdout.is_empty(), "{stdout}{stderr}");
    assert_eq!(stderr.matches("SHM instead").count(), 1, "{stderr}");
}

#[test]
fn a_file_is_opened_only_for_what_goes_into_it() {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("log");
    std::fs::write(&path, "precious").unwrap();
    let (stdout, _) = run("lines", &[("NCCL_DEBUG", "VERSION"), ("NCCL_DEBUG_FILE", path.to_str().unwrap())]);
    assert_eq!(stdout, "NCCL version 2.30.7\n");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_file_that_cannot_be_opened_is_told_and_the_log_goes_to_stdout() {
    let (stdout, stderr) = run("lines", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", "/nonexistent/log")]);
    assert!(stdout.contains("shown 1"), "{stdout}");
    insta::assert_snapshot!(stderr, @"ferronickel: NCCL_DEBUG_FILE: /nonexistent/log cannot be opened: No such file or directory (os error 2); the log goes to the standard output. Name a file in a directory that exists and that you may write to.");
}

#[test]
fn a_full_disk_is_told_once() {
    let (_, stderr) = run("lines", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", "/dev/full")]);
    insta::assert_snapshot!(stderr, @"ferronickel: the log cannot be written to /dev/full: No space left on device (os error 28); lines are lost from here on, and nothing else is.");
}

#[test]
fn an_announcement_is_heard_whatever_the_log() {
    let (stdout, stderr) = run("announce", &[]);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("", "ferronickel: SHM instead of P2P\n"));
    let (stdout, stderr) = run("announce", &[("NCCL_DEBUG", "VERSION")]);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("", "ferronickel: SHM instead of P2P\n"));

    let (stdout, stderr) = run("announce", &[("NCCL_DEBUG", "WARN")]);
    assert!(stdout.ends_with(" NCCL WARN SHM instead of P2P\n") && stderr.is_empty(), "{stdout}{stderr}");

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let (stdout, stderr) = run("announce", &[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", path.to_str().unwrap())]);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("", "ferronickel: SHM instead of P2P\n"));
    assert!(std::fs::read_to_string(&path).unwrap().ends_with(" NCCL WARN SHM instead of P2P\n"));

    let (stdout, stderr) = run("announce", &[("FERRONICKEL_ANNOUNCE", "0")]);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("", ""));
}

#[test]
fn a_mistyped_setting_is_told_even_where_it_hides_the_log() {
    let (stdout, stderr) = run("lines", &[("NCCL_DEBUG", "INOF")]);
    assert_eq!(stdout, "");
    insta::assert_snapshot!(stderr, @"ferronickel: Invalid value INOF for NCCL_DEBUG, using default NONE. It is set in the environment; one of NONE, VERSION, WARN, INFO, ABORT, TRACE would be right.");
    let (_, stderr) = run("lines", &[("NCCL_DEBGU", "INFO")]);
    insta::assert_snapshot!(stderr, @"ferronickel: NCCL_DEBGU is not a variable ferronickel or NCCL knows; did you mean NCCL_DEBUG?");
}
