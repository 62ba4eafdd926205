//! combd.
fn main() {}
