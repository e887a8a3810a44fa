//! Why a communicator stopped.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};

/// The first cause, the same for every rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    #[serde(with = "kind")]
    pub kind: ErrorKind,
    pub seen: String,
    pub hint: Option<String>,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = Error::new(failure.kind, failure.seen);
        match failure.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// A kind as its place in a list: the public type need not know of messages.
mod kind {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::ErrorKind;

    const KINDS: [ErrorKind; 8] = [
        ErrorKind::Aborted,
        ErrorKind::Internal,
        ErrorKind::InvalidArgument,
        ErrorKind::InvalidUsage,
        ErrorKind::Mismatch,
        ErrorKind::Remote,
        ErrorKind::System,
        ErrorKind::Timeout,
    ];

    pub fn serialize<S: Serializer>(kind: &ErrorKind, to: S) -> Result<S::Ok, S::Error> {
        let place = KINDS.iter().position(|other| other == kind);
        to.serialize_u8(place.expect("the list has every kind") as u8)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ErrorKind, D::Error> {
        let place = usize::from(u8::deserialize(from)?);
        KINDS.get(place).copied().ok_or_else(|| de::Error::custom("no such kind of error"))
    }
}
