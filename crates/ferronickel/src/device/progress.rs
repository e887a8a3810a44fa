//! What the ranks of a communicator know of each other while they run: where each one is, and whether all must stop.
//!
//! A rank that waits looks here now and then, and so notices what no data would tell it: that a peer made another
//! call, has left, or that the communicator was aborted. The ranks of a process share one record. Where other
//! processes run on the same machine, the records lie in pages that they map; of ranks elsewhere, messages keep a copy
//! here up to date.

mod failure;
mod place;
mod status;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use self::failure::Failure;
use self::place::StopWord;
use self::status::RankStatus;
pub(crate) use self::status::StatusPage;
pub(crate) use self::watch::StartWatch;
use self::watch::Watch;
use crate::error::ErrorKind;
use crate::types::CallDescription;

/// The record of one communicator that the ranks of a process share.
pub(crate) struct Progress {
    page: StatusPage,
    /// Where each rank's status is: in this process's page, or in that of the process it belongs to.
    ranks: Box<[AtomicPtr<RankStatus>]>,
    /// The pages of the machine's other processes.
    neighbours: Mutex<Vec<StatusPage>>,
    /// How messages name each rank.
    names: Box<[String]>,
    /// Ranks that can no longer be waited for, since they died or fell silent.
    lost: Box<[AtomicBool]>,
    failure: Mutex<Option<Failure>>,
    told: Condvar,
    /// Called once all must stop, and when a rank leaves.
    alarm: OnceLock<Box<dyn Fn() + Send + Sync>>,
    watch: Watch,
}

/// A copy of a rank's status, for those to whom its page means nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Report {
    pub rank: u32,
    /// The number of the collective that it began last, and its description.
    pub started: u64,
    pub call: u64,
    /// The number of the collective that it finished last.
    pub finished: u64,
    /// How many launches it is done with, and how many it will be done with once it has left.
    pub done: u64,
    pub last: Option<u64>,
}

/// How long what a rank has sent may still be on its way after it has left.
const LAST_MESSAGES: Duration = Duration::from_secs(1);
/// How long a rank that must stop waits to be told why, when another process gave the word.
const UNTOLD: Duration = Duration::from_secs(2);

impl Progress {
    /// A record on `page`, of ranks with these names. A collective that has made no progress for `patience` is
    /// reported in the log; never, if that is zero.
    pub fn new(page: StatusPage, names: Vec<String>, patience: Duration) -> Self {
        let status = |rank| AtomicPtr::new(std::ptr::from_ref(page.rank(rank)).cast_mut());
        Progress {
            ranks: (0..names.len()).map(status).collect(),
            neighbours: Mutex::default(),
            lost: names.iter().map(|_| AtomicBool::new(false)).collect(),
            failure: Mutex::new(None),
            told: Condvar::new(),
            alarm: OnceLock::new(),
            watch: Watch::new(names.len(), patience),
            names: names.into(),
            page,
        }
    }

    /// A record for `ranks` ranks, all in this process.
    #[cfg(test)]
    pub fn of_one_process(ranks: usize) -> Self {
        let region = super::region::Region::private(StatusPage::bytes(ranks)).unwrap();
        let names = (0..ranks).map(|rank| format!("rank {rank}")).collect();
        Progress::new(StatusPage::new(region, ranks), names, Duration::ZERO)
    }

    /// Looks for these ranks on the page of the process they belong to. Before their first call.
    pub fn attach(&self, page: StatusPage, ranks: &[usize]) {
        for &rank in ranks {
            self.ranks[rank].store(std::ptr::from_ref(page.rank(rank)).cast_mut(), Ordering::Release);
        }
        self.neighbours().push(page);
    }

    /// Has `alarm` called whenever other processes must be told something.
    pub fn set_alarm(&self, alarm: impl Fn() + Send + Sync + 'static) {
        let _ = self.alarm.set(Box::new(alarm));
    }

    #[inline(always)]
    fn rank(&self, rank: usize) -> &RankStatus {
        // SAFETY: the pointers lead into `page` or into a page that `neighbours` keeps, and pages never move
        unsafe { &*self.ranks[rank].load(Ordering::Relaxed) }
    }

    fn neighbours(&self) -> MutexGuard<'_, Vec<StatusPage>> {
        self.neighbours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How messages name a rank.
    pub fn name(&self, rank: usize) -> &str {
        &self.names[rank]
    }

    /// Whether every rank must stop.
    #[inline(always)]
    pub fn stopped(&self) -> bool {
        self.page.stop().given()
    }

