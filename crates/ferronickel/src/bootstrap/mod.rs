//! Who is there: how the ranks of a communicator find each other, agree, and keep in touch.

mod alarm;
pub(crate) mod comm_id;
mod connection;
pub(crate) mod door;
pub(crate) mod handshake;
pub(crate) mod interfaces;
mod liveness;
pub(crate) mod mesh;
pub(crate) mod presence;
pub(crate) mod root;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod stream;
pub(crate) mod unique_id;
pub(crate) mod world;
