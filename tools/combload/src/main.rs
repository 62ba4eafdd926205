//! Load generator and judge for the HTTP protocol that Comb speaks.
//!
//! Purpose: figures about a running broker as one JSON line per run, and the verdict whether what it accepted is
//! still there.
//!
//! Invariants:
//! - Memory is bounded by the options: connections, batch and payload; `verify` adds one bit per message of the
//!   ledger.
//! - Every latency of a paced run counts from the moment at which the request was due, so that a stalled server
//!   cannot hide requests that were never sent.
//! - A run that met any error ends with a failing exit code.
//!
//! Must not: link the daemon. It knows the wire only.

mod args;
mod bare;
mod body;
mod client;
mod consume;
mod ledger;
mod pipeline;
mod push;
mod stats;
mod verify;
mod wire;

use std::process::ExitCode;

use clap::Parser;
use thiserror::Error;

use crate::args::{Args, Command};
use crate::stats::Report;

/// Why a run could not be made at all.
#[derive(Debug, Error)]
pub(crate) enum LoadError {
    /// Nothing answers at the address.
    #[error("connecting to {address}: {source}; start the server first, or give its address with --address")]
    Connect {
        /// Where.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server does not speak HTTP, or went away.
    #[error("talking HTTP to {address}: {source}; is it the right port?")]
    Http {
        /// Where.
        address: String,
        /// What hyper said.
        source: hyper::Error,
    },
    /// The ledger cannot be read or written.
    #[error("ledger {path}: {source}")]
    Ledger {
        /// Which file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The ledger holds something that is no ledger line.
    #[error("ledger {path}, line {line}: not a line that `push --ledger` writes")]
    LedgerLine {
        /// Which file.
        path: String,
        /// Which line, from 1.
        line: usize,
    },
    /// The payload is too small for what has to be in it.
    #[error("--payload {asked}: at least {least} bytes are needed for producer, sequence and time")]
    Payload {
        /// What was asked for.
        asked: usize,
        /// What is possible.
        least: usize,
    },
    /// The runtime could not be started.
    #[error("starting the runtime: {source}")]
    Runtime {
        /// What the system said.
        source: std::io::Error,
    },
    /// A port cannot be listened on.
    #[error("listening on port {port}: {source}; choose another one with --port")]
    Listen {
        /// Which port.
        port: u16,
        /// What the system said.
        source: std::io::Error,
    },
}

async fn run(args: &Args) -> Result<Report, LoadError> {
    match &args.command {
        Command::Push(options) => push::run(args, options).await,
        Command::Drain(options) => consume::drain(args, options).await,
        Command::Ack(options) => consume::ack(args, options).await,
        Command::Pipeline(options) => pipeline::run(args, options).await,
        Command::Verify(options) => verify::run(args, options).await,
        Command::Server204(options) => bare::run(options).await,
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = if args.threads == 1 {
        tokio::runtime::Builder::new_current_thread().enable_all().build()
    } else {
        tokio::runtime::Builder::new_multi_thread().worker_threads(args.threads).enable_all().build()
    };
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(run(&args)),
        Err(source) => Err(LoadError::Runtime { source }),
    };
    match outcome {
        Ok(report) => {
            println!("{}", report.line(args.command.name(), &args.command));
            if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            eprintln!("combload: {error}");
            ExitCode::from(2)
        }
    }
}
