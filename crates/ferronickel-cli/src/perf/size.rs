//! Message sizes: how they are read from the command line, and which ones a run goes through.

/// Reads a size as nccl-tests does: a number and an optional binary suffix K, M, G or T (powers of 1024).
///
/// A fraction is exact or refused: `0.5K` is 512 bytes, `0.3` is an error.
pub fn parse(text: &str) -> Result<u64, String> {
    const RIGHT: &str = "give bytes as a whole number, or a number with K, M, G or T, as in 8, 4K or 1.5G";
    if text.starts_with('-') && text.len() > 1 && text.as_bytes()[1].is_ascii_digit() {
        return Err(format!("a size cannot be negative; {RIGHT}"));
    }
    let (number, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        Some((at, 't' | 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) || fraction.len() > 18 {
        return Err(format!("not a size; {RIGHT}"));
    }
    exact(whole, fraction, shift).map_err(|reason| match reason {
        Inexact::TooLarge => format!("too large; the largest size is {} bytes", i64::MAX),
        Inexact::PartOfByte => format!("not a whole number of bytes; {RIGHT}"),
    })
}

/// Why a number is no size.
enum Inexact {
    PartOfByte,
    TooLarge,
}

/// `whole.fraction` times two to the power of `shift`.
fn exact(whole: &str, fraction: &str, shift: u32) -> Result<u64, Inexact> {
    let fraction = fraction.trim_end_matches('0');
    let scale = 10_u128.pow(fraction.len() as u32);
    let mantissa = format!("{whole}{fraction}");
    let mantissa = match mantissa.trim_start_matches('0') {
        "" => 0,
        digits => digits.parse::<u128>().map_err(|_| Inexact::TooLarge)?,
    };
    let scaled = mantissa.checked_mul(1 << shift).ok_or(Inexact::TooLarge)?;
    if scaled % scale != 0 {
        return Err(Inexact::PartOfByte);
    }
    // Sizes are printed as C's signed long.
    u64::try_from(scaled / scale).ok().filter(|&bytes| i64::try_from(bytes).is_ok()).ok_or(Inexact::TooLarge)
}

/// How one size follows from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes more.
    Bytes(u64),
    /// So many times as large.
    Factor(u64),
}

impl Step {
    /// The size after `size`, if there is one.
    pub fn next(self, size: u64) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => size.checked_add(bytes),
            Self::Factor(factor) => size.checked_mul(factor),
        }
        .filter(|&next| next > size)
    }
}

/// The sizes a run goes through, from the smallest to the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The first size.
    pub min: u64,
    /// No size is larger than this.
    pub max: u64,
    /// From one to the next.
    pub step: Step,
}

impl Sweep {
    /// Every size, in order.
    pub fn sizes(self) -> impl Iterator<Item = u64> {
        let first = (self.min <= self.max).then_some(self.min);
        std::iter::successors(first, move |&size| self.step.next(size).filter(|&next| next <= self.max))
    }

    /// The largest size that is really reached; `max` may lie between two steps.
    pub fn largest(self) -> u64 {
        match self.step {
            Step::Bytes(0) => self.min,
            Step::Bytes(bytes) => self.min + self.max.saturating_sub(self.min) / bytes * bytes,
            Step::Factor(_) => self.sizes().last().unwrap_or(self.min),
        }
    }

    /// How many sizes there are.
    pub fn len(self) -> u64 {
        match self.step {
            Step::Bytes(0) => 1,
            Step::Bytes(bytes) => self.max.saturating_sub(self.min) / bytes + 1,
            Step::Factor(_) => self.sizes().count() as u64,
        }
    }
}

/// A size for a sentence: `1.5 GiB`, `8 B`.
pub fn in_words(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..UNITS.len() - 1).take_while(|&unit| bytes >> (10 * (unit + 1)) > 0).count();
    let amount = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    match (unit, amount) {
        (0, _) => format!("{bytes} B"),
        (_, amount) if amount.fract() == 0.0 => format!("{amount} {}", UNITS[unit]),
        (_, amount) => format!("{amount:.1} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("007", 7),
            ("4K", 4 << 10),
            ("4k", 4 << 10),
            ("32M", 32 << 20),
            ("2g", 2 << 30),
            ("1T", 1 << 40),
            ("0.5K", 512),
            ("1.50M", 3 << 19),
            (".5K", 512),
            ("2.", 2),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_says_why() {
        for (text, word) in [
            ("", "not a size"),
            ("-", "not a size"),
            ("-8", "negative"),
            ("K", "not a size"),
            (".", "not a size"),
            ("8B", "not a size"),
            ("8KB", "not a size"),
            ("8 K", "not a size"),
            ("+8", "not a size"),
            ("1e3", "not a size"),
            ("0x8", "not a size"),
            ("1.2.3", "not a size"),
            ("８", "not a size"),
            ("0.3", "whole number of bytes"),
            ("0.3K", "whole number of bytes"),
            ("9223372036854775808", "too large"),
            ("9007199254740992K", "too large"),
            ("99999999999999999999999999999999999999999T", "too large"),
        ] {
            let reason = parse(text).expect_err(text);
            assert!(reason.contains(word), "{text}: {reason}");
        }
    }

    fn sweep(min: u64, max: u64, step: Step) -> Vec<u64> {
        let sweep = Sweep { min, max, step };
        let sizes: Vec<u64> = sweep.sizes().collect();
        assert_eq!(sweep.len(), sizes.len() as u64);
        assert_eq!(Some(&sweep.largest()), sizes.last());
        sizes
    }

    #[test]
    fn a_sweep_adds_or_multiplies() {
        assert_eq!(sweep(8, 128, Step::Factor(2)), [8, 16, 32, 64, 128]);
        assert_eq!(sweep(8, 127, Step::Factor(4)), [8, 32]);
        assert_eq!(sweep(8, 20, Step::Bytes(4)), [8, 12, 16, 20]);
        assert_eq!(sweep(0, 9, Step::Bytes(4)), [0, 4, 8]);
        assert_eq!(sweep(5, 5, Step::Factor(2)), [5]);
    }

    #[test]
    fn a_sweep_ends_where_numbers_end() {
        let top = i64::MAX as u64;
        assert_eq!(sweep(top / 2, u64::MAX, Step::Factor(u64::MAX)), [top / 2]);
        assert_eq!(sweep(top, top, Step::Bytes(top)), [top]);
        assert_eq!(sweep(0, 8, Step::Factor(2)), [0]);
        assert_eq!(sweep(4, 4, Step::Bytes(0)), [4]);
    }

    #[test]
    fn sizes_read_well_in_a_sentence() {
        assert_eq!(in_words(8), "8 B");
        assert_eq!(in_words(1 << 20), "1 MiB");
        assert_eq!(in_words(3 << 29), "1.5 GiB");
        assert_eq!(in_words(5 << 50), "5120 TiB");
    }
}
