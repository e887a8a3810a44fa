//! The product's files, in the places where they expect each other.
#![allow(dead_code, reason = "not all of each is modelled")]

pub mod host;
#[path = "../../../src/device/progress/place.rs"]
pub mod place;
#[path = "../../../src/device/memory/users.rs"]
pub mod users;
