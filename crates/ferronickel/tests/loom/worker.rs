//! A stream's worker: what is queued for it runs, whether it sleeps, is about to, or has gone.

use loom::thread::{self, JoinHandle};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::device::host::doze::Doze;
use crate::device::host::queue::{Queue, Turn};
use crate::device::host::sync::{Fault, Thread, park};
use crate::device::host::worker::Worker;
use crate::explore::{Memory, explore};

/// A stream, as its handle and its worker share it.
struct Stream {
    queue: Queue<u32>,
    worker: Worker,
    ran: Memory,
    threads: RefCell<Vec<JoinHandle<()>>>,
}

impl Stream {
    fn new() -> Rc<Self> {
        let (queue, worker) = (Queue::new(), Worker::default());
        Rc::new(Stream { queue, worker, ran: Memory::default(), threads: RefCell::default() })
    }

    fn start(self: &Rc<Self>) -> Option<Thread> {
        let stream = self.clone();
        let (thread, handle) = Thread::spawn(move || {
            stream.worker.work(&stream.queue, |&item| stream.ran.push(item), |_| false);
        });
        self.threads.borrow_mut().push(handle);
        Some(thread)
    }

    fn push_for_worker(self: &Rc<Self>, item: u32) {
        self.queue.push(item);
        self.worker.hasten(|| self.start());
    }

    /// Queues an item for the caller itself; for the worker only after the end.
    fn push(self: &Rc<Self>, item: u32) {
        if self.queue.push(item) {
            self.see_off(|| self.start());
        }
    }

    /// What dropping the handle does.
    fn close(self: &Rc<Self>) {
        self.close_with(|| self.start());
    }

    /// The same, where `start` makes the worker's thread or fails to.
    fn close_with(&self, start: impl FnOnce() -> Option<Thread>) {
        self.queue.close();
        self.see_off(start);
    }

    fn see_off(&self, start: impl FnOnce() -> Option<Thread>) {
        if (self.worker.exists() || self.queue.standing().stalled) && !self.worker.summon(start) {
            while self.queue.help(u64::MAX, |&item| self.ran.push(item), || false) {}
        }
    }

    /// Waits for the workers, after the end.
    fn join(&self) {
        while let Some(thread) = { self.threads.borrow_mut().pop() } {
            thread.join().unwrap();
        }
    }
}

fn two_items(fault: Fault) {
    explore(fault, || {
        let stream = Stream::new();
        stream.push_for_worker(1);
        stream.push_for_worker(2);
        stream.close();
        stream.join();
        assert_eq!(stream.ran.read(), [1, 2]);
    });
}

#[test]
fn a_worker_runs_what_nobody_waits_for() {
    two_items(Fault::None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_worker_that_is_not_unparked_is_caught() {
    two_items(Fault::NobodyUnparked);
}

#[test]
fn a_worker_and_its_caller_share_the_work() {
    explore(Fault::None, || {
        let stream = Stream::new();
        stream.push_for_worker(1);
        stream.push_for_worker(2);
        // nobody queues behind it
        let _ = stream.queue.help(2, |&item| stream.ran.push(item), || false);
        assert_eq!(stream.ran.read(), [1, 2]);
        stream.close();
        stream.join();
    });
}

/// A group that was open when the handle was dropped queues its calls later, when the worker may have gone.
fn late_calls(push: fn(&Rc<Stream>, u32)) {
    explore(Fault::None, move || {
        let stream = Stream::new();
        stream.push_for_worker(1);
        let other = {
            let stream = stream.clone();
            thread::spawn(move || stream.close())
        };
        push(&stream, 2);
        other.join().unwrap();
        stream.join();
        assert_eq!(stream.ran.read(), [1, 2], "an item was left");
    });
}

#[test]
fn what_is_queued_after_the_end_runs() {
    late_calls(Stream::push);
    late_calls(Stream::push_for_worker);
}

#[test]
#[should_panic(expected = "an item was left")]
fn a_late_item_that_waits_for_nobody_is_caught() {
    late_calls(|stream, item| {
        stream.queue.push(item);
    });
}

/// Two who see the stream off, where there is no thread to be had: one runs the items, the other waits for that.
#[test]
fn what_is_queued_runs_where_there_can_be_no_worker() {
    explore(Fault::None, || {
        let stream = Stream::new();
        stream.queue.push(1);
        let other = {
            let stream = stream.clone();
            thread::spawn(move || stream.close_with(|| None))
        };
        if stream.queue.push(2) {
            stream.see_off(|| None);
        }
        other.join().unwrap();
        assert_eq!(stream.ran.read(), [1, 2], "an item was left");
    });
}

/// Two threads queue, and only one worker is ever there.
#[test]
fn two_callers_have_one_worker() {
    explore(Fault::None, || {
        let stream = Stream::new();
        let other = {
            let stream = stream.clone();
            thread::spawn(move || stream.push_for_worker(2))
        };
        stream.push_for_worker(1);
        other.join().unwrap();
        assert_eq!(stream.threads.borrow().len(), 1);
        stream.close();
        stream.join();
        assert_eq!(stream.ran.read().len(), 2);
    });
}

/// A worker that does less than the real one: it does not look again before it sleeps, and goes without a word.
fn a_careless_worker(closed_before: bool) {
    explore(Fault::None, move || {
        let stage = Rc::new((Queue::new(), Doze::default(), Memory::default()));
        let (thread, handle) = {
            let stage = stage.clone();
            Thread::spawn(move || {
                let (queue, doze, ran) = &*stage;
                doze.rise();
                while ran.read().is_empty() {
                    match queue.begin() {
                        Turn::Run(slot) => ran.push(*slot.item()),
                        Turn::Closed => return,
                        Turn::Busy | Turn::Empty => doze.sleep(|| false, || park(Duration::MAX)),
                    }
                }
            })
        };
        let (queue, doze, ran) = &*stage;
        if closed_before {
            queue.close();
        }
        queue.push(1);
        doze.wake(|| thread.unpark());
        handle.join().unwrap();
        assert_eq!(ran.read(), [1], "an item was left");
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_worker_that_does_not_look_again_is_caught() {
    a_careless_worker(false);
}

#[test]
#[should_panic(expected = "an item was left")]
fn a_worker_that_goes_without_a_word_is_caught() {
    a_careless_worker(true);
}
