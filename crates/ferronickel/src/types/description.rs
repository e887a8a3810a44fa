//! The description of a call: what every rank must agree upon.

use std::fmt;

use super::{DataType, RedOp};

/// A collective, with its number in a [`CallDescription`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Collective {
    AllReduce = 1,
    Broadcast = 2,
    Reduce = 3,
    AllGather = 4,
    ReduceScatter = 5,
    AllToAll = 6,
    Gather = 7,
    Scatter = 8,
    /// Both ends of a message: they describe it alike.
    SendReceive = 9,
    Barrier = 10,
}

/// What a collective is called, and what its calls have.
struct Properties {
    name: &'static str,
    /// In errors and reports.
    text: &'static str,
    /// A count and a type.
    elements: bool,
    op: bool,
    root: bool,
}

impl Collective {
    /// Every collective, in the order of the numbers.
    pub const ALL: [Collective; 10] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Gather,
        Collective::Scatter,
        Collective::SendReceive,
        Collective::Barrier,
    ];

    /// The name of the function that calls it, in snake case.
    pub const fn name(self) -> &'static str {
        self.properties().name
    }

    /// The name that the log gives it: NCCL's.
    pub const fn log_name(self) -> &'static str {
        match self {
            Collective::AllReduce => "AllReduce",
            Collective::Broadcast => "Broadcast",
            Collective::Reduce => "Reduce",
            Collective::AllGather => "AllGather",
            Collective::ReduceScatter => "ReduceScatter",
            Collective::AllToAll => "AlltoAll",
            Collective::Gather => "Gather",
            Collective::Scatter => "Scatter",
            Collective::SendReceive => "SendRecv",
            Collective::Barrier => "Barrier",
        }
    }

    /// Whether elements of different ranks become one.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter | Collective::Barrier)
    }

    const fn properties(self) -> Properties {
        // name, text, elements, op, root
        let (name, text, elements, op, root) = match self {
            Collective::AllReduce => ("all_reduce", "all_reduce", true, true, false),
            Collective::Broadcast => ("broadcast", "broadcast", true, false, true),
            Collective::Reduce => ("reduce", "reduce", true, true, true),
            Collective::AllGather => ("all_gather", "all_gather", true, false, false),
            Collective::ReduceScatter => ("reduce_scatter", "reduce_scatter", true, true, false),
            Collective::AllToAll => ("all_to_all", "all_to_all", true, false, false),
            Collective::Gather => ("gather", "gather", true, false, true),
            Collective::Scatter => ("scatter", "scatter", true, false, true),
            Collective::SendReceive => ("send_receive", "send/receive", true, false, false),
            Collective::Barrier => ("barrier", "barrier", false, false, false),
        };
        Properties { name, text, elements, op, root }
    }
}

/// How a call reduces, without the scalars of its ranks, which may differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ReductionKind {
    /// NCCL's own operations.
    RedOp(RedOp),
    /// Each rank's elements times its scalar, summed.
    PreMulSum,
}

impl ReductionKind {
    /// Every reduction, in the order of the numbers.
    pub const ALL: [ReductionKind; 6] = [
        ReductionKind::RedOp(RedOp::Sum),
        ReductionKind::RedOp(RedOp::Prod),
        ReductionKind::RedOp(RedOp::Max),
        ReductionKind::RedOp(RedOp::Min),
        ReductionKind::RedOp(RedOp::Avg),
        ReductionKind::PreMulSum,
    ];

    /// NCCL's number; NCCL gives operations with a scalar the numbers from here on.
    pub const fn number(self) -> u64 {
        match self {
            ReductionKind::RedOp(op) => op as u64,
            ReductionKind::PreMulSum => 5,
        }
    }
}

impl From<RedOp> for ReductionKind {
    fn from(op: RedOp) -> Self {
        ReductionKind::RedOp(op)
    }
}

