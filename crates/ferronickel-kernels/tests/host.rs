//! Whole algorithms on real threads: every type and operation, larger counts, and the bits that must come out.

#[path = "host/bits.rs"]
mod bits;
#[path = "support/buffer.rs"]
mod buffer;
#[path = "support/job.rs"]
mod job;
#[path = "support/machine.rs"]
mod machine;
#[path = "support/rank.rs"]
mod rank;
#[path = "host/table.rs"]
mod table;
#[path = "host/threads.rs"]
mod threads;
#[path = "support/value.rs"]
mod value;
