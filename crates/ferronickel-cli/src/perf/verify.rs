//! Checks results: every element of every rank.

use std::ops::AddAssign;

use ferronickel::{DeviceBuffer, Error};

use super::collective::Right;
use super::data::{Recipe, Value};

/// How many elements are looked at together.
const CHUNK: usize = 1 << 16;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Checked {
    /// Elements that were wrong.
    pub wrong: u64,
    /// The first of them, in words.
    pub first: Option<String>,
}

impl AddAssign for Checked {
    fn add_assign(&mut self, other: Self) {
        self.wrong = self.wrong.saturating_add(other.wrong);
        if self.first.is_none() {
            self.first = other.first;
        }
    }
}

impl Checked {
    /// Compares a piece of what `rank` got, from element `first` on, with what it should have got.
    fn compare<T: Value>(&mut self, right: &Right, rank: usize, first: usize, got: &[T], expected: &[T]) {
        for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
            if got.is_right(expected, right.recipe.op) {
                continue;
            }
            self.wrong = self.wrong.saturating_add(1);
            if self.first.is_none() {
                let (element, kind) = (first + index, T::TYPE.name());
                let op = if right.kind.reduces() { format!(" {}", right.recipe.op.name()) } else { String::new() };
                self.first = Some(format!(
                    "{kind}{op}: element {element} on rank {rank} is {got:?} where {expected:?} is right"
                ));
            }
        }
    }
}

/// Writes the inputs of `rank`.
pub fn write_inputs<T: Value>(recipe: Recipe, rank: u64, buffer: &DeviceBuffer<T>) -> Result<(), Error> {
    write(buffer, |first, piece| recipe.inputs(rank, first as u64, piece))
}

/// Writes the first inputs of `rank` over and over, where any will do.
pub fn write_some_inputs<T: Value>(recipe: Recipe, rank: u64, buffer: &DeviceBuffer<T>) -> Result<(), Error> {
    let mut some = vec![T::POISON; CHUNK.min(buffer.len())];
    recipe.inputs(rank, 0, &mut some);
    write(buffer, |_, piece| piece.copy_from_slice(&some[..piece.len()]))
}

/// Overwrites what may look like a result.
pub fn write_poison<T: Value>(buffer: &DeviceBuffer<T>) -> Result<(), Error> {
    write(buffer, |_, piece| piece.fill(T::POISON))
}

fn write<T: Value>(buffer: &DeviceBuffer<T>, fill: impl Fn(usize, &mut [T])) -> Result<(), Error> {
    let mut piece = vec![T::POISON; CHUNK.min(buffer.len())];
    for first in (0..buffer.len()).step_by(CHUNK) {
        let piece = &mut piece[..CHUNK.min(buffer.len() - first)];
        fill(first, piece);
        buffer.slice(first..first + piece.len())?.copy_from_host(piece)?;
    }
    Ok(())
}

/// Checks what several ranks got; `results` has each rank's number and buffer, all of one length.
pub fn check<T: Value>(right: &Right, results: &[(usize, DeviceBuffer<T>)]) -> Result<Checked, Error> {
    let count = results.first().map_or(0, |(_, buffer)| buffer.len());
    let mut expected = vec![T::POISON; CHUNK.min(count)];
    let mut got = expected.clone();
    let mut checked = Checked::default();
    for first in (0..count).step_by(CHUNK) {
        let length = CHUNK.min(count - first);
        for (index, (rank, buffer)) in results.iter().enumerate() {
            // what is right for all is computed once
            if index == 0 || !right.is_alike() {
                right.expected(*rank, first, &mut expected[..length]);
            }
            buffer.slice(first..first + length)?.copy_to_host(&mut got[..length])?;
            checked.compare(right, *rank, first, &got[..length], &expected[..length]);
        }
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use ferronickel::Device;

    use super::super::collective::Kind;
    use super::super::kind::Op;
    use super::*;

    fn all_reduce(op: Op) -> Right {
        Right { kind: Kind::AllReduce, recipe: recipe(op), root: 0, count: 0 }
    }

    /// Right results of two ranks, in more than one piece.
    fn results<T: Value>(recipe: Recipe, count: usize) -> Vec<(usize, DeviceBuffer<T>)> {
        let mut right = vec![T::POISON; count];
        recipe.expected(0, &mut right);
        let buffer = |rank| {
            let buffer = Device::host(rank).alloc::<T>(count).unwrap();
            buffer.copy_from_host(&right).unwrap();
            (rank as usize, buffer)
        };
        vec![buffer(0), buffer(1)]
    }

    fn recipe(op: Op) -> Recipe {
        Recipe { seed: 4, op, ranks: 2 }
    }

    #[test]
    fn right_results_are_right() {
        for op in Op::ALL {
            assert_eq!(check(&all_reduce(op), &results::<f32>(recipe(op), CHUNK + 7)).unwrap(), Checked::default());
            assert_eq!(check(&all_reduce(op), &results::<i8>(recipe(op), 5)).unwrap(), Checked::default());
        }
        assert_eq!(check(&all_reduce(Op::Sum), &results::<f32>(recipe(Op::Sum), 0)).unwrap(), Checked::default());
    }

    #[test]
    fn every_wrong_element_is_counted_and_the_first_is_named() {
        let results = results::<i32>(recipe(Op::Sum), CHUNK + 7);
        let at = CHUNK + 3;
        let wrong = results[1].1.slice(at..at + 2).unwrap();
        let right = wrong.to_vec().unwrap();
        wrong.copy_from_host(&[right[0] ^ 1, right[1] ^ 1]).unwrap();
        let checked = check(&all_reduce(Op::Sum), &results).unwrap();
        let (got, right) = (right[0] ^ 1, right[0]);
        let first = format!("int32 sum: element {at} on rank 1 is {got} where {right} is right");
        assert_eq!(checked, Checked { wrong: 2, first: Some(first) });
    }

    #[test]
    fn a_result_that_was_never_written_is_wrong() {
        for op in Op::ALL {
            let results = results::<f64>(recipe(op), 100);
            write_poison(&results[0].1).unwrap();
            assert_eq!(check(&all_reduce(op), &results).unwrap().wrong, 100, "{op:?}");
        }
    }

    #[test]
    fn a_rank_left_out_is_wrong() {
        for op in [Op::Sum, Op::Avg] {
            let results = results::<f32>(recipe(op), 1000);
            write_inputs(recipe(op), 0, &results[0].1).unwrap();
            assert!(check(&all_reduce(op), &results).unwrap().wrong > 700, "{op:?}");
        }
    }
}
