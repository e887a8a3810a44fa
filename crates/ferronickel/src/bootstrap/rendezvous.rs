//! Where the ranks of one process meet.
//!
//! The first rank that comes with an id opens a session; the others join it. In the session they exchange what each
//! must know of the others, round by round.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::unique_id::UniqueId;
use crate::device::progress::{Failure, Progress};
use crate::error::{Error, ErrorKind, Result};

/// A rank's place in a session.
pub(crate) struct Member {
    session: Arc<Session>,
    rank: usize,
    timeout: Duration,
}

struct Session {
    id: UniqueId,
    ranks: usize,
    progress: Arc<Progress>,
    state: Mutex<State>,
    changed: Condvar,
}

type Brought = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
struct State {
    joined: Vec<bool>,
    /// What has been brought to the exchange that is under way.
    brought: Vec<Option<Brought>>,
    /// How many exchanges are complete, and what the last one gave.
    rounds: u64,
    gathered: Vec<Brought>,
}

/// The sessions of this process, while somebody is in them.
static SESSIONS: Mutex<Option<HashMap<UniqueId, Weak<Session>>>> = Mutex::new(None);

/// Sessions that failed last: a rank that comes late learns why, instead of waiting for ranks that have given up.
static FAILED: Mutex<VecDeque<(UniqueId, Failure)>> = Mutex::new(VecDeque::new());
const REMEMBERED: usize = 64;

/// A waiting rank looks this often whether the session has failed.
const LOOK: Duration = Duration::from_millis(20);

impl Member {
    /// Joins the session of `id`, which has `ranks` ranks, as `rank`. Does not wait for the others.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) when this does not fit what another rank said; unless all have come,
    /// the others fail as well, since the communicator cannot become complete.
    pub fn join(id: &UniqueId, ranks: usize, rank: usize, timeout: Duration) -> Result<Member> {
        if let Some(failure) = Session::failed(id) {
            return Err(failure.into());
        }
        let session = {
            let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
            let sessions = sessions.get_or_insert_default();
            sessions.retain(|_, session| session.strong_count() > 0);
            sessions.get(id).and_then(Weak::upgrade).unwrap_or_else(|| {
                let session = Arc::new(Session::new(id, ranks));
                sessions.insert(id.clone(), Arc::downgrade(&session));
                session
            })
        };
        session.admit(ranks, rank)?;
        Ok(Member { session, rank, timeout })
    }

    /// The record that all ranks of the session share.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.session.progress
    }

    /// Tells every rank of the session, those that have not come yet too, that init failed.
    pub fn fail(&self, failure: Failure) {
        self.session.fail(failure);
    }

    /// Brings `value` and takes what every rank brought, in rank order.
    ///
    /// # Errors
    /// [`Timeout`](ErrorKind::Timeout), which names the ranks that did not come; or why the session failed.
    pub fn all_gather<T: Clone + Send + Sync + 'static>(&self, value: T) -> Result<Vec<T>> {
        let session = &*self.session;
        let deadline = Instant::now() + self.timeout;
        let mut state = session.lock();
        let round = state.rounds;
        state.brought[self.rank] = Some(Arc::new(value));
        if state.brought.iter().all(Option::is_some) {
            state.gathered = state.brought.iter_mut().filter_map(Option::take).collect();
            state.rounds += 1;
            session.changed.notify_all();
        }
        while state.rounds == round {
            if let Some(failure) = session.progress.failure() {
                return Err(failure.into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let failure = session.missing(&state, self.timeout);
                self.fail(failure.clone());
                return Err(failure.into());
            }
            let waited = session.changed.wait_timeout(state, left.min(LOOK));
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
        // nobody can complete the next round before this rank has brought something to it
        let values = state.gathered.iter().map(|value| value.downcast_ref::<T>().cloned());
        values.collect::<Option<_>>().ok_or_else(|| Error::new(ErrorKind::Internal, "ranks exchange different things"))
    }
}

