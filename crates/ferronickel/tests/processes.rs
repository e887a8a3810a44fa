//! Ranks in processes of their own.

#[path = "support/processes.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod processes;

use std::time::Duration;

use ferronickel::{Communicator, Config, Device, RedOp, UniqueId};
use processes::{FILES, NO_MEMFD, Part, Ranks, RootAt};

const LIMIT: Duration = Duration::from_secs(60);
const P2P: (&str, &str) = ("NCCL_P2P_DISABLE", "1");
const SHM: (&str, &str) = ("NCCL_SHM_DISABLE", "1");

/// Every road, with what closes the faster ones.
const ROADS: [(&str, &[(&str, &str)]); 3] = [("P2P/IPC", &[]), ("SHM/direct", &[P2P]), ("NET/Socket/0", &[P2P, SHM])];

/// Plays a rank. In the test's own process this does nothing.
#[test]
fn rank() {
    let Some(part) = Part::taken() else { return };
    if part.play == "from the environment" {
        return from_the_environment(&part);
    }
    if let Some(counts) = part.play.strip_prefix("several ") {
        return several(&part, counts);
    }
    let config = Config::from_environment();
    let device = Device::host(part.rank as u32);
    let id = match part.play.as_str() {
        "agree on an address" => UniqueId::new().unwrap(),
        _ => part.id.clone(),
    };
    let (size, number) = match part.play.as_str() {
        "same number" => (part.size, 0),
        "other size" => (part.size + part.rank, part.rank),
        "stay away" if part.rank == 1 => return,
        _ => (part.size, part.rank),
    };
    let communicator = match Communicator::init_rank(&id, size, number, &device, &config) {
        Ok(communicator) => communicator,
        Err(error) => return part.say(error),
    };
    match part.play.as_str() {
        "add" | "agree on an address" => add(&part, &communicator),
        "out of reach" => out_of_reach(&part, &communicator),
        "differ" => differ(&part, &communicator),
        "be late" => be_late(&part, &communicator),
        play => panic!("no play is called {play}"),
    }
    let _ = communicator.finalize();
}

/// Makes one communicator after the other of what the launcher says.
fn from_the_environment(part: &Part) {
    for turn in 0..3 {
        match Communicator::from_environment() {
            Ok(communicator) => {
                assert_eq!((communicator.rank(), communicator.size()), (part.rank, part.size));
                assert_eq!(communicator.device(), &Device::host(part.rank as u32));
                add(part, &communicator);
                communicator.finalize().unwrap();
            }
            Err(error) => return part.say(format!("turn {turn}: {error}")),
        }
    }
}

/// Makes a call that only another size fits.
fn differ(part: &Part, communicator: &Communicator) {
    let stream = communicator.device().stream().unwrap();
    let call = |count: usize| {
        let buffer = communicator.device().alloc::<f32>(count).unwrap();
        communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &stream).and_then(|()| stream.synchronize())
    };
    call(5).unwrap();
    part.reach("called");
    (0..part.size).for_each(|rank| part.wait_for(rank, "called"));
    part.say(call(if part.rank == 1 { 1_000_000 } else { 10 }).unwrap_err());
}

/// Rank 1 begins its second call long after the others.
fn be_late(part: &Part, communicator: &Communicator) {
    let stream = communicator.device().stream().unwrap();
    let buffer = communicator.device().alloc::<f32>(5).unwrap();
    for call in 0..2 {
        if part.rank == 1 && call == 1 {
            std::thread::sleep(Duration::from_millis(2500));
        }
        communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &stream).unwrap();
        stream.synchronize().unwrap();
    }
}

/// Adds buffers of many lengths, and says which roads were taken.
fn add(part: &Part, communicator: &Communicator) {
    add_as_rank(communicator);
    communicator.decisions().iter().for_each(|decision| part.say(decision));
}

