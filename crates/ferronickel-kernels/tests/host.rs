//! Whole algorithms on real threads: every type and operation, larger counts, and the bits that must come out.

#[path = "host/bits.rs"]
mod bits;
#[path = "support/buffer.rs"]
mod buffer;
#[path = "host/collectives.rs"]
mod collectives;
#[path = "support/erased.rs"]
mod erased;
#[path = "support/job.rs"]
mod job;
#[path = "support/links.rs"]
mod links;
#[path = "support/machine.rs"]
mod machine;
#[path = "support/over_links.rs"]
mod over_links;
#[path = "support/rank.rs"]
mod rank;
#[path = "../../ferronickel/src/device/shape.rs"]
#[allow(dead_code)] // only the trees
mod shape;
#[path = "host/table.rs"]
mod table;
#[path = "host/threads.rs"]
mod threads;
#[path = "support/value.rs"]
mod value;
