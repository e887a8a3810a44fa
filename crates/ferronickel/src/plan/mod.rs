//! What will be done: how many channels, which ranks follow each other on the rings, and for each call the algorithm
//! and the protocol, with what was refused and why.

pub(crate) mod calibration;
pub(crate) mod channels;
pub(crate) mod choice;
pub(crate) mod kernels;
pub(crate) mod tuning;

use std::fmt;

use crate::config::{Config, variables};
use crate::device::work::Kernel;
use crate::diagnostics::decisions::{Decision, Refusal};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::costs::Costs;
use crate::transport::{Roads, Transport};
use crate::types::Collective;
use choice::Choice;
use kernels::{Circumstances, kernels_for};
use tuning::Way;

/// Who sends what to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Algorithm {
    OneShot,
    Ring,
    TwoShot,
    Tree,
    Pat,
    Hierarchical,
}

/// How bytes pass from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Ll,
    Simple,
}

impl Algorithm {
    pub const ALL: [Algorithm; 6] = [
        Algorithm::OneShot,
        Algorithm::Ring,
        Algorithm::TwoShot,
        Algorithm::Tree,
        Algorithm::Pat,
        Algorithm::Hierarchical,
    ];

    /// The name in `NCCL_ALGO`; the log prints it in capitals.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::OneShot => "OneShot",
            Algorithm::Ring => "Ring",
            Algorithm::TwoShot => "TwoShot",
            Algorithm::Tree => "Tree",
            Algorithm::Pat => "PAT",
            Algorithm::Hierarchical => "Hierarchical",
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

/// A kernel that could serve a collective.
struct Candidate {
    kernel: Kernel,
    algorithm: Algorithm,
    protocol: Protocol,
}

/// What can be done for one collective.
struct Function {
    collective: Collective,
    candidates: Vec<Candidate>,
    refused: Vec<Refusal>,
}

/// Plans a communicator's calls. Every rank plans alike, since all know the same roads and settings.
pub(crate) struct Planner {
    ranks: usize,
    channels: usize,
    road: Transport,
    costs: Costs,
    functions: Vec<Function>,
}

/// The collectives that are planned; a gather and a scatter are messages in any case, a barrier is an all-reduce of
/// nothing.
const PLANNED: [Collective; 6] = [
    Collective::AllReduce,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
];

impl Planner {
    /// Finds out which kernels the roads and the settings allow.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) when a setting names what does not exist, or leaves nothing for any
    /// collective.
    pub fn new(
        config: &Config,
        roads: &Roads,
        direct: std::result::Result<(), String>,
        channels: usize,
        costs: Costs,
    ) -> Result<Planner> {
        let choice = Choice::new(config)?;
        let deterministic = config.flag(&variables::DETERMINISTIC);
        let road = roads.slowest();
        let circumstances = Circumstances {
            road,
            direct,
            nodes: roads.nodes(),
            in_rank_order: deterministic.value.then(|| deterministic.reason()),
        };
        let function = |collective| Function::new(collective, &choice, &circumstances);
        let functions: Vec<_> = PLANNED.into_iter().map(function).collect();
        refuse_vain_settings(&choice, &circumstances)?;
        Ok(Planner { ranks: roads.ranks(), channels, road, costs, functions })
    }

    fn function(&self, collective: Collective) -> Option<&Function> {
        let collective = if collective == Collective::Barrier { Collective::AllReduce } else { collective };
        self.functions.iter().find(|function| function.collective == collective)
    }

    /// Refuses a collective for which the settings leave nothing.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage), with the reasons.
    #[inline]
    pub fn check(&self, collective: Collective) -> Result<()> {
        match self.function(collective) {
            Some(function) if function.candidates.is_empty() && self.ranks > 1 => Err(function.nothing_left()),
            _ => Ok(()),
        }
    }

    /// The plan for a call of `bytes` bytes, for which [`check`](Self::check) has found something.
    pub fn plan(&self, collective: Collective, bytes: usize) -> Plan {
        if self.ranks == 1 {
            return Plan { kernel: Kernel::Copy, channels: 1, microseconds: 0.0 };
        }
        let Some(function) = self.function(collective) else {
            let microseconds = self.microseconds(collective, Kernel::Exchange, bytes);
            return Plan { kernel: Kernel::Exchange, channels: 1, microseconds };
        };
        let plan = |candidate: &Candidate| {
            let channels = channels::for_call(candidate.kernel, bytes, self.channels);
            let microseconds = self.microseconds(collective, candidate.kernel, bytes);
            Plan { kernel: candidate.kernel, channels, microseconds }
        };
        let plans = function.candidates.iter().map(plan);
        plans.min_by(|a, b| a.microseconds.total_cmp(&b.microseconds)).expect("checked before")
    }

