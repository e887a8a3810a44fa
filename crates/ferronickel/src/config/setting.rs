//! One variable's value, where it came from, and how messages show it.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::value::{self, Value};
use super::variables::{Kind, Variable};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set the variable, or what was set cannot be used.
    Default,
    /// The process environment.
    Environment,
    /// The program, through the library's interface.
    Program,
    /// The machine's file of settings.
    SystemFile(Arc<Path>),
    /// The user's file of settings.
    UserFile(Arc<Path>),
}

/// How a sentence goes on: "set in the environment", "set in /etc/nccl.conf".
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default"),
            Self::Environment => f.write_str("set in the environment"),
            Self::Program => f.write_str("set by the program"),
            Self::SystemFile(path) | Self::UserFile(path) => write!(f, "set in {}", path.display()),
        }
    }
}

/// A variable's value with its origin. As text it is a reason: "NCCL_P2P_DISABLE=1 set in the environment".
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Setting<'c, T> {
    /// The variable.
    pub variable: &'static Variable,
    /// The value in force.
    pub value: T,
    /// Where the value in force came from.
    pub source: &'c Source,
    /// The text that was found, as it was written; kept also where it cannot be used and the default is in force.
    /// Of a [`Kind::Secret`] it says only that there is one.
    pub raw: Option<&'c str>,
}

impl<'c, T> Setting<'c, T> {
    /// Whether somebody set the value in force.
    pub fn is_set(&self) -> bool {
        *self.source != Source::Default
    }

    /// The value as a reason: "NCCL_P2P_DISABLE=1 set in the environment".
    pub fn reason(&self) -> String {
        let shown = self.raw.filter(|_| self.is_set()).unwrap_or(self.variable.default);
        match self.source {
            Source::Default if shown.is_empty() => format!("{} not set", self.variable.name),
            Source::Default => format!("{}={} by default", self.variable.name, printable(shown)),
            source => format!("{}={} {source}", self.variable.name, printable(shown)),
        }
    }

    /// The same setting with its value converted.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Setting<'c, U> {
        let Self { variable, value, source, raw } = self;
        Setting { variable, value: convert(value), source, raw }
    }
}

impl<T> fmt::Display for Setting<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason())
    }
}

/// One line of the list of all settings.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The variable: name, kind, default and meaning.
    pub variable: &'static Variable,
    /// The value in force; `None` where nobody set it and there is no default.
    pub value: Option<String>,
    /// Where the value in force came from.
    pub source: Source,
    /// What was set and cannot be used, and where it was set.
    pub refused: Option<(String, Source)>,
}

/// What is kept for one variable.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) variable: &'static Variable,
    pub(super) value: Value,
    /// Where the value in force came from.
    source: Source,
    /// The text that was found, and where.
    raw: Option<(String, Source)>,
}

impl fmt::Debug for Slot {
    /// A `Config` ends up in the debug output of whatever holds it, so a secret stays out of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.setting(()))
    }
}

impl Slot {
    pub(super) fn unset(variable: &'static Variable) -> Self {
        Self { variable, value: variable.default_value(), source: Source::Default, raw: None }
    }

    /// A text that was found for the variable; where it cannot be used the default is in force.
    pub(super) fn found(variable: &'static Variable, raw: String, source: Source) -> Self {
        match value::parse(variable.kind, &raw) {
            // An empty text is as good as none, as it is for NCCL; a `Template` may be empty.
            Some(Value::Unset) => Self { raw: Some((raw, source)), ..Self::unset(variable) },
            Some(value) => Self { variable, value, source: source.clone(), raw: Some((raw, source)) },
            None => Self::refused(variable, raw, source),
        }
    }

    /// A text that cannot be used.
    pub(super) fn refused(variable: &'static Variable, raw: String, source: Source) -> Self {
        Self { raw: Some((raw, source)), ..Self::unset(variable) }
    }

    /// Where the text was found, whether it can be used or not.
    pub(super) fn origin(&self) -> &Source {
        self.raw.as_ref().map_or(&Source::Default, |(_, source)| source)
    }

    /// What is wrong with the text that was found.
    pub(super) fn warning(&self) -> Option<String> {
        let (raw, source) = self.raw.as_ref()?;
        if let Kind::List(words) = self.variable.kind
            && self.is_set()
        {
            let unknown = value::unknown_words(words, raw);
            return (!unknown.is_empty()).then(|| {
                let (name, unknown) = (self.variable.name, unknown.join(","));
                format!("{} in {name} {source} is left out: it is none of {}.", printable(&unknown), words.join(", "))
            });
        }
        (!self.is_set() && !raw.trim().is_empty()).then(|| invalid(self.variable, raw, source))
    }

    /// NCCL's line about a variable that is set.
    pub(super) fn set_line(&self) -> Option<String> {
        let (raw, _) = self.raw.as_ref().filter(|_| self.is_set())?;
        let name = self.variable.name;
        let by = if self.source == Source::Program { "program" } else { "environment" };
        // NCCL says "environment" of its files too; scripts look for that, so the file comes after it.
        let from = match &self.source {
            Source::SystemFile(path) | Source::UserFile(path) => format!(" ({})", path.display()),
            _ => String::new(),
        };
        Some(match (&self.value, self.variable.kind) {
            (Value::Integer(_), Kind::Flag) => {
                // A flag keeps the number that was written: "set by environment to 2."
                format!("{name} set by {by} to {}.{from}", value::integer(raw).unwrap_or_default())
            }
            (Value::Integer(value), _) => format!("{name} set by {by} to {value}.{from}"),
            _ => format!("{name} set by {by} to {}{from}", printable(shown(self.variable, raw))),
        })
    }

    pub(super) fn setting<T>(&self, value: T) -> Setting<'_, T> {
        let raw = self.raw.as_ref().map(|(raw, _)| shown(self.variable, raw));
        Setting { variable: self.variable, value, source: &self.source, raw }
    }

    pub(super) fn entry(&self) -> Entry {
        let value = match &self.value {
            Value::Integer(value) => Some(value.to_string()),
            Value::Text(text) => Some(shown(self.variable, text).to_owned()),
            Value::Unset => None,
        };
        let refused = self.raw.as_ref().filter(|(raw, _)| !self.is_set() && !raw.trim().is_empty());
        let refused = refused.map(|(raw, source)| (shown(self.variable, raw).to_owned(), source.clone()));
        Entry { variable: self.variable, value, source: self.source.clone(), refused }
    }

    fn is_set(&self) -> bool {
        self.source != Source::Default
    }
}

/// NCCL's sentence about a value that cannot be used, and what would be right.
pub(super) fn invalid(variable: &Variable, raw: &str, source: &Source) -> String {
    format!(
        "Invalid value {} for {}, using default {}. It is {source}; {} would be right.",
        printable(shown(variable, raw)),
        variable.name,
        variable.shown_default(),
        variable.kind
    )
}

/// What may be seen of a variable's text.
fn shown<'t>(variable: &Variable, text: &'t str) -> &'t str {
    if variable.kind == Kind::Secret { HIDDEN } else { text }
}

/// What stands for the value of a secret.
const HIDDEN: &str = "(set, not shown)";

/// A text fit for one line of a log: control characters escaped, and cut where it is very long.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    if text.len() <= MOST_SHOWN && !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    for character in text.chars() {
        if shown.len() >= MOST_SHOWN {
            shown.push_str("...");
            break;
        }
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Longer values are cut in messages.
const MOST_SHOWN: usize = 256;
