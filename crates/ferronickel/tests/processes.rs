//! Ranks in processes of their own.

#[path = "support/processes.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod processes;

use std::time::{Duration, Instant};

use ferronickel::{Communicator, Config, Device, RedOp};
use processes::{Part, Ranks, RootAt};

const LIMIT: Duration = Duration::from_secs(60);
const P2P: (&str, &str) = ("NCCL_P2P_DISABLE", "1");
const SHM: (&str, &str) = ("NCCL_SHM_DISABLE", "1");

/// Every road, with what closes the faster ones.
const ROADS: [(&str, &[(&str, &str)]); 3] = [("P2P/IPC", &[]), ("SHM/direct", &[P2P]), ("NET/Socket/0", &[P2P, SHM])];

/// Plays a rank. In the test's own process this does nothing.
#[test]
fn rank() {
    let Some(part) = Part::taken() else { return };
    let config = Config::from_environment();
    let device = Device::host(part.rank as u32);
    let began = Instant::now();
    let communicator = Communicator::init_rank(&part.id, part.size, part.rank, &device, &config).unwrap();
    match part.play.as_str() {
        "add" => add(&part, &communicator),
        "time init" => part.say(began.elapsed().as_micros()),
        play => panic!("no play is called {play}"),
    }
    communicator.finalize().unwrap();
}

/// Adds buffers of many lengths, and says which roads were taken.
fn add(part: &Part, communicator: &Communicator) {
    let stream = communicator.device().stream().unwrap();
    for count in [0, 1, 7, 1000, 4099, 70_001, 1_000_003] {
        let buffer = communicator.device().alloc::<i32>(count).unwrap();
        let own: Vec<i32> = (0..count as i32).map(|i| i * (part.rank as i32 + 1)).collect();
        let factor = (1..=part.size as i32).sum::<i32>();
        for turn in 0..3 {
            buffer.copy_from_host(&own).unwrap();
            communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &stream).unwrap();
            stream.synchronize().unwrap();
            let sum = buffer.to_vec().unwrap();
            let wrong = sum.iter().zip(0..).position(|(&sum, i): (_, i32)| sum != i.wrapping_mul(factor));
            assert_eq!(wrong, None, "{count} elements, turn {turn}");
        }
    }
    communicator.decisions().iter().for_each(|decision| part.say(decision));
}

fn set(closed: &[(&'static str, &'static str)]) -> Vec<(&'static str, String)> {
    closed.iter().map(|&(name, value)| (name, value.to_string())).collect()
}

#[test]
fn processes_add_over_every_road() {
    for (road, closed) in ROADS {
        for (size, root) in [(2, RootAt::Test), (3, RootAt::RankZero)] {
            let mut ranks = Ranks::start("rank", size, "add", root, |_| set(closed));
            for said in ranks.succeed(LIMIT) {
                assert!(said.lines().all(|line| line.contains(road)), "{said}");
            }
        }
    }
}

#[test]
fn host_ids_make_nodes_of_one_machine() {
    let node = |rank: usize| vec![("NCCL_HOSTID", if rank < 3 { "left" } else { "right" }.to_string())];
    let mut ranks = Ranks::start("rank", 4, "add", RootAt::Test, node);
    let said = ranks.succeed(LIMIT);
    assert!(said[0].contains("0[0] -> 2[2]: P2P/IPC"), "{}", said[0]);
    let apart = "2[2] -> 3[3]: NET/Socket/0; P2P refused: NCCL_HOSTID makes different hosts of rank 2 (=left) and rank 3 \
                 (=right)";
    assert!(said[2].contains(apart), "{}", said[2]);
}
