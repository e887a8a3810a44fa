//! Users of an allocation: nobody is there beside one who writes, except calls of one stream, which take turns.

use loom::thread;
use std::cell::Cell;
use std::rc::Rc;

use crate::device::host::sync::Fault;
use crate::device::users::{Entry, Refusal, User, Users};
use crate::explore::{Memory, explore};

/// An allocation.
#[derive(Clone, Default)]
struct Shared {
    users: Rc<Users>,
    memory: Memory,
}

impl Shared {
    /// Uses the memory if it may. Whether it did.
    fn try_use(&self, user: User, writes: bool) -> bool {
        let Ok(entry) = self.users.enter(user, writes) else { return false };
        self.touch(writes);
        self.leave(entry);
        true
    }

    /// Ends a use of what has an owner.
    fn leave(&self, entry: Entry) {
        assert!(!self.users.leave(entry), "it has an owner");
    }

    fn touch(&self, writes: bool) {
        if writes {
            self.memory.push(1);
        } else {
            self.memory.read();
        }
    }

    /// Two calls of a stream, queued one after the other and run later.
    fn use_twice(&self, user: User, first: bool, second: bool) {
        let uses = [first, second].map(|writes| (writes, self.users.enter(user, writes)));
        for (writes, entry) in uses.into_iter().filter_map(|(writes, entered)| Some((writes, entered.ok()?))) {
            self.touch(writes);
            self.leave(entry);
        }
    }
}

const ONE: User = User::Stream(1);
const TWO: User = User::Stream(2);

fn two_streams_and_the_caller(fault: Fault, writes: bool) {
    explore(fault, move || {
        let shared = Shared::default();
        let streams = [
            Box::new(|shared: &Shared| shared.use_twice(ONE, true, false)) as Box<dyn Fn(&Shared)>,
            Box::new(move |shared: &Shared| {
                shared.try_use(TWO, writes);
            }),
        ]
        .map(|stream| {
            let shared = shared.clone();
            thread::spawn(move || stream(&shared))
        });
        while !shared.try_use(User::Host, !writes) {
            thread::yield_now();
        }
        streams.into_iter().for_each(|stream| stream.join().unwrap());
        assert!(shared.try_use(TWO, true), "somebody is left");
    });
}

#[test]
fn a_reader_is_not_let_in_beside_a_writer() {
    two_streams_and_the_caller(Fault::None, false);
}

#[test]
fn a_writer_is_not_let_in_beside_anyone() {
    two_streams_and_the_caller(Fault::None, true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn uses_that_order_nothing_are_caught() {
    two_streams_and_the_caller(Fault::Relaxed, false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn two_who_come_in_at_once_are_caught() {
    two_streams_and_the_caller(Fault::Torn, true);
}

/// A caller reads by hand beside a stream that reads. When it has gone, the stream may write: nobody takes the stream
/// for another one.
fn a_caller_beside_a_stream(fault: Fault) {
    explore(fault, || {
        let shared = Shared::default();
        let first = shared.users.enter(ONE, false).unwrap();
        let caller = {
            let shared = shared.clone();
            thread::spawn(move || shared.try_use(User::Host, false))
        };
        shared.touch(false);
        // the stream's next call, before or after the caller has read
        let joined = shared.try_use(ONE, true);
        caller.join().unwrap();
        assert!(joined || shared.try_use(ONE, true), "a stream is refused what only it uses");
        shared.leave(first);
        assert!(shared.try_use(TWO, true), "somebody is left");
    });
}

#[test]
fn a_stream_goes_on_after_a_caller_that_read_beside_it() {
    a_caller_beside_a_stream(Fault::None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_caller_that_comes_in_beside_a_stream_s_writer_is_caught() {
    a_caller_beside_a_stream(Fault::Torn);
}

/// Who is inside closes the memory: whoever comes once that one has left finds it so.
#[test]
fn nobody_comes_in_after_the_end() {
    explore(Fault::None, || {
        let shared = Shared::default();
        let entry = shared.users.enter(ONE, true).unwrap();
        let call = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.touch(true);
                shared.users.close();
                shared.leave(entry);
            })
        };
        // the caller waits for the call, and is told then
        loop {
            match shared.users.enter(User::Host, false) {
                Err(Refusal::Closed) => break,
                Err(_) => thread::yield_now(),
                Ok(_) => panic!("the caller came in"),
            }
        }
        call.join().unwrap();
    });
}

/// The last owner goes while two calls are under way: the last of the three frees the memory, once nobody touches it.
fn the_last_one_frees(fault: Fault) {
    explore(fault, || {
        let shared = Shared::default();
        let freed = Rc::new(Cell::new(0));
        let free = |shared: &Shared, freed: &Cell<u32>| {
            shared.memory.push(0);
            freed.set(freed.get() + 1);
        };
        let calls = [ONE, TWO].map(|user| {
            let entry = shared.users.enter(user, false).unwrap();
            let (shared, freed) = (shared.clone(), freed.clone());
            thread::spawn(move || {
                shared.touch(false);
                if shared.users.leave(entry) {
                    free(&shared, &freed);
                }
            })
        });
        shared.touch(false);
        if shared.users.abandon() {
            free(&shared, &freed);
        }
        calls.into_iter().for_each(|call| call.join().unwrap());
        assert_eq!(freed.get(), 1, "times freed");
    });
}

#[test]
fn memory_is_freed_once_and_after_its_last_use() {
    the_last_one_frees(Fault::None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn memory_that_is_freed_beside_a_use_is_caught() {
    the_last_one_frees(Fault::NoFences);
}
