//! The timestamp before a line.

use jiff::Zoned;
use jiff::fmt::strtime::{BrokenDownTime, Config as Formatting, PosixCustom};

use super::filter::{Level, Levels};
use crate::config::{Config, variables};

/// Which lines have a timestamp, and what it looks like.
#[derive(Clone, Debug)]
pub(super) struct Timestamps {
    format: String,
    levels: Levels,
}

impl Timestamps {
    pub(super) fn new(config: &Config) -> Self {
        let format = config.text(&variables::DEBUG_TIMESTAMP_FORMAT).value.unwrap_or_default();
        let levels = config.text(&variables::DEBUG_TIMESTAMP_LEVELS).value.unwrap_or_default();
        // A shell makes a space in a variable a nuisance, so NCCL reads an underscore as one.
        Self { format: format.replace('_', " "), levels: Levels::from_list(levels) }
    }

    /// The timestamp of a line that is written now; empty where the level has none.
    pub(super) fn prefix(&self, level: Level) -> String {
        if self.format.is_empty() || !self.levels.contains(level) {
            return String::new();
        }
        self.format_time(&Zoned::now())
    }

    /// The timestamp at a given time. What the format does not know stays as it is written.
    pub(super) fn format_time(&self, time: &Zoned) -> String {
        let formatting = Formatting::new().custom(PosixCustom::new()).lenient(true);
        let mut text = BrokenDownTime::from(time).to_string_with_config(&formatting, &self.format).unwrap_or_default();
        // A width may ask for any length, and every line would bear it.
        let end = text.char_indices().map(|(start, character)| start + character.len_utf8());
        if let Some(end) = end.take_while(|end| *end <= LONGEST).last() {
            text.truncate(end);
        }
        text
    }
}

/// The longest timestamp, in bytes, as in NCCL.
const LONGEST: usize = 256;
