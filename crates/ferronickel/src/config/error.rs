//! What can be wrong with a setting that a program makes.

use std::error::Error;
use std::fmt;

use super::setting::printable;
use super::variables::Variable;
use super::{known, slip};

/// A setting that a program makes and that cannot be made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The variable says where settings are read, so it must be there before they are.
    EnvironmentOnly {
        /// The variable's name.
        name: &'static str,
    },
    /// The value is none that the variable takes.
    InvalidValue {
        /// The variable.
        variable: &'static Variable,
        /// The value, as messages show it.
        value: String,
    },
    /// NCCL has such a variable and ferronickel does not read it.
    NotRead {
        /// The name.
        name: String,
    },
    /// Nobody knows a variable of this name: most likely it is misspelt.
    UnknownVariable {
        /// The name.
        name: String,
        /// The known name that it looks like.
        meant: Option<&'static str>,
    },
}

impl ConfigError {
    /// The error for a name that ferronickel does not read.
    pub(super) fn unknown(name: &str) -> Self {
        if known::is_known(name) {
            return Self::NotRead { name: name.to_owned() };
        }
        Self::UnknownVariable { name: printable(name).into_owned(), meant: slip::closest(name) }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EnvironmentOnly { name } => {
                write!(f, "{name} is read from the environment only; set it there before the program starts")
            }
            Self::InvalidValue { variable, value } => {
                write!(f, "invalid value {value} for {}: {} would be right", variable.name, variable.kind)
            }
            Self::NotRead { name } => write!(f, "{name} is a variable of NCCL's that ferronickel does not read"),
            Self::UnknownVariable { name, meant: Some(meant) } => {
                write!(f, "{name} is not a variable ferronickel or NCCL knows; did you mean {meant}?")
            }
            Self::UnknownVariable { name, meant: None } => {
                write!(f, "{name} is not a variable ferronickel or NCCL knows; `ferronickel env` lists those that are")
            }
        }
    }
}

impl Error for ConfigError {}
