//! The queue: each item runs once, in order, never two at a time, and who sleeps is woken.

use loom::thread;
use std::rc::Rc;

use crate::device::host::queue::{Queue, Turn};
use crate::device::host::sync::Fault;
use crate::explore::{Memory, explore};

/// What both parties see.
#[derive(Clone)]
struct Stage {
    queue: Rc<Queue<u32>>,
    ran: Memory,
}

impl Stage {
    fn new() -> Self {
        Stage { queue: Rc::new(Queue::new()), ran: Memory::default() }
    }

    fn synchronize(&self, last: u64) -> bool {
        self.queue.help(last, |&item| self.ran.push(item), || false)
    }

    /// Runs what there is to run, and says how it ended.
    fn run_some(&self) -> Turn<u32> {
        loop {
            match self.queue.begin() {
                Turn::Run(slot) => {
                    self.ran.push(*slot.item());
                    self.queue.finish(slot);
                }
                end => return end,
            }
        }
    }
}

/// One pushes and synchronizes, another runs what it finds.
fn a_caller_and_a_worker(fault: Fault) {
    explore(fault, || {
        let stage = Stage::new();
        let worker = {
            let stage = stage.clone();
            thread::spawn(move || stage.run_some())
        };
        stage.queue.push(1);
        stage.queue.push(2);
        stage.synchronize(2);
        assert_eq!(stage.ran.read(), [1, 2]);
        worker.join().unwrap();
    });
}

#[test]
fn items_run_once_and_in_order() {
    a_caller_and_a_worker(Fault::None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_sleeper_whom_nobody_tells_is_caught() {
    a_caller_and_a_worker(Fault::NobodyTold);
}

#[test]
fn two_may_synchronize() {
    explore(Fault::None, || {
        let stage = Stage::new();
        stage.queue.push(1);
        stage.queue.push(2);
        let other = {
            let stage = stage.clone();
            thread::spawn(move || stage.synchronize(2))
        };
        stage.synchronize(2);
        assert_eq!(stage.ran.read(), [1, 2]);
        other.join().unwrap();
    });
}

/// One waits for the first item only; whoever sleeps for the second must not be left asleep by it.
#[test]
fn whoever_stops_early_wakes_those_who_want_more() {
    explore(Fault::None, || {
        let stage = Stage::new();
        stage.queue.push(1);
        stage.queue.push(2);
        let other = {
            let stage = stage.clone();
            thread::spawn(move || stage.synchronize(1))
        };
        stage.synchronize(2);
        assert_eq!(stage.ran.read(), [1, 2]);
        other.join().unwrap();
    });
}

/// Whoever synchronizes learns of what was queued behind its back, unless the one who queued it found nobody at work.
#[test]
fn what_is_left_behind_is_told() {
    explore(Fault::None, || {
        let stage = Stage::new();
        stage.queue.push(1);
        let other = {
            let stage = stage.clone();
            thread::spawn(move || {
                stage.queue.push(2);
                stage.queue.standing().stalled
            })
        };
        let left = stage.synchronize(1);
        let lies_still = other.join().unwrap();
        assert!(left || lies_still, "nobody knows of the second item");
        assert_eq!(stage.ran.read(), [1]);
    });
}

#[test]
fn what_was_queued_before_the_end_runs() {
    explore(Fault::None, || {
        let stage = Stage::new();
        stage.queue.push(1);
        let worker = {
            let stage = stage.clone();
            thread::spawn(move || {
                while !matches!(stage.run_some(), Turn::Closed) {
                    thread::yield_now();
                }
            })
        };
        stage.queue.push(2);
        stage.queue.close();
        worker.join().unwrap();
        assert_eq!(stage.ran.read(), [1, 2]);
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn two_at_a_time_are_caught() {
    explore(Fault::None, || {
        let stage = Stage::new();
        stage.queue.push(1);
        stage.queue.push(2);
        let hasty = {
            let stage = stage.clone();
            thread::spawn(move || {
                if let Turn::Run(slot) = stage.queue.begin() {
                    let item = *slot.item();
                    stage.queue.finish(slot);
                    stage.ran.push(item);
                }
            })
        };
        stage.synchronize(2);
        hasty.join().unwrap();
    });
}
