//! What the library says of itself: NCCL's log, and the record of its decisions.

pub(crate) mod decisions;
pub mod log;
