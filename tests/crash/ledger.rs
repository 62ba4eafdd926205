//! What the clients were answered, and what they asked without an answer.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::common::api::Pushed;

/// A stored message as the answer to its push described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) partition: String,
    pub(crate) offset: u64,
    pub(crate) message_id: String,
}

/// Where a group can be in a partition: the offset that it gets next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    /// At least here: everything below was acknowledged, and that was answered.
    pub(crate) low: u64,
    /// At most here: nobody ever asked to acknowledge anything from here on.
    pub(crate) high: u64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Answered pushes by transaction id.
    pub(crate) stored: BTreeMap<String, Stored>,
    /// Pushes without an answer, and their partition.
    pub(crate) unanswered: BTreeMap<String, String>,
    /// Stored by a retry after a crash, so not in their producer's order.
    pub(crate) late: Vec<String>,
    /// By group and partition.
    pub(crate) next: HashMap<(String, String), Next>,
    /// Answered dead letters: group and transaction id.
    pub(crate) dead: Vec<(String, String)>,
    /// Dead letters that were asked for without an answer.
    pub(crate) perhaps_dead: Vec<(String, String)>,
    /// Answered transactions: the id that each pushed.
    pub(crate) moved: Vec<String>,
}

/// Shared by all clients of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<State>>);

/// How much there is.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) stored: usize,
    unanswered: usize,
    acked: u64,
    dead: usize,
    moved: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { stored, unanswered, acked, dead, moved } = self;
        write!(
            f,
            "{stored} pushes answered, {unanswered} without an answer, {acked} acks, {dead} dead letters, {moved} transactions"
        )
    }
}

impl Ledger {
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// These were sent; until an answer comes nobody knows.
    pub(crate) fn pushing(&self, ids: &[String], partition: &str) {
        self.with(|state| {
            for id in ids {
                state.unanswered.insert(id.clone(), partition.to_owned());
            }
        });
    }

    /// The answer to a push; it must agree with every earlier answer about the same id.
    pub(crate) fn pushed(&self, partition: &str, answers: &[Pushed]) {
        self.with(|state| {
            for answer in answers {
                assert!(matches!(answer.status.as_str(), "queued" | "duplicate"), "{answer:?}");
                let id = &answer.transaction_id;
                let stored = Stored {
                    partition: partition.to_owned(),
                    offset: answer.offset,
                    message_id: answer.message_id.clone(),
                };
                state.unanswered.remove(id);
                if let Some(before) = state.stored.insert(id.clone(), stored.clone()) {
                    assert_eq!(
                        (&before, answer.status.as_str()),
                        (&stored, "duplicate"),
                        "two answers about {id}"
                    );
                }
            }
        });
    }

    /// What is known about a group in a partition.
    pub(crate) fn next(&self, group: &str, partition: &str) -> Next {
        self.with(|state| *state.next.entry((group.to_owned(), partition.to_owned())).or_default())
    }

    /// Somebody asks to acknowledge everything below this offset.
    pub(crate) fn acking(&self, group: &str, partition: &str, next: u64) {
        self.with(|state| {
            let known = state.next.entry((group.to_owned(), partition.to_owned())).or_default();
            known.high = known.high.max(next);
        });
    }

    /// And that was answered with success.
    pub(crate) fn acked(&self, group: &str, partition: &str, next: u64) {
        self.with(|state| {
            let known = state.next.entry((group.to_owned(), partition.to_owned())).or_default();
            known.low = known.low.max(next);
            assert!(known.low <= known.high, "{group} {partition}: {known:?}");
        });
    }

    pub(crate) fn summary(&self) -> Summary {
        self.with(|state| Summary {
            stored: state.stored.len(),
            unanswered: state.unanswered.len(),
            acked: state.next.values().map(|next| next.low).sum(),
            dead: state.dead.len(),
            moved: state.moved.len(),
        })
    }
}

/// The payload of the message with this id: it can be recomputed from it.
pub(crate) fn payload(id: &str) -> Value {
    let sum = xxh3_64(id.as_bytes());
    let fill = char::from(b'a' + u8::try_from(sum % 26).unwrap()).to_string();
    json!({"id": id, "sum": sum, "fill": fill.repeat(usize::try_from(sum / 26 % 700).unwrap())})
}

/// Producer and number of an id `partition/producer/number`.
pub(crate) fn producer_and_number(id: &str) -> Option<(&str, u64)> {
    let mut parts = id.split('/').skip(1);
    Some((parts.next()?, parts.next()?.parse().ok()?))
}
