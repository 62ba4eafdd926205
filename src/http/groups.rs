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
use crate::types::{DEFAULT_PARTITION, IdHash};

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

    /// Adds an item; `at` names it in errors. A trace id is kept only where the route stores them.
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
        if queue.is_empty() {
            return Err(ApiError::bad_request(format!("{at}: queue is empty")));
        }
        let Some(payload) = message.payload else {
            return Err(ApiError::bad_body(format!("{at}: payload is required")));
        };
        let partition = given(&message.partition).unwrap_or(DEFAULT_PARTITION);
        let sent = given(&message.transaction_id);
        let limit = self.limits.transaction_id_bytes;
        if let Some(bytes) = sent.map(str::len).filter(|bytes| *bytes as u64 > u64::from(limit)) {
            return Err(ApiError::bad_request(format!(
                "{at}: transactionId has {bytes} bytes, the limit is {limit} (limits.transaction_id_bytes)"
            )));
        }
        let index = self.group(queue, partition)?;
        let (Some(group), Some(seen)) = (self.groups.get_mut(index), self.seen.get_mut(index)) else {
            unreachable!("`group` returns an index of both");
        };
        let id = self.handle.ids().message_id();
        let transaction_id = sent.map_or_else(|| Cow::Owned(id.text()), Cow::Borrowed);
        let hash = id_hash(self.handle.log(), &transaction_id);
        let number = u32::try_from(group.items.len()).unwrap_or(u32::MAX);
        let repeat_of = match sent {
            None => None,
            Some(_) => match seen.entry(hash) {
                hashbrown::hash_map::Entry::Occupied(first) => Some(*first.get()),
                hashbrown::hash_map::Entry::Vacant(vacant) => {
                    vacant.insert(number);
                    None
                }
            },
        };
        if repeat_of.is_none() {
            let trace = message.trace.filter(|_| traces).and_then(trace_id);
            let entry = Entry {
                id,
                hash,
                transaction_id: Cow::Borrowed(&transaction_id),
                trace,
                producer: None,
                payload: payload.get().as_bytes(),
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
        group.items.push(PushItem { id, hash, minted: sent.is_none(), repeat_of, end });
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
