//! What launchers say, by tables; and ranks that meet, with strangers among them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

use super::*;

mod launched;

/// The world in these variables, as `rank/size local_rank/local_size launcher`.
fn world(variables: &str) -> Result<Option<World>> {
    let pairs: Vec<_> = variables.split_whitespace().map(|pair| pair.split_once('=').unwrap()).collect();
    let all: HashMap<_, _> = pairs.iter().copied().collect();
    let lookup = |name: &str| all.get(name).map(|value| (*value).to_owned());
    launchers::find(&config(&pairs), &lookup)
}

fn config(pairs: &[(&str, &str)]) -> Config {
    let environment = pairs.iter().map(|(name, value)| (name.into(), value.into()));
    Config::read(environment, Path::new("/nonexistent/nccl.conf"))
}

fn shown(variables: &str) -> String {
    world(variables).unwrap_or_else(|error| panic!("{variables}: {error}")).map_or("none".to_owned(), |world| {
        let World { rank, size, local_rank, local_size, launcher, .. } = world;
        format!("{rank}/{size} {local_rank}/{local_size} {launcher}")
    })
}

const OMPI: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
    OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=5";
const MPICH: &str = "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4";
const SLURM: &str = "SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NTASKS=7 \
    SLURM_TASKS_PER_NODE=4,3";
const TORCHRUN: &str = "RANK=6 WORLD_SIZE=8 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1 \
    TORCHELASTIC_RUN_ID=none";

#[test]
fn launchers_are_recognised() {
    let id = "FERRONICKEL_UNIQUE_ID=".to_owned() + &hex(&UniqueId::new().unwrap());
    let ours = format!("FERRONICKEL_RANK=2 FERRONICKEL_SIZE=3 FERRONICKEL_LOCAL_RANK=2 FERRONICKEL_LOCAL_SIZE=3 {id}");
    let by_hand = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1";
    for (variables, expected) in [
        ("PATH=/bin", "none"),
        ("RANK=3", "none"),
        ("RANK=3 WORLD_SIZE=x", "none"),
        (&ours, "2/3 2/3 ferronickel run"),
        (OMPI, "3/4 1/2 Open MPI"),
        (MPICH, "1/4 1/4 MPICH"),
        (SLURM, "5/7 1/3 Slurm"),
        (TORCHRUN, "6/8 2/4 torchrun"),
        (by_hand, "0/2 0/2 PyTorch's variables"),
        // The innermost counts.
        (&format!("{SLURM} {OMPI}"), "3/4 1/2 Open MPI"),
        (&format!("{SLURM} {MPICH}"), "1/4 1/4 MPICH"),
        (&format!("{SLURM} {OMPI} {TORCHRUN}"), "6/8 2/4 torchrun"),
        (&format!("{OMPI} {by_hand}"), "3/4 1/2 Open MPI"),
        (&format!("{OMPI} {TORCHRUN} {ours}"), "2/3 2/3 ferronickel run"),
        // Slurm's PMI.
        (&format!("{SLURM} PMI_RANK=5 PMI_SIZE=7"), "5/7 1/3 Slurm"),
        // A step that is smaller than its job.
        (&format!("{SLURM} SLURM_STEP_NUM_TASKS=6 SLURM_STEP_TASKS_PER_NODE=4,2"), "5/6 1/2 Slurm"),
    ] {
        assert_eq!(shown(variables), expected, "{variables}");
    }
}

#[test]
fn the_script_of_sbatch_is_no_rank() {
    let batch = "SLURM_JOB_ID=9 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=4";
    assert_eq!(shown(batch), "none");
    for special in ["4294967291", "4294967290", "4294967292", ""] {
        assert_eq!(shown(&format!("{batch} SLURM_STEP_ID={special}")), "none", "{special}");
    }
    assert_eq!(shown(&format!("{batch} SLURM_STEP_ID=3")), "0/4 0/4 Slurm");
}

