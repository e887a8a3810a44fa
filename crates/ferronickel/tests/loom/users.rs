//! Users of an allocation: nobody is there beside one who writes, except calls of one stream, which take turns.

use loom::thread;
use std::rc::Rc;

use crate::device::host::sync::Fault;
use crate::device::users::{Refusal, User, Users};
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
        let may = self.users.enter(user, writes).is_ok();
        if may {
            self.touch(writes);
            self.users.leave(user, writes);
        }
        may
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
        for (writes, _) in uses.into_iter().filter(|(_, entered)| entered.is_ok()) {
            self.touch(writes);
            self.users.leave(user, writes);
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
        assert!(shared.users.enter(ONE, false).is_ok());
        let caller = {
            let shared = shared.clone();
            thread::spawn(move || shared.try_use(User::Host, false))
        };
        shared.touch(false);
        // the stream's next call, before or after the caller has read
        let joined = shared.try_use(ONE, true);
        caller.join().unwrap();
        assert!(joined || shared.try_use(ONE, true), "a stream is refused what only it uses");
        shared.users.leave(ONE, false);
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
        assert!(shared.users.enter(ONE, true).is_ok());
        let call = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.touch(true);
                shared.users.close();
                shared.users.leave(ONE, true);
            })
        };
        // the caller waits for the call, and is told then
        while let Err(refusal) = shared.users.enter(User::Host, false) {
            if refusal == Refusal::Closed {
                call.join().unwrap();
                return;
            }
            thread::yield_now();
        }
        panic!("the caller came in");
    });
}
