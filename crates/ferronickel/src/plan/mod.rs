//! What will be done: how many channels, which ranks follow each other on the rings, and for each call the algorithm
//! and the protocol, with what was refused and why.

pub(crate) mod channels;
pub(crate) mod choice;
pub(crate) mod tuning;

use std::fmt;

use crate::config::Config;
use crate::device::context::Capacities;
use crate::device::launch::Kernel;
use crate::diagnostics::decisions::{Decision, Refusal};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::{Roads, Transport};
use choice::Choice;

/// Who sends what to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Algorithm {
    OneShot,
    Ring,
    TwoShot,
}

/// How bytes pass from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Ll,
    Simple,
}

impl Algorithm {
    pub const ALL: [Algorithm; 3] = [Algorithm::OneShot, Algorithm::Ring, Algorithm::TwoShot];

    /// The name in `NCCL_ALGO`; the log prints it in capitals.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::OneShot => "OneShot",
            Algorithm::Ring => "Ring",
            Algorithm::TwoShot => "TwoShot",
        }
    }
}

impl Protocol {
    pub const ALL: [Protocol; 2] = [Protocol::Ll, Protocol::Simple];

    /// The name in `NCCL_PROTO`; the log prints it in capitals.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Ll => "LL",
            Protocol::Simple => "Simple",
        }
    }
}

/// What to launch for a call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Plan {
    pub kernel: Kernel,
    pub channels: usize,
    /// Predicted time.
    pub microseconds: f64,
}

/// A kernel that could serve a communicator's calls.
struct Candidate {
    kernel: Kernel,
    algorithm: Algorithm,
    protocol: Protocol,
    /// The largest call in bytes.
    limit: usize,
}

/// Plans a communicator's all-reduces. Every rank plans alike, since all know the same roads and settings.
pub(crate) struct Planner {
    ranks: usize,
    channels: usize,
    road: Transport,
    candidates: Vec<Candidate>,
    refused: Vec<Refusal>,
}

impl Planner {
    /// Finds out which kernels the roads and the settings allow.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) when a setting names what does not exist, or nothing is left.
    pub fn new(
        config: &Config,
        roads: &Roads,
        direct: std::result::Result<(), String>,
        channels: usize,
        capacities: &Capacities,
    ) -> Result<Planner> {
        let choice = Choice::new(config)?;
        let road = roads.slowest();
        let kernel = |algorithm, protocol| kernel_for(algorithm, protocol, road, &direct);
        refuse_vain_settings(&choice, |algorithm, protocol| kernel(algorithm, protocol).is_ok())?;
        let mut planner = Planner { ranks: roads.ranks(), channels, road, candidates: Vec::new(), refused: Vec::new() };
        for (algorithm, protocol) in Algorithm::ALL.into_iter().flat_map(|a| Protocol::ALL.map(|p| (a, p))) {
            match choice.refusal(algorithm, protocol).map_or_else(|| kernel(algorithm, protocol), Err) {
                Ok(kernel) => {
                    let limit = limit(kernel, capacities);
                    planner.candidates.push(Candidate { kernel, algorithm, protocol, limit });
                }
                Err(reason) => {
                    let candidate = format!("{}/{}", algorithm.name(), protocol.name());
                    planner.refused.push(Refusal { candidate, reason });
                }
            }
        }
        planner.refuse_limits()?;
        Ok(planner)
    }

