//! `NCCL_ALGO` and `NCCL_PROTO`: which algorithms and protocols a user allows.
//!
//! The grammar is NCCL's: entries separated by `;`; the first may name no function and then holds for all, the others
//! are `function:list`; a list is separated by `,`, and a leading `^` means all but these. Case does not matter.

use super::{Algorithm, Protocol};
use crate::config::{Config, Setting, variables};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Collective;

/// What the settings allow.
pub(crate) struct Choice {
    algorithms: Allowed,
    protocols: Allowed,
}

/// The names that one setting allows.
struct Allowed {
    /// For every function that is not in `by_function`; None means all.
    names: Option<Vec<String>>,
    by_function: Vec<(String, Vec<String>)>,
    reason: String,
}

/// NCCL's functions, as the settings name them.
const FUNCTIONS: [&str; 6] = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce", "alltoall"];
/// Algorithms of NCCL that this library has not: a list may name them, beside others.
const OTHER_ALGORITHMS: [&str; 4] = ["CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"];
const OTHER_PROTOCOLS: [&str; 1] = ["LL128"];

impl Choice {
    /// Reads the settings.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) for a name that means nothing.
    pub fn new(config: &Config) -> Result<Choice> {
        let algorithms = Algorithm::ALL.map(Algorithm::name);
        let protocols = Protocol::ALL.map(Protocol::name);
        Ok(Choice {
            algorithms: Allowed::read(&config.text(&variables::ALGO), &algorithms, &OTHER_ALGORITHMS)?,
            protocols: Allowed::read(&config.text(&variables::PROTO), &protocols, &OTHER_PROTOCOLS)?,
        })
    }

    /// Why the settings allow none of `right` for any function, if so.
    pub fn excludes_algorithms(&self, right: &[Algorithm]) -> Option<&str> {
        self.algorithms.excludes_all(&right.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>())
    }

    /// The same for protocols.
    pub fn excludes_protocols(&self, right: &[Protocol]) -> Option<&str> {
        self.protocols.excludes_all(&right.iter().map(|protocol| protocol.name()).collect::<Vec<_>>())
    }

    /// Why the settings forbid a combination for a collective, if they do.
    pub fn refusal(&self, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> Option<String> {
        let function = collective.log_name().to_ascii_lowercase();
        let algorithms = self.algorithms.refusal(&function, algorithm.name());
        algorithms.or_else(|| self.protocols.refusal(&function, protocol.name()))
    }
}

impl Allowed {
    fn read(setting: &Setting<'_, Option<&str>>, ours: &[&str], others: &[&str]) -> Result<Allowed> {
        let reason = setting.reason();
        let mut allowed = Allowed { names: None, by_function: Vec::new(), reason };
        let Some(text) = setting.value else { return Ok(allowed) };
        let name = setting.variable.name;
        for (index, entry) in text.split(';').enumerate() {
            let (function, list) = match entry.split_once(':') {
                Some((function, list)) => (Some(function.trim().to_ascii_lowercase()), list),
                None if index == 0 => (None, entry),
                None => return Err(unknown(name, text, entry, &["function:list".into()])),
            };
            if let Some(function) = function.as_deref().filter(|function| !FUNCTIONS.contains(function)) {
                return Err(unknown(name, text, function, &FUNCTIONS.map(String::from)));
            }
            let listed = Self::list(name, text, list, ours, others)?;
            match function {
                Some(function) => {
                    allowed.by_function.retain(|(other, _)| *other != function);
                    allowed.by_function.push((function, listed));
                }
                None => allowed.names = Some(listed),
            }
        }
        Ok(allowed)
    }

