//! NET: connections through the network. What is here is the built-in transport over TCP.

pub(crate) mod handshake;
pub(crate) mod socket;