fn add_as_rank(communicator: &Communicator) {
    let stream = communicator.device().stream().unwrap();
    for count in [0, 1, 7, 1000, 4099, 70_001, 1_000_003] {
        let buffer = communicator.device().alloc::<i32>(count).unwrap();
        let own: Vec<i32> = (0..count as i32).map(|i| i * (communicator.rank() as i32 + 1)).collect();
        let factor = (1..=communicator.size() as i32).sum::<i32>();
        for turn in 0..3 {
            buffer.copy_from_host(&own).unwrap();
            communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &stream).unwrap();
            stream.synchronize().unwrap();
            let sum = buffer.to_vec().unwrap();
            let wrong = sum.iter().zip(0..).position(|(&sum, i): (_, i32)| sum != i.wrapping_mul(factor));
            assert_eq!(wrong, None, "{count} elements, turn {turn}");
        }
    }
}

/// Adds as several ranks: `counts` has the number of ranks of each process, a digit each.
fn several(part: &Part, counts: &str) {
    let counts: Vec<usize> = counts.bytes().map(|digit| usize::from(digit - b'0')).collect();
    let first: usize = counts[..part.rank].iter().sum();
    let own: Vec<_> = (first..first + counts[part.rank]).map(|rank| (rank, Device::host(rank as u32))).collect();
    let size = counts.iter().sum();
    let communicators = Communicator::init_ranks(&part.id, size, &own, &Config::from_environment()).unwrap();
    std::thread::scope(|scope| {
        communicators.iter().for_each(|communicator| {
            scope.spawn(|| add_as_rank(communicator));
        });
    });
    communicators[0].decisions().iter().for_each(|decision| part.say(decision));
    // each waits for what is under way, on either side
    std::thread::scope(|scope| {
        communicators.iter().for_each(|communicator| {
            scope.spawn(|| communicator.finalize().unwrap());
        });
    });
}

/// Takes all of the arena, so that later buffers are in memory that no other process reaches, and adds with such
/// buffers in every place.
fn out_of_reach(part: &Part, communicator: &Communicator) {
    const COUNT: usize = 1_000_003;
    let device = communicator.device();
    let inside = [device.alloc::<i32>(COUNT).unwrap(), device.alloc::<i32>(COUNT).unwrap()];
    let mut held = Vec::new();
    for bits in (12..47).rev() {
        // a size that the arena has no room for comes from elsewhere
        held.extend(std::iter::from_fn(|| {
            device.alloc::<u8>(1 << bits).ok().filter(|taken| is_shared(taken.as_ptr()))
        }));
    }
    let outside = [device.alloc::<i32>(COUNT).unwrap(), device.alloc::<i32>(COUNT).unwrap()];
    assert!(inside.iter().all(|buffer| is_shared(buffer.as_ptr().cast())), "there is no arena");
    assert!(outside.iter().all(|buffer| !is_shared(buffer.as_ptr().cast())), "the arena is not full");
    let stream = device.stream().unwrap();
    let own: Vec<i32> = (0..COUNT as i32).map(|i| i.wrapping_mul(part.rank as i32 + 1)).collect();
    let factor = (1..=part.size as i32).sum::<i32>();
    let odd = part.rank % 2 == 1;
    for (what, send, receive) in [
        ("all in reach", &inside[0], &inside[1]),
        ("send out of reach", &outside[0], &inside[1]),
        ("receive out of reach", &inside[0], &outside[1]),
        ("both out of reach", &outside[0], &outside[1]),
        ("in place, out of reach", &outside[0], &outside[0]),
        ("one rank's send out of reach", if odd { &outside[0] } else { &inside[0] }, &inside[1]),
        ("one rank's receive out of reach", &inside[0], if odd { &outside[1] } else { &inside[1] }),
    ] {
        send.copy_from_host(&own).unwrap();
        communicator.all_reduce(send, receive, RedOp::Sum, &stream).unwrap();
        stream.synchronize().unwrap();
        let sum = receive.to_vec().unwrap();
        let wrong = sum.iter().zip(0..).position(|(&sum, i): (_, i32)| sum != i.wrapping_mul(factor));
        assert_eq!(wrong, None, "{what}");
    }
    communicator.decisions().iter().for_each(|decision| part.say(decision));
}

