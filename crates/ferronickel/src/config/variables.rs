//! The table of variables: each one is declared here, once, and nowhere else.
//!
//! A declaration gives its name, what values it takes, its default and its meaning. Everything else is derived from it:
//! reading, checking, the lines of the log, the suggestions after a slip, and the list that `ferronickel env` prints.

use std::fmt;

use super::value::{self, Value};

/// One environment variable that ferronickel reads.
#[derive(Debug)]
#[non_exhaustive]
pub struct Variable {
    /// The name, as it stands in the environment; names are case-sensitive.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// The value in force when nobody sets it; empty where there is none.
    pub default: &'static str,
    /// What it does, in one sentence.
    pub meaning: &'static str,
}

impl Variable {
    /// The default as a value, and as the fallback for a value that cannot be used.
    pub(super) fn default_value(&self) -> Value {
        // A test parses every default in the table, so `Unset` stands in only for a table that fails that test.
        value::parse(self.kind, self.default).unwrap_or(Value::Unset)
    }

    /// The default as a message shows it.
    pub(super) fn shown_default(&self) -> &'static str {
        if self.default.is_empty() { "none" } else { self.default }
    }
}

/// What values a variable takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// 0 is no, any other integer is yes.
    Flag,
    /// An integer within bounds, both included.
    Integer {
        /// The lowest value accepted.
        lowest: i64,
        /// The highest value accepted.
        highest: i64,
    },
    /// A comma-separated list of these words in any case; a leading `^` means all but the words listed.
    List(&'static [&'static str]),
    /// One of these words, in any case.
    OneOf(&'static [&'static str]),
    /// Text that nobody may see: the log, the lists and the errors say only that it is set. Empty counts as unset.
    Secret,
    /// Text in which being empty has a meaning of its own.
    Template,
    /// Any text; empty counts as unset.
    Text,
}

/// What would be right, as a noun phrase: "0 or 1", "an integer from 1 to 64".
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Flag => f.write_str("0 or 1"),
            Self::Integer { lowest, highest } => write!(f, "an integer from {lowest} to {highest}"),
            Self::List(words) => write!(f, "a comma-separated list of {}, or ^ and such a list", words.join(", ")),
            Self::OneOf(words) => write!(f, "one of {}", words.join(", ")),
            Self::Secret | Self::Template | Self::Text => f.write_str("text"),
        }
    }
}

/// The words of `NCCL_DEBUG`, from the quietest to the loudest.
pub const LEVEL_NAMES: &[&str] = &["NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"];

/// The words of `NCCL_DEBUG_SUBSYS`.
pub const SUBSYSTEM_NAMES: &[&str] = &[
    "INIT",
    "COLL",
    "P2P",
    "SHM",
    "NET",
    "GRAPH",
    "TUNING",
    "ENV",
    "ALLOC",
    "CALL",
    "PROXY",
    "NVLS",
    "BOOTSTRAP",
    "REG",
    "PROFILE",
    "RAS",
    "DESTROY",
    "ALLOC_HOST",
    "ALL",
];

/// The words of `NCCL_SOCKET_FAMILY`.
pub const SOCKET_FAMILY_NAMES: &[&str] = &["AF_INET", "AF_INET6"];

/// The words of `NCCL_DEBUG_TIMESTAMP_LEVELS`.
pub const TIMESTAMP_LEVEL_NAMES: &[&str] = &["NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE", "ALL"];

/// The variable of this exact name, if ferronickel reads it.
pub fn by_name(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().copied().find(|variable| variable.name == name)
}

/// Makes one `static` per declaration and the table of them all, so that adding a variable is one line.
macro_rules! variables {
    ($($constant:ident = $name:literal, $kind:expr, $default:literal, $meaning:literal;)+) => {
        $(
            #[doc = concat!("`", $name, "`: ", $meaning)]
            pub static $constant: Variable =
                Variable { name: $name, kind: $kind, default: $default, meaning: $meaning };
        )+

        /// Every variable that ferronickel reads, in the order in which lists show them.
        pub static VARIABLES: &[&Variable] = &[$(&$constant),+];
    };
}

