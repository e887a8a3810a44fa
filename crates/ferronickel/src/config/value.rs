//! From text to value: integers as `strtoll` with base 0 reads them, words in any case.

use super::variables::Kind;

/// A value that passed its variable's check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A flag (0 or 1) or an integer.
    Integer(i64),
    /// Text, words and lists.
    Text(String),
    /// No value: the variable is text and nobody set it.
    Unset,
}

/// Reads `text` as a value of this kind; `None` where it is not one.
///
/// In a list, words that are not known are left out, as NCCL does, as long as one known word is left.
pub(super) fn parse(kind: Kind, text: &str) -> Option<Value> {
    match kind {
        Kind::Flag => integer(text).map(|value| Value::Integer(i64::from(value != 0))),
        Kind::Integer { lowest, highest } => {
            integer(text).filter(|value| (lowest..=highest).contains(value)).map(Value::Integer)
        }
        Kind::List(words) => list(words, text),
        // Only where no word is the default does this differ from the default.
        Kind::OneOf(_) if text.trim().is_empty() => Some(Value::Unset),
        Kind::OneOf(words) => {
            words.iter().find(|word| word.eq_ignore_ascii_case(text.trim())).map(|word| Value::Text((*word).to_owned()))
        }
        Kind::Template => Some(Value::Text(text.to_owned())),
        Kind::Secret | Kind::Text if text.is_empty() => Some(Value::Unset),
        Kind::Secret | Kind::Text => Some(Value::Text(text.to_owned())),
    }
}

/// The words of a list that the list's variable does not know.
pub(super) fn unknown_words(words: &[&str], text: &str) -> Vec<String> {
    split_list(text).1.filter(|word| !contains(words, word)).map(str::to_owned).collect()
}

/// Reads an integer as C's `strtoll` with base 0 does: blanks, a sign, then 0x for hexadecimal or 0 for octal.
///
/// Unlike `strtoll`, which stops at the first character it cannot use and calls what it has a success, this refuses
/// "4M" and "true": the caller meant something, and it was not 4 or 0.
pub(super) fn integer(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = if let Some(digits) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        (16, digits)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (8, &digits[1..])
    } else {
        (10, digits)
    };
    // `from_str_radix` would take a second sign.
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = i128::from_str_radix(digits, radix).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// Keeps the known words of a list in the table's spelling, the `^` included.
fn list(words: &[&str], text: &str) -> Option<Value> {
    let (inverted, items) = split_list(text);
    let kept: Vec<&str> =
        items.filter_map(|item| words.iter().copied().find(|word| word.eq_ignore_ascii_case(item))).collect();
    if kept.is_empty() {
        return None;
    }
    Some(Value::Text(format!("{}{}", if inverted { "^" } else { "" }, kept.join(","))))
}

/// Whether the list begins with `^`, and its words without blanks and empty items.
pub(crate) fn split_list(text: &str) -> (bool, impl Iterator<Item = &str>) {
    let text = text.trim();
    let (inverted, items) = match text.strip_prefix('^') {
        Some(items) => (true, items),
        None => (false, text),
    };
    (inverted, items.split(',').map(str::trim).filter(|item| !item.is_empty()))
}

fn contains(words: &[&str], word: &str) -> bool {
    words.iter().any(|known| known.eq_ignore_ascii_case(word))
}
