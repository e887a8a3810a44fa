//! The sockets through which data goes between ring neighbours that only the network connects.

use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::offer::Offer;
use super::{Neighbours, Request};
use crate::bootstrap::door::Door;
use crate::bootstrap::handshake::{Kind, Purpose};
use crate::bootstrap::service::{Service, is_want};
use crate::config::{Config, variables};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::Transport;

/// How many sockets a connection through the network has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sockets {
    /// Threads of a proxy.
    pub threads: usize,
    /// Sockets that each of them has for a connection.
    pub per_thread: usize,
}

impl Sockets {
    /// The most of a connection, as NCCL has it.
    const MOST: usize = 64;

    /// What the settings say.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) when it is more than a connection may have.
    pub fn from_config(config: &Config) -> Result<Sockets> {
        // NCCL takes a number below one as "not set"
        let number = |variable| usize::try_from(config.integer(variable).value).unwrap_or(0).max(1);
        let (threads, per_thread) = (number(&variables::SOCKET_NTHREADS), number(&variables::NSOCKS_PERTHREAD));
        if threads * per_thread > Self::MOST {
            let seen = format!(
                "NCCL_SOCKET_NTHREADS={threads} times NCCL_NSOCKS_PERTHREAD={per_thread} is more than the {} sockets that \
                 a connection may have",
                Self::MOST
            );
            return Err(Error::new(ErrorKind::InvalidUsage, seen).hint("lower one of them"));
        }
        Ok(Sockets { threads, per_thread })
    }

    fn all(self) -> usize {
        self.threads * self.per_thread
    }
}

/// The socket of a lane; None if it is connected when it is first used.
pub(super) type Lane = Option<TcpStream>;

/// The sockets of each connection, by channel.
#[derive(Default)]
pub(super) struct Streams {
    pub outgoing: Vec<(usize, Vec<TcpStream>)>,
    pub incoming: Vec<(usize, Vec<TcpStream>)>,
}

/// The sockets of a channel, taken out.
pub(super) fn take(streams: &mut Vec<(usize, Vec<TcpStream>)>, channel: usize) -> Vec<TcpStream> {
    let at = streams.iter().position(|&(of, _)| of == channel);
    streams.swap_remove(at.expect("every link through the network was connected")).1
}

impl Request<'_> {
    /// The door through which data comes, if any comes or goes through the network. Ranks of one process need none
    /// before.
    pub(super) fn data_door(&self) -> Result<Option<Arc<Door>>> {
        if !self.roads.touches(self.rank, Transport::Net) {
            return Ok(None);
        }
        if let Some(door) = self.door {
            return Ok(Some(door.clone()));
        }
        let service = Service::on(&[(Ipv4Addr::LOCALHOST, 0).into()])?;
        Ok(Some(service.open(self.id.public_number(), self.id.secret())))
    }

    /// The channels on which data comes through the network, and from which rank.
    fn net_sources(&self) -> Vec<(usize, usize)> {
        let links = self.net_links(|neighbours| (neighbours.previous, self.rank));
        links.map(|(channel, from, _)| (channel, from)).collect()
    }

    /// The channels on which data goes through the network, and to which rank.
    fn net_targets(&self) -> Vec<(usize, usize)> {
        self.net_links(|neighbours| (self.rank, neighbours.next)).map(|(channel, _, to)| (channel, to)).collect()
    }

    fn net_links(&self, pair: impl Fn(Neighbours) -> (usize, usize)) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..self.layout.channels).filter_map(move |channel| {
            let (from, to) = pair(self.neighbours(channel));
            (from != to && self.roads.transport(from, to) == Transport::Net).then_some((channel, from, to))
        })
    }

    /// Connects to those we send to, then takes the connections of those we receive from. Each process answers by a
    /// thread of its own, so nobody waits in a circle.
    pub(super) fn connect_streams(&self, door: &Door, offers: &[Offer]) -> Result<Streams> {
        let sockets = 0..self.sockets.all() as u16;
        let purpose = |channel: usize, socket, from, to| -> Purpose {
            door.purpose(Kind::Data { channel: channel as u16, attempt: self.attempt, socket }, from, to)
        };
        let progress = self.member.progress();
        let mut streams = Streams::default();
        for (channel, to) in self.net_targets() {
            let connect = |socket| {
                let purpose = purpose(channel, socket, self.rank, to);
                door.connect(&offers[to].addresses, purpose, self.timeout, &mut || progress.stopped())?.into_tcp()
            };
            let connected = sockets.clone().map(connect).collect::<io::Result<_>>().map_err(|error| {
                if let Some(cause) = self.root_cause(door) {
                    return cause;
                }
                if is_want(&error) {
                    return Error::system(&format!("connecting to {} through NET/Socket", progress.name(to)), error);
                }
                let seen = format!("connecting to {} through NET/Socket failed: {error}", progress.name(to));
                let hint = "NCCL_SOCKET_IFNAME chooses the interface that peers connect to";
                Error::new(ErrorKind::Remote, seen).hint(hint)
            })?;
            streams.outgoing.push((channel, connected));
        }
        for (channel, from) in self.net_sources() {
            let take = |socket| {
                let purpose = purpose(channel, socket, from, self.rank);
                let mut stop = || progress.stopped() || door.service().want().is_some();
                door.take(purpose, self.timeout, &mut stop)?.into_tcp()
            };
            let taken = sockets.clone().map(take).collect::<io::Result<_>>().map_err(|error| {
                if let Some(cause) = self.root_cause(door) {
                    return cause;
                }
                let seen = format!("{} did not connect through NET/Socket: {error}", progress.name(from));
                Error::new(ErrorKind::Remote, seen)
            })?;
            streams.incoming.push((channel, taken));
        }
        Ok(streams)
    }

    /// What is behind a connection that did not come about, if more is known than that: the others stopped, or this
    /// process has no descriptors left, with which it neither connects nor accepts.
    fn root_cause(&self, door: &Door) -> Option<Error> {
        let stopped = || self.member.progress().failure().map(Error::from);
        let cannot_open = || {
            let error = eventfd(0, EventfdFlags::CLOEXEC).err()?;
            Some(Error::system("opening one more descriptor", error))
        };
        stopped().or_else(|| door.service().want()).or_else(cannot_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_what_the_settings_say_within_the_limit() {
        let with = |threads: &str, sockets: &str| {
            let config = Config::default().with("NCCL_SOCKET_NTHREADS", threads).unwrap();
            Sockets::from_config(&config.with("NCCL_NSOCKS_PERTHREAD", sockets).unwrap())
        };
        assert_eq!(Sockets::from_config(&Config::default()).unwrap().all(), 1);
        assert_eq!(with("3", "2").unwrap(), Sockets { threads: 3, per_thread: 2 });
        assert_eq!(with("0", "-2").unwrap().all(), 1);
        let error = with("16", "5").unwrap_err();
        assert!(error.seen().contains("NCCL_SOCKET_NTHREADS=16 times NCCL_NSOCKS_PERTHREAD=5"), "{error}");
    }
}
