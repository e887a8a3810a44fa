//! ferronickel.
