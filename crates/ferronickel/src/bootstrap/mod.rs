//! Who is there: how the ranks of a communicator find each other and agree.

pub(crate) mod rendezvous;
pub(crate) mod unique_id;
