//! The queue behind a stream, and the rule by which two parties share it.
//!
//! Whoever waits for the stream may run what is queued, and so may the stream's worker; one at a time, in order. The
//! queue decides who: [`Queue::begin`] gives the next item to the first who asks while nobody runs one.
//!
//! An item lies still when nobody runs one and nobody has been told. So a party that stops running while more is
//! queued tells somebody: see [`Queue::help`].

use std::collections::VecDeque;

use super::sync::{Condvar, Guard, Lock, Mutex};

/// Items that run one after another.
pub struct Queue<T> {
    state: Lock<State<T>>,
    /// As many items are done as somebody who sleeps waits for, or somebody must see to the rest. Whoever sleeps holds
    /// the bell from before it lets go of the state, so that who rings it, with the state in hand, is not missed.
    changed: Condvar,
    bell: Mutex<()>,
}

struct State<T> {
    waiting: VecDeque<Slot<T>>,
    /// Slots for items to come.
    spare: Vec<Slot<T>>,
    /// Whether somebody runs an item at the moment.
    running: bool,
    queued: u64,
    finished: u64,
    closed: bool,
    /// The least number of finished items for which a thread sleeps; [`NOBODY`] if none does. Whoever wakes the
    /// sleepers sets it back, and those who must sleep on say so again.
    wanted: u64,
}

/// Stands for the number of items that nobody waits for.
const NOBODY: u64 = u64::MAX;

/// An item, in a place of its own for as long as it is queued and runs: it is large, and moving it about costs more than
/// what is done with it. Places are used again.
#[derive(Debug)]
pub struct Slot<T>(Box<Option<T>>);

/// How many empty slots a queue keeps.
const MOST_SPARE: usize = 64;

/// What a party that wants to run items is told.
pub enum Turn<T> {
    /// Run this, then call [`Queue::finish`] with it.
    Run(Slot<T>),
    /// Another party runs an item.
    Busy,
    /// There is nothing to run.
    Empty,
    /// There is nothing to run, and never will be.
    Closed,
}

/// Where a queue stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Items ever queued.
    pub queued: u64,
    /// Items that are done.
    pub finished: u64,
    /// Whether the next item waits and nobody runs.
    pub stalled: bool,
}

impl<T> Slot<T> {
    /// The item.
    pub fn item(&self) -> &T {
        self.0.as_ref().as_ref().expect("a slot is filled before it is queued, and emptied after it has run")
    }

    fn empty(&mut self) {
        *self.0 = None;
    }
}

impl<T> State<T> {
    /// The next item, if nobody runs one; from now on somebody does.
    fn take(&mut self) -> Option<Slot<T>> {
        if self.running {
            return None;
        }
        let item = self.waiting.pop_front();
        self.running = item.is_some();
        item
    }
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            spare: Vec::new(),
            running: false,
            queued: 0,
            finished: 0,
            closed: false,
            wanted: NOBODY,
        };
        Queue { state: Lock::new(state), changed: Condvar::new(), bell: Mutex::new(()) }
    }

    /// Appends an item. Whether the queue is closed already, so that nobody can come any more who runs it for himself.
    #[inline(always)]
    pub fn push(&self, item: T) -> bool {
        let mut state = self.lock();
        let mut slot = state.spare.pop().unwrap_or_else(|| Slot(Box::new(None)));
        *slot.0 = Some(item);
        state.waiting.push_back(slot);
        state.queued += 1;
        state.closed
    }

    /// The next item, if nobody runs one.
    pub fn begin(&self) -> Turn<T> {
        let mut state = self.lock();
        match state.take() {
            Some(item) => Turn::Run(item),
            None if state.running => Turn::Busy,
            None if state.closed => Turn::Closed,
            None => Turn::Empty,
        }
    }

    /// Ends the item that [`begin`](Self::begin) gave, and drops it before anybody learns that it is done. Whether more
    /// wait.
    pub fn finish(&self, mut slot: Slot<T>) -> bool {
        slot.empty();
        let mut state = self.lock();
        self.end(&mut state, slot);
        !state.waiting.is_empty()
    }

    /// Ends an item, whose slot is empty now.
    fn end(&self, state: &mut State<T>, slot: Slot<T>) {
        if state.spare.len() < MOST_SPARE {
            state.spare.push(slot);
        }
        debug_assert!(state.running);
        state.running = false;
        state.finished += 1;
        // Whoever sleeps for a later item sleeps on: who ran this one goes on, or wakes them when it stops. So a
        // sleeper costs one system call, not one an item.
        if state.finished >= state.wanted {
            self.wake(state);
        }
    }

    /// Runs items with `run` until `last` items are done, or all that are queued now if that is fewer; or waits while
    /// another party runs them: it looks again for as long as `looks_again` says so, then it sleeps.
    ///
    /// Returns whether items may lie still: those that were queued behind the last one, while this party ran. Nobody
    /// else could begin them then, and whoever should have may have gone to sleep over it.
    #[must_use]
    pub fn help(&self, last: u64, mut run: impl FnMut(&T), mut looks_again: impl FnMut() -> bool) -> bool {
        let mut left = false;
        // one lock before an item and one after it: small calls cost little more than that
        let mut state = self.lock();
        let last = last.min(state.queued);
        while state.finished < last {
            if let Some(mut slot) = state.take() {
                drop(state);
                run(slot.item());
                slot.empty();
                state = self.lock();
                self.end(&mut state, slot);
                left = !state.waiting.is_empty();
                continue;
            }
            drop(state);
            if !looks_again() {
                self.sleep_until_finished(last);
            }
            state = self.lock();
        }
        if left {
            self.wake(&mut state);
        }
        left
    }

    /// No more items will come; those that wait will still run.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
    }

    /// Where the queue stands.
    pub fn standing(&self) -> Standing {
        let state = self.lock();
        let stalled = !state.running && !state.waiting.is_empty();
        Standing { queued: state.queued, finished: state.finished, stalled }
    }

    /// Sleeps until `last` items are done or whoever runs stops running; may return early.
    fn sleep_until_finished(&self, last: u64) {
        let mut state = self.lock();
        // as long as somebody runs, somebody will say that it is done
        if state.finished < last && state.running {
            state.wanted = state.wanted.min(last);
            let bell = super::sync::lock(&self.bell);
            drop(state);
            drop(super::sync::wait(&self.changed, bell));
        }
    }

    fn wake(&self, state: &mut State<T>) {
        // nobody sleeps when calls are small: no system call then
        if state.wanted != NOBODY {
            state.wanted = NOBODY;
            let _bell = super::sync::lock(&self.bell);
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> Guard<'_, State<T>> {
        self.state.lock()
    }
}