    fn way(&self, collective: Collective, kernel: Kernel) -> Way {
        Way { collective, kernel, road: self.road, ranks: self.ranks }
    }

    fn microseconds(&self, collective: Collective, kernel: Kernel, bytes: usize) -> f64 {
        tuning::microseconds(&self.costs, self.way(collective, kernel), bytes)
    }

    /// The predicted microseconds of an all-reduce of `bytes` bytes; None if the settings leave nothing for it.
    pub fn all_reduce_microseconds(&self, bytes: usize) -> Option<f64> {
        self.check(Collective::AllReduce).ok()?;
        Some(self.plan(Collective::AllReduce, bytes).microseconds)
    }

    /// The predicted microseconds of an all-reduce of `bytes` bytes if all ranks were connected by `road`.
    pub fn best_on(&self, road: Transport, bytes: usize) -> f64 {
        let circumstances = Circumstances { road, direct: Ok(()), nodes: 1, in_rank_order: None };
        let all = Algorithm::ALL.into_iter().flat_map(|a| Protocol::ALL.map(|p| (a, p)));
        let kernels =
            all.flat_map(|(a, p)| kernels_for(Collective::AllReduce, a, p, &circumstances).unwrap_or_default());
        let way = |kernel| Way { collective: Collective::AllReduce, kernel, road, ranks: self.ranks };
        let times = kernels.map(|kernel| tuning::microseconds(&self.costs, way(kernel), bytes));
        times.fold(f64::INFINITY, f64::min)
    }

    /// The record of the choice for a call of `bytes` bytes.
    pub fn decision(&self, collective: Collective, bytes: usize) -> Decision {
        let about = format!("{} of {bytes} B", collective.log_name());
        let Some(function) = self.function(collective) else {
            return Decision { about, chosen: "messages between pairs of ranks".into(), refused: Vec::new() };
        };
        let mut refused: Vec<_> = function.refused.clone();
        if function.candidates.is_empty() && self.ranks > 1 {
            return Decision { about, chosen: "nothing".into(), refused };
        }
        let plan = self.plan(collective, bytes);
        for candidate in function.candidates.iter().filter(|candidate| candidate.kernel != plan.kernel) {
            let microseconds = self.microseconds(collective, candidate.kernel, bytes);
            let reason = format!("predicted {microseconds:.2} us");
            refused.push(Refusal { candidate: candidate.name(), reason });
        }
        let (algorithm, protocol) = names(plan.kernel);
        let chosen = format!("{algorithm}/{protocol}, predicted {:.2} us", plan.microseconds);
        Decision { about, chosen, refused }
    }
}

impl Candidate {
    fn name(&self) -> String {
        let side = match self.kernel {
            Kernel::Hierarchical(across) => format!(" ({})", across.name()),
            _ => String::new(),
        };
        format!("{}/{}{side}", self.algorithm.name(), self.protocol.name())
    }
}

impl Function {
    fn new(collective: Collective, choice: &Choice, circumstances: &Circumstances) -> Function {
        let mut function = Function { collective, candidates: Vec::new(), refused: Vec::new() };
        for (algorithm, protocol) in Algorithm::ALL.into_iter().flat_map(|a| Protocol::ALL.map(|p| (a, p))) {
            let kernels = || kernels_for(collective, algorithm, protocol, circumstances);
            match choice.refusal(collective, algorithm, protocol).map_or_else(kernels, Err) {
                Ok(kernels) => {
                    let candidates = kernels.into_iter().map(|kernel| Candidate { kernel, algorithm, protocol });
                    function.candidates.extend(candidates);
                }
                Err(reason) => {
                    let candidate = format!("{}/{}", algorithm.name(), protocol.name());
                    function.refused.push(Refusal { candidate, reason });
                }
            }
        }
        function
    }

