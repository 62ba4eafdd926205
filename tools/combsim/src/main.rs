//! `combsim`: histories by seed from the command line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use combsim::damage::{Ended, Hurt};

/// Runs the daemon's core over a simulated disk and judges every answer and every restart.
///
/// Exit status: 0 when every history keeps every rule, 1 with the seed and the rule otherwise.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run many histories.
    Run {
        /// Seeds, first and end: `0..1000`.
        #[arg(long, default_value = "0..1000", value_parser = range)]
        seeds: std::ops::Range<u64>,
        /// Go on with further seeds for so many hours.
        #[arg(long)]
        hours: Option<f64>,
        /// Do not stop at the first failure.
        #[arg(long)]
        keep_going: bool,
    },
    /// Run histories and damage what they leave behind.
    Damage {
        /// Seeds, first and end: `0..1000`.
        #[arg(long, default_value = "0..100", value_parser = range)]
        seeds: std::ops::Range<u64>,
        /// Print what happens, and what the daemon logs.
        #[arg(long)]
        trace: bool,
    },
    /// Write the data directory that a history leaves behind when it is killed, for tests of later versions.
    Leave {
        /// The seed.
        seed: u64,
        /// A directory, which is made.
        dir: PathBuf,
    },
    /// Run one history.
    Seed {
        /// The seed.
        seed: u64,
        /// Print what happens, and what the daemon logs.
        #[arg(long)]
        trace: bool,
    },
}

fn range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let (first, end) = text.split_once("..").ok_or("write first..end")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
    let range = number(first)?..number(end)?;
    if range.is_empty() { Err("the range is empty".to_owned()) } else { Ok(range) }
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Run { seeds, hours, keep_going } => run(seeds, hours, keep_going),
        Command::Damage { seeds, trace } => damage(seeds, trace),
        Command::Leave { seed, dir } => leave(seed, &dir),
        Command::Seed { seed, trace } => one(seed, trace),
    }
}

fn leave(seed: u64, dir: &Path) -> ExitCode {
    match combsim::leave(seed, dir) {
        Ok(files) => {
            println!("{files} files in {}", dir.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("seed {seed}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn one(seed: u64, trace: bool) -> ExitCode {
    if trace {
        print_what_happens();
    }
    match combsim::run(seed) {
        Ok(finished) => {
            println!("seed {seed}: {finished:?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("seed {seed}: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn print_what_happens() {
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).without_time();
    lines.with_target(false).with_ansi(false).with_writer(std::io::stdout).init();
}

fn damage(seeds: std::ops::Range<u64>, trace: bool) -> ExitCode {
    if trace {
        print_what_happens();
    }
    let mut failed = 0_u64;
    let mut ends: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
    for seed in seeds {
        for hurt in Hurt::ALL {
            match combsim::run_damaged(seed, hurt) {
                Ok(Ended::Isolated(pieces)) => {
                    let what = if pieces > 0 { "isolated" } else { "no loss" };
                    *ends.entry(format!("{hurt:?}: {what}")).or_default() += 1;
                }
                Ok(ended) => *ends.entry(format!("{hurt:?}: {ended:?}")).or_default() += 1,
                Err(failure) => {
                    println!("seed {seed}, {hurt:?}: {failure}");
                    failed += 1;
                }
            }
        }
    }
    for (what, count) in ends {
        println!("{count:>8} {what}");
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(seeds: std::ops::Range<u64>, hours: Option<f64>, keep_going: bool) -> ExitCode {
    let began = std::time::Instant::now();
    let mut seed = seeds.start;
    let mut failed = 0_u64;
    loop {
        let in_time = hours.is_some_and(|hours| began.elapsed().as_secs_f64() < hours * 3600.0);
        if seed >= seeds.end && !in_time {
            break;
        }
        if let Err(failure) = combsim::run(seed) {
            println!("seed {seed}: {failure}");
            failed += 1;
            if !keep_going {
                return ExitCode::FAILURE;
            }
        }
        seed += 1;
    }
    println!("{} histories, {failed} failed, {:.1} s", seed - seeds.start, began.elapsed().as_secs_f64());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
