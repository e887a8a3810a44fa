//! What is said about a wrong command line: one line that names the value and what would be right, and exit code 6.

mod common;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use common::{command, plain, run};

#[test]
fn wrong_values_are_named() {
    for (args, words) in [
        ("-b x", &["'x'", "4K"][..]),
        ("-b -8", &["'-8'", "negative"]),
        ("-b 99999999999999999999G", &["too large"]),
        ("-b 1.3", &["'1.3'", "whole"]),
        ("-e 8 -b 16", &["-e 8", "-b 16"]),
        ("-b 8 -e 64 -i 0", &["-i 0"]),
        ("-b 8 -e 64 -f 0", &["'0'", "from 1"]),
        ("-b 8 -e 64 -f -2", &["'-2'"]),
        ("-b 8 -e 64 -f 0.5", &["'0.5'"]),
        ("-b 0 -e 64 -f 2", &["-b 0"]),
        ("-t 0", &["'0'", "from 1"]),
        ("-g 0", &["'0'", "from 1"]),
        ("-t 1000 -g 1000", &["1000000 ranks", "256"]),
        ("-n 0", &["'0'"]),
        ("-m 0", &["'0'"]),
        ("-w x", &["'x'"]),
        ("-N -1", &["'-1'"]),
        ("-c -1", &["'-1'"]),
        ("-o mulsum", &["'mulsum'", "not available", "sum, prod, max, min, avg"]),
        ("-o plus", &["'plus'", "sum, prod, max, min, avg"]),
        ("-d f8", &["'f8'", "f8e4m3, f8e5m2"]),
        ("-d float32", &["'float32'", "float, double"]),
        ("-r 5", &["-r 5", "0"]),
        ("-z 9", &["'9'", "0, 1, 2, 3"]),
        ("-a 9", &["'9'", "0, 1, 2, 3"]),
        ("-p 2", &["'2'", "0, 1"]),
        ("-y 2", &["'2'"]),
        ("-C 2", &["'2'"]),
        ("-S 2", &["'2'"]),
        ("-I 2", &["'2'"]),
        ("-M 2", &["'2'"]),
        ("-I 1 -n 4 -K 4", &["-K 4"]),
        ("-u -1", &["'-1'"]),
        ("-u 2147483647 -g 200", &["memory"]),
        ("-T -1", &["'-1'"]),
        ("-R 3", &["'3'"]),
        ("-G 1", &["'1'", "CUDA graphs", "leave -G out"]),
        ("-D 1", &["'1'", "leave -D out"]),
        ("-V 8", &["'8'", "leave -V out"]),
        ("-x 1", &["'1'", "leave -x out"]),
        ("-J out.txt", &["out.txt", ".json"]),
        ("--device cuda", &["'cuda'", "host devices only"]),
        ("--device tpu", &["'tpu'", "--device host"]),
        ("-b 1000T -e 1000T", &["1000 TiB", "memory"]),
        ("-q", &["'-q'"]),
        ("--nonsense", &["'--nonsense'"]),
        ("stray", &["'stray'", "too many"]),
        ("-b", &["--minbytes"]),
    ] {
        let done = run(&mut command(&format!("perf all-reduce {args}")));
        assert_eq!((done.code, done.out.as_str()), (Some(6), ""), "{args}: {done:?}");
        let (message, hints) = done.err.split_once('\n').expect("a line");
        assert!(hints.lines().all(|line| line.starts_with("  hint: ")), "{args}: {done:?}");
        for word in words {
            assert!(message.contains(word), "{args}: {word} is missing in {message}");
        }
    }
}

#[test]
fn what_is_said_is_written_in_one_piece() {
    // of which every packet is one call
    let itself = env!("CARGO_BIN_EXE_ferronickel");
    for args in ["perf all-reduce -b x".to_owned(), "run -n 1 false".to_owned(), format!("run -n 1 {itself} env --x")] {
        let (ours, its) = UnixDatagram::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let status = command(&args).stderr(OwnedFd::from(its)).status().unwrap();
        assert!(!status.success());
        let mut packet = [0; 4096];
        let length = ours.recv(&mut packet).unwrap();
        let text = String::from_utf8_lossy(&packet[..length]);
        assert!(text.starts_with("ferronickel") && text.ends_with('\n'), "{args}: {text:?}");
    }
}

#[test]
fn wrong_commands_are_answered_with_the_right_ones() {
    for (args, words) in [
        ("", &["perf", "run", "env"][..]),
        ("bench", &["'bench'", "perf", "run", "env"]),
        ("perf", &["all-reduce"]),
        ("perf allgather", &["'allgather'", "all-gather"]),
    ] {
        let done = run(&mut command(args));
        assert_eq!((done.code, done.err.lines().count()), (Some(6), 1), "{args}: {done:?}");
        assert!(words.iter().all(|word| done.err.contains(word)), "{args}: {done:?}");
    }
}

#[test]
fn variables_are_checked_too() {
    for (name, value) in [("NCCL_TESTS_MIN_BW", "fast"), ("NCCL_TESTS_DEVICE", "-1")] {
        let done = run(command("perf all-reduce -b 8 -e 8").env(name, value));
        assert_eq!((done.code, done.out.as_str()), (Some(6), ""), "{done:?}");
        assert!(done.err.contains(name) && done.err.contains(value), "{done:?}");
    }
}

#[test]
fn help_and_version_are_answers() {
    for args in ["--help", "-h", "perf -h", "perf all-reduce -h", "perf all-reduce --help", "env -h", "--version"] {
        let done = run(&mut command(args));
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{args}: {done:?}");
        assert!(!done.out.is_empty());
    }
    let done = run(&mut command("--version"));
    assert_eq!(done.out, format!("ferronickel {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_help_names_every_option_of_nccl_tests() {
    let done = run(&mut command("perf all-reduce --help"));
    for option in "t g b e i f n m w N p c o d r z y T G C S J a R x D V M u I K h".split(' ') {
        assert!(done.out.contains(&format!("-{option}, --")), "-{option}");
    }
}

#[test]
fn arguments_that_are_not_text_do_no_harm() {
    use std::os::unix::ffi::OsStrExt;
    let bytes = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let done = run(plain(env!("CARGO_BIN_EXE_ferronickel"), "perf all-reduce -b").arg(bytes));
    assert_eq!(done.code, Some(6), "{done:?}");
    let done = run(plain(env!("CARGO_BIN_EXE_ferronickel"), "").arg(bytes));
    assert_eq!(done.code, Some(6), "{done:?}");
}
