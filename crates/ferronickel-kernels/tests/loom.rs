//! Model checking: every interleaving, within a bound on preemptions, and every outcome the memory model allows, of
//! every hand-over between ranks; and a broken copy of each, which must be caught for the right reason.
//!
//! `LOOM_PREEMPTIONS=3` (default 2) explores more; `--nocapture` shows how many executions each model has.

#[path = "loom/algorithms.rs"]
mod algorithms;
#[path = "loom/crossing.rs"]
mod crossing;
#[path = "loom/endings.rs"]
mod endings;
#[path = "support/links.rs"]
mod links;
#[path = "support/machine.rs"]
mod machine;
#[path = "loom/memory.rs"]
mod memory;
#[path = "support/over_links.rs"]
mod over_links;
#[path = "support/rank.rs"]
mod rank;
#[path = "loom/scenario.rs"]
mod scenario;
#[path = "../../ferronickel/src/device/shape.rs"]
#[allow(dead_code)] // only the trees
mod shape;
#[path = "loom/staged.rs"]
mod staged;
