//! What a launch is to do: a collective by one of the kernels, or an exchange of messages.

use ferronickel_kernels::algorithm::hierarchical;

use crate::types::{Collective, DataType, ReductionKind};

/// How a collective reduces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub kind: ReductionKind,
    pub scaling: Scaling,
}

/// What a rank's elements are multiplied by before they are added.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scaling {
    /// By nothing.
    None,
    /// By the element with these bits.
    By(u64),
    /// By the element that is there when the call runs.
    ByElementAt(*const u8),
}

/// An algorithm with a protocol: what is compiled as one kernel for a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kernel {
    /// A single rank's result is its own input.
    Copy,
    OneShotLl,
    OneShotSimple,
    TwoShotDirect,
    TwoShotStaged,
    RingLl,
    RingSimple,
    TreeLl,
    TreeSimple,
    PatLl,
    PatSimple,
    /// One hop over links, or two for all-reduce.
    FlatLl,
    FlatSimple,
    Hierarchical(Across),
    /// Messages between pairs of ranks.
    Exchange,
}

/// How nodes all-reduce among themselves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Across {
    Ring,
    Tree,
}

impl Across {
    /// The algorithm's name in a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Across::Ring => "ring across",
            Across::Tree => "tree across",
        }
    }
}

impl From<Across> for hierarchical::Across {
    fn from(across: Across) -> Self {
        match across {
            Across::Ring => hierarchical::Across::Ring,
            Across::Tree => hierarchical::Across::Tree,
        }
    }
}

/// A collective of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectiveWork {
    pub collective: Collective,
    pub kernel: Kernel,
    pub data_type: DataType,
    pub op: Reduction,
    /// For collectives that have one.
    pub root: usize,
    pub send: *const u8,
    pub receive: *mut u8,
    /// Elements that one rank sends to another, or that all ranks reduce.
    pub count: usize,
    /// Channels that share the elements.
    pub channels: usize,
}

/// One message of an exchange, at one of its ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub peer: usize,
    /// Whether this is the sender's end.
    pub sends: bool,
    pub buffer: *mut u8,
    pub bytes: usize,
    /// The message's description, the same at both ends.
    pub call: u64,
}

/// Messages that move together.
#[derive(Debug)]
pub(crate) struct Messages {
    /// Those along one link stand next to each other, in order.
    pub between: Box<[Message]>,
    /// What the rank sends to itself: both ends of each message, the sender's first.
    pub own: Box<[(Message, Message)]>,
}

/// What a launch does.
#[derive(Debug)]
pub(crate) enum Work {
    Collective(CollectiveWork),
    Exchange(Messages),
    /// Nothing, but in its turn: so that its stream waits for what the rank does on another.
    Meet,
}
