//! The data path of ferronickel: wire protocols and collective algorithms, written once.
//!
//! Everything here is generic over a [`Block`](block::Block): the group of threads that runs one channel of a
//! collective. A block is a thread on a host device, a thread block on a GPU, and a modelled thread under `loom` or
//! `shuttle`; the algorithms do not know which. All memory is reached through the block, by raw pointers, because
//! that is what lets a model checker stand in for the memory.
//!
//! * [`element`]: what can be moved and reduced; [`reduce`]: how two elements become one.
//! * [`protocol`]: how bytes pass from one rank to another: [`ll`](protocol::ll) (flag and payload in one line) and
//!   [`simple`](protocol::simple) (a slot of bytes, then a flag).
//! * [`algorithm`]: who sends what to whom: [`one_shot`](algorithm::one_shot) and [`two_shot`](algorithm::two_shot) where
//!   every rank reaches every other's memory; over links [`ring`](algorithm::ring), [`tree`](algorithm::tree),
//!   [`pat`](algorithm::pat), [`flat`](algorithm::flat), [`hierarchical`](algorithm::hierarchical); and
//!   [`exchange`](algorithm::exchange) for messages between pairs of ranks.
//!
//! The crate allocates nothing and needs no operating system.
#![no_std]

pub mod algorithm;
pub mod block;
pub mod element;
pub mod protocol;
pub mod reduce;
