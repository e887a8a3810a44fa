//! Where the system gives the process no thread: every call runs all the same, and when there are threads again, so do
//! those that nobody waits for.

#[path = "support/processes.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod processes;

use std::time::{Duration, Instant};

use ferronickel::{Communicator, Config, Device, DeviceBuffer, RedOp, Stream, group};
use processes::{Part, Ranks, RootAt};

const LIMIT: Duration = Duration::from_secs(60);

/// Plays the only rank. In the test's own process this does nothing.
#[test]
fn rank() {
    let Some(part) = Part::taken() else { return };
    let device = Device::host(0);
    let config = Config::from_environment();
    let communicator = Communicator::init_rank(&part.id, 1, 0, &device, &config).unwrap();
    let alone = Alone {
        streams: [device.stream().unwrap(), device.stream().unwrap()],
        send: device.alloc(4).unwrap(),
        receive: device.alloc(4).unwrap(),
        communicator,
    };
    alone.send.copy_from_host(&[1, 2, 3, 4]).unwrap();
    match part.play.as_str() {
        "drop" => alone.drop_streams(),
        "go on" => alone.go_on(),
        play => panic!("no play is called {play}"),
    }
}

/// A communicator of one rank, whose calls copy.
struct Alone {
    communicator: Communicator,
    streams: [Stream; 2],
    send: DeviceBuffer<i32>,
    receive: DeviceBuffer<i32>,
}

impl Alone {
    fn call(&self, stream: &Stream) {
        self.communicator.all_reduce(&self.send, &self.receive, RedOp::Sum, stream).unwrap();
    }

    fn has_run(&self) -> bool {
        self.receive.to_vec().unwrap() == [1, 2, 3, 4]
    }

    /// Whoever drops the stream, or ends a group whose stream is gone, runs what is on it.
    fn drop_streams(mut self) {
        let _none = no_threads();
        let [first, second] = std::mem::replace(&mut self.streams, [0, 1].map(|_| Device::host(0).stream().unwrap()));
        self.call(&first);
        drop(first);
        assert!(self.has_run(), "the calls went with the stream");
        self.receive.copy_from_host(&[0; 4]).unwrap();
        group(|| {
            self.call(&second);
            drop(second);
            Ok(())
        })
        .unwrap();
        assert!(self.has_run(), "the group's call went with the stream");
    }

    /// A call that nobody waits for runs, once there are threads again.
    fn go_on(self) {
        let [stream, _] = &self.streams;
        let none = no_threads();
        self.call(stream);
        stream.synchronize().expect("the caller runs it");
        drop(none);
        self.receive.copy_from_host(&[0; 4]).unwrap();
        self.call(stream);
        let began = Instant::now();
        while !stream.is_idle().unwrap() {
            assert!(began.elapsed() < LIMIT / 2, "nobody runs it");
            std::thread::yield_now();
        }
        assert!(self.has_run());
    }
}

/// While it lives, this process gets no thread: there are too few addresses for a stack.
struct NoThreads(libc::rlimit);

fn no_threads() -> NoThreads {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut before) }, 0);
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    // room for what is allocated, but not for a stack
    limit_addresses(libc::rlimit { rlim_cur: pages * 4096 + (1 << 20), ..before });
    // stacks of threads that have ended may be used again: until those are used up
    let mut held = Vec::new();
    while let Ok(thread) = std::thread::Builder::new().spawn(std::thread::park) {
        held.push(thread);
        assert!(held.len() < 100, "threads are to be had for ever");
    }
    NoThreads(before)
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        limit_addresses(self.0);
    }
}

fn limit_addresses(limit: libc::rlimit) {
    // SAFETY: the limit is valid
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

fn play(play: &str) {
    Ranks::start("rank", 1, play, RootAt::Test, |_| Vec::new()).succeed(LIMIT);
}

#[test]
fn what_lies_on_a_dropped_stream_runs_without_a_thread() {
    play("drop");
}

#[test]
fn the_dispatcher_comes_when_there_are_threads_again() {
    play("go on");
}
