//! What is made of times: one of those that the threads measured, and figures over single iterations.

/// Which thread's time counts (`-a`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    First,
    Average,
    Least,
    Greatest,
}

impl Combine {
    /// Reads the option's number, which is at most 3.
    pub const fn from_option(number: u8) -> Self {
        match number {
            0 => Self::First,
            1 => Self::Average,
            2 => Self::Least,
            _ => Self::Greatest,
        }
    }

    /// One time for those of all threads.
    pub fn of(self, times: &[f64]) -> f64 {
        match self {
            Self::First => times.first().copied().unwrap_or(0.0),
            Self::Average => times.iter().sum::<f64>() / times.len() as f64,
            Self::Least => times.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Greatest => times.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// Figures over the times of single iterations, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Iterations {
    /// How many iterations at the start were left out.
    pub skipped: usize,
    pub min: f64,
    pub max: f64,
    pub average: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub deviation: f64,
    /// The times themselves, those left out not among them.
    pub times: Vec<f64>,
}

impl Iterations {
    /// The figures of `times`, the first `skip` left out; one at least is kept.
    pub fn new(times: &[f64], skip: usize) -> Self {
        let skipped = skip.min(times.len().saturating_sub(1));
        let times = times[skipped..].to_vec();
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let rank = |percent: usize| sorted.get((count * percent).div_ceil(100).max(1) - 1).copied().unwrap_or(0.0);
        let average = sorted.iter().sum::<f64>() / count.max(1) as f64;
        let variance = sorted.iter().map(|time| (time - average).powi(2)).sum::<f64>() / count.max(1) as f64;
        Self {
            skipped,
            min: rank(0),
            max: rank(100),
            average,
            p50: rank(50),
            p95: rank(95),
            p99: rank(99),
            deviation: variance.sqrt(),
            times,
        }
    }

    /// The deviation in percent of the average.
    pub fn variation(&self) -> f64 {
        if self.average > 0.0 { self.deviation / self.average * 100.0 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_combined_as_asked() {
        let times = [3.0, 1.0, 2.0];
        assert_eq!([0, 1, 2, 3].map(|number| Combine::from_option(number).of(&times)), [3.0, 2.0, 1.0, 3.0]);
    }

    #[test]
    fn percentiles_are_measured_times() {
        let times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let figures = Iterations::new(&times, 0);
        assert_eq!(
            (figures.min, figures.p50, figures.p95, figures.p99, figures.max),
            (1.0, 100.0, 190.0, 198.0, 200.0)
        );
        assert_eq!(figures.average, 100.5);
        assert!((figures.deviation - 57.734).abs() < 0.01);
        assert!((figures.variation() - 57.447).abs() < 0.01);
    }

    #[test]
    fn skipping_leaves_at_least_one() {
        let figures = Iterations::new(&[9.0, 1.0, 3.0], 1);
        assert_eq!((figures.skipped, figures.min, figures.max, figures.times.len()), (1, 1.0, 3.0, 2));
        let figures = Iterations::new(&[9.0, 1.0, 3.0], 100);
        assert_eq!((figures.skipped, figures.min, figures.variation()), (2, 3.0, 0.0));
    }
}
