//! Running a model, and what models watch.

use loom::cell::UnsafeCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::device::host::sync::{Fault, break_with};

/// Explores every execution of `model` on a machine with `fault`; says how many there were.
pub fn explore(fault: Fault, model: impl Fn() + Send + Sync + 'static) {
    static HOOK: std::sync::Once = std::sync::Once::new();
    // a backtrace would not fit the small stacks of loom's threads
    HOOK.call_once(|| std::panic::set_hook(Box::new(|info| eprintln!("{info}"))));
    break_with(fault);
    let executions = Arc::new(AtomicUsize::new(0));
    let counter = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound =
        Some(std::env::var("LOOM_PREEMPTIONS").map_or(2, |v| v.parse().expect("LOOM_PREEMPTIONS is a number")));
    builder.max_branches = 20_000;
    builder.check(move || {
        counter.fetch_add(1, Relaxed);
        model();
    });
    let executions = executions.load(Relaxed);
    println!("{executions} executions");
    assert!(executions > 1, "nothing was explored");
}

/// Plain memory: two accesses at a time, one of which writes, are caught. Reference counts here and in the models are
/// plain, since loom runs the threads of a model on one.
#[derive(Clone, Default)]
pub struct Memory(Rc<UnsafeCell<Vec<u32>>>);

impl Memory {
    /// Writes.
    pub fn push(&self, value: u32) {
        // SAFETY: loom panics instead of granting an access beside another one
        self.0.with_mut(|values| unsafe { (*values).push(value) });
    }

    /// Reads.
    pub fn read(&self) -> Vec<u32> {
        // SAFETY: as in `push`
        self.0.with(|values| unsafe { (*values).clone() })
    }
}
