//! Which parts of an arena are free.

use std::collections::BTreeMap;
use std::ops::Range;

/// Buffers begin on pages: what is given back can be emptied page by page.
const PAGE: usize = 4096;
/// Large buffers begin where huge pages would.
const HUGE_PAGE: usize = 2 << 20;

/// Free ranges by where they begin; no two of them touch.
#[derive(Debug)]
pub(super) struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    /// All of `bytes` bytes is free.
    pub fn new(bytes: usize) -> Ranges {
        Ranges(BTreeMap::from([(0, bytes)]))
    }

    /// Takes at least `bytes` bytes, and at least one page, from the first range that has room.
    pub fn take(&mut self, bytes: usize) -> Option<Range<usize>> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let alignment = if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let fits = |(&start, &end): (&usize, &usize)| {
            let from = start.next_multiple_of(alignment);
            (end.checked_sub(from)? >= bytes).then_some((start, from, end))
        };
        let (start, from, end) = self.0.iter().find_map(fits)?;
        self.0.remove(&start);
        for rest in [start..from, from + bytes..end] {
            if !rest.is_empty() {
                self.0.insert(rest.start, rest.end);
            }
        }
        Some(from..from + bytes)
    }

    /// Gives back what was taken.
    pub fn give_back(&mut self, range: Range<usize>) {
        let Range { mut start, mut end } = range;
        if let Some((&before, &its_end)) = self.0.range(..start).next_back()
            && its_end == start
        {
            start = before;
        }
        if let Some(after) = self.0.remove(&end) {
            end = after;
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOM: usize = 64 << 20;

    proptest! {
        /// Whatever is taken and given back in whatever order: nothing overlaps, and nothing is lost.
        #[test]
        fn ranges_never_overlap_and_come_together_again(
            sizes in proptest::collection::vec(0usize..6 << 20, 1..60),
            order in proptest::collection::vec(any::<proptest::sample::Index>(), 60),
        ) {
            let mut free = Ranges::new(ROOM);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (bytes, index) in sizes.into_iter().zip(order) {
                if let Some(range) = free.take(bytes) {
                    prop_assert!(range.len() >= bytes && range.end <= ROOM && range.start % PAGE == 0);
                    prop_assert!(bytes < HUGE_PAGE || range.start % HUGE_PAGE == 0);
                    prop_assert!(taken.iter().all(|other| other.end <= range.start || range.end <= other.start));
                    taken.push(range);
                }
                if index.index(3) == 0 && !taken.is_empty() {
                    free.give_back(taken.swap_remove(index.index(taken.len())));
                }
            }
            taken.into_iter().for_each(|range| free.give_back(range));
            prop_assert_eq!(free.0, BTreeMap::from([(0, ROOM)]));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut free = Ranges::new(ROOM);
        assert_eq!(free.take(ROOM + 1), None);
        assert_eq!(free.take(usize::MAX), None);
        assert_eq!(free.take(ROOM), Some(0..ROOM));
        assert_eq!(free.take(0), None);
    }
}
