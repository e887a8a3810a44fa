//! Decisions: every choice with the alternatives it refused and why.
//!
//! The log, the announcement of a slower road, and the errors print from these records and from nothing else, so
//! that an explanation cannot drift from what was done.

use std::fmt;

/// A choice that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// What it is about, such as `0[0] -> 1[1]`.
    pub about: String,
    /// What was chosen.
    pub chosen: String,
    /// What was not, best first.
    pub refused: Vec<Refusal>,
}

/// An alternative that was not chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The alternative.
    pub candidate: String,
    /// Why not.
    pub reason: String,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.chosen)?;
        self.refused.iter().try_for_each(|refusal| write!(f, "; {refusal}"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} refused: {}", self.candidate, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_reads_as_one_line() {
        let refused =
            vec![Refusal { candidate: "P2P".into(), reason: "NCCL_P2P_DISABLE=1 set in the environment".into() }];
        let decision = Decision { about: "0[0] -> 1[1]".into(), chosen: "SHM/direct".into(), refused };
        assert_eq!(
            decision.to_string(),
            "0[0] -> 1[1]: SHM/direct; P2P refused: NCCL_P2P_DISABLE=1 set in the environment"
        );
    }
}
