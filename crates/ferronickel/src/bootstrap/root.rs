//! The root: where the ranks of a communicator find each other.
//!
//! It lives in the process that made the unique id. Every rank comes to it once, says what others must know of it,
//! and gets what everyone has said. Until the ranks are connected with each other the root notices if one dies; from
//! then on they need it no more.

mod guest;
mod server;
mod vigil;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::alarm::Alarm;
use super::comm_id::CommId;
use super::door::Door;
use super::interfaces;
use super::service::Service;
use super::stream::Stream;
use super::unique_id::{UniqueId, random};
use crate::config::{Config, variables};
use crate::device::progress::Failure;
use crate::diagnostics::log::warn;
use crate::error::{Error, ErrorKind, Result};

pub(crate) use self::vigil::Vigil;

/// What every rank has said of itself, by rank.
pub(crate) type Everyone = Arc<Vec<Vec<u8>>>;

/// The gathering of one communicator's ranks.
#[derive(Debug)]
pub(crate) struct Root {
    id: UniqueId,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
    /// Calls the thread that serves ranks of other processes, once there is one.
    alarm: OnceLock<Alarm>,
}

#[derive(Default, Debug)]
struct State {
    /// How many ranks there are, once one has said it.
    size: Option<usize>,
    /// What each rank that has come has said.
    infos: Vec<Option<Vec<u8>>>,
    /// Ranks that came from this process.
    local: Vec<u32>,
    /// Connections that wait to be served.
    arrived: Vec<Stream>,
    outcome: Option<std::result::Result<Everyone, Failure>>,
    /// What has become of a rank that had come, before it was connected to the others.
    lost: Option<Failure>,
}

/// The roots in this process that are not done, each with the door through which ranks of other processes come.
static ROOTS: Mutex<Option<HashMap<u64, Hosted>>> = Mutex::new(None);

struct Hosted {
    root: Arc<Root>,
    _door: Option<Arc<Door>>,
    process: u32,
}

/// What became of the ids that were done with last: a rank that comes late learns why nobody is there.
static DONE: Mutex<VecDeque<(u64, Option<Failure>)>> = Mutex::new(VecDeque::new());
const REMEMBERED: usize = 64;

/// A waiting rank looks this often whether the others have failed.
const LOOK: Duration = Duration::from_millis(20);

/// A rank that comes to the root.
pub(crate) struct Comer<'a> {
    pub id: &'a UniqueId,
    pub size: usize,
    pub rank: usize,
    /// How messages name it: with its host and process.
    pub name: &'a str,
    pub info: Vec<u8>,
    pub timeout: Duration,
}

/// Makes an id, and begins to listen for its ranks.
pub(super) fn host(config: &Config) -> Result<UniqueId> {
    let timeout = timeout(config);
    if let Some(agreed) = CommId::from_config(config)? {
        return agreed.unique_id(config);
    }
    let service = Service::on(&[interfaces::choose(config, None)?.endpoints[0].socket_address(0)])?;
    let id = UniqueId::at(&random()?, false, &service.addresses)?;
    open(&id, service, timeout);
    Ok(id)
}

/// An id for ranks of this process alone.
pub(crate) fn host_private(config: &Config) -> Result<UniqueId> {
    let id = UniqueId::private()?;
    insert(&id, Arc::new(Root::new(&id, timeout(config))), None);
    Ok(id)
}

/// Rank `rank` will not come: everyone who waits for it is told why.
pub(crate) fn give_up(id: &UniqueId, size: usize, rank: usize, failure: &Failure) {
    let hosted = {
        let roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let hosted = roots.as_ref().and_then(|roots| roots.get(&id.public_number()));
        hosted.filter(|hosted| hosted.process == std::process::id()).map(|hosted| hosted.root.clone())
    };
    match hosted {
        Some(root) => root.lose(failure.clone()),
        None if id.addresses().is_empty() => {}
        None => guest::give_up(id, size, rank, failure),
    }
}

fn open(id: &UniqueId, service: Arc<Service>, timeout: Duration) -> Arc<Root> {
    let door = service.open(id.public_number(), id.secret());
    let root = Arc::new(Root::new(id, timeout));
    door.serve(root.clone());
    insert(id, root, Some(door))
}

fn insert(id: &UniqueId, root: Arc<Root>, door: Option<Arc<Door>>) -> Arc<Root> {
    let mut roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
    let hosted = Hosted { root: root.clone(), _door: door, process: std::process::id() };
    roots.get_or_insert_default().insert(id.public_number(), hosted);
    root
}

fn timeout(config: &Config) -> Duration {
    Duration::from_secs(config.integer(&variables::INIT_TIMEOUT).value.unsigned_abs())
}

impl Comer<'_> {
    /// Comes to the root, and waits until all have. From then on the root watches over the ranks until they are
    /// connected.
    ///
    /// # Errors
    /// [`Timeout`](ErrorKind::Timeout), which names the ranks that did not come;
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) when what this rank says does not fit what another said; why the
    /// others failed, if they did.
    pub fn meet(self) -> Result<(Everyone, Vigil)> {
        let number = self.id.public_number();
        if let Some(root) = Root::find(self.id) {
            return Ok((root.meet(self)?, Vigil::Here(root)));
        }
        let done = DONE.lock().unwrap_or_else(PoisonError::into_inner).iter().find(|(id, _)| *id == number).cloned();
        match done {
            Some((_, Some(failure))) => return Err(failure.into()),
            Some((_, None)) => {
                let seen = "this id has made a communicator already";
                return Err(Error::new(ErrorKind::InvalidUsage, seen).hint("make a new id for each communicator"));
            }
            None => {}
        }
        if self.id.agreed() && self.rank == 0 {
            let wanted: Vec<SocketAddr> = self.id.addresses();
            let root = open(self.id, Service::on(&wanted)?, self.timeout);
            return Ok((root.meet(self)?, Vigil::Here(root)));
        }
        if self.id.addresses().is_empty() {
            let seen = "this id is for ranks of the process that made it, and that is another one";
            return Err(Error::new(ErrorKind::InvalidUsage, seen).hint("make ids with UniqueId::new"));
        }
        guest::meet(&self).map(|(everyone, visit)| (everyone, Vigil::Elsewhere(Box::new(visit))))
    }
}

