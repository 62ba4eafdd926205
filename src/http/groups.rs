//! Turns pushed items into groups per partition: ids minted, transaction ids hashed, entries encoded, repeats found.

use std::borrow::Cow;

use hashbrown::HashMap;
use serde_json::value::RawValue;

use super::error::ApiError;
use super::json::{Text, envelope, given};
use super::names::{check_names, uuid};
use crate::broker::command::{BrokerError, PushGroup, PushItem};
use crate::broker::handle::Handle;
use crate::config::Limits;
use crate::format::entry::Entry;
use crate::format::id_hash;
use crate::types::{DEFAULT_PARTITION, IdHash, MessageId};

envelope!(
    /// One message of a push.
    Message {
        "queue" queue: Text<'a>,
        "partition" partition: Option<Text<'a>>,
        "payload" payload: &'a RawValue,
        "transactionId" transaction_id: Option<Text<'a>>,
        "traceId" trace: &'a RawValue,
    }
);

/// One message, whatever form it came in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    pub(crate) queue: &'a str,
    /// Empty: the default partition.
    pub(crate) partition: &'a str,
    /// Empty: the text of the message id.
    pub(crate) transaction_id: &'a str,
    /// The client's message id; none: one is minted.
    pub(crate) id: Option<MessageId>,
    pub(crate) trace: Option<u128>,
    /// One JSON document, checked.
    pub(crate) payload: &'a str,
}

/// Where an item of the request went.
#[derive(Clone, Debug)]
pub(crate) struct Place<'a> {
    /// Index of its group.
    pub(crate) group: usize,
    /// Index in the group.
    pub(crate) item: usize,
    /// Queue name as it was sent.
    pub(crate) queue: &'a str,
    /// The transaction id that counts.
    pub(crate) transaction_id: Cow<'a, str>,
}

/// Collects the items of one request.
pub(crate) struct Groups<'a> {
    handle: &'a Handle,
    limits: &'a Limits,
    groups: Vec<PushGroup>,
    /// Per group: the transaction ids that were sent, and their items.
    seen: Vec<HashMap<IdHash, u32>>,
    by_name: HashMap<(&'a str, &'a str), usize>,
    last: Option<(&'a str, &'a str, usize)>,
    /// Where every item went, in request order.
    places: Vec<Place<'a>>,
}

impl<'a> Groups<'a> {
    pub(crate) fn new(handle: &'a Handle, limits: &'a Limits) -> Groups<'a> {
        Groups {
            handle,
            limits,
            groups: Vec::new(),
            seen: Vec::new(),
            by_name: HashMap::new(),
            last: None,
            places: Vec::new(),
        }
    }

    /// Adds an item of a JSON body; `at` names it in errors. A trace id is kept only where the route stores them.
    ///
    /// # Errors
    /// 400 or 413; the whole request is to be refused.
    pub(crate) fn add(
        &mut self,
        message: &'a Message<'a>,
        at: std::fmt::Arguments<'_>,
        traces: bool,
    ) -> Result<(), ApiError> {
        let Some(queue) = message.queue.as_ref().map(Text::as_str) else {
            return Err(ApiError::bad_body(format!("{at}: queue is required")));
        };
        let Some(payload) = message.payload else {
            return Err(ApiError::bad_body(format!("{at}: payload is required")));
        };
        let item = Item {
            queue,
            partition: given(&message.partition).unwrap_or_default(),
            transaction_id: given(&message.transaction_id).unwrap_or_default(),
            id: None,
            trace: message.trace.filter(|_| traces).and_then(trace_id),
            payload: payload.get(),
        };
        self.put(item, at)
    }

    /// Adds an item; `at` names it in errors.
    ///
    /// # Errors
    /// 400 or 413; the whole request is to be refused.
    pub(crate) fn put(&mut self, item: Item<'a>, at: std::fmt::Arguments<'_>) -> Result<(), ApiError> {
        let Item { queue, partition, transaction_id: sent, .. } = item;
        if queue.is_empty() {
            return Err(ApiError::bad_request(format!("{at}: queue is empty")));
        }
        let partition = if partition.is_empty() { DEFAULT_PARTITION } else { partition };
        let (bytes, limit) = (sent.len(), self.limits.transaction_id_bytes);
        if bytes as u64 > u64::from(limit) {
            return Err(ApiError::bad_request(format!(
                "{at}: transactionId has {bytes} bytes, the limit is {limit} (limits.transaction_id_bytes)"
            )));
        }
        let index = self.group(queue, partition)?;
        let (Some(group), Some(seen)) = (self.groups.get_mut(index), self.seen.get_mut(index)) else {
            unreachable!("`group` returns an index of both");
        };
        let id = item.id.unwrap_or_else(|| self.handle.ids().message_id());
        let transaction_id = if sent.is_empty() { Cow::Owned(id.text()) } else { Cow::Borrowed(sent) };
        let hash = id_hash(self.handle.log(), &transaction_id);
        let number = u32::try_from(group.items.len()).unwrap_or(u32::MAX);
        // A client's message id may be there already: clients repeat their requests.
        let minted = sent.is_empty() && item.id.is_none();
        let repeat_of = match minted {
            true => None,
            false => match seen.entry(hash) {
                hashbrown::hash_map::Entry::Occupied(first) => Some(*first.get()),
                hashbrown::hash_map::Entry::Vacant(vacant) => {
                    vacant.insert(number);
                    None
                }
            },
        };
        if repeat_of.is_none() {
            let entry = Entry {
                id,
                hash,
                transaction_id: Cow::Borrowed(&transaction_id),
                trace: item.trace,
                producer: None,
                payload: item.payload.as_bytes(),
            };
            let bytes = (group.entries.len() + entry.encoded_bytes()) as u64;
            let limit = u64::from(self.limits.atomic_group_bytes);
            if bytes > limit {
                return Err(BrokerError::GroupTooLarge { bytes, limit }.into());
            }
            entry.encode(&mut group.entries);
        }
        let end =
            u32::try_from(group.entries.len()).expect("bounded by the 32-bit limits.atomic_group_bytes");
        self.places.push(Place { group: index, item: group.items.len(), queue, transaction_id });
        group.items.push(PushItem { id, hash, minted, repeat_of, end });
        Ok(())
    }

    /// Index of the group of a partition; a new one in order of first appearance.
    fn group(&mut self, queue: &'a str, partition: &'a str) -> Result<usize, ApiError> {
        if let Some((last_queue, last_partition, index)) = self.last
            && last_queue == queue
            && last_partition == partition
        {
            return Ok(index);
        }
        let index = match self.by_name.get(&(queue, partition)) {
            Some(index) => *index,
            None => {
                check_names(queue, partition, "", self.limits.name_bytes)?;
                let index = self.groups.len();
                self.groups.push(PushGroup {
                    queue: queue.to_owned(),
                    partition: partition.to_owned(),
                    ..PushGroup::default()
                });
                self.seen.push(HashMap::new());
                self.by_name.insert((queue, partition), index);
                index
            }
        };
        self.last = Some((queue, partition, index));
        Ok(index)
    }

    /// The groups and where every item went.
    pub(crate) fn finish(self) -> (Vec<PushGroup>, Vec<Place<'a>>) {
        (self.groups, self.places)
    }
}

/// A trace id that is a UUID; anything else is dropped.
fn trace_id(raw: &RawValue) -> Option<u128> {
    serde_json::from_str::<Text<'_>>(raw.get()).ok().and_then(|text| uuid(text.as_str()))
}