/// Whether memory is a file's, which another process can map.
fn is_shared(address: *const u8) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).any(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(rest.split(' ').next().unwrap())).contains(&(address as usize))
    })
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
fn ranks_of_one_process_and_of_others_add_over_every_road() {
    for (road, closed) in ROADS {
        for (counts, processes) in [("21", 2), ("122", 3)] {
            let settings = |_| set(closed);
            let mut ranks = Ranks::start("rank", processes, &format!("several {counts}"), RootAt::Test, settings);
            for (said, own) in ranks.succeed(LIMIT).iter().zip(counts.chars()) {
                assert!(said.contains(road), "{said}");
                // ranks of a process reach each other by pointers where nothing forbids it
                assert_eq!(said.contains("P2P/direct pointer"), own == '2' && closed.is_empty(), "{said}");
            }
        }
    }
}

#[test]
fn buffers_that_no_other_process_reaches_are_added_as_well() {
    for size in [2, 3] {
        let mut ranks = Ranks::start("rank", size, "out of reach", RootAt::Test, |_| Vec::new());
        ranks.succeed(LIMIT).iter().for_each(|said| assert!(said.contains("P2P/IPC"), "{said}"));
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

#[test]
fn a_connection_may_have_several_sockets_and_threads() {
    let sockets = [("NCCL_SOCKET_NTHREADS", "2"), ("NCCL_NSOCKS_PERTHREAD", "3"), P2P, SHM];
    let mut ranks = Ranks::start("rank", 3, "add", RootAt::Test, |_| set(&sockets));
    ranks.succeed(LIMIT).iter().for_each(|said| assert!(said.contains("NET/Socket/0"), "{said}"));
    let differ = |rank: usize| set(&sockets[..1 + rank]);
    let mut ranks = Ranks::start("rank", 2, "add", RootAt::Test, differ);
    for said in ranks.succeed(LIMIT) {
        assert!(said.contains("NCCL_NSOCKS_PERTHREAD differs: -2 on rank 0, 3 on rank 1"), "{said}");
    }
}

#[test]
fn calls_that_differ_are_named_with_their_processes_on_every_road() {
    for (_, closed) in ROADS {
        let mut ranks = Ranks::start("rank", 3, "differ", RootAt::Test, |_| set(closed));
        let said = ranks.succeed(LIMIT);
        let made = |rank: usize, count| {
            format!(
                "rank {rank} (host {}, pid {}) made all_reduce(count {count}, float32, sum)",
                host(),
                ranks.pid(rank)
            )
        };
        for said in said {
            assert!(said.contains("in call 2 ") && said.contains(&made(1, 1_000_000)), "{said}");
            assert!(said.contains(&made(0, 10)) || said.contains(&made(2, 10)), "{said}");
        }
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().split('.').next().unwrap().into()
}

#[test]
fn ranks_that_are_missing_or_do_not_fit_are_named() {
    let short = |_| vec![("FERRONICKEL_INIT_TIMEOUT", "1".to_string())];
    for (play, expected) in [
        ("stay away", "rank 1 of 3 did not come within 1 s"),
        ("same number", "rank 0 of this id has been taken already"),
        ("other size", "ranks, another rank with the same id said"),
    ] {
        for root in [RootAt::Test, RootAt::RankZero] {
            let mut ranks = Ranks::start("rank", 3, play, root, short);
            let said = ranks.succeed(LIMIT).concat();
            assert!(said.lines().count() >= 2 && said.contains(expected), "{play}: {said}");
            // whoever comes when the root has gone is told that
            assert!(said.lines().all(|line| line.contains(expected) || line.contains("root")), "{play}: {said}");
        }
    }
}

#[test]
fn the_watchdog_names_the_one_that_is_late_once_on_each_rank() {
    for (_, closed) in ROADS {
        let settings = |_| [set(closed), set(&[("FERRONICKEL_TIMEOUT", "1"), ("NCCL_DEBUG", "WARN")])].concat();
        let mut ranks = Ranks::start("rank", 3, "be late", RootAt::Test, settings);
        ranks.succeed(LIMIT);
        for rank in [0, 2] {
            let out = ranks.wrote(rank, "out");
            let lines: Vec<_> = out.lines().filter(|line| line.contains("has made no progress for 1 s")).collect();
            assert_eq!(lines.len(), 1, "{out}");
            assert!(lines[0].contains("call 2 all_reduce(count 5, float32, sum)"), "{out}");
            assert!(lines[0].contains("last finished call 1; missing: rank 1 (host"), "{out}");
            assert!(!lines[0].contains(&format!("missing: rank {}", 2 - rank)), "{out}");
        }
        assert!(!ranks.wrote(1, "out").contains("no progress"), "{}", ranks.wrote(1, "out"));
    }
}

#[test]
fn processes_may_agree_on_an_address_of_either_family() {
    for ip in ["127.0.0.1", "[::1]"] {
        let Ok(free) = std::net::TcpListener::bind(format!("{ip}:0")) else {
            println!("skipped: this machine has no {ip}");
            continue;
        };
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let settings = |_| vec![("NCCL_COMM_ID", address.clone()), ("FERRONICKEL_SECRET", "of the test".into())];
        let mut ranks = Ranks::start("rank", 3, "agree on an address", RootAt::Test, settings);
        ranks.succeed(LIMIT).iter().for_each(|said| assert!(said.contains("P2P/IPC"), "{said}"));
    }
}

#[test]
fn where_memory_cannot_be_shared_the_network_is_taken_and_says_why() {
    let mut ranks = Ranks::start("rank", 2, "add", RootAt::Test, |_| set(&[(NO_MEMFD, "1")]));
    for said in ranks.succeed(LIMIT) {
        assert!(said.contains("NET/Socket/0; P2P refused: no memory can be shared: Operation not permitted"), "{said}");
        assert!(said.contains("SHM refused: "), "{said}");
    }
}

#[test]
fn too_few_open_files_are_one_clear_error() {
    for limit in 8..40 {
        let settings = |_| vec![(FILES, limit.to_string()), ("FERRONICKEL_INIT_TIMEOUT", "5".into())];
        let mut ranks = Ranks::start("rank", 2, "add", RootAt::Test, settings);
        let said = ranks.succeed(LIMIT).concat();
        if limit == 39 {
            assert!(said.contains("P2P/IPC"), "{said}");
        }
    }
}

#[test]
fn an_interface_that_does_not_exist_is_an_error_that_lists_those_that_do() {
    let settings = |_| set(&[("NCCL_SOCKET_IFNAME", "nosuch")]);
    let mut ranks = Ranks::start("rank", 2, "add", RootAt::Test, settings);
    for said in ranks.succeed(LIMIT) {
        assert!(said.contains("nosuch") && said.contains("lo"), "{said}");
    }
}

#[test]
fn launched_ranks_find_each_other_as_often_as_they_like() {
    let id = UniqueId::new().unwrap();
    let launched = |rank: usize| {
        let number = |name, number: usize| (name, number.to_string());
        vec![
            number("FERRONICKEL_RANK", rank),
            number("FERRONICKEL_SIZE", 3),
            number("FERRONICKEL_LOCAL_RANK", rank),
            number("FERRONICKEL_LOCAL_SIZE", 3),
            ("FERRONICKEL_UNIQUE_ID", processes::hex(&id)),
        ]
    };
    let mut ranks = Ranks::start("rank", 3, "from the environment", RootAt::Test, launched);
    for said in ranks.succeed(LIMIT) {
        assert_eq!(said.matches("P2P/IPC").count(), 12, "{said}");
    }
    let mut alone = Ranks::start("rank", 1, "from the environment", RootAt::Test, |_| Vec::new());
    let said = alone.succeed(LIMIT).concat();
    assert!(said.contains("no launcher started this process; start it with ferronickel run"), "{said}");
}