impl fmt::Display for ReductionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReductionKind::RedOp(op) => op.fmt(f),
            ReductionKind::PreMulSum => f.pad("premulsum"),
        }
    }
}

/// What every rank must agree upon in a call, in eight bytes that travel with the data.
///
/// From the highest bit: collective 4, type 4, operation 3, root 13, count 40.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallDescription(u64);

/// What a description was made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parts {
    collective: Collective,
    data_type: DataType,
    op: Option<ReductionKind>,
    root: Option<usize>,
    count: usize,
}

/// The lowest bit of each field, and how many it has.
const COLLECTIVE: (u32, u32) = (60, 4);
const DATA_TYPE: (u32, u32) = (56, 4);
const OP: (u32, u32) = (53, 3);
const ROOT: (u32, u32) = (40, 13);
const COUNT: (u32, u32) = (0, 40);

/// The largest number that a field holds.
const fn largest((_, bits): (u32, u32)) -> u64 {
    (1 << bits) - 1
}

/// An operation or a root that is not there.
const NO_OP: u64 = largest(OP);
const NO_ROOT: u64 = largest(ROOT);

impl CallDescription {
    /// The largest count that a call may have: a terabyte of the smallest elements.
    pub const MAX_COUNT: usize = largest(COUNT) as usize;
    /// The largest root that a call may have.
    pub const MAX_ROOT: usize = NO_ROOT as usize - 1;

    /// Describes a call. It has an operation, a root, and elements if its collective has them; the count is at most
    /// [`MAX_COUNT`](Self::MAX_COUNT), the root at most [`MAX_ROOT`](Self::MAX_ROOT).
    pub fn new(
        collective: Collective,
        data_type: DataType,
        op: Option<ReductionKind>,
        root: Option<usize>,
        count: usize,
    ) -> Self {
        debug_assert!(count <= Self::MAX_COUNT && root.is_none_or(|root| root <= Self::MAX_ROOT));
        let op = op.map_or(NO_OP, ReductionKind::number);
        let root = root.map_or(NO_ROOT, |root| root.min(Self::MAX_ROOT) as u64);
        let call = CallDescription(
            (collective as u64) << COLLECTIVE.0
                | (data_type as u64) << DATA_TYPE.0
                | op << OP.0
                | root << ROOT.0
                | count.min(Self::MAX_COUNT) as u64,
        );
        debug_assert!(call.parts().is_some(), "{collective:?} with {op} and {root}");
        call
    }

    pub fn to_bits(self) -> u64 {
        self.0
    }

    pub fn from_bits(bits: u64) -> Self {
        CallDescription(bits)
    }

    /// What it was made of; none if it was not made by this version.
    fn parts(self) -> Option<Parts> {
        let field = |field: (u32, u32)| self.0 >> field.0 & largest(field);
        let collective = *Collective::ALL.get((field(COLLECTIVE) as usize).checked_sub(1)?)?;
        let data_type = *DataType::ALL.get(field(DATA_TYPE) as usize)?;
        let op = match field(OP) {
            NO_OP => None,
            number => Some(*ReductionKind::ALL.get(number as usize)?),
        };
        let root = Some(field(ROOT) as usize).filter(|&root| root <= Self::MAX_ROOT);
        let Properties { op: has_op, root: has_root, .. } = collective.properties();
        let count = field(COUNT) as usize;
        (op.is_some() == has_op && root.is_some() == has_root).then_some(Parts {
            collective,
            data_type,
            op,
            root,
            count,
        })
    }
}

