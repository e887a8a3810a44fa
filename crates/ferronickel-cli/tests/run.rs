//! `ferronickel run` with real children; every wait is bounded.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Done, command, run};
use nix::sys::signal::{SigHandler, Signal, kill};
use nix::unistd::Pid;

/// Longer than anything here takes, unless it hangs.
const LONG: Duration = Duration::from_secs(20);

/// `ferronickel run` with these options, and a shell script for each rank.
fn script(options: &str, script: &str) -> Command {
    let mut command = command(&format!("run {options} -- sh -c"));
    command.arg(script).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn done(options: &str, text: &str) -> Done {
    run(&mut script(options, text))
}

/// Waits for something to become true.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < LONG, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes whose arguments contain the mark, which every test makes its own. Zombies have none.
fn processes(mark: &str) -> Vec<u32> {
    let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has_mark = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| contains(&line, mark));
    numbers.filter(has_mark).collect()
}

fn contains(bytes: &[u8], mark: &str) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark.as_bytes())
}

/// A launcher that a test which fails does not leave behind.
struct Launcher(Child);

impl Launcher {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("the command starts"))
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The rest of what it writes and its code, in bounded time.
fn finish(mut launcher: Launcher) -> Done {
    let child = &mut launcher.0;
    until("the end of the launcher", || child.try_wait().unwrap().is_some());
    let text = |reader: Option<&mut dyn Read>| {
        let mut text = String::new();
        reader.map(|reader| reader.read_to_string(&mut text).unwrap());
        text
    };
    let code = child.wait().unwrap().code();
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    Done { code, out: text(out.as_mut().map(|out| out as _)), err: text(err.as_mut().map(|err| err as _)) }
}

/// Files by which ranks say that they have come so far.
struct Marks {
    directory: tempfile::TempDir,
}

impl Marks {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn wait_for(&self, names: &[&str]) {
        until(&names.join(" "), || names.iter().all(|name| self.file(name).exists()));
    }
}

#[test]
fn every_rank_knows_its_place_and_the_id() {
    let done = done(
        "-n 3",
        "echo $FERRONICKEL_RANK $FERRONICKEL_SIZE $FERRONICKEL_LOCAL_RANK $FERRONICKEL_LOCAL_SIZE $FERRONICKEL_UNIQUE_ID",
    );
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let mut lines: Vec<_> = done.out.lines().map(|line| line.split(' ').collect::<Vec<_>>()).collect();
    lines.sort_unstable();
    for (rank, line) in lines.iter().enumerate() {
        let rank = rank.to_string();
        assert_eq!(line[..4], [rank.as_str(), "3", &rank, "3"]);
        assert_eq!((line[4].len(), line[4]), (256, lines[0][4]));
    }
}

#[test]
fn an_address_to_meet_at_takes_the_place_of_the_id() {
    let mut command = script("-n 2", "echo ${FERRONICKEL_UNIQUE_ID-none} $NCCL_COMM_ID");
    let done = run(command.env("NCCL_COMM_ID", "127.0.0.1:29500").env("FERRONICKEL_UNIQUE_ID", "of another run"));
    assert_eq!((done.code, done.out.as_str()), (Some(0), "none 127.0.0.1:29500\nnone 127.0.0.1:29500\n"), "{done:?}");
}

#[test]
fn the_first_that_fails_is_named_and_gives_the_code() {
    for (text, code, words) in [
        ("exit 3", 3, "exited with code 3"),
        ("kill -9 $$", 137, "was killed by signal 9 (SIGKILL)"),
        ("kill -SEGV $$", 139, "was killed by signal 11 (SIGSEGV)"),
    ] {
        let start = Instant::now();
        let done = done("-n 3", &format!("[ $FERRONICKEL_RANK = 2 ] && {text}; sleep 60; sleep 60"));
        assert_eq!(done.code, Some(code), "{done:?}");
        assert_eq!(done.err.lines().count(), 1, "{done:?}");
        assert!(
            done.err.starts_with("ferronickel run: rank 2 (pid ") && done.err.trim_end().ends_with(words),
            "{done:?}"
        );
        assert!(start.elapsed() < LONG);
    }
}

