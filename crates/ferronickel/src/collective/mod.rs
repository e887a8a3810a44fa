//! What is asked: for each collective, what a valid call is, and its description.

mod all_reduce;
