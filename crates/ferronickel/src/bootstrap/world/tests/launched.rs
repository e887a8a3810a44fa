//! Real launchers, where they are installed: this test program is started as the ranks.

use std::process::{Command, Stdio};

use super::*;

/// Set for those that are started as ranks.
const AS_A_RANK: &str = "WORLD_TEST_AS_A_RANK";

/// The ranks themselves: each prints who it is and the public numbers of two ids.
#[test]
fn as_a_rank() {
    if std::env::var_os(AS_A_RANK).is_none() {
        return;
    }
    let config = Config::from_environment().with("FERRONICKEL_INIT_TIMEOUT", "20").unwrap();
    let world = World::from_environment(&config).unwrap().expect("a launcher started this");
    let ids = [0, 1].map(|count| world.unique_id(&config, count).unwrap().public_number());
    let World { rank, size, local_rank, local_size, .. } = world;
    let line = format!("world {rank}/{size} {local_rank}/{local_size} {:x} {:x}\n", ids[0], ids[1]);
    // In one write, since launchers mix what ranks write; not to the standard output, where the test program writes.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Runs this program as so many ranks; None where the launcher is not installed.
fn launch(launcher: &[&str], before: &[&str], ranks: usize) -> Option<Vec<String>> {
    let program = std::env::current_exe().unwrap();
    let name = "bootstrap::world::tests::launched::as_a_rank";
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).args(["-np", &ranks.to_string()]).args(before).arg(program);
    command.args(["--exact", name, "--nocapture"]).env(AS_A_RANK, "1").stdin(Stdio::null());
    let Ok(output) = command.output() else {
        eprintln!("skipped: there is no {}", launcher[0]);
        return None;
    };
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{launcher:?}: {text}{}", String::from_utf8_lossy(&output.stdout));
    let lines = text.lines().filter_map(|line| Some(line.split_once("world ")?.1.to_owned()));
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    Some(lines)
}

fn check(launcher: &[&str], before: &[&str]) {
    let Some(lines) = launch(launcher, before, 3) else { return };
    assert_eq!(lines.len(), 3, "{launcher:?}: {lines:?}");
    let split: Vec<_> = lines.iter().map(|line| line.split(' ').collect::<Vec<_>>()).collect();
    for (rank, line) in split.iter().enumerate() {
        assert_eq!(line[..2], [&*format!("{rank}/3"), &*format!("{rank}/3")], "{launcher:?}: {lines:?}");
        assert_eq!(line[2..], split[0][2..], "{launcher:?}: {lines:?}");
        assert_ne!(line[2], line[3], "{launcher:?}: {lines:?}");
    }
}

#[test]
fn open_mpi_starts_a_world() {
    let launcher = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"];
    check(&launcher, &[]);
    check(&launcher, &["sh", "-c", "\"$0\" \"$@\"; true"]);
}

#[test]
fn mpich_starts_a_world() {
    check(&["mpirun.mpich"], &[]);
    // Each rank has a parent of its own here.
    check(&["mpirun.mpich"], &["sh", "-c", "\"$0\" \"$@\"; true"]);
}

#[test]
fn two_jobs_at_once_do_not_mix() {
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| check(&["mpirun.mpich"], &[]));
        }
    });
}
