//! `pipeline`: producers and consumers at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::Uri;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::LoadError;
use crate::args::{Args, Pipeline};
use crate::client::Client;
use crate::consume::{acknowledge, messages, pop};
use crate::push::{Pusher, gather, run_number};
use crate::stats::{Pacer, Report, Tally};
use crate::wire::{self, Pop};

/// Long poll of a consumer; also how late it notices the end.
const WAIT_MS: u32 = 500;

/// What all workers share.
struct Shared {
    start: Instant,
    run: u32,
    /// Messages that may still be pushed before consumers have to catch up.
    room: Semaphore,
    pushed: AtomicU64,
    acked: AtomicU64,
    /// When the last message was acknowledged, in microseconds after the start.
    last_us: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }
}

/// Runs `pipeline`.
///
/// # Errors
/// The server is not there or went away, the payload is too small.
pub(crate) async fn run(args: &Args, options: &Pipeline) -> Result<Report, LoadError> {
    let run = run_number();
    let mut pushers = Vec::with_capacity(options.producers);
    for worker in 0..options.producers {
        pushers.push(Pusher::new(args, &options.messages, run, worker).await?);
    }
    let mut clients = Vec::with_capacity(options.consumers);
    for _ in 0..options.consumers {
        clients.push(Client::connect(&args.address).await?);
    }
    let uri = Pop {
        queue: &options.messages.queue,
        group: options.group.as_deref(),
        batch: options.pop_batch,
        claim: options.claim,
        wait_ms: Some(WAIT_MS),
        auto_ack: false,
    }
    .uri();
    let room = options.ahead.max(options.producers).saturating_mul(options.messages.batch);
    let shared = Arc::new(Shared {
        start: Instant::now(),
        run,
        room: Semaphore::new(room.min(Semaphore::MAX_PERMITS)),
        pushed: AtomicU64::new(0),
        acked: AtomicU64::new(0),
        last_us: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    });
    let length = Duration::from_secs_f64(options.seconds);
    let mut producers = JoinSet::new();
    for (worker, pusher) in pushers.into_iter().enumerate() {
        let pacer = Pacer::new(options.rate, options.producers, worker, shared.start, length);
        producers.spawn(produce(Arc::clone(&shared), pusher, pacer, options.messages.batch));
    }
    let mut consumers = JoinSet::new();
    for client in clients {
        consumers.spawn(consume(Arc::clone(&shared), client, uri.clone(), options.group.clone()));
    }

    // Consumers that stop early with an error would leave producers waiting for room.
    let producing = async {
        let tally = gather(producers).await?;
        let deadline = Instant::now() + Duration::from_secs_f64(options.grace);
        while shared.acked.load(Ordering::SeqCst) < shared.pushed.load(Ordering::SeqCst)
            && Instant::now() < deadline
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        shared.stop.store(true, Ordering::SeqCst);
        Ok(tally)
    };
    let consuming = async {
        let tally = gather(consumers).await;
        shared.room.close();
        tally
    };
    let (produced, consumed) = tokio::try_join!(producing, consuming)?;
    let mut tally = consumed;
    tally.merge(produced);
    let pushed = shared.pushed.load(Ordering::SeqCst);
    let acked = shared.acked.load(Ordering::SeqCst);
    tally.count("pushed", pushed);
    tally.errors.add("not_acknowledged_in_time", pushed.saturating_sub(acked));
    tally.messages = acked;
    Ok(tally.report(Duration::from_micros(shared.last_us.load(Ordering::SeqCst))))
}

async fn produce(
    shared: Arc<Shared>,
    mut pusher: Pusher,
    mut pacer: Pacer,
    batch: usize,
) -> Result<Tally, LoadError> {
    let mut tally = Tally::new();
    let permits = u32::try_from(batch).unwrap_or(u32::MAX);
    while let Some(begun) = pacer.turn().await {
        let Ok(room) = shared.room.acquire_many(permits).await else { break };
        room.forget();
        // Paced messages count from when they were due, so that waiting for room shows as latency.
        let stamp = if pacer.paced() {
            begun.saturating_duration_since(shared.start).as_micros() as u64
        } else {
            shared.now_us()
        };
        let sent = Instant::now();
        let before = tally.messages;
        let outcome = pusher.push(stamp, &mut tally).await?;
        tally.other("push_us", sent.elapsed());
        shared.pushed.fetch_add(tally.messages - before, Ordering::SeqCst);
        if !outcome.stored {
            // Nobody will hand that room back.
            shared.room.add_permits(batch);
        }
    }
    tally.count("never_sent", pacer.unsent().count() as u64);
    tally.messages = 0;
    Ok(tally)
}

async fn consume(
    shared: Arc<Shared>,
    mut client: Client,
    uri: Uri,
    group: Option<String>,
) -> Result<Tally, LoadError> {
    let mut tally = Tally::new();
    while !shared.stop.load(Ordering::SeqCst) {
        let Some(answer) = pop(&mut client, &uri, &mut tally).await? else { continue };
        let now_us = shared.now_us();
        let messages = messages(&answer, &mut tally);
        if messages.is_empty() {
            continue;
        }
        let mut own = 0;
        for message in &messages {
            match message.stamp() {
                Some(stamp) if stamp.producer.run == shared.run => {
                    own += 1;
                    tally.latency.record(Duration::from_micros(now_us.saturating_sub(stamp.time_us)));
                }
                _ => tally.count("foreign", 1),
            }
        }
        let asked = Instant::now();
        let body = wire::ack_batch_body(&messages, group.as_deref());
        let good = acknowledge(&mut client, &wire::ack_batch_uri(), body, messages.len(), &mut tally).await?;
        tally.other("ack_us", asked.elapsed());
        shared.acked.fetch_add(good.min(own), Ordering::SeqCst);
        shared.last_us.fetch_max(shared.now_us(), Ordering::SeqCst);
        shared.room.add_permits(usize::try_from(own).unwrap_or(0));
    }
    Ok(tally)
}
