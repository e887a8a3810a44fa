//! Model checking of how the library's threads hand work over, wait, wake and stop: every interleaving, within a bound
//! on preemptions, and every outcome the memory model allows. The modules under `device` are the product's own files,
//! compiled over loom's locks, atomics and threads; what each guarantees is also broken on purpose, and must be caught.
//!
//! Waits are timed in the product and are not here, so that a lost wake-up is a deadlock.
//!
//! `LOOM_PREEMPTIONS=3` (default 2) explores more; `--nocapture` shows how many executions each model has.

#[path = "loom/device/mod.rs"]
mod device;
#[path = "loom/doze.rs"]
mod doze;
#[path = "loom/explore.rs"]
mod explore;
#[path = "loom/lock.rs"]
mod lock;
#[path = "loom/place.rs"]
mod place;
#[path = "loom/queue.rs"]
mod queue;
#[path = "loom/users.rs"]
mod users;
#[path = "loom/worker.rs"]
mod worker;
