//! Queues and partitions: configured, created on use, deleted.
//!
//! Purpose: the records that define a queue, and what its name says where nobody configured it.
//!
//! Invariants:
//! - Ids are taken in ascending order and never again.
//! - A queue that a push or a pop creates differs from a configured one in its lease length, namespace and task only.
//!
//! Must not: touch messages or cursors.

use super::command::{BrokerError, Configure, ConfigureReply, OptionsPatch, Patch, Reply};
use super::core::{Block, Core, Step};
use super::journal::{DELTA_BYTES, Fit, Journal};
use crate::format::delta::{Delta, PartitionDef, QueueDef};
use crate::types::{LogTime, Offset, PartitionId, QueueId, QueueOptions, WallTime, name_bytes};

/// Namespace and task of a queue that nobody configured: the first two parts of its dotted name.
#[must_use]
pub(super) fn dotted(name: &str) -> (&str, &str) {
    let mut parts = name.split('.');
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

impl<J: Journal> Core<J> {
    /// A queue by name, created if there is none. At most `DELTA_BYTES` and three times the name in records.
    pub(super) fn queue_on_use(&mut self, name: &str) -> QueueId {
        if let Some(queue) = self.state.queue_named(name) {
            return queue.id;
        }
        let (namespace, task) = dotted(name);
        let (queue, created) = (self.state.next_queue, self.stamp());
        let options = QueueOptions::created_on_use();
        self.stage(&Delta::Queue(QueueDef { queue, name, namespace, task, created, options }));
        queue
    }

    /// A partition by name, created with its queue if there is none.
    pub(super) fn partition_on_use(&mut self, queue: &str, name: &str) -> PartitionId {
        let queue = self.queue_on_use(queue);
        let known = self
            .state
            .queues
            .get(&queue)
            .and_then(|queue| queue.partitions.get(&self.state.partitions, name));
        if let Some(partition) = known {
            return partition;
        }
        let (partition, created) = (self.state.next_partition, self.stamp());
        self.stage(&Delta::Partition(PartitionDef {
            partition,
            queue,
            name,
            dead_letters_of: None,
            next: Offset(0),
            start: Offset(0),
            last_created: WallTime(0),
            last_logged: LogTime(0),
            created,
        }));
        partition
    }

    /// Creates a queue or changes one.
    pub(super) fn configure(&mut self, change: &Configure) -> Step {
        let limit = self.settings.name_bytes;
        let bytes = name_bytes(&change.queue, "", "");
        if bytes > limit {
            return Step::Done(Reply::Failed(BrokerError::NameTooLong { bytes, limit }));
        }
        let known = self.state.queue_named(&change.queue);
        let before = known.map(|queue| ConfigureReply {
            queue: queue.id,
            namespace: queue.namespace.clone(),
            task: queue.task.clone(),
            options: queue.options.clone(),
        });
        let created = known.map(|queue| queue.created);
        let fresh = || ConfigureReply {
            queue: self.state.next_queue,
            namespace: String::new(),
            task: String::new(),
            options: QueueOptions::configured(),
        };
        let defaults = fresh();
        let current = before.clone().unwrap_or_else(fresh);
        let after = ConfigureReply {
            queue: current.queue,
            namespace: merged(&change.namespace, current.namespace, defaults.namespace, change.replace),
            task: merged(&change.task, current.task, defaults.task, change.replace),
            options: merged_options(&change.options, current.options, defaults.options, change.replace),
        };
        if before.as_ref() == Some(&after) {
            return Step::Done(Reply::Configure(after));
        }
        let texts = [&change.queue, &after.namespace, &after.task, &after.options.retention_sink_hold];
        let bytes = DELTA_BYTES + texts.iter().map(|text| text.len() as u64).sum::<u64>();
        match self.journal.fits(0, bytes) {
            Fit::Now | Fit::Full { .. } => {}
            Fit::Later => return Step::Blocked(Block::Room),
            Fit::TooLarge { limit } => {
                return Step::Done(Reply::Failed(BrokerError::GroupTooLarge { bytes, limit }));
            }
        }
        let created = created.unwrap_or_else(|| self.stamp());
        self.stage(&Delta::Queue(QueueDef {
            queue: after.queue,
            name: &change.queue,
            namespace: &after.namespace,
            task: &after.task,
            created,
            options: after.options.clone(),
        }));
        Step::Done(Reply::Configure(after))
    }

    /// Deletes a queue with everything in it.
    pub(super) fn delete_queue(&mut self, name: &str) -> Step {
        let Some(queue) = self.state.queue_named(name).map(|queue| queue.id) else {
            return Step::Done(Reply::DeleteQueue(false));
        };
        if self.journal.fits(0, DELTA_BYTES) == Fit::Later {
            return Step::Blocked(Block::Room);
        }
        self.stage(&Delta::QueueDeleted(queue));
        Step::Done(Reply::DeleteQueue(true))
    }
}

fn merged<T: Clone>(patch: &Patch<T>, current: T, default: T, replace: bool) -> T {
    match patch {
        Patch::Set(value) => value.clone(),
        Patch::Reset => default,
        Patch::Keep if replace => default,
        Patch::Keep => current,
    }
}

fn merged_options(
    patch: &OptionsPatch,
    current: QueueOptions,
    default: QueueOptions,
    replace: bool,
) -> QueueOptions {
    macro_rules! fields {
        ($($name:ident),+ $(,)?) => {
            QueueOptions { $($name: merged(&patch.$name, current.$name, default.$name, replace)),+ }
        };
    }
    fields!(
        lease_seconds,
        retry_limit,
        dead_letter_queue,
        dlq_after_max_retries,
        delayed_processing_seconds,
        window_buffer_seconds,
        dedup_window_seconds,
        retention_enabled,
        retention_seconds,
        completed_retention_seconds,
        max_wait_seconds,
        encryption_enabled,
        min_pop_wait_ms,
        priority,
        retry_delay_ms,
        ttl_seconds,
        max_size,
        retention_sink_hold,
        retention_sink_hold_max_seconds,
    )
}
