//! After a stop, whoever waited until nobody is inside may free what the others could touch.

use loom::thread;
use std::rc::Rc;

use crate::device::host::sync::Fault;
use crate::device::place::{Place, StopWord};
use crate::explore::{Memory, explore};

/// A rank with a buffer, a peer that writes there, and the stop.
#[derive(Default)]
struct Ranks {
    stop: StopWord,
    owner: Place,
    peer: Place,
    buffer: Memory,
}

impl Ranks {
    /// The owner is in a kernel when it sees the stop.
    fn own(&self) {
        if self.owner.enter(&self.stop) {
            while !self.stop.given() {
                thread::yield_now();
            }
        }
        self.owner.leave(1);
        StopWord::await_exits([&self.peer].into_iter(), thread::yield_now);
        // gives the buffer back: whoever has it now may write
        self.buffer.push(1);
    }

    fn enter_as_peer(&self) {
        if self.peer.enter(&self.stop) {
            self.buffer.push(2);
        }
        self.peer.leave(1);
    }
}

/// A third one stops them.
fn a_stop(fault: Fault) {
    explore(fault, || {
        let ranks = Rc::new(Ranks::default());
        let threads: [fn(&Ranks); 2] = [Ranks::own, Ranks::enter_as_peer];
        let threads = threads.map(|run| {
            let ranks = ranks.clone();
            thread::spawn(move || run(&ranks))
        });
        ranks.stop.give();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn nobody_is_inside_once_all_have_left() {
    a_stop(Fault::None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_entry_and_a_stop_without_a_common_order_are_caught() {
    a_stop(Fault::NoOrder);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_look_that_overtakes_the_stop_is_caught() {
    a_stop(Fault::NoFences);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_kernel_whose_last_writes_come_after_its_exit_is_caught() {
    a_stop(Fault::Relaxed);
}

/// Two calls of a rank on two streams, one of which may be given up before its turn. All are `counted` in the end.
fn two_calls_of_a_rank(give_up: fn(&Place), counted: bool) {
    explore(Fault::None, move || {
        let ranks = Rc::new(Ranks::default());
        let threads = [1, 2].map(|epoch| {
            let ranks = ranks.clone();
            thread::spawn(move || {
                let Ranks { stop, peer, buffer, .. } = &*ranks;
                while !peer.is_turn_of(epoch) {
                    if stop.given() {
                        return give_up(peer);
                    }
                    thread::yield_now();
                }
                if peer.enter(stop) {
                    buffer.push(epoch as u32);
                }
                peer.leave(epoch);
            })
        });
        ranks.stop.give();
        StopWord::await_exits([&ranks.peer].into_iter(), thread::yield_now);
        ranks.buffer.push(3);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!counted || ranks.peer.done() == 2, "a call is never done");
    });
}

#[test]
fn calls_of_a_rank_are_inside_one_at_a_time() {
    two_calls_of_a_rank(Place::skip, true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_call_that_leaves_for_another_is_caught() {
    two_calls_of_a_rank(|place| place.leave(2), false);
}

#[test]
#[should_panic(expected = "a call is never done")]
fn a_call_that_ends_before_the_one_before_it_is_caught() {
    two_calls_of_a_rank(|place| place.leave(2), true);
}
