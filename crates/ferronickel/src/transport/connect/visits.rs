//! Connections through the network that are made when they are first used: there may be one between any two ranks.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::door::Door;
use crate::bootstrap::handshake::{Kind, Purpose};
use crate::device::progress::Progress;
use crate::error::Error;
use crate::proxy::Connector;

/// What a rank needs to connect to any other, and to be connected to.
pub(super) struct Visits {
    pub door: Arc<Door>,
    /// Where each rank is reached.
    pub addresses: Vec<Vec<SocketAddr>>,
    pub rank: usize,
    pub attempt: u16,
    pub timeout: Duration,
    pub progress: Arc<Progress>,
}

impl Visits {
    fn purpose(&self, channel: u32, from: usize, to: usize) -> Purpose {
        self.door.purpose(Kind::Data { channel: channel as u16, attempt: self.attempt, socket: 0 }, from, to)
    }
}

impl Connector for Visits {
    fn connect(&self, channel: u32, peer: usize) -> io::Result<TcpStream> {
        let purpose = self.purpose(channel, self.rank, peer);
        let mut stop = || self.progress.stopped();
        self.door.connect(&self.addresses[peer], purpose, self.timeout, &mut stop)?.into_tcp()
    }

    fn take(&self, channel: u32, peer: usize) -> Option<io::Result<TcpStream>> {
        let purpose = self.purpose(channel, peer, self.rank);
        Some(self.door.take_arrived(purpose)?.into_tcp())
    }

    fn cause(&self) -> Option<Error> {
        self.door.service().want()
    }
}
