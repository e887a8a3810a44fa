//! How time is measured: the calls of all iterations are queued without a wait in between, unless waits are asked for,
//! and the clock runs until all streams are done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::{Calls, Collective};
use super::data::Value;
use super::meeting::Broken;
use super::settings::Blocking;
use super::worker::{Share, Worker, library};
use crate::exit::{Code, Failure};

/// After so many calls of a rank the queue is let run empty, so that no number of iterations can fill the memory.
const MOST_QUEUED: u32 = 4096;

impl<C: Collective> Worker<'_, C> {
    /// Measures the iterations of one size.
    pub fn time<T: Value>(&self, calls: &Calls<C, T>) -> Result<Share, Failure> {
        let settings = self.run.settings;
        let (iterations, aggregated) = (settings.iterations, settings.aggregated);
        let number = |iteration: u32| u64::from(iteration) * u64::from(aggregated);
        let mut times = Vec::new();
        let start = Instant::now();
        let mut untimed = Duration::ZERO;
        if settings.blocking == Blocking::Off && settings.per_iteration.is_none() {
            self.queue(iterations, |iteration| calls.start(number(iteration), aggregated))?;
        } else {
            for iteration in 0..iterations {
                // reading the clock takes as long as a good part of a small call
                let begin = settings.per_iteration.is_some().then(Instant::now);
                calls.start(number(iteration), aggregated).map_err(library)?;
                self.complete()?;
                times.extend(begin.map(|begin| begin.elapsed() / aggregated));
                untimed += self.meet_if_blocking()?;
            }
        }
        let started = start.elapsed() - untimed;
        self.complete()?;
        let completed = start.elapsed() - untimed;
        let each = |time: Duration| time.div_f64(f64::from(iterations) * f64::from(aggregated));
        Ok(Share { completed: each(completed), started: each(started), iterations: times, ..Share::default() })
    }

    /// The meeting after an awaited iteration; how much of it does not count.
    fn meet_if_blocking(&self) -> Result<Duration, Failure> {
        match self.run.settings.blocking {
            Blocking::Off | Blocking::Wait => Ok(Duration::ZERO),
            Blocking::WaitAndMeet => self.barrier().map(|()| Duration::ZERO),
            Blocking::WaitAndMeetUntimed => {
                let before = Instant::now();
                self.barrier().map(|()| before.elapsed())
            }
        }
    }

    /// Starts iterations without a wait, as long as the queue does not grow beyond measure.
    pub fn queue(&self, iterations: u32, start: impl Fn(u32) -> Result<(), ferronickel::Error>) -> Result<(), Failure> {
        let most = (MOST_QUEUED / self.run.settings.aggregated).max(1);
        for iteration in 0..iterations {
            if iteration > 0 && iteration % most == 0 {
                self.complete()?;
            }
            start(iteration).map_err(library)?;
        }
        Ok(())
    }

    /// Waits until all calls are complete.
    pub fn complete(&self) -> Result<(), Failure> {
        let wait = || self.ranks.iter().try_for_each(|rank| rank.stream.synchronize());
        self.run.supervisor.timed(self.thread, wait).map_err(library)?;
        match self.ranks.iter().find_map(|rank| rank.communicator.async_error()) {
            Some(error) => Err(library(error)),
            None => Ok(()),
        }
    }

    /// Meets the other threads, of all processes: each brings something, and all get everything.
    pub fn meet(&self, share: Share) -> Result<Arc<Vec<Share>>, Failure> {
        let run = self.run;
        let met = run.meeting.meet(self.thread, share).map_err(broken)?;
        if run.processes.size == 1 {
            return Ok(met);
        }
        // the first thread speaks for its process
        let all = match self.thread {
            0 => {
                let exchanged = run.supervisor.timed(0, || run.processes.exchange(&*met))?;
                Some(Arc::new(exchanged.into_iter().flatten().collect()))
            }
            _ => None,
        };
        let all = run.everyone.meet(self.thread, all).map_err(broken)?;
        all[0].clone().ok_or_else(|| broken(Broken))
    }

    /// Waits for the other threads of all processes.
    pub fn barrier(&self) -> Result<(), Failure> {
        let run = self.run;
        run.meeting.meet(self.thread, Share::default()).map_err(broken)?;
        if run.processes.size == 1 {
            return Ok(());
        }
        if self.thread == 0 {
            run.supervisor.timed(0, || run.processes.barrier())?;
        }
        run.everyone.meet(self.thread, None).map_err(broken).map(drop)
    }
}

/// Whoever broke a meeting off has recorded a failure of more interest.
fn broken(_: Broken) -> Failure {
    Failure::new(Code::System, "another thread failed").that_follows()
}
