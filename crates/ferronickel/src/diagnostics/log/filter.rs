//! Which lines the log shows: levels and subsystems, with NCCL's names, numbers and defaults.

use std::ops::{BitOr, BitOrAssign};

use crate::config::value::split_list;
use crate::config::{Config, variables};

/// How much the log says; each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Nothing.
    None = 0,
    /// The version.
    Version = 1,
    /// What went wrong.
    Warn = 2,
    /// What was decided and why.
    Info = 3,
    /// A name that NCCL keeps and that shows no lines of its own.
    Abort = 4,
    /// What NCCL shows only in a build for its own developers; shows no lines of its own here.
    Trace = 5,
}

impl Level {
    const ALL: [Self; 6] = [Self::None, Self::Version, Self::Warn, Self::Info, Self::Abort, Self::Trace];

    /// The level of this name, in any case.
    fn by_name(name: &str) -> Option<Self> {
        let index = variables::LEVEL_NAMES.iter().position(|known| known.eq_ignore_ascii_case(name))?;
        Self::ALL.get(index).copied()
    }
}

/// One or more subsystems, with NCCL's bits; `Subsys::INIT | Subsys::P2P` is a line about both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsys(u32);

/// Declares the subsystems and the table by which their names are found.
macro_rules! subsystems {
    ($($name:ident = $bits:literal, $meaning:literal;)+) => {
        impl Subsys {
            $(#[doc = $meaning] pub const $name: Self = Self($bits);)+

            const NAMED: &[(&str, Self)] = &[$((stringify!($name), Self::$name)),+];
        }
    };
}

subsystems! {
    INIT = 0x1, "The start of communicators.";
    COLL = 0x2, "Calls of collectives.";
    P2P = 0x4, "The P2P transport.";
    SHM = 0x8, "The SHM transport.";
    NET = 0x10, "The NET transport.";
    GRAPH = 0x20, "The topology and the search for rings and trees.";
    TUNING = 0x40, "The choice of algorithm and protocol.";
    ENV = 0x80, "Settings.";
    ALLOC = 0x100, "Allocations.";
    CALL = 0x200, "Calls of the interface.";
    PROXY = 0x400, "The network progress engine.";
    NVLS = 0x800, "NVLink SHARP.";
    BOOTSTRAP = 0x1000, "How ranks find each other.";
    REG = 0x2000, "Registration of memory.";
    PROFILE = 0x4000, "Timings of the start.";
    RAS = 0x8000, "Reliability, availability and serviceability.";
    DESTROY = 0x1_0000, "The end of communicators.";
    ALLOC_HOST = 0x2_0000, "Allocations of host memory.";
    ALL = 0xffff_ffff, "Every subsystem.";
}

impl Subsys {
    /// No subsystem.
    const NONE: Self = Self(0);

    /// The bits, as NCCL's plugin interface passes them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The subsystems of a list; a leading `^` means all but those.
    pub(super) fn from_list(list: &str) -> Self {
        let (inverted, names) = split_list(list);
        let mut listed = Self::NONE;
        for name in names {
            if let Some((_, subsys)) = Self::NAMED.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
                listed |= *subsys;
            }
        }
        if inverted { Self(!listed.0) } else { listed }
    }
}

impl BitOr for Subsys {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Subsys {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// What `NCCL_DEBUG` and `NCCL_DEBUG_SUBSYS` ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) level: Level,
    pub(super) subsystems: Subsys,
}

impl Filter {
    /// The settings hold only names that are known, so none is lost here.
    pub(super) fn new(config: &Config) -> Self {
        let level = config.text(&variables::DEBUG).value.and_then(Level::by_name).unwrap_or(Level::None);
        let subsystems = config.text(&variables::DEBUG_SUBSYS).value.map_or(Subsys::NONE, Subsys::from_list);
        Self { level, subsystems }
    }
}

/// A set of levels, from a list; a leading `^` means all but those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Levels(u8);

impl Levels {
    pub(super) fn from_list(list: &str) -> Self {
        let (inverted, names) = split_list(list);
        let listed = names.fold(0, |listed, name| {
            listed
                | match Level::by_name(name) {
                    Some(Level::None) => 0,
                    Some(level) => 1 << level as u8,
                    None if name.eq_ignore_ascii_case("ALL") => u8::MAX,
                    None => 0,
                }
        });
        Self(if inverted { !listed } else { listed })
    }

    pub(super) fn contains(self, level: Level) -> bool {
        self.0 & (1 << level as u8) != 0
    }
}