    /// Some kernel must take calls of any size.
    fn refuse_limits(&self) -> Result<()> {
        if self.candidates.iter().any(|candidate| candidate.limit == usize::MAX) {
            return Ok(());
        }
        // each reason once, though it may refuse several
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for Refusal { candidate, reason } in &self.refused {
            match reasons.iter_mut().find(|(other, _)| other == reason) {
                Some((_, candidates)) => candidates.push(candidate),
                None => reasons.push((reason, vec![candidate])),
            }
        }
        let refused = reasons.iter().map(|(reason, candidates)| format!("{} refused: {reason}", candidates.join(", ")));
        let refused = refused.collect::<Vec<_>>().join("; ");
        let only = self
            .candidates
            .iter()
            .map(|c| format!("{}/{} (up to {} B)", c.algorithm.name(), c.protocol.name(), c.limit));
        let only = only.collect::<Vec<_>>().join(", ");
        let left = if only.is_empty() { "nothing".into() } else { format!("only {only}") };
        let seen = format!("no kernel is left for an all-reduce of every size, {left}: {refused}");
        Err(Error::new(ErrorKind::InvalidUsage, seen).hint("relax NCCL_ALGO or NCCL_PROTO"))
    }

    /// The plan for an all-reduce of `bytes` bytes.
    pub fn all_reduce(&self, bytes: usize) -> Plan {
        if self.ranks == 1 {
            return Plan { kernel: Kernel::Copy, channels: 1, microseconds: 0.0 };
        }
        let plan = |candidate: &Candidate| {
            let channels = channels::for_call(candidate.kernel, bytes, self.channels);
            let microseconds = tuning::microseconds(candidate.kernel, self.road, self.ranks, bytes);
            Plan { kernel: candidate.kernel, channels, microseconds }
        };
        let plans = self.candidates.iter().filter(|candidate| bytes <= candidate.limit).map(plan);
        plans.min_by(|a, b| a.microseconds.total_cmp(&b.microseconds)).expect("one candidate has no limit")
    }

    /// The predicted microseconds of an all-reduce of `bytes` bytes if all ranks were connected by `road`.
    pub fn best_on(&self, road: Transport, bytes: usize) -> f64 {
        let kernels = Algorithm::ALL.into_iter().flat_map(|a| Protocol::ALL.map(|p| kernel_for(a, p, road, &Ok(()))));
        let times = kernels.flatten().map(|kernel| tuning::microseconds(kernel, road, self.ranks, bytes));
        times.fold(f64::INFINITY, f64::min)
    }

    /// The record of the choice for an all-reduce of `bytes` bytes.
    pub fn decision(&self, bytes: usize) -> Decision {
        let plan = self.all_reduce(bytes);
        let mut refused: Vec<_> = self.refused.clone();
        for candidate in self.candidates.iter().filter(|candidate| candidate.kernel != plan.kernel) {
            let reason = match bytes > candidate.limit {
                true => format!("takes at most {} B", candidate.limit),
                false => {
                    let microseconds = tuning::microseconds(candidate.kernel, self.road, self.ranks, bytes);
                    format!("predicted {microseconds:.2} us")
                }
            };
            let candidate = format!("{}/{}", candidate.algorithm.name(), candidate.protocol.name());
            refused.push(Refusal { candidate, reason });
        }
        let (algorithm, protocol) = names(plan.kernel);
        let chosen = format!("{algorithm}/{protocol}, predicted {:.2} us", plan.microseconds);
        Decision { about: format!("AllReduce of {bytes} B"), chosen, refused }
    }
}

/// Refuses a setting that by itself leaves nothing to plan with: says which one, and what would be right here.
fn refuse_vain_settings(choice: &Choice, can: impl Fn(Algorithm, Protocol) -> bool) -> Result<()> {
    let refuse = |reason: &str, what: &str, right: Vec<&str>| {
        let seen = format!("{reason} leaves no {what} for an all-reduce");
        let hint = format!("{} would be right here", right.join(", "));
        Err(Error::new(ErrorKind::InvalidUsage, seen).hint(hint))
    };
    if let Some(reason) = choice.excludes_algorithms() {
        let right = Algorithm::ALL.into_iter().filter(|&a| Protocol::ALL.into_iter().any(|p| can(a, p)));
        return refuse(reason, "algorithm", right.map(Algorithm::name).collect());
    }
    if let Some(reason) = choice.excludes_protocols() {
        let right = Protocol::ALL.into_iter().filter(|&p| Algorithm::ALL.into_iter().any(|a| can(a, p)));
        return refuse(reason, "protocol", right.map(Protocol::name).collect());
    }
    Ok(())
}