impl fmt::Display for CallDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Parts { collective, data_type, op, root, count }) = self.parts() else {
            return write!(f, "an unknown call ({:#x})", self.0);
        };
        let Properties { text, elements, .. } = collective.properties();
        write!(f, "{text}(")?;
        if elements {
            write!(f, "count {count}, {data_type}")?;
        }
        if let Some(op) = op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = root {
            write!(f, ", root {root}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn describe(collective: Collective, op: RedOp, root: usize) -> String {
        let Properties { op: has_op, root: has_root, elements, .. } = collective.properties();
        let (op, root) = (has_op.then_some(op.into()), has_root.then_some(root));
        CallDescription::new(collective, DataType::Float32, op, root, if elements { 5 } else { 0 }).to_string()
    }

    #[test]
    fn every_collective_in_words() {
        let words: Vec<_> = Collective::ALL.iter().map(|&collective| describe(collective, RedOp::Sum, 2)).collect();
        assert_eq!(
            words,
            [
                "all_reduce(count 5, float32, sum)",
                "broadcast(count 5, float32, root 2)",
                "reduce(count 5, float32, sum, root 2)",
                "all_gather(count 5, float32)",
                "reduce_scatter(count 5, float32, sum)",
                "all_to_all(count 5, float32)",
                "gather(count 5, float32, root 2)",
                "scatter(count 5, float32, root 2)",
                "send/receive(count 5, float32)",
                "barrier()",
            ]
        );
        let scaled = Some(ReductionKind::PreMulSum);
        let call = CallDescription::new(Collective::AllReduce, DataType::Float8e4m3, scaled, None, 7);
        assert_eq!(call.to_string(), "all_reduce(count 7, f8e4m3, premulsum)");
    }

    #[test]
    fn numbers_are_places_in_the_list_of_all() {
        for (place, collective) in (1..).zip(Collective::ALL) {
            assert_eq!(collective as u8, place);
            assert!(collective.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        }
        for (place, op) in (0..).zip(ReductionKind::ALL) {
            assert_eq!(op.number(), place);
        }
        assert!(ReductionKind::ALL.len() < NO_OP as usize && DataType::ALL.len() <= 1 << DATA_TYPE.1);
    }

    #[test]
    fn what_no_call_writes_is_unknown() {
        let barrier = CallDescription::new(Collective::Barrier, DataType::Int8, None, None, 0).to_bits();
        let sum = CallDescription::new(Collective::AllReduce, DataType::Int8, Some(RedOp::Sum.into()), None, 0);
        let (ops, roots) = (largest(OP) << OP.0, largest(ROOT) << ROOT.0);
        for bits in [
            7,
            // a number too large: of the collective, the type, the operation
            barrier | 0xf << COLLECTIVE.0,
            barrier | 0xf << DATA_TYPE.0,
            sum.to_bits() | 6 << OP.0,
            // an operation or a root that the collective has not, or has and lacks
            barrier & !ops,
            barrier & !roots,
            sum.to_bits() | ops,
            sum.to_bits() & !(0xf << COLLECTIVE.0) | (Collective::Reduce as u64) << COLLECTIVE.0,
        ] {
            assert_eq!(CallDescription::from_bits(bits).to_string(), format!("an unknown call ({bits:#x})"));
        }
    }

    proptest! {
        #[test]
        fn a_description_keeps_all_it_describes(
            collective in select(&Collective::ALL[..]),
            data_type in select(&DataType::ALL[..]),
            op in select(&ReductionKind::ALL[..]),
            root in prop_oneof![0..=CallDescription::MAX_ROOT, Just(0), Just(CallDescription::MAX_ROOT)],
            count in prop_oneof![0..=CallDescription::MAX_COUNT, Just(0), Just(CallDescription::MAX_COUNT)],
        ) {
            let Properties { op: has_op, root: has_root, .. } = collective.properties();
            let (op, root) = (has_op.then_some(op), has_root.then_some(root));
            let call = CallDescription::new(collective, data_type, op, root, count);
            let read = CallDescription::from_bits(call.to_bits());
            prop_assert_eq!(read, call);
            prop_assert_eq!(read.parts(), Some(Parts { collective, data_type, op, root, count }));
        }

        #[test]
        fn any_bits_can_be_shown(bits: u64) {
            let text = CallDescription::from_bits(bits).to_string();
            prop_assert!(text.ends_with(')'));
        }
    }
}
