//! Where the threads of a run meet: each brings something, and all get everything. Unlike a barrier of the standard
//! library it can be broken off, so that no thread waits for one that has failed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A meeting of a fixed number of threads, held as often as they come.
pub struct Meeting<T> {
    size: usize,
    state: Mutex<State<T>>,
    held: AtomicU64,
    changed: Condvar,
    /// How often to look before sleeping.
    looks: u32,
}

struct State<T> {
    brought: Vec<Option<T>>,
    arrived: usize,
    result: Arc<Vec<T>>,
    broken: bool,
}

/// The meeting was broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl<T> Meeting<T> {
    /// A meeting of `size` threads, in a process where so many ranks work.
    pub fn new(size: usize, ranks: usize) -> Self {
        let state = State { brought: none(size), arrived: 0, result: Arc::new(Vec::new()), broken: false };
        // Looking is quicker than sleeping, but only where it keeps no rank from its work.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let looks = if ranks <= cores { 2_000 } else { 0 };
        Self { size, state: Mutex::new(state), held: AtomicU64::new(0), changed: Condvar::new(), looks }
    }

    /// Waits for all threads; the thread of this number brings `value`.
    pub fn meet(&self, thread: usize, value: T) -> Result<Arc<Vec<T>>, Broken> {
        let held = self.held.load(Ordering::Acquire);
        let mut state = self.lock();
        if state.broken {
            return Err(Broken);
        }
        state.brought[thread] = Some(value);
        state.arrived += 1;
        if state.arrived == self.size {
            state.arrived = 0;
            let brought = std::mem::replace(&mut state.brought, none(self.size));
            state.result = Arc::new(brought.into_iter().flatten().collect());
            self.held.fetch_add(1, Ordering::Release);
            self.changed.notify_all();
            return Ok(state.result.clone());
        }
        drop(state);
        for _ in 0..self.looks {
            if self.held.load(Ordering::Acquire) != held {
                break;
            }
            std::hint::spin_loop();
        }
        let is_on = |state: &mut State<T>| self.held.load(Ordering::Acquire) == held && !state.broken;
        let state = self.changed.wait_while(self.lock(), is_on).unwrap_or_else(PoisonError::into_inner);
        // Nobody can have come twice, so the result is still this meeting's.
        if self.held.load(Ordering::Acquire) == held { Err(Broken) } else { Ok(state.result.clone()) }
    }

    /// Breaks it off: whoever waits and whoever comes is told.
    pub fn break_off(&self) {
        self.lock().broken = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn none<T>(size: usize) -> Vec<Option<T>> {
    (0..size).map(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn everyone_gets_what_all_brought() {
        let meeting = Meeting::new(3, 3);
        thread::scope(|scope| {
            for thread in 0..3 {
                let meeting = &meeting;
                scope.spawn(move || {
                    for round in 0..500 {
                        let met = meeting.meet(thread, (thread, round)).unwrap();
                        assert_eq!(*met, [(0, round), (1, round), (2, round)]);
                    }
                });
            }
        });
    }

    #[test]
    fn alone_there_is_nobody_to_wait_for() {
        assert_eq!(*Meeting::new(1, 1).meet(0, 5).unwrap(), [5]);
    }

    #[test]
    fn a_broken_meeting_holds_nobody() {
        let meeting = Meeting::new(2, 2);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| meeting.meet(0, ()));
            thread::sleep(Duration::from_millis(20));
            meeting.break_off();
            assert_eq!(waiting.join().unwrap(), Err(Broken));
        });
        assert_eq!(meeting.meet(1, ()), Err(Broken));
    }
}