variables! {
    DEBUG = "NCCL_DEBUG", Kind::OneOf(LEVEL_NAMES), "NONE",
        "How much the log says.";
    DEBUG_SUBSYS = "NCCL_DEBUG_SUBSYS", Kind::List(SUBSYSTEM_NAMES), "INIT,BOOTSTRAP,ENV",
        "The subsystems whose INFO lines the log shows.";
    DEBUG_FILE = "NCCL_DEBUG_FILE", Kind::Text, "",
        "The file that the log goes to instead of the standard output: %h is the host, %p the process, %% a percent sign.";
    DEBUG_TIMESTAMP_LEVELS = "NCCL_DEBUG_TIMESTAMP_LEVELS", Kind::List(TIMESTAMP_LEVEL_NAMES), "WARN",
        "The levels whose lines begin with a timestamp.";
    DEBUG_TIMESTAMP_FORMAT = "NCCL_DEBUG_TIMESTAMP_FORMAT", Kind::Template, "[%F %T] ",
        "The timestamp, as strftime writes it; %1f to %9f are fractions of a second, _ is a space, empty is no timestamp.";
    WARN_ENABLE_DEBUG_INFO = "NCCL_WARN_ENABLE_DEBUG_INFO", Kind::Flag, "0",
        "Whether the first WARN line raises the level of the log to INFO.";
    CONF_FILE = "NCCL_CONF_FILE", Kind::Text, "",
        "The file of settings read instead of ~/.nccl.conf; read from the environment only.";
    SET_THREAD_NAME = "NCCL_SET_THREAD_NAME", Kind::Flag, "0",
        "Whether helper threads get names.";
    HOSTID = "NCCL_HOSTID", Kind::Text, "",
        "The identity of this host, where the name of the host does not tell hosts apart.";
    P2P_DISABLE = "NCCL_P2P_DISABLE", Kind::Flag, "0",
        "Whether the P2P transport is off.";
    SHM_DISABLE = "NCCL_SHM_DISABLE", Kind::Flag, "0",
        "Whether the SHM transport is off.";
    ALGO = "NCCL_ALGO", Kind::Text, "",
        "The algorithms allowed: a list, after a function and a colon where it is for one function; ; separates, ^ excludes.";
    PROTO = "NCCL_PROTO", Kind::Text, "",
        "The protocols allowed, of LL, LL128 and Simple; written as NCCL_ALGO is.";
    MIN_NCHANNELS = "NCCL_MIN_NCHANNELS", Kind::Integer { lowest: -2, highest: 64 }, "-2",
        "The fewest channels to use; -2 leaves the choice to ferronickel.";
    MAX_NCHANNELS = "NCCL_MAX_NCHANNELS", Kind::Integer { lowest: -2, highest: 64 }, "-2",
        "The most channels to use; -2 leaves the choice to ferronickel.";
    BUFFSIZE = "NCCL_BUFFSIZE", Kind::Integer { lowest: 4096, highest: 1 << 30 }, "1048576",
        "The size in bytes of the buffer of a connection under the Simple protocol.";
    CALIBRATION = "FERRONICKEL_CALIBRATION", Kind::Text, "",
        "The file in which the costs that were measured on this machine are kept, instead of ferronickel/costs in the user's cache; 0 measures nothing and takes built-in costs.";
    DETERMINISTIC = "FERRONICKEL_DETERMINISTIC", Kind::Flag, "0",
        "1 combines elements in the order of their ranks, so that results have the same bits whatever the algorithm, protocol, channels or road.";
    ANNOUNCE = "FERRONICKEL_ANNOUNCE", Kind::Flag, "1",
        "Whether a line tells, even when the log is off, that a slower road is taken or that a collective makes no progress.";
    TIMEOUT = "FERRONICKEL_TIMEOUT", Kind::Integer { lowest: 0, highest: 31_536_000 }, "30",
        "After how many seconds without progress a line tells which ranks a collective waits for; 0 is never.";
    INIT_TIMEOUT = "FERRONICKEL_INIT_TIMEOUT", Kind::Integer { lowest: 1, highest: 31_536_000 }, "60",
        "How many seconds a communicator waits for its ranks to come together.";
    SOCKET_IFNAME = "NCCL_SOCKET_IFNAME", Kind::Text, "",
        "The network interfaces to use, by how their names begin: a comma-separated list; = before it is for whole names, ^ for all but those.";
    SOCKET_FAMILY = "NCCL_SOCKET_FAMILY", Kind::OneOf(SOCKET_FAMILY_NAMES), "",
        "The family of addresses to use; without it IPv4 goes before IPv6.";
    SOCKET_NTHREADS = "NCCL_SOCKET_NTHREADS", Kind::Integer { lowest: -2, highest: 16 }, "-2",
        "How many threads of a rank move what goes through the network; -2 leaves the choice to ferronickel.";
    NSOCKS_PERTHREAD = "NCCL_NSOCKS_PERTHREAD", Kind::Integer { lowest: -2, highest: 64 }, "-2",
        "How many sockets each of these threads has for a connection; -2 leaves the choice to ferronickel.";
    COMM_ID = "NCCL_COMM_ID", Kind::Text, "",
        "The address, as host:port, at which rank 0 listens and the other ranks find it.";
    SECRET = "FERRONICKEL_SECRET", Kind::Secret, "",
        "The secret that ranks which meet at NCCL_COMM_ID share; every connection proves it.";
    ALLOW_OPEN_BOOTSTRAP = "FERRONICKEL_ALLOW_OPEN_BOOTSTRAP", Kind::Flag, "0",
        "Whether ranks may meet at NCCL_COMM_ID without a secret on an address that other machines can reach.";
    RANK = "FERRONICKEL_RANK", Kind::Text, "",
        "The rank of this process; set by ferronickel run.";
    SIZE = "FERRONICKEL_SIZE", Kind::Text, "",
        "How many ranks there are; set by ferronickel run.";
    LOCAL_RANK = "FERRONICKEL_LOCAL_RANK", Kind::Text, "",
        "The number of this rank among those of its host; set by ferronickel run.";
    LOCAL_SIZE = "FERRONICKEL_LOCAL_SIZE", Kind::Text, "",
        "How many ranks this host has; set by ferronickel run.";
    UNIQUE_ID = "FERRONICKEL_UNIQUE_ID", Kind::Secret, "",
        "The unique id of the first communicator in hexadecimal, which holds a secret; set by ferronickel run.";
}