#[test]
fn what_does_not_end_by_itself_is_killed_after_the_grace() {
    let marks = Marks::new();
    let (directory, start) = (marks.path().display(), Instant::now());
    // Rank 1 hears nothing; its child has left its group, and the child of that child has lost its parent.
    let deaf = format!("trap '' TERM; (setsid sh -c 'sleep 63 & sleep 64; : {directory}' &); : > {directory}/deaf");
    let text = format!(
        "[ $FERRONICKEL_RANK = 1 ] && {{ {deaf}; sleep 60; sleep 60; }}
         while [ ! -e {directory}/deaf ]; do sleep 0.01; done; exit 4"
    );
    let done = done("-n 2 --grace 1", &text);
    assert_eq!(done.code, Some(4), "{done:?}");
    let lines: Vec<_> = done.err.lines().collect();
    assert!(lines[0].starts_with("ferronickel run: rank 0 (pid "), "{done:?}");
    assert_eq!(lines[1], "ferronickel run: rank 1 did not end within 1 s; killed");
    assert!(start.elapsed() >= Duration::from_secs(1) && start.elapsed() < LONG);
    assert_eq!(processes(marks.path().to_str().unwrap()), &[] as &[u32]);
}

#[test]
fn a_polite_rank_may_clean_up() {
    let marks = Marks::new();
    let directory = marks.path().display();
    let text = format!(
        "if [ $FERRONICKEL_RANK = 1 ]; then
             trap ': > {directory}/clean; exit 0' TERM; : > {directory}/ready
             while :; do sleep 0.01; done
         fi
         while [ ! -e {directory}/ready ]; do sleep 0.01; done; exit 5"
    );
    let done = done("-n 2 --grace 20", &text);
    assert_eq!(done.code, Some(5), "{done:?}");
    // The shell itself may have a word about its sleep; the launcher has nothing more to say.
    assert_eq!(done.err.matches("ferronickel run: ").count(), 1, "{done:?}");
    assert!(marks.file("clean").exists());
}

#[test]
fn only_rank_0_reads_the_standard_input() {
    let mut command = script("-n 2", "echo $FERRONICKEL_RANK $(cat)");
    let mut launcher = Launcher::start(command.stdin(Stdio::piped()));
    launcher.0.stdin.take().unwrap().write_all(b"hello").unwrap();
    let done = finish(launcher);
    let mut lines: Vec<_> = done.out.lines().map(str::trim_end).collect();
    lines.sort_unstable();
    assert_eq!((done.code, lines), (Some(0), vec!["0 hello", "1"]));
}

#[test]
fn signals_reach_every_rank() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2] {
        let (marks, name) = (Marks::new(), signal.as_str().trim_start_matches("SIG"));
        let directory = marks.path().display();
        let text = format!(
            "trap 'echo {name} $FERRONICKEL_RANK; exit 0' {name}; : > {directory}/$FERRONICKEL_RANK
             while :; do sleep 0.01; done"
        );
        let mut command = script("-n 2", &text);
        // a shell cannot catch what was ignored when it began, as under nohup
        // SAFETY: between fork and exec it makes one system call
        unsafe { command.pre_exec(move || Ok(nix::sys::signal::signal(signal, SigHandler::SigDfl).map(drop)?)) };
        let launcher = Launcher::start(&mut command);
        marks.wait_for(&["0", "1"]);
        launcher.send(signal);
        let done = finish(launcher);
        let mut lines: Vec<_> = done.out.lines().collect();
        lines.sort_unstable();
        assert_eq!((done.code, lines), (Some(0), vec![&*format!("{name} 0"), &*format!("{name} 1")]), "{done:?}");
    }
}

/// The letter for the state of a process.
fn state(pid: u32) -> Option<char> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit(')').next()?.trim().chars().next()
}

#[test]
fn job_control_stops_everything_and_goes_on() {
    let marks = Marks::new();
    let directory = marks.path().display();
    let text = format!(": > {directory}/$FERRONICKEL_RANK; while [ ! -e {directory}/end ]; do sleep 0.01; done");
    let launcher = Launcher::start(&mut script("-n 2", &text));
    marks.wait_for(&["0", "1"]);
    // The launcher and both shells; for a moment also what a shell is about to start.
    let mut all = Vec::new();
    until("three processes", || {
        all = processes(marks.path().to_str().unwrap());
        all.len() == 3
    });
    launcher.send(Signal::SIGTSTP);
    until("the stop", || all.iter().all(|pid| state(*pid) == Some('T')));
    launcher.send(Signal::SIGCONT);
    until("the continuation", || all.iter().all(|pid| state(*pid).is_some_and(|state| state != 'T')));
    fs::write(marks.file("end"), "").unwrap();
    assert_eq!(finish(launcher).code, Some(0));
}

#[test]
fn nothing_is_left_of_a_launcher_that_was_killed() {
    let marks = Marks::new();
    let directory = marks.path().display();
    // Each rank has a child that the kernel would not kill with it.
    let text = format!("sh -c 'sleep 65; : {directory}' & : > {directory}/$FERRONICKEL_RANK; sleep 66; : {directory}");
    let mut launcher = Launcher::start(&mut script("-n 2", &text));
    let child = &mut launcher.0;
    marks.wait_for(&["0", "1"]);
    let mark = marks.path().to_str().unwrap();
    until("the children", || processes(mark).len() == 5);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the end of all", || processes(mark).is_empty());
    // Whoever holds the other end of these would keep them open.
    let mut rest = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut rest).unwrap();
}

