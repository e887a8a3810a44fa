//! Slips of the keyboard: which known variable a name that nobody knows was meant to be.

use super::known;
use super::setting::Source;
use super::variables::{self, VARIABLES};

/// What a name that is set turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recognition {
    /// Not for this library at all.
    Foreign,
    /// ferronickel reads it.
    Read,
    /// Nobody knows it, and it looks like this known name.
    Slip(&'static str),
    /// It begins like a variable of ferronickel's own, and is none.
    Unknown,
    /// NCCL may know it; ferronickel does not read it.
    Unread,
}

/// Says what a name is. Names that do not begin like one of ours are `Foreign`.
pub(super) fn recognise(name: &str) -> Recognition {
    if variables::by_name(name).is_some() {
        return Recognition::Read;
    }
    if !has_our_prefix(name) || known::is_foreign(name) {
        return Recognition::Foreign;
    }
    if known::is_known(name) {
        return Recognition::Unread;
    }
    match closest(name) {
        Some(meant) => Recognition::Slip(meant),
        None if name.starts_with("FERRONICKEL_") => Recognition::Unknown,
        None => Recognition::Unread,
    }
}

/// The warning about a slip.
pub(super) fn question(name: &str, meant: &str, source: &Source) -> String {
    let place = match source {
        Source::Environment => String::new(),
        _ => format!(" ({source})"),
    };
    let vain = if variables::by_name(meant).is_some() { "" } else { " (NCCL knows it; ferronickel does not read it)" };
    format!("{name}{place} is not a variable ferronickel or NCCL knows; did you mean {meant}{vain}?")
}

/// The known name that this one most looks like, if it looks like one.
///
/// The letters' case does not count, nor does a missing or an extra underscore; beyond that, two slips of the keyboard
/// (a letter more, less or other, or two swapped), and one in names so short that two would make them any other.
pub(super) fn closest(name: &str) -> Option<&'static str> {
    if name.len() > LONGEST {
        return None;
    }
    let folded = fold(name);
    let allowed = if stem_length(&folded) <= SHORT_STEM { 1 } else { 2 };
    // Variables that ferronickel reads come first, so that they win a tie.
    VARIABLES
        .iter()
        .map(|variable| variable.name)
        .chain(known::NCCL_VARIABLES.iter().copied())
        .map(|known| (strsim::damerau_levenshtein(&folded, &fold(known)), known))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Longer names are no slips; the bound keeps a hostile environment from costing time.
const LONGEST: usize = 80;

/// The longest stem (the name after its prefix) in which only one slip is forgiven.
const SHORT_STEM: usize = 4;

/// Capital letters and no underscores.
fn fold(name: &str) -> String {
    name.chars().filter(|character| *character != '_').map(|character| character.to_ascii_uppercase()).collect()
}

fn stem_length(folded: &str) -> usize {
    folded.strip_prefix("FERRONICKEL").or_else(|| folded.strip_prefix("NCCL")).unwrap_or(folded).len()
}

/// Whether the name begins with NCCL or FERRONICKEL, or with a slip of it.
///
/// The first letter must be right: RCCL, MCCL, HCCL and their like are other libraries.
fn has_our_prefix(name: &str) -> bool {
    let upper: String = name.chars().take(LONGEST).map(|character| character.to_ascii_uppercase()).collect();
    if upper.starts_with("NCCL") || upper.starts_with("FERRONICKEL") {
        return true;
    }
    let Some((prefix, _)) = upper.split_once('_') else { return false };
    (prefix.starts_with('N') && strsim::damerau_levenshtein(prefix, "NCCL") <= 1)
        || (prefix.starts_with('F') && strsim::damerau_levenshtein(prefix, "FERRONICKEL") <= 2)
}
