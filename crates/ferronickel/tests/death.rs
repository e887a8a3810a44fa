//! A rank dies, stops, leaves or panics, at any moment, on every road: every other rank is told in time which one it
//! was, can abort, and nothing is left.
//!
//! `FERRONICKEL_DEATH_SEED=N` (printed by a failure) repeats the moments of a run; `FERRONICKEL_DEATH_ROUNDS=N` goes
//! through the cases so many times, at other moments.

#[path = "support/processes.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod processes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferronickel::{Communicator, Config, Device, Error, RedOp};
use processes::{Ended, Part, Ranks, RootAt};

/// Within this every survivor knows of a death; of a stop, which only silence shows, within the other.
const NOTICED: Duration = Duration::from_secs(5);
const STOP_NOTICED: Duration = Duration::from_secs(10);
const INIT_TIMEOUT: Duration = Duration::from_secs(4);
/// A rank that has not ended by then is a hang.
const HANG: Duration = Duration::from_secs(40);

/// How the victim goes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Manner {
    Kill,
    Exit,
    Panic,
    Stop,
}

/// When it does.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Moment {
    /// Some time between its start and the end of init.
    Init,
    /// It has never called.
    FirstCall,
    /// In the midst of small calls, or of large ones.
    Small,
    Large,
    /// It has said that it makes no more calls, and has not ended yet.
    Finalize,
}

const MANNERS: [Manner; 4] = [Manner::Kill, Manner::Exit, Manner::Panic, Manner::Stop];
const MOMENTS: [Moment; 5] = [Moment::Init, Moment::FirstCall, Moment::Small, Moment::Large, Moment::Finalize];

