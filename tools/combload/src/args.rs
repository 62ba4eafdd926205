//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use serde::Serialize;

/// Puts load on a queue broker, or judges what it kept. Prints one JSON line per run.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// Host and port of the broker.
    #[arg(long, global = true, default_value = "127.0.0.1:6632")]
    pub(crate) address: String,
    /// Threads of the load generator.
    #[arg(long, global = true, default_value_t = 1, value_parser = one_to(256))]
    pub(crate) threads: usize,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Serialize, Subcommand)]
#[serde(untagged)]
pub(crate) enum Command {
    /// Push batches, as fast as answered or at a rate.
    Push(Push),
    /// Pop and acknowledge whole batches until the queue is empty.
    Drain(Drain),
    /// Pop batches and acknowledge every message with a request of its own, until the queue is empty.
    Ack(Drain),
    /// Push, pop and acknowledge at the same time; latencies are from push to delivery.
    Pipeline(Pipeline),
    /// Compare what a queue holds with what `push --ledger` recorded.
    Verify(Verify),
    /// Be a server that reads bodies and answers 204: what HTTP alone costs on this machine.
    Server204(Server204),
}

impl Command {
    /// Its word on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Command::Push(_) => "push",
            Command::Drain(_) => "drain",
            Command::Ack(_) => "ack",
            Command::Pipeline(_) => "pipeline",
            Command::Verify(_) => "verify",
            Command::Server204(_) => "server204",
        }
    }
}

/// What messages are pushed.
#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Messages {
    /// Queue.
    #[arg(long, default_value = "load", value_parser = name)]
    pub(crate) queue: String,
    /// Partitions, used in turn: one per request.
    #[arg(long, default_value_t = 16, value_parser = one_to(1_000_000))]
    pub(crate) partitions: usize,
    /// Messages per push request.
    #[arg(long, default_value_t = 100, value_parser = one_to(100_000))]
    pub(crate) batch: usize,
    /// Bytes of one payload.
    #[arg(long, default_value_t = 256, value_parser = one_to(1 << 20))]
    pub(crate) payload: usize,
}

/// Options of `push`.
#[derive(Debug, Serialize, clap::Args)]
pub(crate) struct Push {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) messages: Messages,
    /// Connections, each with one request in flight.
    #[arg(long, default_value_t = 16, value_parser = one_to(4096))]
    pub(crate) connections: usize,
    /// How long.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Requests per second over all connections; without it every connection sends as soon as it is answered.
    #[arg(long, value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// File to which every answered request is appended, for `verify`.
    #[arg(long)]
    pub(crate) ledger: Option<PathBuf>,
    /// Take 204 for a full answer: the target is `server204`.
    #[arg(long)]
    pub(crate) target_204: bool,
}

/// Options of `drain` and `ack`.
#[derive(Debug, Serialize, clap::Args)]
pub(crate) struct Drain {
    /// Queue.
    #[arg(long, default_value = "load", value_parser = name)]
    pub(crate) queue: String,
    /// Consumer group; without it the queue's own.
    #[arg(long, value_parser = name)]
    pub(crate) group: Option<String>,
    /// Connections.
    #[arg(long, default_value_t = 16, value_parser = one_to(4096))]
    pub(crate) connections: usize,
    /// Messages per pop.
    #[arg(long, default_value_t = 100, value_parser = one_to(100_000))]
    pub(crate) batch: usize,
    /// Partitions that one pop may claim.
    #[arg(long, default_value_t = 1, value_parser = one_to(64))]
    pub(crate) claim: usize,
    /// Stop after so long even if the queue is not empty.
    #[arg(long, default_value_t = 3600.0, value_parser = seconds)]
    pub(crate) seconds: f64,
}

/// Options of `pipeline`.
#[derive(Debug, Serialize, clap::Args)]
pub(crate) struct Pipeline {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) messages: Messages,
    /// Connections that push.
    #[arg(long, default_value_t = 8, value_parser = one_to(4096))]
    pub(crate) producers: usize,
    /// Connections that pop and acknowledge.
    #[arg(long, default_value_t = 8, value_parser = one_to(4096))]
    pub(crate) consumers: usize,
    /// Messages per pop.
    #[arg(long, default_value_t = 100, value_parser = one_to(100_000))]
    pub(crate) pop_batch: usize,
    /// Partitions that one pop may claim.
    #[arg(long, default_value_t = 1, value_parser = one_to(64))]
    pub(crate) claim: usize,
    /// Consumer group; without it the queue's own.
    #[arg(long, value_parser = name)]
    pub(crate) group: Option<String>,
    /// How long to push.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How long to wait for the rest afterwards.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub(crate) grace: f64,
    /// Push requests per second over all producers.
    #[arg(long, value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Push requests that may be ahead of the consumers before producers pause.
    #[arg(long, default_value_t = 64, value_parser = one_to(1_000_000))]
    pub(crate) ahead: usize,
}

/// Options of `verify`.
#[derive(Debug, Serialize, clap::Args)]
pub(crate) struct Verify {
    /// Queue.
    #[arg(long, default_value = "load", value_parser = name)]
    pub(crate) queue: String,
    /// What `push --ledger` wrote.
    #[arg(long)]
    pub(crate) ledger: PathBuf,
    /// Consumer group to read with; a fresh one unless given, so that nothing is taken from anybody.
    #[arg(long, value_parser = name)]
    pub(crate) group: Option<String>,
    /// Messages per pop.
    #[arg(long, default_value_t = 1000, value_parser = one_to(100_000))]
    pub(crate) batch: usize,
}

/// Options of `server204`.
#[derive(Debug, Serialize, clap::Args)]
pub(crate) struct Server204 {
    /// Port on 127.0.0.1; 0 takes a free one, which is printed to stderr.
    #[arg(long, default_value_t = 6699)]
    pub(crate) port: u16,
    /// Stop after so long; without it, at an interrupt.
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
}

fn one_to(most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(format!("a whole number from 1 to {most} is needed")),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 86_400.0 => Ok(number),
        _ => Err("seconds above 0 and up to 86400 are needed".to_owned()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.01..=10_000_000.0).contains(&number) => Ok(number),
        _ => Err("requests per second from 0.01 to 10000000 are needed".to_owned()),
    }
}

/// Names go into paths, queries and JSON as they are, so only characters that need no escape anywhere.
fn name(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !text.is_empty() && text.len() <= 200 && text.bytes().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("1 to 200 letters, digits, '-', '_' or '.' are needed".to_owned())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn names_need_no_escapes() {
        assert_eq!(name("orders.eu-1_x").unwrap(), "orders.eu-1_x");
        for bad in ["", "a b", "a/b", "a\"b", "ü"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