/// The names of a kernel's algorithm and protocol.
pub(crate) fn names(kernel: Kernel) -> (&'static str, &'static str) {
    let (algorithm, protocol) = match kernel {
        Kernel::Copy => return ("Copy", "Simple"),
        Kernel::OneShotLl => (Algorithm::OneShot, Protocol::Ll),
        Kernel::OneShotSimple => (Algorithm::OneShot, Protocol::Simple),
        Kernel::RingLl => (Algorithm::Ring, Protocol::Ll),
        Kernel::RingSimple => (Algorithm::Ring, Protocol::Simple),
        Kernel::TwoShotDirect | Kernel::TwoShotStaged => (Algorithm::TwoShot, Protocol::Simple),
    };
    (algorithm.name(), protocol.name())
}

/// The kernel of an algorithm with a protocol on a road, or why there is none.
fn kernel_for(
    algorithm: Algorithm,
    protocol: Protocol,
    road: Transport,
    direct: &std::result::Result<(), String>,
) -> std::result::Result<Kernel, String> {
    if algorithm != Algorithm::Ring {
        direct.clone()?;
    }
    match (algorithm, protocol, road) {
        (Algorithm::OneShot, Protocol::Ll, _) => Ok(Kernel::OneShotLl),
        (Algorithm::OneShot, Protocol::Simple, _) => Ok(Kernel::OneShotSimple),
        (Algorithm::TwoShot, Protocol::Ll, _) => Err("its messages are too large for LL to gain anything".into()),
        (Algorithm::TwoShot, Protocol::Simple, Transport::P2p | Transport::Ipc) => Ok(Kernel::TwoShotDirect),
        (Algorithm::TwoShot, Protocol::Simple, _) => Ok(Kernel::TwoShotStaged),
        (Algorithm::Ring, Protocol::Ll, Transport::Net) => Err("the network carries whole slots, not lines".into()),
        (Algorithm::Ring, Protocol::Ll, _) => Ok(Kernel::RingLl),
        (Algorithm::Ring, Protocol::Simple, _) => Ok(Kernel::RingSimple),
    }
}

/// The largest call in bytes that a kernel takes.
fn limit(kernel: Kernel, capacities: &Capacities) -> usize {
    match kernel {
        Kernel::OneShotLl => capacities.one_shot_ll,
        Kernel::OneShotSimple => capacities.one_shot_simple,
        Kernel::Copy | Kernel::RingLl | Kernel::RingSimple | Kernel::TwoShotDirect | Kernel::TwoShotStaged => {
            usize::MAX
        }
    }
}

