//! The product's files for host devices, and loom's counterpart of what they are made of.

#[path = "../../../../src/device/host/doze.rs"]
pub mod doze;
#[path = "../../../../src/device/host/lock.rs"]
pub mod lock;
#[path = "../../../../src/device/host/queue.rs"]
pub mod queue;
pub mod sync;
#[path = "../../../../src/device/host/worker.rs"]
pub mod worker;
