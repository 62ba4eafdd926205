//! `drain` and `ack`: pop and acknowledge until nothing is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{StatusCode, Uri};
use tokio::task::JoinSet;

use crate::LoadError;
use crate::args::{Args, Drain};
use crate::client::{Client, SendError};
use crate::push::gather;
use crate::stats::{Report, Tally};
use crate::wire::{self, Acked, Message, Pop, Popped};

/// Pause before another look at a queue that is empty while others still hold leases.
const EMPTY_PAUSE: Duration = Duration::from_millis(2);

/// Pause after a bad answer, so that a server in trouble is not hammered.
const TROUBLE_PAUSE: Duration = Duration::from_millis(100);

/// Pops once. `None`: nothing there, or trouble that was counted.
///
/// # Errors
/// The server did not come back.
pub(crate) async fn pop(
    client: &mut Client,
    uri: &Uri,
    tally: &mut Tally,
) -> Result<Option<Bytes>, LoadError> {
    match client.get(uri).await {
        Ok((StatusCode::OK, answer)) => {
            tally.requests += 1;
            Ok(Some(answer))
        }
        Ok((StatusCode::NO_CONTENT, _)) => {
            tally.requests += 1;
            tally.count("empty_pops", 1);
            Ok(None)
        }
        Ok((status, answer)) => {
            tally.requests += 1;
            tally.errors.status("pop", status.as_u16(), &answer);
            tokio::time::sleep(TROUBLE_PAUSE).await;
            Ok(None)
        }
        Err(error) => lost(client, "pop", &error, tally).await.map(|()| None),
    }
}

/// The messages of a pop's answer; an unreadable one is counted and empty.
pub(crate) fn messages<'a>(answer: &'a Bytes, tally: &mut Tally) -> Vec<Message<'a>> {
    match serde_json::from_slice::<Popped<'a>>(answer) {
        Ok(popped) => popped.messages,
        Err(error) => {
            tally.errors.other("answer_unreadable", "pop", &error);
            Vec::new()
        }
    }
}

/// Sends an acknowledgement of `count` messages and counts its verdicts. Returns how many succeeded.
///
/// # Errors
/// The server did not come back.
pub(crate) async fn acknowledge(
    client: &mut Client,
    uri: &Uri,
    body: Bytes,
    count: usize,
    tally: &mut Tally,
) -> Result<u64, LoadError> {
    let (status, answer) = match client.post(uri, body).await {
        Ok(answered) => answered,
        Err(error) => return lost(client, "ack", &error, tally).await.map(|()| 0),
    };
    tally.requests += 1;
    if status != StatusCode::OK {
        tally.errors.status("ack", status.as_u16(), &answer);
        return Ok(0);
    }
    let verdicts: Vec<Acked> = match serde_json::from_slice(&answer) {
        Ok(verdicts) => verdicts,
        Err(error) => {
            tally.errors.other("answer_unreadable", "ack", &error);
            return Ok(0);
        }
    };
    if verdicts.len() != count {
        tally.errors.other("answer_count", "ack", &format!("{} verdicts for {count} items", verdicts.len()));
    }
    let mut good = 0;
    for verdict in verdicts {
        if verdict.success {
            good += 1;
        } else {
            let why = verdict.error.as_deref().unwrap_or("no reason given");
            tally.errors.other("ack_refused", "ack", &why);
        }
    }
    Ok(good)
}

async fn lost(
    client: &mut Client,
    doing: &str,
    error: &SendError,
    tally: &mut Tally,
) -> Result<(), LoadError> {
    tally.errors.other("connection_lost", doing, error);
    client.reconnect().await
}

/// Runs `drain`: one acknowledgement per pop.
///
/// # Errors
/// The server is not there or went away.
pub(crate) async fn drain(args: &Args, options: &Drain) -> Result<Report, LoadError> {
    run(args, options, false).await
}

/// Runs `ack`: one acknowledgement per message.
///
/// # Errors
/// The server is not there or went away.
pub(crate) async fn ack(args: &Args, options: &Drain) -> Result<Report, LoadError> {
    run(args, options, true).await
}

async fn run(args: &Args, options: &Drain, single: bool) -> Result<Report, LoadError> {
    let mut clients = Vec::with_capacity(options.connections);
    for _ in 0..options.connections {
        clients.push(Client::connect(&args.address).await?);
    }
    let uri = Pop {
        queue: &options.queue,
        group: options.group.as_deref(),
        batch: options.batch,
        claim: options.claim,
        wait_ms: None,
        auto_ack: false,
    }
    .uri();
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(options.seconds);
    let holding = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for client in clients {
        let work = Work {
            uri: uri.clone(),
            group: options.group.clone(),
            single,
            end,
            holding: Arc::clone(&holding),
        };
        workers.spawn(work.run(client));
    }
    Ok(gather(workers).await?.report(start.elapsed()))
}

struct Work {
    uri: Uri,
    group: Option<String>,
    single: bool,
    end: Instant,
    /// Workers that hold a lease.
    holding: Arc<AtomicUsize>,
}

impl Work {
    async fn run(self, mut client: Client) -> Result<Tally, LoadError> {
        let mut tally = Tally::new();
        while Instant::now() < self.end {
            let begun = Instant::now();
            let Some(answer) = pop(&mut client, &self.uri, &mut tally).await? else {
                // Others may hand back what they hold, so an empty queue is the end only when nobody holds any.
                if self.holding.load(Ordering::SeqCst) == 0 {
                    break;
                }
                tokio::time::sleep(EMPTY_PAUSE).await;
                continue;
            };
            tally.other("pop_us", begun.elapsed());
            self.holding.fetch_add(1, Ordering::SeqCst);
            let done = self.settle(&mut client, &answer, begun, &mut tally).await;
            self.holding.fetch_sub(1, Ordering::SeqCst);
            done?;
        }
        Ok(tally)
    }

    async fn settle(
        &self,
        client: &mut Client,
        answer: &Bytes,
        begun: Instant,
        tally: &mut Tally,
    ) -> Result<(), LoadError> {
        let messages = messages(answer, tally);
        let group = self.group.as_deref();
        if self.single {
            for message in &messages {
                let asked = Instant::now();
                let body = wire::ack_body(message, group);
                tally.messages += acknowledge(client, &wire::ack_uri(), body, 1, tally).await?;
                tally.latency.record(asked.elapsed());
            }
        } else if !messages.is_empty() {
            let asked = Instant::now();
            let body = wire::ack_batch_body(&messages, group);
            tally.messages +=
                acknowledge(client, &wire::ack_batch_uri(), body, messages.len(), tally).await?;
            tally.other("ack_us", asked.elapsed());
            tally.latency.record(begun.elapsed());
        }
        Ok(())
    }
}