#[test]
fn ranks_that_fit_are_bound_to_cores_of_their_own() {
    let processors = std::thread::available_parallelism().unwrap().get();
    let allowed = |options: &str| -> Vec<String> {
        let done = done(options, "grep Cpus_allowed_list /proc/self/status");
        assert_eq!(done.code, Some(0), "{done:?}");
        done.out.lines().map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect()
    };
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned();
    if processors >= 2 {
        let shares = allowed("-n 2");
        assert!(shares[0] != shares[1] && !shares.contains(&own), "{shares:?}");
        assert_eq!(allowed("-n 2 --bind none"), [own.clone(), own.clone()]);
    }
    let many = allowed(&format!("-n {}", processors + 1));
    assert!(many.iter().all(|share| *share == own), "{many:?}");
}

#[test]
fn output_passes_untouched() {
    let done = done("-n 1", "printf 'a\\n\\033[1mb'; printf 'c' >&2");
    assert_eq!((done.out.as_str(), done.err.as_str()), ("a\n\u{1b}[1mb", "c"));
}

#[test]
fn runs_within_runs_are_runs() {
    let inner =
        format!("{} run -n 2 -- sh -c 'echo $FERRONICKEL_RANK/$FERRONICKEL_SIZE'", env!("CARGO_BIN_EXE_ferronickel"));
    let done = done("-n 3", &format!("{inner}; exit $FERRONICKEL_RANK"));
    let mut lines: Vec<_> = done.out.lines().collect();
    lines.sort_unstable();
    assert!(done.code == Some(1) || done.code == Some(2), "{done:?}");
    assert!(lines.starts_with(&["0/2"]) && lines.ends_with(&["1/2"]), "{done:?}");
}

#[test]
fn a_wrong_command_line_is_one_line() {
    for (args, code, words) in [
        ("-n 0 true", 6, &["'0'", "from 1 to"][..]),
        ("-n x true", 6, &["'x'", "from 1 to"]),
        ("-n -1 true", 6, &["-1"]),
        ("true", 6, &["--ranks <N>"]),
        ("-n 2", 6, &["<CMD>"]),
        ("-n 2 --", 6, &["<CMD>"]),
        ("-n 2 --foo true", 6, &["'--foo'"]),
        ("-n 2 --bind sockets true", 6, &["'sockets'", "cores"]),
        ("-n 2 --grace soon true", 6, &["'soon'", "seconds"]),
        ("-n 2 ferronickel-has-no-such-program", 127, &["no program 'ferronickel-has-no-such-program'"]),
        ("-n 2 ./ferronickel-has-no-such-program", 127, &["no program './ferronickel-has-no-such-program'"]),
        ("-n 2 /etc/passwd", 126, &["'/etc/passwd'", "cannot be executed"]),
        ("-n 2 /", 126, &["'/'", "cannot be executed"]),
    ] {
        let done = run(&mut command(&format!("run {args}")));
        assert_eq!((done.code, done.out.as_str()), (Some(code), ""), "{args}: {done:?}");
        let (message, hints) = done.err.split_once('\n').expect("a line");
        assert!(hints.lines().all(|line| line.starts_with("  hint: ")), "{args}: {done:?}");
        assert!(words.iter().all(|word| message.contains(word)), "{args}: {done:?}");
    }
}

#[test]
fn a_rank_finds_the_defaults_of_signals() {
    // the command itself ignores this one
    assert_eq!(done("-n 1", "kill -XFSZ $$").code, Some(128 + Signal::SIGXFSZ as i32));
}

#[test]
fn want_of_descriptors_is_said() {
    let launcher = env!("CARGO_BIN_EXE_ferronickel");
    let mut codes = Vec::new();
    // At some point on the way it is enough.
    for limit in 4..32 {
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("ulimit -n {limit}; exec {launcher} run -n 2 -- true")]);
        let done = run(&mut limited);
        codes.push(done.code);
        match done.code {
            Some(0) => assert_eq!(done.err, "", "{limit}"),
            Some(1 | 3) => {
                assert!(done.err.lines().count() == 1 && done.err.contains("open files"), "{limit}: {done:?}");
            }
            _ => panic!("{limit}: {done:?}"),
        }
    }
    assert!(codes[0] != Some(0) && codes.contains(&Some(0)), "{codes:?}");
}