    /// Stops every rank, for this cause unless there was one before.
    pub fn fail(&self, failure: Failure) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.stop_all();
        self.told.notify_all();
        self.raise_alarm();
    }

    /// Runs `work`, in which others trust: if it panics, every rank must stop.
    pub fn fail_if_it_panics(&self, who: &str, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            let seen = format!("{who} panicked");
            let hint = Some("this is a bug; the message on standard error says where".into());
            self.fail(Failure { kind: ErrorKind::Internal, seen, hint });
        }
    }

    /// Gives the word to every process of this machine.
    fn stop_all(&self) {
        self.page.stop().give();
        self.neighbours().iter().for_each(|page| page.stop().give());
    }

    fn raise_alarm(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm();
        }
    }

    /// Why every rank must stop, if that is known.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why every rank must stop. None if it need not. Another process's word comes before its reason: waits a little
    /// for that.
    #[inline]
    pub fn cause(&self) -> Option<Failure> {
        // callers ask after every call
        if self.stopped() { self.await_cause() } else { None }
    }

    #[cold]
    fn await_cause(&self) -> Option<Failure> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + UNTOLD;
        while failure.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seen = "another process stopped the communicator and did not say why".into();
                return Some(Failure { kind: ErrorKind::Remote, seen, hint: None });
            }
            failure = self.told.wait_timeout(failure, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        failure.clone()
    }

    /// Says that `rank` begins a launch, on `processor`; if it is a collective, which number it has in the communicator,
    /// and its description. False if it must not, because all must stop.
    #[inline(always)]
    pub fn enter(&self, rank: usize, collective: Option<(u64, u64)>, processor: u32) -> bool {
        let own = self.rank(rank);
        own.processor.store(processor, Ordering::Relaxed);
        if let Some((epoch, call)) = collective {
            own.begin(epoch, call);
        }
        own.place.enter(self.page.stop())
    }

    /// Whether another rank began its last call on `processor`, where `rank` runs: it may be waiting for this one to
    /// make room.
    #[cold]
    pub fn shares_processor(&self, rank: usize, processor: u32) -> bool {
        self.others(rank).any(|(_, at)| at.processor.load(Ordering::Relaxed) == processor)
    }

    /// Says that `rank` is done with its launch number `turn` and touches nobody's memory any more. Follows every
    /// [`enter`](Self::enter), even one that was refused.
    #[inline(always)]
    pub fn leave(&self, rank: usize, turn: u64) {
        self.rank(rank).place.leave(turn);
    }

    /// Says that a call of `rank` was given up before its turn came.
    pub fn skip(&self, rank: usize) {
        self.rank(rank).place.skip();
    }

    /// Whether every launch of `rank` before number `turn` is done.
    #[inline(always)]
    pub fn is_turn_of(&self, rank: usize, turn: u64) -> bool {
        self.rank(rank).place.is_turn_of(turn)
    }

    /// How many launches `rank` is done with.
    #[inline(always)]
    pub fn finished(&self, rank: usize) -> u64 {
        self.rank(rank).place.done()
    }

    /// After a stop, waits, with turns of `wait`, until no rank but this one may touch its peers' memory any more:
    /// each leaves at its next wait, so this ends soon. A rank that was lost is not waited for: whether one of them
    /// may wake up in the midst of it is what this returns.
    #[must_use]
    pub fn quiesce(&self, rank: usize, mut wait: impl FnMut()) -> bool {
        // Whoever gave the word to this process may not have given it to all yet.
        self.stop_all();
        for (peer, at) in self.others(rank) {
            StopWord::await_exits(std::iter::once(&at.place).filter(|_| !self.is_lost(peer)), &mut wait);
        }
        self.others(rank).any(|(peer, at)| self.is_lost(peer) && !at.place.is_outside())
    }

    /// Whether no call of `rank` is under way.
    pub fn is_between_calls(&self, rank: usize) -> bool {
        self.rank(rank).place.is_outside()
    }

    /// Says that `rank` launches no more after number `last`.
    pub fn depart(&self, rank: usize, last: u64) {
        self.rank(rank).depart(last);
        self.raise_alarm();
    }

    /// Whether `rank` has made its last call, and is done with it.
    pub fn has_departed(&self, rank: usize) -> bool {
        let at = self.rank(rank);
        at.last().is_some_and(|last| at.place.done() >= last)
    }

    /// Nobody waits for `rank` any more. One that is `dead` touches nothing any more either.
    pub fn lose(&self, rank: usize, dead: bool) {
        if dead {
            self.rank(rank).place.bury();
        }
        self.lost[rank].store(true, Ordering::Release);
    }

    fn is_lost(&self, rank: usize) -> bool {
        self.lost[rank].load(Ordering::Acquire)
    }

    /// What others must know of `rank`.
    pub fn report(&self, rank: usize) -> Report {
        let at = self.rank(rank);
        let (started, call) = at.current().unwrap_or_default();
        let finished = if at.place.is_outside() { started } else { started.saturating_sub(1) };
        Report { rank: rank as u32, started, call, finished, done: at.place.done(), last: at.last() }
    }

    /// Copies what a message tells of a rank whose page is not mapped here.
    pub fn mirror(&self, report: &Report) {
        let Some(own) = self.ranks.get(report.rank as usize).map(|_| self.page.rank(report.rank as usize)) else {
            return;
        };
        if report.started > 0 {
            own.begin(report.started, report.call);
        }
        own.place.mirror(report.done);
        if let Some(last) = report.last {
            own.depart(last);
        }
    }

    /// As [`look_for_trouble`](Self::look_for_trouble), for the call that `rank` began last.
    pub fn look_for_trouble_in_last_call(&self, rank: usize) {
        if let Some((epoch, call)) = self.rank(rank).current() {
            self.look_for_trouble(rank, epoch, call);
        }
    }

    /// Looks whether a peer can still come to call number `epoch` of `rank`; if one cannot, that is the failure. If
    /// the call takes too long, the log says who is missing.
    #[cold]
    pub fn look_for_trouble(&self, rank: usize, epoch: u64, call: u64) {
        for (peer, at) in self.others(rank) {
            // what it has begun before it left
            let has_departed = self.has_departed(peer);
            let current = at.current();
            match current {
                Some((started, theirs)) if started == epoch && theirs != call => {
                    return self.fail(self.mismatch(rank, call, peer, theirs, epoch));
                }
                _ => {}
            }
            if has_departed && current.is_some_and(|(started, _)| started < epoch) {
                let call = CallDescription::from_bits(call);
                let (name, own) = (self.name(peer), self.name(rank));
                let seen = format!("{name} left before call {epoch}, in which {own} made {call}");
                let hint = Some("let every rank make the same calls before it finalizes or drops".into());
                return self.fail(Failure { kind: ErrorKind::Remote, seen, hint });
            }
        }
        self.watch.look(self, rank, epoch);
    }

    /// As [`look_for_trouble`](Self::look_for_trouble), for launch number `turn` of `rank`, which exchanges messages and
    /// waits for `peers`. The first message is described by `call`.
    #[cold]
    pub fn look_for_trouble_with(&self, rank: usize, peers: &[usize], turn: u64, call: u64) {
        let waited = self.watch.look_at_exchange(self, rank, peers, turn, call);
        let gone = peers.iter().find(|&&peer| self.has_departed(peer) || self.is_lost(peer));
        if let (Some(&peer), true) = (gone, waited >= LAST_MESSAGES) {
            let (name, own, call) = (self.name(peer), self.name(rank), CallDescription::from_bits(call));
            let seen = format!("{name} left, and {own} still waits for it in a group that begins with {call}");
            let hint = Some("let every send have its receive, with the same count and type, at the other rank".into());
            self.fail(Failure { kind: ErrorKind::Remote, seen, hint });
        }
    }

    /// The failure when two ranks made calls that do not belong together.
    pub fn mismatch(&self, rank: usize, call: u64, peer: usize, theirs: u64, epoch: u64) -> Failure {
        // lower rank first, so that every rank that notices says the same
        let mut calls = [(rank, CallDescription::from_bits(call)), (peer, CallDescription::from_bits(theirs))];
        calls.sort_by_key(|&(rank, _)| rank);
        let [(first, a), (second, b)] = calls;
        Failure {
            kind: ErrorKind::Mismatch,
            seen: format!("in call {epoch} {} made {a} and {} made {b}", self.name(first), self.name(second)),
            hint: Some("make the same calls, with the same count, type and operation, in the same order".into()),
        }
    }

    fn others(&self, rank: usize) -> impl Iterator<Item = (usize, &RankStatus)> {
        (0..self.ranks.len()).filter(move |&other| other != rank).map(|other| (other, self.rank(other)))
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress").field("names", &self.names).field("failure", &self.failure).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