impl fmt::Display for Planner {
    /// The table that the log shows: for each kernel the latency and the bandwidth the model gives it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AllReduce on {}:", self.road)?;
        for candidate in &self.candidates {
            let (latency, bandwidth) = tuning::latency_and_bandwidth(candidate.kernel, self.road, self.ranks);
            let (algorithm, protocol) = (candidate.algorithm.name(), candidate.protocol.name());
            write!(f, " {algorithm}/{protocol} {latency:.2} us {bandwidth:.1} GB/s |")?;
        }
        self.refused.iter().try_for_each(|refusal| write!(f, " {refusal} |"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::presence::Presence;
    use crate::transport::layout::Layout;
    use crate::transport::{Faults, PeerInfo};

    fn planner(ranks: usize, settings: &[(&str, &str)]) -> Result<Planner> {
        let config = settings.iter().fold(Config::default(), |config, (name, value)| config.with(name, value).unwrap());
        let peer = |rank| PeerInfo::new(Presence::new(rank, &config, None), rank as u32, &config);
        let roads = Roads::choose(&(0..ranks).map(peer).collect::<Vec<_>>(), &Faults::default()).unwrap();
        let direct = channels::direct(&roads);
        let channels = channels::count(&roads, &config);
        let capacities = Layout::new(ranks, channels, direct.is_ok(), 1 << 20).capacities;
        Planner::new(&config, &roads, direct, channels, &capacities)
    }

    #[test]
    fn small_calls_take_one_hop_and_large_ones_two() {
        let planner = planner(2, &[]).unwrap();
        assert_eq!(planner.all_reduce(8).kernel, Kernel::OneShotLl);
        assert_eq!(planner.all_reduce(16 << 20).kernel, Kernel::TwoShotDirect);
        assert_eq!(planner.all_reduce(16 << 20).channels, 4);
        assert_eq!(planner.all_reduce(8).channels, 1);
    }

    #[test]
    fn the_road_decides_what_can_be_done() {
        let shm = planner(2, &[("NCCL_P2P_DISABLE", "1")]).unwrap();
        assert_eq!(shm.all_reduce(16 << 20).kernel, Kernel::TwoShotStaged);
        let net = planner(2, &[("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")]).unwrap();
        assert_eq!(net.all_reduce(8).kernel, Kernel::RingSimple);
        let decision = net.decision(8).to_string();
        assert!(decision.contains("OneShot/LL refused: ranks 0 and 1 are connected by NET/Socket/0"), "{decision}");
        assert!(decision.contains("Ring/LL refused: the network carries whole slots, not lines"), "{decision}");
    }

    #[test]
    fn settings_narrow_the_choice_and_a_choice_of_nothing_is_refused() {
        let ring = planner(4, &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL")]).unwrap();
        assert_eq!(ring.all_reduce(8 << 20).kernel, Kernel::RingLl);
        let error = planner(2, &[("NCCL_ALGO", "OneShot")]).err().unwrap().to_string();
        assert!(error.contains("only OneShot/LL (up to 1784 B), OneShot/Simple (up to 131072 B)"), "{error}");
        assert!(
            error.contains("Ring/LL, Ring/Simple, TwoShot/LL, TwoShot/Simple refused: NCCL_ALGO=OneShot"),
            "{error}"
        );
        assert_eq!(error.matches("set by the program").count(), 1, "{error}");
    }

    #[test]
    fn a_setting_that_excludes_everything_is_said_once_with_what_would_be_right() {
        let refused = |settings: &[(&str, &str)]| {
            let error = planner(2, settings).err().unwrap();
            (error.seen().to_string(), error.advice().unwrap().to_string())
        };
        let expect = |seen: &str, advice: &str| (seen.to_string(), format!("{advice} would be right here"));
        let tree = "NCCL_ALGO=Tree set by the program leaves no algorithm for an all-reduce";
        assert_eq!(refused(&[("NCCL_ALGO", "Tree")]), expect(tree, "OneShot, Ring, TwoShot"));
        let net = [("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"), ("NCCL_ALGO", "Tree")];
        assert_eq!(refused(&net), expect(tree, "Ring"));
        let ll128 = "NCCL_PROTO=LL128 set by the program leaves no protocol for an all-reduce";
        assert_eq!(refused(&[("NCCL_PROTO", "LL128")]), expect(ll128, "LL, Simple"));
    }

    #[test]
    fn every_alternative_is_in_the_record() {
        let decision = planner(2, &[]).unwrap().decision(1 << 20);
        let candidates: Vec<_> = decision.refused.iter().map(|refusal| refusal.candidate.as_str()).collect();
        assert!(decision.chosen.starts_with("TwoShot/Simple, predicted "), "{decision}");
        for name in ["OneShot/LL", "OneShot/Simple", "Ring/LL", "Ring/Simple", "TwoShot/LL"] {
            assert!(candidates.contains(&name), "{name} is missing in {decision}");
        }
    }
}
