//! Measures what the disk under a directory makes of the ways in which Comb could write.
//!
//! Purpose: the figures behind the decisions in `docs/adr/` can be had again, on any machine, with one command.
//!
//! Invariants:
//! - Everything is written into one directory that the probe creates and removes; an existing one is refused.
//! - All cells are measured once per round, and rounds are repeated, so that a passing disturbance does not fall
//!   on one cell alone. Times are medians over rounds; device counters are minima, because other writers of the
//!   same device can only add to them.
//!
//! Must not: share code with the daemon. It measures the system calls, not our use of them.

mod cells;
mod commit;
mod disk;
mod report;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use thiserror::Error;

use crate::disk::Device;

/// A failed step of the probe.
#[derive(Debug, Error)]
pub(crate) enum ProbeError {
    /// The operating system refused something.
    #[error("{doing} {}: {source}; choose a directory on the file system to measure with --dir", path.display())]
    Os {
        /// What was tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A direct write ended early, which leaves the cell without a meaning.
    #[error("{}: wrote {got} of {wanted} bytes at {position}; is the file system full?", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Where.
        position: u64,
        /// Bytes to write.
        wanted: usize,
        /// Bytes written.
        got: usize,
    },
    /// A worker thread is gone.
    #[error("a worker thread of the probe ended early; run it again")]
    Worker,
}

impl ProbeError {
    /// Wraps an error of the operating system.
    pub(crate) fn os(doing: &'static str, path: &Path, source: impl Into<std::io::Error>) -> ProbeError {
        ProbeError::Os { doing, path: path.to_owned(), source: source.into() }
    }
}

/// Measures writes and data syncs in a directory and prints markdown tables.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// Directory to create, measure in and remove again. Needs 512 MiB.
    #[arg(long)]
    dir: PathBuf,
    /// Rounds; the tables show medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Milliseconds per cell and round.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) cell_ms: u64,
    /// Idle processes that keep processors awake meanwhile. Without them an otherwise idle virtual machine may
    /// show the wake-up time of a halted processor (about 4 ms) instead of the disk's.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) awake: u32,
    /// Be such an idle process.
    #[arg(long, hide = true)]
    spin: bool,
}

/// Removes the directory when the probe ends, however it ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("combprobe: removing {}: {error}; remove it by hand", self.0.display());
        }
    }
}

/// Processes of the idle class that do nothing until this is dropped.
///
/// The idle class matters: anything else that becomes runnable takes the processor at once, while a thread of
/// merely low priority keeps it to the end of its slice, which is as long as the delay to be avoided. Setting
/// the class takes `chrt` of util-linux.
struct Awake(Vec<Child>);

impl Awake {
    fn start(count: u32) -> Result<Awake, ProbeError> {
        let myself = Path::new("/proc/self/exe");
        let program = std::fs::read_link(myself).map_err(|e| ProbeError::os("resolving", myself, e))?;
        let mut awake = Awake(Vec::new());
        for _ in 0..count {
            let child = Command::new("chrt")
                .args(["-i", "0"])
                .arg(&program)
                .args(["--dir", ".", "--spin"])
                .stdin(Stdio::null())
                .spawn()
                .map_err(|e| ProbeError::os("starting an idle process with", Path::new("chrt"), e))?;
            awake.0.push(child);
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Only fails if it is gone already, which is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What such a process does: nothing, until its parent is gone.
fn spin() {
    let parent = rustix::process::getppid();
    while rustix::process::getppid() == parent {
        for _ in 0..1_000_000 {
            std::hint::spin_loop();
        }
    }
}

fn run(args: &Args) -> Result<(), ProbeError> {
    std::fs::create_dir(&args.dir).map_err(|e| ProbeError::os("creating", &args.dir, e))?;
    let scratch = Scratch(args.dir.clone());
    let device = Device::of(&scratch.0)?;
    let budget = Duration::from_millis(args.cell_ms);
    let started = Instant::now();
    let load_before = report::load_average();
    let awake = Awake::start(args.awake)?;

    let mut writes = report::Rounds::default();
    let mut commits = report::Rounds::default();
    let mut preparation = report::Rounds::default();
    for round in 1..=args.rounds {
        cells::writes(&scratch.0, &device, budget, &mut writes)?;
        commit::commits(&scratch.0, &device, budget, &mut commits)?;
        cells::preparation(&scratch.0, &device, &mut preparation)?;
        eprintln!("combprobe: round {round} of {} after {:.0?}", args.rounds, started.elapsed());
    }

    drop(awake);
    report::conditions(&device, args, &load_before);
    println!("\n### One write, made durable\n");
    writes.print("layout");
    println!("\n### One commit of messages and cursors\n");
    commits.print("form");
    println!("\n### Filling 64 MiB, preparation included\n");
    preparation.print_preparation();
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.spin {
        spin();
        return ExitCode::SUCCESS;
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("combprobe: {error}");
            ExitCode::FAILURE
        }
    }
}
