//! Sees to it that a run ends: the first failure ends every thread, a wait has its limit, and what does not let go even
//! then is left behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::exit::{Code, Failure};

/// How long the threads, and the other processes, may take to come to an end after a failure, before nobody waits for
/// other processes any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the threads may take to end after that.
const GRACE: Duration = Duration::from_secs(5);

/// Watches over the threads of a run.
pub struct Supervisor {
    state: Mutex<State>,
    changed: Condvar,
    /// For each thread, when its present wait began, in nanoseconds after `start`; zero if it does not wait.
    waits: Vec<AtomicU64>,
    start: Instant,
    timeout: Option<u32>,
}

#[derive(Default)]
struct State {
    failure: Option<Failure>,
    /// What ends the waits of all threads.
    aborts: Vec<Box<dyn Fn() + Send>>,
    /// What ends the waits for other processes.
    leave: Option<Box<dyn Fn() + Send>>,
    over: bool,
}

impl Supervisor {
    /// Watches so many threads; none of their waits may last longer than `timeout` seconds.
    pub fn new(threads: usize, timeout: Option<u32>) -> Self {
        Self {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            waits: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            start: Instant::now(),
            timeout,
        }
    }

    /// Should any thread fail, `abort` is called; at once if one has failed already.
    pub fn on_failure(&self, abort: impl Fn() + Send + 'static) {
        let mut state = self.lock();
        if state.failure.is_some() {
            drop(state);
            abort();
        } else {
            state.aborts.push(Box::new(abort));
        }
    }

    /// Should the run not end in time after a failure, `leave` is called, which ends the waits for other processes.
    pub fn at_last(&self, leave: impl Fn() + Send + 'static) {
        self.lock().leave = Some(Box::new(leave));
    }

    /// What was recorded so far.
    pub fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }

    /// Records a failure and ends the waits of all threads. Only the first counts; the others follow from it.
    pub fn fail(&self, failure: Failure) {
        let aborts = {
            let mut state = self.lock();
            if state.failure.is_some() {
                return;
            }
            state.failure = Some(failure);
            std::mem::take(&mut state.aborts)
        };
        self.changed.notify_all();
        for abort in aborts {
            abort();
        }
    }

    /// Runs the work of a thread; its failure, or its panic, is everyone's.
    pub fn oversee(&self, thread: usize, work: impl FnOnce() -> Result<(), Failure>) {
        let result = catch_unwind(AssertUnwindSafe(work));
        self.waits[thread].store(0, Ordering::Relaxed);
        match result {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => self.fail(failure),
            Err(_) => self.fail(Failure::new(Code::System, format!("thread {thread} panicked; this is a bug"))),
        }
    }

    /// Runs something that waits, with the limit of the timeout.
    pub fn timed<R>(&self, thread: usize, wait: impl FnOnce() -> R) -> R {
        if self.timeout.is_none() {
            return wait();
        }
        self.waits[thread].store(self.now().max(1), Ordering::Relaxed);
        let result = wait();
        self.waits[thread].store(0, Ordering::Relaxed);
        result
    }

    /// The body of the thread that watches; it returns when the run is over. A failure of a run that does not end is
    /// said by `program`.
    pub fn watch(&self, program: &str) {
        let mut state = self.lock();
        while !state.over && state.failure.is_none() {
            state = match self.timeout {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(seconds) => {
                    let pause = Duration::from_secs(seconds.into()).min(Duration::from_millis(100));
                    let (state, _) = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
                    drop(state);
                    self.look_at_waits(seconds);
                    self.lock()
                }
            };
        }
        let mut state = self.wait_for_end(state, PATIENCE);
        if let (false, Some(leave)) = (state.over, state.leave.take()) {
            drop(state);
            leave();
            state = self.lock();
        }
        let state = self.wait_for_end(state, GRACE);
        if let (false, Some(failure)) = (state.over, &state.failure) {
            failure.say(program);
            process::exit(failure.code as i32);
        }
    }

    fn wait_for_end<'s>(&'s self, state: MutexGuard<'s, State>, longest: Duration) -> MutexGuard<'s, State> {
        let goes_on = |state: &mut State| !state.over;
        self.changed.wait_timeout_while(state, longest, goes_on).unwrap_or_else(PoisonError::into_inner).0
    }

    fn look_at_waits(&self, seconds: u32) {
        let limit = u64::from(seconds) * 1_000_000_000;
        let now = self.now();
        let late = |wait: &AtomicU64| match wait.load(Ordering::Relaxed) {
            0 => false,
            began => now.saturating_sub(began) > limit,
        };
        if self.waits.iter().any(late) {
            self.fail(Failure::new(Code::Timeout, format!("Test timeout ({seconds}s)")));
        }
    }

    /// The run is over; what was recorded of it.
    pub fn finish(&self) -> Option<Failure> {
        let mut state = self.lock();
        state.over = true;
        self.changed.notify_all();
        state.failure.clone()
    }

    /// Nanoseconds since the start.
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn failure(message: &str) -> Failure {
        Failure::new(Code::Library, message)
    }

    #[test]
    fn the_first_failure_counts_and_ends_all() {
        let supervisor = Supervisor::new(2, None);
        let aborted = Arc::new(AtomicBool::new(false));
        let abort = aborted.clone();
        supervisor.on_failure(move || abort.store(true, Ordering::Relaxed));
        supervisor.oversee(0, || Err(failure("first")));
        supervisor.oversee(1, || Err(failure("second")));
        assert!(aborted.load(Ordering::Relaxed));
        assert_eq!(supervisor.finish(), Some(failure("first")));
    }

    #[test]
    fn who_comes_too_late_is_aborted_at_once() {
        let supervisor = Supervisor::new(1, None);
        supervisor.fail(failure("early"));
        let aborted = Arc::new(AtomicBool::new(false));
        let abort = aborted.clone();
        supervisor.on_failure(move || abort.store(true, Ordering::Relaxed));
        assert!(aborted.load(Ordering::Relaxed));
    }

    #[test]
    fn a_panic_is_a_failure() {
        let supervisor = Supervisor::new(1, None);
        supervisor.oversee(0, || panic!("on purpose"));
        assert!(supervisor.finish().unwrap().message.contains("thread 0 panicked"));
    }

    #[test]
    fn a_wait_beyond_the_limit_is_a_timeout() {
        let supervisor = Supervisor::new(2, Some(1));
        let aborted = Arc::new(AtomicBool::new(false));
        let abort = aborted.clone();
        supervisor.on_failure(move || abort.store(true, Ordering::Relaxed));
        thread::scope(|scope| {
            scope.spawn(|| supervisor.watch("test"));
            supervisor.oversee(1, || {
                supervisor.timed(1, || {
                    while !aborted.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(5));
                    }
                });
                Err(failure("aborted"))
            });
            let failure = supervisor.finish().unwrap();
            assert_eq!((failure.code, failure.message.as_str()), (Code::Timeout, "Test timeout (1s)"));
        });
    }

    #[test]
    fn a_run_without_failure_ends_the_watch() {
        let supervisor = Supervisor::new(1, Some(60));
        thread::scope(|scope| {
            scope.spawn(|| supervisor.watch("test"));
            supervisor.oversee(0, || supervisor.timed(0, || Ok(())));
            assert_eq!(supervisor.finish(), None);
        });
    }
}