    /// The error when nothing can be done.
    fn nothing_left(&self) -> Error {
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
        let seen = format!("nothing is left for {}: {refused}", self.collective.log_name());
        Error::new(ErrorKind::InvalidUsage, seen).hint("relax NCCL_ALGO or NCCL_PROTO, also by function")
    }
}

/// Refuses a setting that by itself leaves nothing to plan with for any collective: says which one, and what would be
/// right here.
fn refuse_vain_settings(choice: &Choice, circumstances: &Circumstances) -> Result<()> {
    let can = |a, p| PLANNED.into_iter().any(|collective| kernels_for(collective, a, p, circumstances).is_ok());
    let refuse = |reason: &str, what: &str, right: Vec<&str>| {
        let seen = format!("{reason} leaves no {what} for any collective");
        let hint = format!("{} would be right here", right.join(", "));
        Err(Error::new(ErrorKind::InvalidUsage, seen).hint(hint))
    };
    let right_algorithms: Vec<_> =
        Algorithm::ALL.into_iter().filter(|&a| Protocol::ALL.into_iter().any(|p| can(a, p))).collect();
    if let Some(reason) = choice.excludes_algorithms(&right_algorithms) {
        return refuse(reason, "algorithm", right_algorithms.into_iter().map(Algorithm::name).collect());
    }
    let right_protocols: Vec<_> =
        Protocol::ALL.into_iter().filter(|&p| Algorithm::ALL.into_iter().any(|a| can(a, p))).collect();
    if let Some(reason) = choice.excludes_protocols(&right_protocols) {
        return refuse(reason, "protocol", right_protocols.into_iter().map(Protocol::name).collect());
    }
    Ok(())
}

/// The names of a kernel's algorithm and protocol.
pub(crate) fn names(kernel: Kernel) -> (&'static str, &'static str) {
    match kernel {
        Kernel::Copy => ("Copy", "Simple"),
        Kernel::OneShotLl => ("OneShot", "LL"),
        Kernel::OneShotSimple => ("OneShot", "Simple"),
        Kernel::FlatLl => ("Flat", "LL"),
        Kernel::FlatSimple => ("Flat", "Simple"),
        Kernel::RingLl => ("Ring", "LL"),
        Kernel::RingSimple => ("Ring", "Simple"),
        Kernel::TwoShotDirect | Kernel::TwoShotStaged => ("TwoShot", "Simple"),
        Kernel::TreeLl => ("Tree", "LL"),
        Kernel::TreeSimple => ("Tree", "Simple"),
        Kernel::PatLl => ("PAT", "LL"),
        Kernel::PatSimple => ("PAT", "Simple"),
        Kernel::Hierarchical(_) => ("Hierarchical", "Simple"),
        Kernel::Exchange => ("Exchange", "Simple"),
    }
}

impl fmt::Display for Planner {
    /// The table that the log shows: for each collective and kernel the latency and the bandwidth the model gives it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.costs)?;
        for function in &self.functions {
            write!(f, "\n{} on {}:", function.collective.log_name(), self.road)?;
            for candidate in &function.candidates {
                let way = self.way(function.collective, candidate.kernel);
                let (latency, bandwidth) = tuning::latency_and_bandwidth(&self.costs, way);
                write!(f, " {} {latency:.2} us {bandwidth:.1} GB/s |", candidate.name())?;
            }
            function.refused.iter().try_for_each(|refusal| write!(f, " {refusal} |"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::presence::Presence;
    use crate::transport::{Faults, PeerInfo};

    fn planner(ranks: usize, settings: &[(&str, &str)]) -> Result<Planner> {
        let config = settings.iter().fold(Config::default(), |config, (name, value)| config.with(name, value).unwrap());
        let peer = |rank| PeerInfo::new(Presence::new(rank, &config, None), rank as u32, &config);
        let roads = Roads::choose(&(0..ranks).map(peer).collect::<Vec<_>>(), &Faults::default()).unwrap();
        let direct = channels::direct(&roads);
        let channels = channels::count(&roads, &config);
        Planner::new(&config, &roads, direct, channels, Costs::BUILT_IN)
    }

    #[test]
    fn small_calls_take_one_hop_and_large_ones_two() {
        let planner = planner(2, &[]).unwrap();
        assert_eq!(planner.plan(Collective::AllReduce, 8).kernel, Kernel::OneShotLl);
        assert_eq!(planner.plan(Collective::AllReduce, 16 << 20).kernel, Kernel::TwoShotDirect);
        assert_eq!(planner.plan(Collective::AllReduce, 16 << 20).channels, 4);
        assert_eq!(planner.plan(Collective::AllReduce, 8).channels, 1);
    }

    #[test]
    fn the_road_decides_what_can_be_done() {
        let shm = planner(2, &[("NCCL_P2P_DISABLE", "1")]).unwrap();
        assert_eq!(shm.plan(Collective::AllReduce, 16 << 20).kernel, Kernel::TwoShotStaged);
        let net = planner(2, &[("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")]).unwrap();
        assert_eq!(net.plan(Collective::AllReduce, 8).kernel, Kernel::RingSimple);
        let decision = net.decision(Collective::AllReduce, 8).to_string();
        assert!(decision.contains("OneShot/Simple refused: ranks 0 and 1 are connected by NET/Socket/0"), "{decision}");
        assert!(decision.contains("Ring/LL refused: the network carries whole slots, not lines"), "{decision}");
    }

    #[test]
    fn settings_narrow_the_choice_and_a_choice_of_nothing_is_refused() {
        let ring = planner(4, &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL")]).unwrap();
        assert_eq!(ring.plan(Collective::AllReduce, 8 << 20).kernel, Kernel::RingLl);
        let one_shot = planner(2, &[("NCCL_ALGO", "OneShot")]).unwrap();
        assert_eq!(one_shot.plan(Collective::AllReduce, 8 << 20).kernel, Kernel::OneShotSimple);
        // by function, and what is left out there is refused when it is called
        let pat = planner(4, &[("NCCL_ALGO", "PAT;broadcast:tree")]).unwrap();
        assert!(matches!(pat.plan(Collective::AllGather, 8).kernel, Kernel::PatLl | Kernel::PatSimple));
        assert!(matches!(pat.plan(Collective::Broadcast, 8).kernel, Kernel::TreeLl | Kernel::TreeSimple));
        let error = pat.check(Collective::AllReduce).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        let error = error.to_string();
        assert!(error.contains("nothing is left for AllReduce"), "{error}");
        assert!(error.contains("PAT/LL, PAT/Simple refused: it is for all-gather and reduce-scatter"), "{error}");
        assert_eq!(error.matches("set by the program").count(), 1, "{error}");
    }

    #[test]
    fn in_rank_order_only_what_combines_in_it_is_left() {
        let settings = [("FERRONICKEL_DETERMINISTIC", "1")];
        let in_order = planner(4, &settings).unwrap();
        for collective in PLANNED.into_iter().filter(|collective| collective.reduces()) {
            for candidate in &in_order.function(collective).unwrap().candidates {
                assert!(matches!(candidate.algorithm, Algorithm::OneShot | Algorithm::TwoShot), "{}", candidate.name());
            }
            in_order.check(collective).unwrap();
        }
        assert!(in_order.function(Collective::AllGather).unwrap().candidates.len() > 4);
        let conflict = [settings[0], ("NCCL_ALGO", "allreduce:ring")];
        let error = planner(4, &conflict).unwrap().check(Collective::AllReduce).unwrap_err().to_string();
        assert!(error.contains("Ring/LL, Ring/Simple refused: FERRONICKEL_DETERMINISTIC=1"), "{error}");
        assert!(error.contains("NCCL_ALGO=allreduce:ring"), "{error}");
    }

    #[test]
    fn a_setting_that_excludes_everything_is_said_once_with_what_would_be_right() {
        let refused = |settings: &[(&str, &str)]| {
            let error = planner(2, settings).err().unwrap();
            (error.seen().to_string(), error.advice().unwrap().to_string())
        };
        let expect = |seen: &str, advice: &str| (seen.to_string(), format!("{advice} would be right here"));
        let nvls = "NCCL_ALGO=NVLS set by the program leaves no algorithm for any collective";
        assert_eq!(refused(&[("NCCL_ALGO", "NVLS")]), expect(nvls, "OneShot, Ring, TwoShot, Tree, PAT"));
        let ll128 = "NCCL_PROTO=LL128 set by the program leaves no protocol for any collective";
        assert_eq!(refused(&[("NCCL_PROTO", "LL128")]), expect(ll128, "LL, Simple"));
        let net = [("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"), ("NCCL_PROTO", "LL")];
        let ll = "NCCL_PROTO=LL set by the program leaves no protocol for any collective";
        assert_eq!(refused(&net), expect(ll, "Simple"));
    }

    #[test]
    fn every_alternative_is_in_the_record() {
        let decision = planner(2, &[]).unwrap().decision(Collective::AllReduce, 1 << 20);
        let candidates: Vec<_> = decision.refused.iter().map(|refusal| refusal.candidate.as_str()).collect();
        assert!(decision.chosen.starts_with("TwoShot/Simple, predicted "), "{decision}");
        for name in ["OneShot/LL", "OneShot/Simple", "Ring/LL", "Ring/Simple", "TwoShot/LL"] {
            assert!(candidates.contains(&name), "{name} is missing in {decision}");
        }
    }
}
