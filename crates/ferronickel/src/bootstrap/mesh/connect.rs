//! Connecting the processes of a communicator with each other.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{LONGEST, Link, Mesh};
use crate::bootstrap::connection::Connection;
use crate::bootstrap::door::Door;
use crate::bootstrap::handshake::Kind;
use crate::bootstrap::presence::Presence;
use crate::bootstrap::session::{Exchanged, Member, Neighbour};
use crate::bootstrap::stream::Stream;
use crate::device::progress::StatusPage;
use crate::device::region::Region;
use crate::error::{Error, ErrorKind, Result};

/// Two ranks of different processes of a machine that cannot share memory, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Unshared {
    pub one: usize,
    pub other: usize,
    /// Only the buffers cannot be reached.
    pub arena_only: bool,
    pub reason: String,
}

/// Connects this process to the others, and shares memory with those of this machine. Called by every rank; one of
/// each process does it for all. Tells which processes cannot share memory, the same to every rank.
pub(crate) fn connect(member: &Member, presences: &[Presence], door: Option<&Arc<Door>>) -> Result<Vec<Unshared>> {
    let session = member.session();
    if session.processes().len() == 1 {
        return Ok(Vec::new());
    }
    let mut unshared = Vec::new();
    if member.leads() {
        let door = door.ok_or_else(|| Error::new(ErrorKind::Internal, "a process among others without a door"))?;
        let connecting = Connecting { member, presences, door };
        let links = connecting.links(&mut unshared)?;
        let mesh =
            Mesh::start(session, links).map_err(|error| Error::system("starting the thread that watches", error))?;
        session.set_mesh(mesh);
    }
    let shared = if member.leads() { Shared::of_this_process(session.page()) } else { Shared::default() };
    let all = member.all_gather(shared)?;
    if member.leads() {
        let connecting = Connecting { member, presences, door: door.expect("a leader has one") };
        connecting.attach(&all, &mut unshared);
    }
    let all = member.all_gather(crate::bootstrap::session::Plain(unshared))?;
    Ok(all.into_iter().flat_map(|unshared| unshared.0).collect())
}

struct Connecting<'a> {
    member: &'a Member,
    presences: &'a [Presence],
    door: &'a Arc<Door>,
}

impl Connecting<'_> {
    /// A connection to every other process. Those with lower ranks are connected to, those with higher ones connect:
    /// each answers by a thread of its own, so nobody waits in a circle.
    fn links(&self, unshared: &mut Vec<Unshared>) -> Result<Vec<Link>> {
        let session = self.member.session();
        let (processes, own) = (session.processes(), session.own());
        let mut links = Vec::with_capacity(processes.len() - 1);
        for (index, ranks) in processes.iter().enumerate().filter(|&(index, _)| index != own) {
            let peer = &self.presences[ranks[0]];
            let stream = if index < own { self.reach(peer, unshared) } else { self.await_peer(peer) };
            let stream = stream.map_err(|error| {
                let seen = format!("no connection to {}: {error}", peer.name());
                Error::new(ErrorKind::Remote, seen)
            })?;
            links.push(Link { connection: Connection::new(stream, LONGEST), ranks: ranks.clone(), left: false });
        }
        Ok(links)
    }

    fn limit(&self) -> Duration {
        self.member.timeout()
    }

    fn reach(&self, peer: &Presence, unshared: &mut Vec<Unshared>) -> io::Result<Stream> {
        let rank = self.member.rank();
        let purpose = self.door.purpose(Kind::Link, rank, peer.rank);
        if peer.node == self.presences[rank].node {
            let within = match &peer.unix {
                Ok(name) => self
                    .door
                    .connect_within(name, purpose, self.limit())
                    .map_err(|error| format!("{} cannot be reached through a Unix socket: {error}", peer.name())),
                Err(reason) => Err(reason.clone()),
            };
            match within {
                Ok(stream) => return Ok(stream),
                Err(reason) => unshared.push(Unshared { one: rank, other: peer.rank, arena_only: false, reason }),
            }
        }
        self.door.connect(&peer.addresses, purpose, self.limit())
    }

    fn await_peer(&self, peer: &Presence) -> io::Result<Stream> {
        let purpose = self.door.purpose(Kind::Link, peer.rank, self.member.rank());
        self.door.take(purpose, self.limit(), || self.member.progress().stopped())
    }

    /// Maps what the other processes of this machine share.
    fn attach(&self, all: &[Shared], unshared: &mut Vec<Unshared>) {
        let session = self.member.session();
        let (rank, ranks) = (self.member.rank(), self.presences.len());
        for (index, theirs) in session.processes().iter().enumerate() {
            let peer = &self.presences[theirs[0]];
            if index == session.own() || peer.node != self.presences[rank].node {
                continue;
            }
            let mut cannot =
                |reason: String| unshared.push(Unshared { one: rank, other: peer.rank, arena_only: false, reason });
            let shared = &all[peer.rank];
            let Some(page) = &shared.page else {
                // either it could not be made there, or it could not travel here
                cannot(format!("no shared memory came from {}", peer.name()));
                continue;
            };
            match page.map() {
                Ok(region) if region.bytes() >= StatusPage::bytes(ranks) => {
                    session.progress.attach(StatusPage::new(region, ranks), theirs);
                }
                Ok(region) => cannot(format!("{} shares a page of {} bytes", peer.name(), region.bytes())),
                Err(error) => cannot(format!("memory of {} could not be mapped: {error}", peer.name())),
            }
            let arena = shared.arena.as_ref().and_then(|arena| arena.map().ok());
            session.add_neighbour(Neighbour { ranks: theirs.clone(), arena });
        }
    }
}

/// A piece of memory that another process can map.
#[derive(Clone, Debug)]
struct Piece {
    file: Arc<OwnedFd>,
    bytes: usize,
}

impl Piece {
    fn map(&self) -> io::Result<Arc<Region>> {
        use std::os::fd::AsFd;
        Ok(Region::from_file(self.file.as_fd(), self.bytes)?)
    }
}

/// What a process shares with the others of its machine.
#[derive(Clone, Default, Debug)]
struct Shared {
    page: Option<Piece>,
    arena: Option<Piece>,
}

impl Shared {
    fn of_this_process(page: &StatusPage) -> Shared {
        let region = page.region();
        let file = region.file().and_then(|file| file.try_clone_to_owned().ok());
        let page = file.map(|file| Piece { file: Arc::new(file), bytes: region.bytes() });
        Shared { page, arena: None }
    }
}

impl Exchanged for Shared {
    fn pack(&self) -> (Vec<u8>, Vec<Arc<OwnedFd>>) {
        let lengths = [&self.page, &self.arena].map(|piece| piece.as_ref().map(|piece| piece.bytes));
        let files = [&self.page, &self.arena].into_iter().flatten().map(|piece| piece.file.clone());
        (postcard::to_allocvec(&lengths).expect("plain values"), files.collect())
    }

    fn unpack(bytes: &[u8], files: Vec<OwnedFd>) -> Option<Self> {
        let lengths: [Option<usize>; 2] = postcard::from_bytes(bytes).ok()?;
        let mut files = files.into_iter();
        let [page, arena] = lengths.map(|bytes| {
            let bytes = bytes?;
            Some(Piece { file: Arc::new(files.next()?), bytes })
        });
        Some(Shared { page, arena })
    }
}
