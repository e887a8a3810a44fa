//! TwoShot: each rank reduces one share for all and hands the result to all. Two hops, each byte moved twice.
//!
//! [`direct`] works in the callers' own buffers, where every rank can reach them; [`staged`] passes the bytes
//! through memory of the communicator.

pub mod direct;
pub mod staged;
