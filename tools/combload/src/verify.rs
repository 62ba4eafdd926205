//! `verify`: is everything there that was answered as stored, once, in order?

use std::time::Instant;

use crate::LoadError;
use crate::args::{Args, Verify};
use crate::client::Client;
use crate::consume::{messages, pop};
use crate::ledger::{Ledger, Sighting};
use crate::push::run_number;
use crate::stats::{Report, Tally};
use crate::wire::Pop;

/// Partitions that one pop claims.
const CLAIM: usize = 64;

/// Runs `verify`. One connection: what it sees of a partition is in the order of delivery.
///
/// # Errors
/// The server is not there or went away, the ledger cannot be read.
pub(crate) async fn run(args: &Args, options: &Verify) -> Result<Report, LoadError> {
    let mut ledger = Ledger::read(&options.ledger)?;
    let mut client = Client::connect(&args.address).await?;
    let fresh = format!("verify-{:08x}", run_number());
    let uri = Pop {
        queue: &options.queue,
        group: Some(options.group.as_deref().unwrap_or(&fresh)),
        batch: options.batch,
        claim: CLAIM,
        wait_ms: None,
        auto_ack: true,
    }
    .uri();
    let start = Instant::now();
    let mut tally = Tally::new();
    loop {
        let begun = Instant::now();
        let Some(answer) = pop(&mut client, &uri, &mut tally).await? else { break };
        tally.latency.record(begun.elapsed());
        let messages = messages(&answer, &mut tally);
        if messages.is_empty() {
            break;
        }
        for message in &messages {
            tally.messages += 1;
            let Some(stamp) = message.stamp() else {
                tally.count("foreign", 1);
                continue;
            };
            if message.transaction_id != stamp.producer.transaction_id(stamp.sequence) {
                tally.errors.other(
                    "changed",
                    "verify",
                    &format!("{} has another payload", message.transaction_id),
                );
            }
            let word = match ledger.see(stamp.producer, &message.partition, stamp.sequence) {
                Sighting::First => continue,
                Sighting::Foreign => {
                    tally.count("foreign", 1);
                    continue;
                }
                Sighting::Duplicate => "duplicate",
                Sighting::Misplaced => "misplaced",
                Sighting::Misordered => "misordered",
            };
            tally.errors.other(
                word,
                "verify",
                &format!("{} in {}", message.transaction_id, message.partition),
            );
        }
    }
    let remainder = ledger.remainder();
    tally.count("stored", remainder.stored);
    tally.count("unknown_kept", remainder.unknown_kept);
    tally.errors.add("lost", remainder.lost);
    tally.errors.add("torn_requests", remainder.torn_requests);
    Ok(tally.report(start.elapsed()))
}
