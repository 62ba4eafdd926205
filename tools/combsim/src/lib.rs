//! The daemon's core under simulation: engine and broker as they ship, over a simulated disk, clock and clients, from
//! one seed, judged by an oracle.
//!
//! A history (`world`) draws its sizes and options (`profile`), lets clients ask (`clients`), hands every answer to the
//! oracle (`answers`, `oracle`), crashes and restarts, and reads everything at its end (`ending`).

pub mod audit;
pub mod chance;
pub mod damage;
pub mod failure;
pub mod oracle;
pub mod payload;
pub mod process;
pub mod profile;
pub mod world;

mod answers;
mod clients;
mod ending;

use std::error::Error;
use std::path::Path;

use failure::Failure;
use world::{Finished, World};

/// Runs the history of a seed.
///
/// # Errors
/// The first broken rule.
pub fn run(seed: u64) -> Result<Finished, Failure> {
    World::new(seed).run()
}

/// Runs the history of a seed but for its end, kills it and writes its files to a real directory; how many.
///
/// # Errors
/// A broken rule, or why a file cannot be written.
pub fn leave(seed: u64, dir: &Path) -> Result<usize, Box<dyn Error>> {
    World::new(seed).leave_behind(dir)
}

/// Runs the history of a seed, damages what it leaves behind and judges what comes of it.
///
/// # Errors
/// The first broken rule.
pub fn run_damaged(seed: u64, hurt: damage::Hurt) -> Result<damage::Ended, Failure> {
    World::new(seed).run_damaged(hurt)
}
