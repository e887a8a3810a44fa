//! The ranks of one communicator that are in this process, on their way into it: what they share, and how they
//! exchange with everyone what each must know of the others.

mod exchange;

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use self::exchange::Exchange;
pub(crate) use self::exchange::{Exchanged, Plain};
pub(super) use self::exchange::{Packed, Parcel};
use super::mesh::Mesh;
use super::presence::Presence;
use crate::config::{Config, variables};
use crate::device::progress::{Failure, Progress, StatusPage};
use crate::device::region::Region;
use crate::error::{Error, ErrorKind, Result};

/// A rank's place in a session.
pub(crate) struct Member {
    session: Arc<Session>,
    rank: usize,
    timeout: Duration,
    complete: bool,
}

/// What the ranks of this process share.
pub(crate) struct Session {
    pub progress: Arc<Progress>,
    /// The ranks of each process, the process with the lowest rank first.
    processes: Vec<Vec<usize>>,
    /// Which of them is this one.
    own: usize,
    page: StatusPage,
    state: Mutex<Exchange>,
    changed: Condvar,
    /// The connections to the other processes, once they are there.
    mesh: OnceLock<Arc<Mesh>>,
    computed: Mutex<HashMap<u64, Arc<dyn Any + Send + Sync>>>,
    /// What the other processes of this machine share with this one.
    neighbours: Mutex<Vec<Neighbour>>,
}

/// Memory of another process of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Neighbour {
    pub ranks: Vec<usize>,
    /// Its buffers, as they are seen here.
    pub arena: Option<Arc<Region>>,
}

/// The sessions of this process, while somebody is in them.
static SESSIONS: Mutex<Option<Sessions>> = Mutex::new(None);

/// By the communicator's number and the process: a forked child has inherited the table.
type Sessions = HashMap<(u64, u32), Weak<Session>>;

/// A waiting rank looks this often whether the session has failed.
const LOOK: Duration = Duration::from_millis(20);

impl Member {
    /// Joins the other ranks of this process, in the communicator with this number, whose ranks are `presences`.
    pub fn join(
        number: u64,
        presences: &[Presence],
        rank: usize,
        config: &Config,
        timeout: Duration,
    ) -> Result<Member> {
        let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let sessions = sessions.get_or_insert_default();
        sessions.retain(|_, session| session.strong_count() > 0);
        let key = (number, std::process::id());
        let session = match sessions.get(&key).and_then(Weak::upgrade) {
            Some(session) => session,
            None => {
                let session = Arc::new(Session::new(presences, rank, config)?);
                sessions.insert(key, Arc::downgrade(&session));
                session
            }
        };
        Ok(Member { session, rank, timeout, complete: false })
    }

    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How long to wait for others.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The record that all ranks share.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.session.progress
    }

    /// Tells every rank that init failed.
    pub fn fail(&self, failure: Failure) {
        self.session.fail(failure);
    }

    /// The rank is ready: from now on it leaves in an orderly way.
    pub fn complete(&mut self) {
        self.complete = true;
    }

    /// Whether this rank does what has to be done once in the process.
    pub fn leads(&self) -> bool {
        self.session.processes[self.session.own][0] == self.rank
    }

    /// What `compute` gives, computed by one rank of the process for all. Calls with the same `key` are one.
    pub fn once<T: Send + Sync + 'static>(&self, key: u64, compute: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let mut computed = self.session.computed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = computed.get(&key) {
            let value = value.clone().downcast();
            return value.map_err(|_| Error::new(ErrorKind::Internal, "ranks compute different things"));
        }
        let value = Arc::new(compute()?);
        computed.insert(key, value.clone());
        Ok(value)
    }

    /// Brings `value` and takes what every rank brought, in rank order.
    ///
    /// # Errors
    /// [`Timeout`](ErrorKind::Timeout), which names the ranks that did not come; or why the session failed.
    pub fn all_gather<T: Exchanged>(&self, value: T) -> Result<Vec<T>> {
        let session = &*self.session;
        let deadline = Instant::now() + self.timeout;
        let mut state = session.lock();
        let round = state.round();
        if state.bring(self.rank, Arc::new(value)) {
            if let Some(mesh) = session.mesh.get() {
                mesh.bring(round, state.pack::<T>());
            }
            session.changed.notify_all();
        }
        while state.round() == round {
            if state.try_complete::<T>()? {
                session.changed.notify_all();
                break;
            }
            if session.progress.stopped() {
                // the cause may come by a message, for which others need the lock
                drop(state);
                let failure = session.progress.cause();
                return Err(
                    failure.map_or_else(|| Error::new(ErrorKind::Internal, "stopped without a cause"), Error::from)
                );
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let failure = session.missing(&state, self.timeout);
                self.fail(failure.clone());
                return Err(failure.into());
            }
            state = session.changed.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
        }
        // nobody can complete the next round before this rank has brought something to it
        state.gathered::<T>()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if !self.complete {
            // after an error or a panic; whatever was the first cause stays
            let seen = format!("{} gave up in init", self.session.progress.name(self.rank));
            self.fail(Failure { kind: ErrorKind::Remote, seen, hint: None });
        }
    }
}

