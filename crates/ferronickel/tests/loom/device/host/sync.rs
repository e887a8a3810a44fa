//! Loom's counterpart of the product's `sync`: what waiting and waking are made of, untimed, and weaker on demand.
//!
//! Loom takes sequentially consistent accesses for acquire and release, and knows such fences. So that a good program
//! passes, an atomic here puts a fence between such a store and the next such load of the same thread; that is what
//! the accesses promise, and little more: a relaxed load after the store, or a store that another thread makes, gets
//! no order from it.

use loom::sync::atomic;
use loom::thread::JoinHandle;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

pub use loom::sync::MutexGuard as Guard;
pub use loom::sync::{Condvar, Mutex, MutexGuard};
pub use std::sync::atomic::Ordering;

/// What is wrong with the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    /// Sequentially consistent accesses only acquire and release.
    NoOrder,
    /// Fences do nothing.
    NoFences,
    /// Every access is relaxed.
    Relaxed,
    /// An update reads and writes one after the other.
    Torn,
    /// Nobody is told that a queue has changed.
    NobodyTold,
    /// Nobody is unparked.
    NobodyUnparked,
}

std::thread_local! {
    /// Loom runs all threads of a model on the test's own.
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
}

loom::thread_local! {
    /// Whether this thread has made a sequentially consistent store since its last fence.
    static STORED: Cell<bool> = Cell::new(false);
    static CURRENT: RefCell<Option<Thread>> = RefCell::new(None);
}

/// From now on, `fault` is wrong in the models of this test.
pub fn break_with(fault: Fault) {
    FAULT.set(fault);
}

fn broken_by(fault: Fault) -> bool {
    FAULT.get() == fault
}

/// A fence.
pub fn fence(order: Ordering) {
    if !broken_by(Fault::NoFences) {
        atomic::fence(order);
        STORED.with(|stored| stored.set(false));
    }
}

/// The order of a load, after whatever fence it needs.
fn before_load(order: Ordering) -> Ordering {
    if broken_by(Fault::Relaxed) {
        return Ordering::Relaxed;
    }
    if order == Ordering::SeqCst && !broken_by(Fault::NoOrder) && STORED.with(|stored| stored.replace(false)) {
        atomic::fence(order);
    }
    if order == Ordering::SeqCst { Ordering::Acquire } else { order }
}

/// The order of a store.
fn before_store(order: Ordering) -> Ordering {
    STORED.with(|stored| stored.set(stored.get() || order == Ordering::SeqCst));
    match order {
        _ if broken_by(Fault::Relaxed) => Ordering::Relaxed,
        Ordering::SeqCst => Ordering::Release,
        order => order,
    }
}

/// The order of an access that does both; none here is sequentially consistent.
fn both(order: Ordering) -> Ordering {
    assert_ne!(order, Ordering::SeqCst, "not modelled");
    if broken_by(Fault::Relaxed) { Ordering::Relaxed } else { order }
}

macro_rules! atomics {
    ($($name:ident: $value:ty;)*) => {$(
        /// Loom's, weaker on demand.
        #[derive(Default, Debug)]
        pub struct $name(atomic::$name);

        impl $name {
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(before_load(order))
            }

            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, before_store(order));
            }
        }
    )*};
}

atomics! {
    AtomicBool: bool;
    AtomicU64: u64;
}

impl AtomicBool {
    pub fn compare_exchange(
        &self,
        current: bool,
        new: bool,
        success: Ordering,
        failure: Ordering,
    ) -> Result<bool, bool> {
        if broken_by(Fault::Torn) {
            let before = self.load(success);
            if before != current {
                return Err(before);
            }
            self.store(new, Ordering::Relaxed);
            return Ok(before);
        }
        self.0.compare_exchange(current, new, both(success), both(failure))
    }
}

/// A value that only whoever may touches: loom looks at every access.
#[derive(Default, Debug)]
pub struct SharedCell<T>(loom::cell::UnsafeCell<T>);

impl<T> SharedCell<T> {
    pub fn new(value: T) -> Self {
        SharedCell(loom::cell::UnsafeCell::new(value))
    }

    pub fn get(&self) -> *mut T {
        self.0.with_mut(|value| value)
    }
}

/// Lets others run.
pub fn relax(_turn: u32) {
    loom::thread::yield_now();
}

/// In place of the product's lock, which has models of its own: fewer executions, and the same promises.
#[derive(Debug)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Lock(Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.0)
    }
}

impl AtomicU64 {
    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, both(order))
    }

    pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_sub(value, both(order))
    }

    pub fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, both(order))
    }

    pub fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        mut next: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        if broken_by(Fault::Torn) {
            let now = self.load(Ordering::Acquire);
            let next = next(now).ok_or(now)?;
            self.store(next, Ordering::Release);
            return Ok(now);
        }
        self.0.fetch_update(both(success), both(failure), next)
    }
}

/// Locks.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Sleeps until notified.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    if broken_by(Fault::NobodyTold) {
        // a condition of its own, which nobody changes
        return Condvar::new().wait(guard).unwrap();
    }
    condvar.wait(guard).unwrap()
}

/// A thread that may be unparked. Not loom's, which must not be unparked while it waits for a lock.
#[derive(Clone, Debug, Default)]
pub struct Thread(Rc<Token>);

#[derive(Debug, Default)]
struct Token {
    unparked: Mutex<bool>,
    changed: Condvar,
}

impl Thread {
    /// Starts `body` on a thread.
    pub fn spawn(body: impl FnOnce() + 'static) -> (Thread, JoinHandle<()>) {
        let thread = Thread::default();
        let own = thread.clone();
        let handle = loom::thread::spawn(move || {
            CURRENT.with(|current| current.replace(Some(own)));
            body();
        });
        (thread, handle)
    }

    /// Ends the thread's sleep, or the next one.
    pub fn unpark(&self) {
        if !broken_by(Fault::NobodyUnparked) {
            *lock(&self.0.unparked) = true;
            self.0.changed.notify_one();
        }
    }
}

/// Sleeps until unparked.
pub fn park(_longest: Duration) {
    let Thread(token) = CURRENT.with(|current| current.borrow().clone()).expect("only spawned threads park");
    let mut unparked = lock(&token.unparked);
    while !*unparked {
        unparked = token.changed.wait(unparked).unwrap();
    }
    *unparked = false;
}
