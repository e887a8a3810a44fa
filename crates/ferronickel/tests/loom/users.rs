//! Users of an allocation: nobody is there beside one who writes, except calls of one stream, which take turns.

use loom::thread;
use std::rc::Rc;

use crate::device::host::sync::Fault;
use crate::device::users::{HOST, Users};
use crate::explore::{Memory, explore};

/// An allocation.
#[derive(Clone, Default)]
struct Shared {
    users: Rc<Users>,
    memory: Memory,
}

impl Shared {
    /// Uses the memory if it may. Whether it did.
    fn try_use(&self, stream: u32, writes: bool) -> bool {
        let may = self.users.enter(stream, writes).is_ok();
        if may {
            self.touch(writes);
            self.users.leave(writes);
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
    fn use_twice(&self, stream: u32, first: bool, second: bool) {
        let uses = [first, second].map(|writes| (writes, self.users.enter(stream, writes)));
        for (writes, _) in uses.into_iter().filter(|(_, entered)| entered.is_ok()) {
            self.touch(writes);
            self.users.leave(writes);
        }
    }
}

fn two_streams_and_the_caller(fault: Fault, writes: bool) {
    explore(fault, move || {
        let shared = Shared::default();
        let streams = [
            Box::new(|shared: &Shared| shared.use_twice(1, true, false)) as Box<dyn Fn(&Shared)>,
            Box::new(move |shared: &Shared| {
                shared.try_use(2, writes);
            }),
        ]
        .map(|stream| {
            let shared = shared.clone();
            thread::spawn(move || stream(&shared))
        });
        while !shared.try_use(HOST, !writes) {
            thread::yield_now();
        }
        streams.into_iter().for_each(|stream| stream.join().unwrap());
        assert!(shared.try_use(2, true), "somebody is left");
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
