//! Connecting the processes of a communicator with each other.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{LONGEST, Link, Mesh};
use crate::bootstrap::connection::{Connection, Message};
use crate::bootstrap::door::Door;
use crate::bootstrap::handshake::Kind;
use crate::bootstrap::presence::Presence;
use crate::bootstrap::root::Vigil;
use crate::bootstrap::session::{Exchanged, Member, Neighbour, Plain};
use crate::bootstrap::stream::{Stop, Stream};
use crate::device::arena::Arena;
use crate::device::progress::{Failure, StatusPage};
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
pub(crate) fn connect(
    member: &Member,
    presences: &[Presence],
    door: Option<&Arc<Door>>,
    mut vigil: Vigil,
) -> Result<Vec<Unshared>> {
    let session = member.session();
    if session.processes().len() == 1 {
        vigil.end();
        return Ok(Vec::new());
    }
    let mut unshared = Vec::new();
    if member.leads() {
        let door = door.ok_or_else(|| Error::new(ErrorKind::Internal, "a process among others without a door"))?;
        let connecting = Connecting { member, presences, door };
        let links = match connecting.links(&mut vigil, &mut unshared) {
            Ok(links) => links,
            Err(failure) => {
                vigil.fail(&failure);
                return Err(failure.into());
            }
        };
        let mesh =
            Mesh::start(session, links).map_err(|error| Error::system("starting the thread that watches", error))?;
        session.set_mesh(mesh);
    }
    // from now on the mesh sees what becomes of whom
    vigil.end();
    let mut trial = if member.leads() { Trial::new(session.processes().len()) } else { None };
    let shared = if member.leads() { Shared::new(session.page(), trial.as_ref()) } else { Shared::default() };
    let all = member.all_gather(shared)?;
    let mut attached = Vec::new();
    if member.leads() {
        let connecting = Connecting { member, presences, door: door.expect("a leader has one") };
        attached = connecting.attach(&all, &mut unshared);
    }
    // everyone has written where it could, before anyone looks
    member.all_gather(Plain(()))?;
    if let Some(trial) = &mut trial {
        trial.is_over = true;
    }
    for index in attached {
        let (one, other) = (member.rank(), session.processes()[index][0]);
        if !trial.as_ref().is_some_and(|trial| trial.has_come(index, session.own())) {
            let reason = format!("what {} wrote to the buffers here did not arrive", presences[other].name());
            unshared.push(Unshared { one, other, arena_only: true, reason });
        }
    }
    let all = member.all_gather(Plain(unshared))?;
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
    fn links(&self, vigil: &mut Vigil, unshared: &mut Vec<Unshared>) -> std::result::Result<Vec<Link>, Failure> {
        let session = self.member.session();
        let (processes, own) = (session.processes(), session.own());
        let mut links = Vec::with_capacity(processes.len() - 1);
        for (index, ranks) in processes.iter().enumerate().filter(|&(index, _)| index != own) {
            let peer = &self.presences[ranks[0]];
            let mut stop = || self.member.progress().stopped() || vigil.look().is_some();
            let stream = match index < own {
                true => self.reach(peer, &mut stop, unshared),
                false => {
                    let purpose = self.door.purpose(Kind::Link, peer.rank, self.member.rank());
                    self.door.take(purpose, self.member.timeout(), &mut stop)
                }
            };
            let stream = stream.map_err(|error| {
                let failure = vigil.look().unwrap_or_else(|| {
                    let own = self.presences[self.member.rank()].name();
                    let seen = format!("{own} gets no connection to {}: {error}", peer.name());
                    Failure { kind: ErrorKind::Remote, seen, hint: None }
                });
                self.explain(&failure, &mut links, index);
                failure
            })?;
            links.push(Link {
                connection: Connection::new(stream, LONGEST),
                ranks: ranks.clone(),
                left: false,
                ended: None,
            });
        }
        Ok(links)
    }

    /// Tells those that are connected, or wait to be, why this process gives up: they would see no more than an end.
    fn explain(&self, failure: &Failure, links: &mut [Link], from: usize) {
        for link in links {
            let _ = link.connection.send(&Message::Failed(failure.clone()));
        }
        for ranks in &self.member.session().processes()[from..] {
            let purpose = self.door.purpose(Kind::Link, ranks[0], self.member.rank());
            if let Ok(stream) = self.door.take(purpose, Duration::ZERO, &mut || true) {
                let _ = Connection::new(stream, LONGEST).send(&Message::Failed(failure.clone()));
            }
        }
    }

    fn reach(&self, peer: &Presence, stop: Stop<'_>, unshared: &mut Vec<Unshared>) -> io::Result<Stream> {
        let (rank, limit) = (self.member.rank(), self.member.timeout());
        let purpose = self.door.purpose(Kind::Link, rank, peer.rank);
        if peer.node == self.presences[rank].node {
            let within = match &peer.unix {
                Ok(name) => self
                    .door
                    .connect_within(name, purpose, limit, &mut *stop)
                    .map_err(|error| format!("{} cannot be reached through a Unix socket: {error}", peer.name())),
                Err(reason) => Err(reason.clone()),
            };
            match within {
                Ok(stream) => return Ok(stream),
                Err(reason) => unshared.push(Unshared { one: rank, other: peer.rank, arena_only: false, reason }),
            }
        }
        self.door.connect(&peer.addresses, purpose, limit, stop)
    }

    /// Maps what the other processes of this machine share, and tries whether it can write to their buffers. Tells
    /// which processes these are.
    fn attach(&self, all: &[Shared], unshared: &mut Vec<Unshared>) -> Vec<usize> {
        let mut attached = Vec::new();
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
            let arena = match shared.arena.as_ref().map(|(piece, trial)| Ok((piece.map()?, *trial))) {
                Some(Ok((arena, trial))) => {
                    Trial::write(&arena, trial, session.own(), index);
                    attached.push(index);
                    Ok(arena)
                }
                Some(Err(error)) => Err(io::Error::to_string(&error)),
                None => Err("they cannot be shared".into()),
            };
            if let Err(error) = &arena {
                let reason = format!("buffers of {} could not be mapped: {error}", peer.name());
                unshared.push(Unshared { one: rank, other: peer.rank, arena_only: true, reason });
            }
            session.add_neighbour(Neighbour { ranks: theirs.clone(), arena: arena.ok() });
        }
        attached
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
        Ok(Region::from_file(self.file.as_fd(), self.bytes)?)
    }
}

