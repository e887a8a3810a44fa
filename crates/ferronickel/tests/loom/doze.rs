//! Falling asleep and being woken, as the dispatcher and the proxy do it.

use std::rc::Rc;
use std::time::Duration;

use crate::device::host::doze::Doze;
use crate::device::host::queue::{Queue, Turn};
use crate::device::host::sync::{AtomicU64, Fault, Ordering, Thread, park};
use crate::device::place::{Place, StopWord};
use crate::explore::{Memory, explore};

/// How a sleeper may be wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Care {
    /// It is not.
    All,
    /// It does not look again once it has said that it sleeps.
    NoSecondLook,
    /// When it looks again, it looks for less.
    HalfALook,
    /// Who leaves something behind tells nobody.
    NothingTold,
}

fn sleep(doze: &Doze, care: Care, has_work: impl FnOnce() -> bool) {
    doze.sleep(|| care != Care::NoSecondLook && has_work(), || park(Duration::MAX));
}

/// A kernel that fills a slot and ends, and the proxy that must send it.
#[derive(Default)]
struct Network {
    doze: Doze,
    stop: StopWord,
    place: Place,
    filled: AtomicU64,
    slot: Memory,
}

impl Network {
    fn proxy(&self, care: Care) {
        self.doze.rise();
        let all_sent = || self.filled.load(Ordering::Acquire) == 0;
        while all_sent() {
            if self.place.is_outside() && all_sent() {
                let sent = || care == Care::HalfALook || all_sent();
                sleep(&self.doze, care, || !(self.place.is_outside() && sent()));
            } else {
                loom::thread::yield_now();
            }
        }
        assert_eq!(self.slot.read(), [7]);
    }

    fn kernel(&self, proxy: &Thread) {
        assert!(self.place.enter(&self.stop));
        self.doze.wake(|| proxy.unpark());
        self.slot.push(7);
        self.filled.store(1, Ordering::Release);
        self.place.leave(1);
    }
}

fn a_kernel_and_its_proxy(fault: Fault, care: Care) {
    explore(fault, move || {
        let network = Rc::new(Network::default());
        let (thread, handle) = {
            let network = network.clone();
            Thread::spawn(move || network.proxy(care))
        };
        network.kernel(&thread);
        handle.join().unwrap();
    });
}

#[test]
fn a_proxy_sends_what_a_kernel_filled() {
    a_kernel_and_its_proxy(Fault::None, Care::All);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_kernel_and_a_proxy_without_a_common_order_are_caught() {
    a_kernel_and_its_proxy(Fault::NoOrder, Care::All);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_proxy_that_does_not_look_again_is_caught() {
    a_kernel_and_its_proxy(Fault::None, Care::NoSecondLook);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_proxy_that_looks_again_only_for_kernels_that_run_is_caught() {
    a_kernel_and_its_proxy(Fault::None, Care::HalfALook);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_proxy_that_is_not_unparked_is_caught() {
    a_kernel_and_its_proxy(Fault::NobodyUnparked, Care::All);
}

/// A stream that two threads use, and the dispatcher, which here runs itself what lies still.
struct Streams {
    doze: Doze,
    queue: Queue<u32>,
    ran: Memory,
}

impl Streams {
    fn dispatch(&self, care: Care) {
        self.doze.rise();
        while self.queue.standing().finished < 2 {
            match self.queue.begin() {
                Turn::Run(slot) => {
                    self.ran.push(*slot.item());
                    self.queue.finish(slot);
                }
                _ => sleep(&self.doze, care, || self.queue.standing().stalled || self.queue.standing().finished == 2),
            }
        }
    }

    fn push(&self, item: u32, dispatcher: &Thread) {
        self.queue.push(item);
        self.doze.wake(|| dispatcher.unpark());
    }

    fn synchronize(&self, care: Care, dispatcher: &Thread) {
        let last = self.queue.standing().queued;
        let left = self.queue.help(last, |&item| self.ran.push(item), || false);
        if left && care != Care::NothingTold {
            self.doze.wake(|| dispatcher.unpark());
        }
    }
}

fn two_callers_and_the_dispatcher(fault: Fault, care: Care) {
    explore(fault, move || {
        let streams = Rc::new(Streams { doze: Doze::default(), queue: Queue::new(), ran: Memory::default() });
        let (dispatcher, end) = {
            let streams = streams.clone();
            Thread::spawn(move || streams.dispatch(care))
        };
        let other = {
            let (streams, dispatcher) = (streams.clone(), dispatcher.clone());
            loom::thread::spawn(move || streams.push(2, &dispatcher))
        };
        streams.push(1, &dispatcher);
        streams.synchronize(care, &dispatcher);
        other.join().unwrap();
        // when all is done the real one just sleeps on
        if streams.queue.standing().finished == 2 {
            dispatcher.unpark();
        }
        end.join().unwrap();
        assert_eq!(streams.ran.read().len(), 2);
    });
}

#[test]
fn nothing_lies_still_while_the_dispatcher_sleeps() {
    two_callers_and_the_dispatcher(Fault::None, Care::All);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_dispatcher_that_does_not_look_again_is_caught() {
    two_callers_and_the_dispatcher(Fault::None, Care::NoSecondLook);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_caller_that_leaves_something_behind_in_silence_is_caught() {
    two_callers_and_the_dispatcher(Fault::None, Care::NothingTold);
}