    fn list(name: &str, text: &str, list: &str, ours: &[&str], others: &[&str]) -> Result<Vec<String>> {
        let list = list.trim();
        let (inverted, list) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
        let listed: Vec<_> = list.split(',').map(|token| token.trim().to_ascii_lowercase()).collect();
        let all: Vec<_> = ours.iter().chain(others).map(|name| name.to_ascii_lowercase()).collect();
        if let Some(token) = listed.iter().find(|token| !all.contains(token)) {
            let accepted: Vec<_> = ours.iter().chain(others).map(|name| name.to_string()).collect();
            return Err(unknown(name, text, token, &accepted));
        }
        Ok(all.into_iter().filter(|name| listed.contains(name) != inverted).collect())
    }

    /// The reason why none of `names` is allowed for any function, if so.
    fn excludes_all(&self, names: &[&str]) -> Option<&str> {
        let excluded = |function: &str| names.iter().all(|name| self.refusal(function, name).is_some());
        FUNCTIONS.iter().all(|function| excluded(function)).then_some(&*self.reason)
    }

    fn refusal(&self, function: &str, name: &str) -> Option<String> {
        let own = self.by_function.iter().find(|(other, _)| other == function).map(|(_, names)| names);
        let names = own.or(self.names.as_ref())?;
        (!names.contains(&name.to_ascii_lowercase())).then(|| self.reason.clone())
    }
}

fn unknown(name: &str, text: &str, token: &str, accepted: &[String]) -> Error {
    let seen = format!("Unrecognized element token \"{token}\" when parsing \"{text}\" of {name}");
    Error::new(ErrorKind::InvalidUsage, seen).hint(format!("accepted are {}", accepted.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(algorithms: &str, protocols: &str) -> Result<Choice> {
        let config = Config::default().with("NCCL_ALGO", algorithms).unwrap().with("NCCL_PROTO", protocols).unwrap();
        Choice::new(&config)
    }

    fn allowed(algorithms: &str, protocols: &str) -> Vec<(Algorithm, Protocol)> {
        let choice = choice(algorithms, protocols).unwrap();
        let all = Algorithm::ALL.into_iter().flat_map(|a| Protocol::ALL.map(|p| (a, p)));
        all.filter(|&(a, p)| choice.refusal(Collective::AllReduce, a, p).is_none()).collect()
    }

    #[test]
    fn lists_are_read_as_nccl_reads_them() {
        assert_eq!(allowed("ring", "simple"), [(Algorithm::Ring, Protocol::Simple)]);
        let others = [Algorithm::OneShot, Algorithm::Tree, Algorithm::Pat, Algorithm::Hierarchical];
        assert_eq!(allowed("^Ring,TWOSHOT", "LL,LL128"), others.map(|algorithm| (algorithm, Protocol::Ll)));
        assert_eq!(allowed("tree;allreduce:ring", "^LL"), [(Algorithm::Ring, Protocol::Simple)]);
        assert_eq!(allowed("broadcast:tree", "broadcast:LL").len(), 12);
        assert_eq!(allowed("NVLS", "LL"), []);
        let by_function = choice("tree;allgather:pat;allgather:ring", "^LL").unwrap();
        let refusal = |collective, algorithm| by_function.refusal(collective, algorithm, Protocol::Simple);
        assert!(refusal(Collective::AllGather, Algorithm::Ring).is_none(), "the last entry of a function counts");
        assert!(refusal(Collective::AllGather, Algorithm::Pat).is_some());
        assert!(refusal(Collective::Broadcast, Algorithm::Tree).is_none());
    }

    #[test]
    fn what_means_nothing_is_named() {
        let error = choice("rign", "LL").err().unwrap().to_string();
        assert!(error.contains("token \"rign\" when parsing \"rign\" of NCCL_ALGO"), "{error}");
        assert!(
            error.contains("accepted are OneShot, Ring, TwoShot, Tree, PAT, Hierarchical, CollNetDirect"),
            "{error}"
        );
        assert!(choice("allredcue:ring", "LL").is_err() && choice("ring;tree", "LL").is_err());
        assert!(choice("ring,,tree", "LL").is_err());
    }
}
