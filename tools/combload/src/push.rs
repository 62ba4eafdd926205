//! `push`: batches from many connections.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::StatusCode;
use tokio::task::JoinSet;

use crate::LoadError;
use crate::args::{Args, Messages, Push};
use crate::body::{Producer, Template};
use crate::client::Client;
use crate::ledger::LedgerWriter;
use crate::stats::{Pacer, Report, Tally};
use crate::wire::{self, Pushed};

/// A number that two runs hardly share: process id and time.
pub(crate) fn run_number() -> u32 {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    let mixed = (nanos ^ (u64::from(std::process::id()) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

/// Collects the tallies of all workers.
///
/// # Errors
/// The first worker that could not run.
pub(crate) async fn gather(mut workers: JoinSet<Result<Tally, LoadError>>) -> Result<Tally, LoadError> {
    let mut sum = Tally::new();
    while let Some(ended) = workers.join_next().await {
        match ended {
            Ok(tally) => sum.merge(tally?),
            Err(error) => sum.errors.other("worker_lost", "a worker", &error),
        }
    }
    Ok(sum)
}

/// One pushing connection.
pub(crate) struct Pusher {
    client: Client,
    template: Template,
    producer: Producer,
    batch: usize,
    partitions: usize,
    accept_204: bool,
    turn: usize,
    next: u64,
}

/// How a push ended.
pub(crate) struct Outcome {
    /// Partition used.
    pub(crate) partition: usize,
    /// Sequence of the first message.
    pub(crate) first: u64,
    /// Whether the broker answered that all of it is stored.
    pub(crate) stored: bool,
}

impl Pusher {
    /// Connects.
    ///
    /// # Errors
    /// The server is not there, or the payload is too small.
    pub(crate) async fn new(
        args: &Args,
        messages: &Messages,
        run: u32,
        worker: usize,
    ) -> Result<Pusher, LoadError> {
        let producer = Producer { run, number: u16::try_from(worker).unwrap_or(u16::MAX) };
        Ok(Pusher {
            template: Template::new(&messages.queue, producer, messages.batch, messages.payload)?,
            client: Client::connect(&args.address).await?,
            producer,
            batch: messages.batch,
            partitions: messages.partitions,
            accept_204: false,
            turn: worker,
            next: 0,
        })
    }

    /// Pushes one batch and counts it. A lost connection is counted and brought back.
    ///
    /// # Errors
    /// The server did not come back.
    pub(crate) async fn push(&mut self, time_us: u64, tally: &mut Tally) -> Result<Outcome, LoadError> {
        let (partition, first) = (self.turn % self.partitions, self.next);
        self.turn = self.turn.wrapping_add(1);
        self.next += self.batch as u64;
        let body = self.template.fill(partition, first, time_us);
        let stored = match self.client.post(&wire::push_uri(), body).await {
            Ok((status, answer)) => self.judge(status, &answer, tally),
            Err(error) => {
                tally.errors.other("connection_lost", "push", &error);
                self.client.reconnect().await?;
                false
            }
        };
        Ok(Outcome { partition, first, stored })
    }

    fn judge(&self, status: StatusCode, answer: &Bytes, tally: &mut Tally) -> bool {
        tally.requests += 1;
        if self.accept_204 && status == StatusCode::NO_CONTENT {
            tally.messages += self.batch as u64;
            return true;
        }
        if status != StatusCode::CREATED && status != StatusCode::OK {
            tally.errors.status("push", status.as_u16(), answer);
            return false;
        }
        let items: Vec<Pushed> = match serde_json::from_slice(answer) {
            Ok(items) => items,
            Err(error) => {
                tally.errors.other("answer_unreadable", "push", &error);
                return false;
            }
        };
        if items.len() != self.batch {
            tally.errors.other(
                "answer_count",
                "push",
                &format!("{} verdicts for {} messages", items.len(), self.batch),
            );
            return false;
        }
        let mut all = true;
        for item in items {
            match &*item.status {
                "queued" => tally.messages += 1,
                // Sequences are never sent twice, so the broker is wrong about it.
                word => {
                    all = false;
                    let why = item.error.as_deref().unwrap_or("no reason given");
                    tally.errors.other(&format!("item_{word}"), "push", &why);
                }
            }
        }
        all
    }
}

/// Runs `push`.
///
/// # Errors
/// The server is not there or went away, the ledger cannot be written, the payload is too small.
pub(crate) async fn run(args: &Args, options: &Push) -> Result<Report, LoadError> {
    let ledger = options.ledger.as_deref().map(LedgerWriter::open).transpose()?;
    let run = run_number();
    let mut pushers = Vec::with_capacity(options.connections);
    for worker in 0..options.connections {
        let mut pusher = Pusher::new(args, &options.messages, run, worker).await?;
        pusher.accept_204 = options.target_204;
        pushers.push(pusher);
    }
    let start = Instant::now();
    let length = Duration::from_secs_f64(options.seconds);
    let mut workers = JoinSet::new();
    for (worker, pusher) in pushers.into_iter().enumerate() {
        let pacer = Pacer::new(options.rate, options.connections, worker, start, length);
        workers.spawn(work(pusher, pacer, start, ledger.clone()));
    }
    let tally = gather(workers).await?;
    let elapsed = start.elapsed();
    if let Some(ledger) = ledger {
        ledger.finish()?;
    }
    Ok(tally.report(elapsed))
}

async fn work(
    mut pusher: Pusher,
    mut pacer: Pacer,
    start: Instant,
    ledger: Option<LedgerWriter>,
) -> Result<Tally, LoadError> {
    let mut tally = Tally::new();
    while let Some(begun) = pacer.turn().await {
        let time_us = begun.saturating_duration_since(start).as_micros() as u64;
        let outcome = pusher.push(time_us, &mut tally).await?;
        tally.latency.record(begun.elapsed());
        if let Some(ledger) = &ledger {
            ledger.line(pusher.producer, outcome.partition, outcome.first, pusher.batch, outcome.stored)?;
        }
    }
    for waited in pacer.unsent() {
        tally.latency.record(waited);
        tally.count("never_sent", 1);
    }
    Ok(tally)
}