/// What a process shares with the others of its machine.
#[derive(Clone, Default, Debug)]
struct Shared {
    page: Option<Piece>,
    /// Its buffers, and where in them others try whether they reach them.
    arena: Option<(Piece, usize)>,
}

/// A piece of this process's arena in which each other process leaves a word.
struct Trial {
    arena: &'static Arena,
    range: Range<usize>,
    /// Nobody will write any more. Otherwise the piece is never used again: another process might still write there.
    is_over: bool,
}

impl Trial {
    /// None if there is no arena, or no room in it.
    fn new(processes: usize) -> Option<Trial> {
        let arena = Arena::of_process().ok()?;
        let range = arena.take(processes * size_of::<u64>())?;
        Some(Trial { arena, range, is_over: false })
    }

    /// The word that process `from` leaves at process `to`.
    fn word(from: usize, to: usize) -> u64 {
        (1 + from as u64 + ((to as u64) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn write(arena: &Region, trial: usize, from: usize, to: usize) {
        if trial.is_multiple_of(size_of::<u64>()) && trial + (from + 1) * size_of::<u64>() <= arena.bytes() {
            // SAFETY: the word is aligned and in the region, and used for nothing else
            let word = unsafe { AtomicU64::from_ptr(arena.at(trial + from * size_of::<u64>()).cast()) };
            word.store(Self::word(from, to), Ordering::Release);
        }
    }

    fn has_come(&self, from: usize, to: usize) -> bool {
        // SAFETY: as in `write`
        let word = unsafe { AtomicU64::from_ptr(self.arena.at(self.range.start + from * size_of::<u64>()).cast()) };
        word.load(Ordering::Acquire) == Self::word(from, to)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if self.is_over {
            self.arena.give_back(self.range.clone());
        }
    }
}

impl Shared {
    fn new(page: &StatusPage, trial: Option<&Trial>) -> Shared {
        let region = page.region();
        let file = region.file().and_then(|file| file.try_clone_to_owned().ok());
        let page = file.map(|file| Piece { file: Arc::new(file), bytes: region.bytes() });
        let arena = trial.and_then(|Trial { arena, range, .. }| {
            let file = arena.file().try_clone_to_owned().ok()?;
            Some((Piece { file: Arc::new(file), bytes: arena.bytes() }, range.start))
        });
        Shared { page, arena }
    }
}

impl Exchanged for Shared {
    fn pack(&self) -> (Vec<u8>, Vec<Arc<OwnedFd>>) {
        let page = self.page.as_ref().map(|page| page.bytes);
        let arena = self.arena.as_ref().map(|(arena, trial)| (arena.bytes, *trial));
        let pieces = self.page.iter().chain(self.arena.iter().map(|(arena, _)| arena));
        // serialising plain values into memory cannot fail
        let bytes = postcard::to_allocvec(&(page, arena)).expect("plain values");
        (bytes, pieces.map(|piece| piece.file.clone()).collect())
    }

    fn unpack(bytes: &[u8], files: Vec<OwnedFd>) -> Option<Self> {
        let (page, arena): (Option<usize>, Option<(usize, usize)>) = postcard::from_bytes(bytes).ok()?;
        let mut files = files.into_iter();
        // without files it cannot be reached from here
        let mut piece = |bytes| Some(Piece { file: Arc::new(files.next()?), bytes });
        let page = page.and_then(&mut piece);
        let arena = arena.and_then(|(bytes, trial)| Some((piece(bytes)?, trial)));
        Some(Shared { page, arena })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_that_was_broken_off_leaves_its_place_unused() {
        let trial = Trial::new(3).expect("this machine has arenas");
        let taken = trial.range.clone();
        drop(trial);
        let again = |_| Trial::new(3).expect("there is room");
        let mut others: Vec<_> = (0..4).map(again).collect();
        assert!(others.iter().all(|other| other.range.end <= taken.start || taken.end <= other.range.start));
        others.iter_mut().for_each(|other| other.is_over = true);
    }
}
