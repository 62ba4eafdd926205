//! Placeholder until the tool exists.
fn main() {}
