//! The lock for moments: one at a time, and each finds what the one before has left.

use loom::thread;
use std::rc::Rc;

use crate::device::host::lock::Lock;
use crate::device::host::sync::Fault;
use crate::explore::explore;

fn two_who_count(fault: Fault) {
    explore(fault, || {
        let count = Rc::new(Lock::new(0));
        let twice = |count: &Lock<u32>| (0..2).for_each(|_| *count.lock() += 1);
        let other = {
            let count = count.clone();
            thread::spawn(move || twice(&count))
        };
        twice(&count);
        other.join().unwrap();
        assert_eq!(*count.lock(), 4);
    });
}

#[test]
fn one_at_a_time() {
    two_who_count(Fault::None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_that_orders_nothing_is_caught() {
    two_who_count(Fault::Relaxed);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn two_who_take_it_at_once_are_caught() {
    two_who_count(Fault::Torn);
}
