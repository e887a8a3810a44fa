//! The numbers of streams, by which the users of a buffer are told apart.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind, Result};

/// Numbers from one on, each had by one stream at a time. What is given back is handed out again, so that a program
/// that makes a stream for every piece of work does not run out of them.
#[derive(Debug)]
pub(super) struct Numbers {
    free: Mutex<Free>,
    last: u32,
}

#[derive(Debug)]
struct Free {
    given_back: Vec<u32>,
    /// The first that was never handed out.
    next: u32,
}

/// A number, given back when dropped.
#[derive(Debug)]
pub(super) struct Number(pub u32, &'static Numbers);

impl Numbers {
    pub const fn up_to(last: u32) -> Numbers {
        Numbers { free: Mutex::new(Free { given_back: Vec::new(), next: 1 }), last }
    }

    /// A number that no other stream has.
    pub fn take(&'static self) -> Result<Number> {
        let mut free = self.lock();
        if let Some(number) = free.given_back.pop() {
            return Ok(Number(number, self));
        }
        if free.next > self.last {
            let seen = format!("this process has {} streams, and no more can be told apart", self.last);
            return Err(Error::new(ErrorKind::System, seen).in_call("stream").hint("drop streams that are idle"));
        }
        free.next += 1;
        Ok(Number(free.next - 1, self))
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.1.lock().given_back.push(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_run_out_honestly_and_come_back() {
        static NUMBERS: Numbers = Numbers::up_to(2);
        let (one, two) = (NUMBERS.take().unwrap(), NUMBERS.take().unwrap());
        assert_eq!((one.0, two.0), (1, 2));
        let error = NUMBERS.take().unwrap_err().to_string();
        assert!(error.contains("this process has 2 streams") && error.contains("drop streams"), "{error}");
        drop(one);
        assert_eq!(NUMBERS.take().unwrap().0, 1);
    }
}