impl Root {
    fn new(id: &UniqueId, timeout: Duration) -> Root {
        let (state, changed, alarm) = (Mutex::default(), Condvar::new(), OnceLock::new());
        Root { id: id.clone(), timeout, state, changed, alarm }
    }

    fn find(id: &UniqueId) -> Option<Arc<Root>> {
        let roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
        // a forked child has inherited the table, but not the threads
        let hosted = roots.as_ref()?.get(&id.public_number()).filter(|hosted| hosted.process == std::process::id())?;
        Some(hosted.root.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank of this process comes, and waits for the others.
    fn meet(&self, comer: Comer<'_>) -> Result<Everyone> {
        let deadline = Instant::now() + comer.timeout;
        let mut state = self.lock();
        self.admit(&mut state, comer.size, comer.rank, comer.info)?;
        state.local.push(comer.rank as u32);
        self.call_server();
        loop {
            match &state.outcome {
                Some(Ok(everyone)) => return Ok(everyone.clone()),
                Some(Err(failure)) => return Err(failure.clone().into()),
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let failure = missing(&state, comer.timeout);
                self.fail(&mut state, failure);
                continue;
            }
            state = self.changed.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes what a rank says; the last one completes the gathering.
    fn admit(&self, state: &mut State, size: usize, rank: usize, info: Vec<u8>) -> std::result::Result<(), Failure> {
        if let Some(Err(failure)) = &state.outcome {
            return Err(failure.clone());
        }
        let known = *state.size.get_or_insert(size);
        state.infos.resize(known, None);
        let refusal = if size != known {
            format!("rank {rank} says that there are {size} ranks, another rank with the same id said {known}")
        } else if rank >= size {
            format!("rank {rank} is not below the size {size}")
        } else if state.infos[rank].is_some() {
            format!("rank {rank} of this id has been taken already")
        } else {
            state.infos[rank] = Some(info);
            if state.infos.iter().all(Option::is_some) {
                let everyone = std::mem::take(&mut state.infos).into_iter().flatten().collect();
                self.conclude(state, Ok(Arc::new(everyone)));
            }
            return Ok(());
        };
        let hint = "make a new id for each communicator, and give every rank of it the same size and its own number";
        let failure = Failure { kind: ErrorKind::InvalidUsage, seen: refusal, hint: Some(hint.into()) };
        if state.outcome.is_none() {
            self.fail(state, failure.clone());
        }
        Err(failure)
    }

    fn fail(&self, state: &mut State, failure: Failure) {
        self.conclude(state, Err(failure));
    }

    /// A rank that had come will not go on: all are told, those too that know already that all have come.
    fn lose(&self, failure: Failure) {
        let mut state = self.lock();
        self.fail(&mut state, failure.clone());
        if matches!(state.outcome, Some(Ok(_))) {
            state.lost.get_or_insert(failure);
            self.call_server();
        }
    }

    /// Ends the gathering, one way or the other, the first time.
    fn conclude(&self, state: &mut State, outcome: std::result::Result<Everyone, Failure>) {
        if state.outcome.is_some() {
            return;
        }
        {
            let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
            done.push_back((self.id.public_number(), outcome.as_ref().err().cloned()));
            if done.len() > REMEMBERED {
                done.pop_front();
            }
        }
        state.outcome = Some(outcome);
        self.changed.notify_all();
        self.call_server();
        let mut roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = roots.as_mut().and_then(|roots| roots.remove(&self.id.public_number()));
        drop(roots);
        // The server, if there is one, has the door as well, and tells those that come late.
        drop(closed);
    }

    fn call_server(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm.raise();
        }
    }

    /// A connection of a rank of another process, which has proved that it knows the secret.
    pub(super) fn arrive(self: &Arc<Self>, stream: Stream, door: &Arc<Door>) {
        let mut state = self.lock();
        state.arrived.push(stream);
        if self.alarm.get().is_some() {
            return self.call_server();
        }
        let started =
            Alarm::new().and_then(|alarm| server::start(self.clone(), door.clone(), alarm.clone()).map(|()| alarm));
        match started {
            Ok(alarm) => drop(self.alarm.set(alarm)),
            Err(error) => {
                warn!(-1, "Bootstrap : the root cannot serve ranks of other processes: {error}");
                state.arrived.clear();
            }
        }
    }
}

fn missing(state: &State, timeout: Duration) -> Failure {
    let size = state.size.unwrap_or_default();
    let missing: Vec<_> = (0..size).filter(|&rank| state.infos[rank].is_none()).collect();
    let names = missing.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let plural = if missing.len() == 1 { "" } else { "s" };
    Failure {
        kind: ErrorKind::Timeout,
        seen: format!("rank{plural} {names} of {size} did not come within {} s", timeout.as_secs_f64()),
        hint: Some("start every rank with this id; FERRONICKEL_INIT_TIMEOUT sets how long to wait".into()),
    }
}

#[cfg(test)]
mod tests;
