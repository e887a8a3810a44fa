//! Who is there: how the ranks of a communicator find each other and agree.

pub(crate) mod comm_id;
#[allow(dead_code, reason = "the rendezvous between processes will listen where it says")]
pub(crate) mod interfaces;
pub(crate) mod rendezvous;
pub(crate) mod unique_id;
#[allow(dead_code, reason = "communicators will be made from it")]
pub(crate) mod world;