impl Session {
    fn new(presences: &[Presence], rank: usize, config: &Config) -> Result<Session> {
        let mut processes: Vec<(u64, Vec<usize>)> = Vec::new();
        let mut places = HashMap::new();
        for (rank, presence) in presences.iter().enumerate() {
            let at = *places.entry(presence.process).or_insert_with(|| {
                processes.push((presence.process, Vec::new()));
                processes.len() - 1
            });
            processes[at].1.push(rank);
        }
        let own = places[&presences[rank].process];
        let here = |presence: &Presence| presence.process == presences[rank].process;
        let has_neighbours = presences.iter().any(|other| !here(other) && other.node == presences[rank].node);
        let alone = processes.len() == 1;
        let name = |presence: &Presence| if alone { format!("rank {}", presence.rank) } else { presence.name() };
        let names = presences.iter().map(name);
        let bytes = StatusPage::bytes(presences.len());
        let region = if has_neighbours { Region::shared(bytes) } else { Region::private(bytes) };
        // without memory to share there is always the network
        let region = region.or_else(|_| Region::private(bytes));
        let region = region.map_err(|error| Error::system(&format!("mapping {bytes} bytes"), error))?;
        let page = StatusPage::new(region, presences.len());
        let patience = Duration::from_secs(config.integer(&variables::TIMEOUT).value.unsigned_abs());
        Ok(Session {
            progress: Arc::new(Progress::new(page.clone(), names.collect(), patience)),
            state: Mutex::new(Exchange::new(presences.len(), processes[own].1.clone())),
            processes: processes.into_iter().map(|(_, ranks)| ranks).collect(),
            own,
            page,
            changed: Condvar::new(),
            mesh: OnceLock::new(),
            computed: Mutex::default(),
            neighbours: Mutex::default(),
        })
    }

    /// The ranks of each process.
    pub fn processes(&self) -> &[Vec<usize>] {
        &self.processes
    }

    /// This process's place among them.
    pub fn own(&self) -> usize {
        self.own
    }

    pub fn page(&self) -> &StatusPage {
        &self.page
    }

    /// The connections to the other processes.
    pub fn mesh(&self) -> Option<&Arc<Mesh>> {
        self.mesh.get()
    }

    pub(super) fn set_mesh(&self, mesh: Arc<Mesh>) {
        let _ = self.mesh.set(mesh);
    }

    pub(super) fn add_neighbour(&self, neighbour: Neighbour) {
        self.neighbours.lock().unwrap_or_else(PoisonError::into_inner).push(neighbour);
    }

    /// The arena of the process that `rank` is in, as it is seen here. None for ranks of this process, and for those
    /// whose arena is not.
    pub fn arena_of(&self, rank: usize) -> Option<Arc<Region>> {
        let neighbours = self.neighbours.lock().unwrap_or_else(PoisonError::into_inner);
        neighbours.iter().find(|neighbour| neighbour.ranks.contains(&rank))?.arena.clone()
    }

    /// What another process brought.
    pub(super) fn receive(&self, round: u64, values: Vec<Packed>) {
        self.lock().receive(round, values);
        self.changed.notify_all();
    }

    fn fail(&self, failure: Failure) {
        self.progress.fail(failure);
        self.changed.notify_all();
    }

    /// Wakes whoever waits, to see that the session has failed.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    fn missing(&self, state: &Exchange, timeout: Duration) -> Failure {
        let missing: Vec<_> = state.missing().map(|rank| self.progress.name(rank)).collect();
        Failure {
            kind: ErrorKind::Timeout,
            seen: format!("in init, {} did not go on within {} s", missing.join(", "), timeout.as_secs_f64()),
            hint: Some("FERRONICKEL_INIT_TIMEOUT sets how long to wait".into()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Exchange> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
