//! How fast one core copies memory: what an all-reduce of large messages is measured against.

use std::hint::black_box;
use std::time::Instant;

/// Larger than any cache.
const BYTES: usize = 128 << 20;
const ROUNDS: usize = 5;

/// Bytes copied in a second, the best of a few rounds; each is read once and written once.
pub fn measure() -> f64 {
    let (from, mut to) = (vec![1u8; BYTES], vec![2u8; BYTES]);
    let copy = |_| {
        let start = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        BYTES as f64 / start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(copy).fold(0.0, f64::max)
}
