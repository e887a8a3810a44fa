//! `ferronickel env` as a process.

mod common;

use common::{command, run};
use serde_json::Value;

#[test]
fn a_variable_is_shown_with_its_source() {
    let done = run(command("env").env("NCCL_DEBUG", "WARN"));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert!(done.out.contains("NCCL_DEBUG=WARN\n    from:    set in the environment\n"), "{}", done.out);
}

#[test]
fn a_file_of_settings_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "NCCL_DEBUG=INFO\n").unwrap();
    let done = run(command("env").env("NCCL_CONF_FILE", file.path()));
    assert!(done.out.contains(&format!("from:    set in {}", file.path().display())), "{}", done.out);
}

#[test]
fn json_has_the_same() {
    let done = run(command("env --json").env("NCCL_DEBUG", "WARN"));
    assert_eq!(done.code, Some(0));
    let report: Value = serde_json::from_str(&done.out).unwrap();
    let debug = report["variables"].as_array().unwrap().iter().find(|entry| entry["name"] == "NCCL_DEBUG").unwrap();
    assert_eq!((debug["value"].as_str(), debug["source"].as_str()), (Some("WARN"), Some("set in the environment")));
    for key in ["default", "takes", "meaning", "refused"] {
        assert!(debug.get(key).is_some(), "{key}");
    }
}

#[test]
fn a_slip_is_pointed_out() {
    let done = run(command("env").env("NCCL_P2P_DISABEL", "1"));
    assert_eq!(done.code, Some(0));
    assert!(done.out.contains("NCCL_P2P_DISABEL"), "{}", done.out);
}
