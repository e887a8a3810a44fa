//! What is measured: a row of the table, with a half for each way to call.

use super::kind::{Op, Type};
use super::statistics::Iterations;

/// All that is known of one size.
#[derive(Clone, Debug)]
pub struct Row {
    /// Bytes of the larger of what a rank gives and gets.
    pub bytes: u64,
    /// Elements: that all reduce, or that one rank sends to another.
    pub count: u64,
    pub kind: Type,
    /// None where nothing is reduced.
    pub op: Option<Op>,
    /// None where there is none.
    pub root: Option<usize>,
    pub out_of_place: Half,
    /// None where there is no such call.
    pub in_place: Option<Half>,
}

impl Row {
    /// The operation as nccl-tests prints it.
    pub fn op_name(&self) -> &'static str {
        self.op.map_or("none", Op::name)
    }

    /// The root as nccl-tests prints it.
    pub fn root_number(&self) -> i64 {
        self.root.map_or(-1, |root| root as i64)
    }
}

/// What was measured with separate buffers, or with one.
#[derive(Clone, Debug)]
pub struct Half {
    /// To complete a call or, if that was asked for, to start it.
    pub microseconds: f64,
    /// GB/s, by the bytes of the size column.
    pub algorithm_bandwidth: f64,
    /// GB/s, as a link sees it.
    pub bus_bandwidth: f64,
    /// Elements that were wrong; None if nothing was checked.
    pub wrong: Option<u64>,
    /// Figures over single iterations, if they were asked for.
    pub iterations: Option<Iterations>,
}

/// Where the memory of a run went, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What initialising the communicators took, in the first process.
    pub initialisation: u64,
    /// The buffers of that process's ranks.
    pub buffers: u64,
    /// What a rank had resident when it was initialised, program and all: the most of any process.
    pub resident_at_start: u64,
    /// The same after the last size, without buffers.
    pub resident_at_end: u64,
}

/// What a run comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Wrong elements in all rows.
    pub wrong: u64,
    bandwidths: f64,
    halves: u64,
}

impl Summary {
    /// Takes a row in.
    pub fn add(&mut self, row: &Row) {
        for half in std::iter::once(&row.out_of_place).chain(&row.in_place) {
            self.wrong = self.wrong.saturating_add(half.wrong.unwrap_or(0));
            self.bandwidths += half.bus_bandwidth;
            self.halves += 1;
        }
    }

    /// The mean bus bandwidth over rows and halves.
    pub fn bandwidth(&self) -> f64 {
        if self.halves == 0 { 0.0 } else { self.bandwidths / self.halves as f64 }
    }

    /// Whether the bandwidth is enough, if there is a least one to reach nine tenths of.
    pub fn is_fast_enough(&self, min: Option<f64>) -> Option<bool> {
        min.map(|min| self.bandwidth() >= 0.9 * min)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn half(microseconds: f64, bus_bandwidth: f64, wrong: Option<u64>) -> Half {
        Half { microseconds, algorithm_bandwidth: bus_bandwidth, bus_bandwidth, wrong, iterations: None }
    }

    pub fn row(bytes: u64, out_of_place: Half, in_place: Half) -> Row {
        let (op, root) = (Some(Op::Sum), None);
        Row { bytes, count: bytes / 4, kind: Type::Float, op, root, out_of_place, in_place: Some(in_place) }
    }

    #[test]
    fn the_mean_is_over_both_halves() {
        let mut summary = Summary::default();
        assert_eq!(summary.bandwidth(), 0.0);
        summary.add(&row(8, half(1.0, 1.0, Some(0)), half(1.0, 2.0, Some(3))));
        summary.add(&row(16, half(1.0, 3.0, None), half(1.0, 6.0, None)));
        assert_eq!((summary.bandwidth(), summary.wrong), (3.0, 3));
        assert_eq!(summary.is_fast_enough(None), None);
        assert_eq!(summary.is_fast_enough(Some(3.3)), Some(true));
        assert_eq!(summary.is_fast_enough(Some(3.4)), Some(false));
    }
}