#[test]
fn what_does_not_go_together_is_named_with_its_values() {
    let ours = "FERRONICKEL_RANK=0 FERRONICKEL_SIZE=2 FERRONICKEL_LOCAL_RANK=0 FERRONICKEL_LOCAL_SIZE=2";
    for (variables, words) in [
        ("OMPI_COMM_WORLD_RANK=3", &["OMPI_COMM_WORLD_SIZE,", "not set beside OMPI_COMM_WORLD_RANK=3"][..]),
        (&MPICH.replace("PMI_SIZE=4", ""), &["PMI_SIZE of MPICH is not set", "PMI_RANK=1"]),
        (&MPICH.replace("PMI_SIZE=4", "PMI_SIZE=1"), &["rank 1 is none of 1 ranks", "PMI_SIZE=1"]),
        (&MPICH.replace("PMI_SIZE=4", "PMI_SIZE=3"), &["4 ranks of this host are more than the 3", "PMI_SIZE=3"]),
        (&MPICH.replace("RANKID=1", "RANKID=4"), &["local rank 4 is none of 4", "MPI_LOCALRANKID=4"]),
        (&MPICH.replace("PMI_RANK=1", "PMI_RANK=-1"), &["PMI_RANK=-1 is no number"]),
        (&MPICH.replace("PMI_RANK=1", "PMI_RANK=99999999999"), &["PMI_RANK=99999999999 is no number"]),
        (&SLURM.replace("SLURM_PROCID=5", ""), &["SLURM_PROCID of Slurm is not set", "SLURM_NTASKS=7"]),
        (&SLURM.replace("=4,3", "=4"), &["SLURM_TASKS_PER_NODE=4 says nothing of node 1"]),
        (&TORCHRUN.replace(" LOCAL_RANK=2", ""), &["LOCAL_RANK of torchrun is not set", "WORLD_SIZE=8"]),
        (ours, &["FERRONICKEL_UNIQUE_ID is not", "NCCL_COMM_ID"]),
        (
            &format!("{ours} FERRONICKEL_UNIQUE_ID=abcd"),
            &["FERRONICKEL_UNIQUE_ID is no unique id: it has 4 characters"],
        ),
        (&format!("{ours} FERRONICKEL_UNIQUE_ID={}", "zz".repeat(128)), &["not all of it are hexadecimal"]),
        (&format!("{ours} FERRONICKEL_UNIQUE_ID={}", "00".repeat(128)), &["is no unique id: these 128 bytes"]),
    ] {
        let error = world(variables).map(|world| panic!("{variables}: {world:?}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        for word in words {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
    }
}

#[test]
fn a_world_does_not_show_its_secret() {
    let id = hex(&UniqueId::new().unwrap());
    let ours = "FERRONICKEL_RANK=0 FERRONICKEL_SIZE=1 FERRONICKEL_LOCAL_RANK=0 FERRONICKEL_LOCAL_SIZE=1";
    let shown = format!("{:?}", world(&format!("{ours} FERRONICKEL_UNIQUE_ID={id}")).unwrap().unwrap());
    let some_of_it = &id[40..48];
    assert!(!shown.contains(some_of_it), "{shown}");
}

#[test]
fn an_address_or_an_id_that_is_given_is_used() {
    let id = UniqueId::new().unwrap();
    let ours = "FERRONICKEL_RANK=0 FERRONICKEL_SIZE=1 FERRONICKEL_LOCAL_RANK=0 FERRONICKEL_LOCAL_SIZE=1";
    let given = world(&format!("{ours} FERRONICKEL_UNIQUE_ID={}", hex(&id))).unwrap().unwrap();
    assert_eq!(given.unique_id(&config(&[]), 0).unwrap(), id);
    assert_ne!(given.unique_id(&config(&[]), 1).unwrap(), id);

    let spread = world(OMPI).unwrap().unwrap();
    let error = spread.unique_id(&config(&[]), 0).unwrap_err();
    assert!(error.to_string().contains("started 4 ranks, 2 of them on this host"), "{error}");
    assert!(error.to_string().contains("NCCL_COMM_ID") && error.to_string().contains("FERRONICKEL_SECRET"), "{error}");
    let config = config(&[("NCCL_COMM_ID", "10.0.0.1:77"), ("FERRONICKEL_SECRET", "s")]);
    assert_eq!(spread.unique_id(&config, 0).unwrap().addresses(), ["10.0.0.1:77".parse().unwrap()]);
}

fn hex(id: &UniqueId) -> String {
    id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A rank of a job that nobody else has.
fn rank(job: u64, rank: usize, size: usize) -> World {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&job.to_le_bytes());
    key[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    World { rank, size, local_rank: rank, local_size: size, launcher: "a test", job: Job::Key(key), id: None }
}

fn seconds(seconds: &str) -> Config {
    config(&[("FERRONICKEL_INIT_TIMEOUT", seconds)])
}

#[test]
fn all_ranks_get_one_id_for_each_communicator() {
    let size = 12;
    let ids: Vec<Vec<_>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .rev()
            .map(|number| {
                scope.spawn(move || {
                    (0..5)
                        .map(|count| rank(1, number, size).unique_id(&seconds("30"), count).unwrap())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|all| *all == ids[0]));
    assert!((1..5).all(|count| !ids[0][..count].contains(&ids[0][count])));
}

#[test]
fn those_who_do_not_come_are_named() {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| rank(2, 2, 4).unique_id(&seconds("1"), 0).unwrap());
        let error = rank(2, 0, 4).unique_id(&seconds("1"), 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("ranks 1, 3 of 4 did not come for the id of communicator 0"), "{error}");
        second.join().unwrap();
    });
    let error = rank(3, 1, 2).unique_id(&seconds("1"), 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("rank 1 waited 1 s for rank 0 to hand out the id of communicator 4"), "{error}");
    assert!(error.to_string().contains("nobody listens there"), "{error}");
    assert!(error.to_string().contains("network namespace"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn sizes_that_differ_are_said() {
    std::thread::scope(|scope| {
        let root = scope.spawn(|| rank(4, 0, 2).unique_id(&seconds("1"), 0));
        let error = rank(4, 1, 3).unique_id(&seconds("5"), 0).unwrap_err();
        assert!(error.to_string().contains("rank 0 says that there are 2 ranks, rank 1 says 3"), "{error}");
        assert!(root.join().unwrap().is_err());
    });
}

/// Connects as soon as somebody listens.
fn stranger(name: &SocketAddr) -> UnixStream {
    let start = Instant::now();
    loop {
        match UnixStream::connect_addr(name) {
            Ok(stream) => return stream,
            Err(error) if start.elapsed() > Duration::from_secs(10) => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn name_of(world: &World, generation: u32) -> SocketAddr {
    let meeting = Meeting::new(world, generation, Duration::from_secs(1)).unwrap();
    SocketAddr::from_abstract_name(meeting.name()).unwrap()
}

#[test]
fn strangers_cost_only_themselves() {
    let name = name_of(&rank(5, 0, 2), 0);
    std::thread::scope(|scope| {
        let root = scope.spawn(|| rank(5, 0, 2).unique_id(&seconds("30"), 0).unwrap());
        let mut silent: Vec<_> = (0..40).map(|_| stranger(&name)).collect();
        let mut wrong = stranger(&name);
        wrong.write_all(&[7; 64]).unwrap();
        let mut slow = stranger(&name);
        slow.write_all(b"FNW").unwrap();
        drop(stranger(&name));
        let start = Instant::now();
        let id = rank(5, 1, 2).unique_id(&seconds("30"), 0).unwrap();
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(root.join().unwrap(), id);
        // Nobody else got a byte of it, and the socket is gone.
        for stream in silent.iter_mut().chain([&mut wrong, &mut slow]) {
            assert!(!matches!(stream.read(&mut [0; 256]), Ok(1..)));
        }
    });
    assert!(UnixStream::connect_addr(&name).is_err());
}

#[test]
fn a_name_that_is_taken_for_a_while_is_waited_for() {
    let name = name_of(&rank(6, 0, 2), 0);
    let squatter = UnixListener::bind_addr(&name).unwrap();
    std::thread::scope(|scope| {
        let root = scope.spawn(|| rank(6, 0, 2).unique_id(&seconds("30"), 0).unwrap());
        let other = scope.spawn(|| rank(6, 1, 2).unique_id(&seconds("30"), 0).unwrap());
        // It answers nonsense, then goes away.
        let (mut stream, _) = squatter.accept().unwrap();
        stream.write_all(&[9; 140]).unwrap();
        drop((stream, squatter));
        assert_eq!(root.join().unwrap(), other.join().unwrap());
    });
    let _squatter = UnixListener::bind_addr(&name).unwrap();
    let error = rank(6, 0, 2).unique_id(&seconds("1"), 0).unwrap_err();
    assert!(error.to_string().contains("listening at the abstract socket @ferronickel-"), "{error}");
}
