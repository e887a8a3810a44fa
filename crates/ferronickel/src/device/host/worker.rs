//! A stream's worker: the thread that runs what nobody waits for. There is none until one is needed.

use std::time::Duration;

use super::doze::Doze;
use super::queue::{Queue, Turn};
use super::sync::{Mutex, Thread, lock, park};

/// The thread, if there is one, and whether it must be called.
#[derive(Default)]
pub struct Worker {
    thread: Mutex<Option<Thread>>,
    doze: Doze,
}

impl Worker {
    /// Makes sure that the worker sees what was queued; `start` makes the thread.
    #[inline(always)]
    pub fn hasten(&self, start: impl FnOnce() -> Option<Thread>) {
        self.doze.wake(|| {
            self.summon(start);
        });
    }

    /// Calls the worker, whether it sleeps or not, or makes one with `start`. Whether there is one.
    pub fn summon(&self, start: impl FnOnce() -> Option<Thread>) -> bool {
        let mut thread = lock(&self.thread);
        if let Some(thread) = &*thread {
            thread.unpark();
            return true;
        }
        *thread = start();
        if thread.is_none() {
            // the next who hastens it tries again
            self.doze.lie_down();
        }
        thread.is_some()
    }

    /// Whether there is a thread.
    pub fn exists(&self) -> bool {
        lock(&self.thread).is_some()
    }

    /// The worker's life: runs items with `run` until the queue is closed and empty. A worker that finds nothing
    /// looks again at once for as long as `lingers` says so, given how often in a row it has asked.
    pub fn work<T>(&self, queue: &Queue<T>, mut run: impl FnMut(&T), mut lingers: impl FnMut(u32) -> bool) {
        const LONGEST_NAP: Duration = Duration::from_secs(1);
        self.doze.rise();
        let mut turns = 0;
        loop {
            match queue.begin() {
                Turn::Run(slot) => {
                    run(slot.item());
                    queue.finish(slot);
                    turns = 0;
                }
                Turn::Closed if self.retire(queue) => return,
                Turn::Closed => {}
                Turn::Busy | Turn::Empty if lingers(turns) => turns = turns.saturating_add(1),
                Turn::Busy | Turn::Empty => {
                    self.doze.sleep(|| queue.standing().stalled, || park(LONGEST_NAP));
                    turns = 0;
                }
            }
        }
    }

    /// Lets go of the thread, unless it is needed after all: a group that was open when the stream was dropped still
    /// queues its calls. Whoever queues something later makes another thread.
    fn retire<T>(&self, queue: &Queue<T>) -> bool {
        let mut thread = lock(&self.thread);
        self.doze.lie_down();
        if queue.standing().stalled {
            self.doze.rise();
            return false;
        }
        *thread = None;
        true
    }
}
