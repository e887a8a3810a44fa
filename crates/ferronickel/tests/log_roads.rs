//! The log of a communicator's life on each road, to the letter, and the announcement of a slower one.

use std::process::{Command, Output};

use ferronickel::{Communicator, Config, Device, RedOp, group};

/// The program whose log is looked at. It runs by itself too, and is then one more test without a log.
#[test]
fn two_ranks_make_two_calls() {
    let devices = [Device::host(0), Device::host(1)];
    let ranks = Communicator::init_all(&devices, &Config::from_environment()).unwrap();
    let streams = devices.each_ref().map(|device| device.stream().unwrap());
    for count in [2, 1 << 20] {
        let buffers = devices.each_ref().map(|device| device.alloc::<f32>(count).unwrap());
        group(|| (0..2).try_for_each(|n| ranks[n].all_reduce(&buffers[n], &buffers[n], RedOp::Sum, &streams[n])))
            .unwrap();
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }
    ranks.iter().for_each(|rank| rank.finalize().unwrap());
}

fn child(settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "two_ranks_make_two_calls", "--nocapture", "--test-threads", "1"]);
    // only what the test sets, and no file of the machine's
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NCCL_") || name.to_string_lossy().starts_with("FERRONICKEL_") {
            command.env_remove(name);
        }
    }
    // nor what is measured
    command.env("FERRONICKEL_CALIBRATION", "0");
    let output = command.env("HOME", "/nonexistent").envs(settings.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// The lines of the log that device `device` wrote, without what differs between runs.
fn log(settings: &[(&str, &str)], device: i32) -> String {
    let output = child(settings);
    let text = String::from_utf8(output.stdout).unwrap();
    let marker = format!(" [{device}] NCCL INFO ");
    let lines = text.lines().filter_map(|line| {
        let (prefix, message) = line.split_once(&marker)?;
        let [host, pid, tid] = prefix.split(':').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(!host.is_empty() && pid.parse::<u32>().is_ok() && tid.parse::<u32>().is_ok(), "{line}");
        Some(same_in_every_run(message))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Puts letters in the place of addresses and times. The version is said by whichever rank comes first.
fn same_in_every_run(message: &str) -> String {
    if message.starts_with("NCCL version") || message.starts_with("This is ferronickel") {
        return "(version)".into();
    }
    let mut words = Vec::new();
    let mut after = "";
    for word in message.split(' ') {
        let bare = word.trim_end_matches([')', ',']);
        let number = bare.parse::<f64>().is_ok() && bare.contains('.');
        words.push(match word {
            _ if word.starts_with("0x") && word.len() > 4 => "(address)",
            _ if after == "stream" => "(stream)",
            _ if number && message.starts_with("Init timings") => "(time)",
            _ => word,
        });
        after = word;
    }
    words.join(" ")
}

const ALL: (&str, &str) = ("NCCL_DEBUG", "INFO");
const SUBSYS: (&str, &str) = ("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,COLL,TUNING,BOOTSTRAP");

fn without_version(log: String) -> String {
    log.lines().filter(|line| *line != "(version)").collect::<Vec<_>>().join("\n")
}

#[test]
fn p2p() {
    insta::assert_snapshot!("p2p_rank_0", without_version(log(&[ALL, SUBSYS], 0)));
    insta::assert_snapshot!("p2p_rank_1", without_version(log(&[ALL, SUBSYS], 1)));
}

#[test]
fn shm() {
    let settings = [ALL, SUBSYS, ("NCCL_P2P_DISABLE", "1")];
    insta::assert_snapshot!("shm_rank_0", without_version(log(&settings, 0)));
}

#[test]
fn net() {
    let settings = [ALL, SUBSYS, ("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")];
    insta::assert_snapshot!("net_rank_0", without_version(log(&settings, 0)));
}

#[test]
fn the_version_is_said_once_and_by_name() {
    let output = String::from_utf8(child(&[ALL]).stdout).unwrap();
    let version: Vec<_> = output.lines().filter(|line| line.contains("NCCL version")).collect();
    assert_eq!(version.len(), 1, "{output}");
    assert!(version[0].contains(concat!("NCCL INFO NCCL version 2.30.7+ferronickel", env!("CARGO_PKG_VERSION"))));
    assert_eq!(output.lines().filter(|line| line.contains("NCCL INFO This is ferronickel ")).count(), 1);
    let bare = String::from_utf8(child(&[("NCCL_DEBUG", "VERSION")]).stdout).unwrap();
    let line = concat!("NCCL version 2.30.7+ferronickel", env!("CARGO_PKG_VERSION"));
    assert_eq!(bare.lines().filter(|found| found.ends_with(line) && !found.contains("INFO")).count(), 1, "{bare}");
}

#[test]
fn nothing_is_said_of_the_fastest_road_and_one_line_of_a_slower_one() {
    assert_eq!(String::from_utf8(child(&[]).stderr).unwrap(), "");
    let shm = String::from_utf8(child(&[("NCCL_P2P_DISABLE", "1")]).stderr).unwrap();
    insta::assert_snapshot!("announcement_shm", shm);
    let net = String::from_utf8(child(&[("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")]).stderr).unwrap();
    insta::assert_snapshot!("announcement_net", net);
    let off = [("NCCL_P2P_DISABLE", "1"), ("FERRONICKEL_ANNOUNCE", "0")];
    assert_eq!(String::from_utf8(child(&off).stderr).unwrap(), "");
}