impl Session {
    fn new(id: &UniqueId, ranks: usize) -> Self {
        let state = State { joined: vec![false; ranks], brought: vec![None; ranks], ..State::default() };
        Session {
            id: id.clone(),
            ranks,
            progress: Arc::new(Progress::new(ranks)),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Why the session of `id` failed, if it did not long ago.
    fn failed(id: &UniqueId) -> Option<Failure> {
        let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
        failed.iter().find(|(other, _)| other == id).map(|(_, failure)| failure.clone())
    }

    fn fail(&self, failure: Failure) {
        let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
        if !failed.iter().any(|(id, _)| *id == self.id) {
            failed.push_back((self.id.clone(), failure.clone()));
            if failed.len() > REMEMBERED {
                failed.pop_front();
            }
            self.progress.fail(failure);
            self.changed.notify_all();
        }
    }

    fn admit(&self, ranks: usize, rank: usize) -> Result<()> {
        if let Some(failure) = self.progress.failure() {
            return Err(failure.into());
        }
        let mut state = self.lock();
        let refusal = if ranks != self.ranks {
            format!("rank {rank} says that there are {ranks} ranks, another rank with the same id said {}", self.ranks)
        } else if state.joined[rank] {
            format!("rank {rank} of this id has been taken already")
        } else {
            state.joined[rank] = true;
            return Ok(());
        };
        let hint = "make a new id for each communicator, and give every rank of it the same size and its own number";
        let failure = Failure { kind: ErrorKind::InvalidUsage, seen: refusal, hint: Some(hint.into()) };
        if !state.joined.iter().all(|&joined| joined) {
            self.fail(failure.clone());
        }
        Err(failure.into())
    }

    fn missing(&self, state: &State, timeout: Duration) -> Failure {
        let missing: Vec<_> = (0..self.ranks).filter(|&rank| state.brought[rank].is_none()).collect();
        let names = missing.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let plural = if missing.len() == 1 { "" } else { "s" };
        Failure {
            kind: ErrorKind::Timeout,
            seen: format!("rank{plural} {names} of {} did not come within {} s", self.ranks, timeout.as_secs_f64()),
            hint: Some(
                "start every rank with this id in this process; FERRONICKEL_INIT_TIMEOUT sets how long to wait".into(),
            ),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn meet(ranks: usize, each: impl Fn(Member, usize) + Send + Sync) {
        let id = UniqueId::new().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let (id, each) = (&id, &each);
                scope.spawn(move || each(Member::join(id, ranks, rank, LONG).unwrap(), rank));
            }
        });
    }

    #[test]
    fn everyone_gets_what_everyone_brought_in_each_round() {
        meet(5, |member, rank| {
            for round in 0..50 {
                let all = member.all_gather((rank, round)).unwrap();
                assert_eq!(all, (0..5).map(|rank| (rank, round)).collect::<Vec<_>>());
                assert_eq!(member.all_gather(rank.to_string()).unwrap()[3], "3");
            }
        });
    }

    #[test]
    fn the_missing_are_named() {
        let id = UniqueId::new().unwrap();
        let join = |rank| Member::join(&id, 4, rank, Duration::from_millis(30)).unwrap();
        let (first, third) = (join(0), join(2));
        let error = first.all_gather(()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("ranks 1, 2, 3 of 4 did not come within 0.03 s"), "{error}");
        // the others learn it at once, even one that comes when all have given up
        assert_eq!(third.all_gather(()).unwrap_err().seen(), error.seen());
        drop((first, third));
        assert_eq!(Member::join(&id, 4, 1, LONG).err().unwrap().seen(), error.seen());
    }

    #[test]
    fn a_rank_taken_twice_fails_everyone_as_long_as_somebody_is_missing() {
        let id = UniqueId::new().unwrap();
        let first = Member::join(&id, 2, 1, LONG).unwrap();
        let error = Member::join(&id, 2, 1, LONG).err().unwrap();
        assert!(error.to_string().contains("rank 1 of this id has been taken already"), "{error}");
        assert_eq!(first.all_gather(()).unwrap_err().kind(), ErrorKind::InvalidUsage);
    }

    #[test]
    fn sizes_that_differ_are_named() {
        let id = UniqueId::new().unwrap();
        let _first = Member::join(&id, 2, 0, LONG).unwrap();
        let error = Member::join(&id, 3, 2, LONG).err().unwrap();
        assert!(error.to_string().contains("rank 2 says that there are 3 ranks, another rank"), "{error}");
    }
}
