//! The published Rust client, `queen-mq`, unmodified, against the real daemon.
//!
//! What is tested here is what a user of that client sees: its typed results, its consumers with handlers, its
//! errors. The rules behind them are tested on the wire in `tests/reference`.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod acks;
mod binary;
mod consumers;
mod groups;
mod options;
mod polls;
mod pushes;
mod transactions;

use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use queen_mq::{Config, Message, PushItem, Queen, QueueOptions, SubscriptionMode};
use serde_json::{Value, json};

use common::{Daemon, unique};

/// A bit longer than the shortest lease.
const LEASE_OVER: Duration = Duration::from_millis(1250);

/// A client of the shared daemon, which lives at least as long.
struct Client {
    queen: Queen,
    daemon: Arc<Daemon>,
}

impl Client {
    fn new() -> Client {
        let daemon = Daemon::shared();
        // No retries: a failure is shown, not covered up.
        let queen = Queen::connect(Config::new(daemon.url()).retry_attempts(1)).unwrap();
        Client { queen, daemon }
    }

    /// Pops at once what is there, from the first message on.
    async fn take(&self, queue: &str, group: Option<&str>, batch: i32) -> Vec<Message> {
        let mut pop = self.queen.queue(queue).batch(batch).wait(false);
        if let Some(group) = group {
            pop = pop.group(group).subscription_mode(SubscriptionMode::All);
        }
        pop.pop().await.unwrap()
    }

    /// Pushes one message per id, in one call.
    async fn put(&self, queue: &str, ids: &[&str]) {
        let items =
            ids.iter().map(|id| PushItem::new(queue, json!({"id": id})).transaction_id(*id)).collect();
        self.queen.queue(queue).push_items(items).await.unwrap();
    }

    /// A fresh queue with these options.
    async fn configured(&self, name: &str, options: QueueOptions) -> String {
        let queue = unique(name);
        let answer = self.queen.queue(&queue).configure(options).await.unwrap();
        assert_eq!(answer["configured"], true, "{answer}");
        queue
    }
}

impl Deref for Client {
    type Target = Queen;

    fn deref(&self) -> &Queen {
        &self.queen
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("log of combd:\n{}", self.daemon.log_tail());
        }
    }
}

fn ids(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|m| m.transaction_id.as_str()).collect()
}

fn number(message: &Message) -> u64 {
    message.data["n"].as_u64().unwrap()
}

fn numbered(range: std::ops::Range<u64>) -> impl Iterator<Item = Value> {
    range.map(|n| json!({ "n": n }))
}
