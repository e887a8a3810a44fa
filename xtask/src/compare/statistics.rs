//! Times over rounds, and what may be said of two of them.

use super::Times;

/// The times of one size, round by round.
#[derive(Clone, Default, Debug)]
pub struct Series {
    pub apart: Vec<f64>,
    pub in_place: Vec<f64>,
}

impl Series {
    pub fn add(&mut self, times: Times) {
        self.apart.push(times.apart);
        self.in_place.push(times.in_place);
    }
}

/// The middle of the times.
pub fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

/// What the times of two contenders say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Ours were all shorter.
    Win,
    /// The ranges touch: no difference is shown.
    Tie,
    /// Ours were all longer.
    Loss,
}

pub fn verdict(ours: &[f64], theirs: &[f64]) -> Verdict {
    let range = |times: &[f64]| {
        (times.iter().copied().fold(f64::INFINITY, f64::min), times.iter().copied().fold(0.0, f64::max))
    };
    let (ours, theirs) = (range(ours), range(theirs));
    match () {
        () if ours.1 < theirs.0 => Verdict::Win,
        () if theirs.1 < ours.0 => Verdict::Loss,
        () => Verdict::Tie,
    }
}

/// The geometric mean: of ratios, the only one that does not depend on who stands below the line.
pub fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_means() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        assert!(median(&[]).is_nan());
        assert!((geometric_mean(&[2.0, 8.0, 4.0]) - 4.0).abs() < 1e-9);
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn ranges_that_touch_are_a_tie() {
        assert_eq!(verdict(&[1.0, 2.0], &[2.1, 9.0]), Verdict::Win);
        assert_eq!(verdict(&[1.0, 2.1], &[2.1, 9.0]), Verdict::Tie);
        assert_eq!(verdict(&[3.0, 4.0], &[1.0, 2.0]), Verdict::Loss);
        assert_eq!(verdict(&[1.0, 9.0], &[2.0, 3.0]), Verdict::Tie);
    }
}