/// The roads, by what leaves them open. The last has a network between two pairs that share memory.
const ROADS: [(&str, &[&str]); 4] = [
    ("P2P", &[]),
    ("SHM", &["NCCL_P2P_DISABLE"]),
    ("NET", &["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]),
    ("two hosts", &["NCCL_HOSTID"]),
];

#[derive(Clone, Copy, Debug)]
struct Case {
    manner: Manner,
    moment: Moment,
    road: (&'static str, &'static [&'static str]),
    size: usize,
    victim: usize,
    root: usize,
    /// Decides when exactly.
    chance: u64,
}

// ---- what a rank does

#[test]
fn rank() {
    let Some(part) = Part::taken() else { return };
    let words: Vec<_> = part.play.split(' ').collect();
    let [manner, moment, victim, turn] = words[..] else { panic!("no play: {}", part.play) };
    let is_victim = victim.parse() == Ok(part.rank);
    let turn: usize = turn.parse().unwrap();
    let go = |now: &str| {
        if is_victim && now == moment {
            part.reach("here");
            match manner {
                "Exit" => std::process::exit(3),
                "Panic" => panic!("on purpose"),
                // the test kills it, or stops it
                _ => std::thread::sleep(Duration::from_secs(3600)),
            }
        }
    };
    part.reach("start");
    let outcome = endure(&part, moment, turn, &go);
    match outcome {
        Ok(()) => part.say("ended well"),
        Err(error) => part.say(error),
    }
}

/// Makes calls until one fails, and looks that the communicator can be aborted and dropped then.
fn endure(part: &Part, moment: &str, turn: usize, go: &dyn Fn(&str)) -> Result<(), Error> {
    let device = Device::host(part.rank as u32);
    let communicator = Communicator::init_rank(&part.id, part.size, part.rank, &device, &Config::from_environment())?;
    part.reach("met");
    go("Init");
    go("FirstCall");
    let buffer = device.alloc::<f32>(if moment == "Large" { 3_000_000 } else { 100 })?;
    let stream = device.stream()?;
    let deadline = Instant::now() + HANG;
    let mut calls = 0;
    let outcome = loop {
        let called = communicator.all_reduce(&buffer, &buffer, RedOp::Max, &stream).and_then(|()| stream.synchronize());
        if let Err(error) = called {
            break Err(error);
        }
        calls += 1;
        if calls == turn {
            go("Small");
            go("Large");
            if moment == "Finalize" {
                communicator.finalize()?;
                go("Finalize");
                return Ok(());
            }
        }
        assert!(Instant::now() < deadline, "nobody said anything");
    };
    communicator.abort();
    assert!(communicator.async_error().is_some());
    drop((stream, buffer, communicator));
    outcome
}

// ---- what is expected of it

fn cases(seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut chance = seed;
    for manner in MANNERS {
        for moment in MOMENTS {
            for road in ROADS {
                for size in [2, 3, 4] {
                    chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    let draw = (chance >> 33) as usize;
                    // a stop takes long to notice, so two of three sizes must do
                    if manner == Manner::Stop && size == 2 + draw % 3 {
                        continue;
                    }
                    cases.push(Case { manner, moment, road, size, victim: draw % size, root: draw / 7 % 2, chance });
                }
            }
        }
    }
    cases
}

impl Case {
    fn run(&self) {
        let (_, closed) = self.road;
        let setting = |rank: usize| {
            let value = |name: &str| match name {
                "NCCL_HOSTID" => format!("host{}", rank * 2 / self.size),
                _ => "1".into(),
            };
            let mut settings: Vec<_> = closed.iter().map(|&name| (name, value(name))).collect();
            settings.push(("FERRONICKEL_INIT_TIMEOUT", INIT_TIMEOUT.as_secs().to_string()));
            settings
        };
        let root = [RootAt::Test, RootAt::RankZero][self.root];
        let turn = 1 + (self.chance >> 40) % 20;
        let play = format!("{:?} {:?} {} {turn}", self.manner, self.moment, self.victim);
        let mut ranks = Ranks::start("rank", self.size, &play, root, setting);
        let acts_itself = matches!(self.manner, Manner::Exit | Manner::Panic);
        if self.moment == Moment::Init && !acts_itself {
            ranks.wait_for(self.victim, "start");
            std::thread::sleep(Duration::from_micros((self.chance >> 45) % 12_000));
        } else {
            ranks.wait_for(self.victim, "here");
        }
        match self.manner {
            Manner::Kill => ranks.signal(self.victim, libc::SIGKILL),
            Manner::Stop => ranks.signal(self.victim, libc::SIGSTOP),
            Manner::Exit | Manner::Panic => {}
        }
        let survivors: Vec<_> = (0..self.size).filter(|&rank| rank != self.victim).collect();
        let ended = ranks.wait(survivors.iter().copied(), HANG);
        for (&rank, ended) in survivors.iter().zip(&ended) {
            self.judge(&ranks, rank, ended);
        }
    }

    /// Whether a survivor was told in time what has happened.
    fn judge(&self, ranks: &Ranks, rank: usize, ended: &Ended) {
        let said = &ended.said;
        let trace = || format!("rank {rank} said: {said}\n{}\n{}", ranks.wrote(rank, "out"), ranks.wrote(rank, "err"));
        assert!(ended.status.success(), "{}", trace());
        let limit = match self.manner {
            Manner::Stop => STOP_NOTICED,
            // nobody can know that it will not come before its time is up
            _ if said.contains("did not come") => NOTICED + INIT_TIMEOUT,
            _ => NOTICED,
        };
        assert!(ended.after < limit, "after {:?}, {}", ended.after, trace());
        let pid = format!("pid {}", ranks.pid(self.victim));
        let names = said.contains(&format!("rank {} (", self.victim)) && said.contains(&pid) && said.contains("host ");
        match self.moment {
            // it has done all it had to do, and so have they
            Moment::Finalize => assert_eq!(said, "ended well\n", "{}", trace()),
            // it may not even have come, and then nobody knows its process; the root may be gone, and with it the id
            Moment::Init => {
                let missing = said.contains(&format!("rank {} of {} did not come", self.victim, self.size));
                let root = self.root == 1 && said.contains("root");
                assert!(names || missing || root, "{}", trace());
            }
            _ => assert!(names, "{}", trace()),
        }
    }
}

#[test]
fn whatever_happens_to_a_rank_the_others_are_told() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (seed, rounds) = (number("FERRONICKEL_DEATH_SEED", 7), number("FERRONICKEL_DEATH_ROUNDS", 1));
    let cases: Vec<_> = (0..rounds).flat_map(|round| cases(seed + round)).collect();
    assert!(cases.len() >= 200, "{} cases", cases.len());
    // those that wait for silence need no processor meanwhile
    let (slow, quick): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| case.manner == Manner::Stop);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (cases, at_once) in [(&slow, 8), (&quick, 3)] {
            let next = std::sync::Arc::new(AtomicUsize::new(0));
            for _ in 0..at_once {
                let (next, failed) = (next.clone(), &failed);
                scope.spawn(move || {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case.run())) {
                            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                            failed.lock().unwrap().push(format!("{case:?}: {text}"));
                        }
                    }
                });
            }
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(
        failed.is_empty(),
        "FERRONICKEL_DEATH_SEED={seed} {seed}: {} cases failed\n{}",
        failed.len(),
        failed.join("\n\n")
    );
    nothing_is_left();
}

/// What is not in a process ends with it, if it ends at all: files have names, and this process has been the root.
fn nothing_is_left() {
    let shared = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let files: Vec<_> = shared.filter(|entry| entry.file_name().to_string_lossy().contains("ferronickel")).collect();
    assert!(files.is_empty(), "{files:?}");
    // the root stays a little for those that come late
    let deadline = Instant::now() + NOTICED * 3;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fd.path().read_link().ok());
    let is_ours =
        |link: &std::path::PathBuf| ["socket:", "eventfd"].iter().any(|kind| link.to_string_lossy().contains(kind));
    loop {
        let left: Vec<_> = open().filter(is_ours).collect();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
