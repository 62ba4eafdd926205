//! What clients ask: pushes, pops, acknowledgements in every form, transactions, options, deletions.
//!
//! Must not: judge.

use comb::broker::command::{
    AckCall, AckItem, AckStatus, Command, Configure, DeadLetterQuery, OptionsPatch, Patch, Pop, PopTarget,
    PushGroup, PushItem, Reference, StartRequest, Transaction, TransactionAck,
};
use comb::format::entry::Entry;
use comb::format::id_hash;
use comb::types::LeaseId;

use crate::failure::Failure;
use crate::oracle::model::CommandId;
use crate::oracle::{Named, SentAck, SentGroup, SentItem, Word};
use crate::payload::{self, Label};
use crate::profile::{GROUPS, LATE, Options, PARTITIONS, QUEUES};
use crate::world::{Asked, Holding, World};

/// Old claims that are kept for acknowledgements that come too late.
const OLD_HOLDINGS: usize = 12;

/// A lease that no pop was answered.
const FOREIGN: LeaseId = LeaseId(0xFEED);

fn status(word: Word) -> AckStatus {
    match word {
        Word::Completed => AckStatus::Completed,
        Word::Failed => AckStatus::Failed,
        Word::Retry => AckStatus::Retry,
        Word::DeadLetter => AckStatus::DeadLetter,
    }
}

fn reference(named: Named) -> Reference<LeaseId> {
    match named {
        Named::Nothing => Reference::Absent,
        Named::Known(lease) => Reference::Id(lease),
        Named::Foreign => Reference::Id(FOREIGN),
    }
}

impl World {
    /// One client asks one thing.
    pub(crate) fn client(&mut self) -> Result<(), Failure> {
        let undeleted = (0..self.profile.queues)
            .find(|queue| self.oracle.model.queues.get(*queue).is_some_and(|queue| queue.deleting));
        if let Some(queue) = undeleted
            && !self.outstanding.iter().any(|one| matches!(one.asked, Asked::Delete(_)))
        {
            return self.delete(queue);
        }
        if self.outstanding.len() >= self.profile.outstanding {
            return Ok(());
        }
        match self.chance.below(100) {
            0..=34 => self.push(),
            35..=62 => self.pop(),
            63..=87 => self.ack(),
            88..=92 => self.transaction(),
            93..=95 => self.extend(),
            96 => self.reconfigure(),
            97 if self.chance.one_in(2) => {
                let queue = self.chance.index(self.profile.queues);
                self.delete(queue)
            }
            _ => self.list_letters(),
        }
    }

    fn next_command(&mut self) -> CommandId {
        self.next_command += 1;
        self.next_command
    }

    /// A queue that is not being deleted.
    fn some_queue(&mut self) -> Option<usize> {
        let queue = self.chance.index(self.profile.queues);
        let known = self.oracle.model.queues.get(queue)?;
        (!known.deleting).then_some(queue)
    }

    fn push(&mut self) -> Result<(), Failure> {
        let id = self.next_command();
        let groups = self.some_groups(id);
        if groups.is_empty() {
            return Ok(());
        }
        let (sent, groups): (Vec<SentGroup>, Vec<PushGroup>) = groups.into_iter().unzip();
        self.note(format_args!("{id}: push {}", describe_groups(&sent)));
        self.send(Command::Push(groups), Asked::Push(sent), id)
    }

    /// One or two groups for different lanes.
    fn some_groups(&mut self, command: CommandId) -> Vec<(SentGroup, PushGroup)> {
        let mut groups: Vec<(SentGroup, PushGroup)> = Vec::new();
        for _ in 0..1 + u64::from(self.chance.one_in(4)) {
            let Some(queue) = self.some_queue() else { continue };
            let partition = self.chance.index(self.profile.partitions);
            let lane = self.oracle.model.lane(queue, partition);
            if groups.iter().all(|(sent, _)| sent.lane != lane) {
                groups.push(self.group(command, queue, partition));
            }
        }
        groups
    }

    fn group(&mut self, command: CommandId, queue: usize, partition: usize) -> (SentGroup, PushGroup) {
        let lane = self.oracle.model.lane(queue, partition);
        let (queue, partition) =
            (QUEUES.get(queue).copied().unwrap_or(""), PARTITIONS.get(partition).copied().unwrap_or(""));
        let mut sent = SentGroup { lane, items: Vec::new() };
        let mut group =
            PushGroup { queue: queue.to_owned(), partition: partition.to_owned(), ..PushGroup::default() };
        let mut texts: Vec<String> = Vec::new();
        let count = self.chance.pick(&[1, 1, 2, 3, 8]);
        let now = self.now();
        for index in 0..count {
            let Some(ids) = self.process.as_ref().map(|process| process.handle.ids().clone()) else { break };
            let message = ids.message_id();
            let kind = self.chance.below(20);
            let text = match kind {
                0..=2 => message.text(),
                3..=5 if self.next_transaction > 1 => {
                    format!(
                        "t{}",
                        self.next_transaction - 1 - self.chance.below(self.next_transaction.min(12) - 1)
                    )
                }
                6 if index > 0 => {
                    let at = self.chance.index(texts.len());
                    texts.get(at).cloned().unwrap_or_default()
                }
                _ => {
                    self.next_transaction += 1;
                    format!("t{}", self.next_transaction - 1)
                }
            };
            let repeat_of = texts.iter().position(|known| *known == text);
            let minted = kind <= 2 && repeat_of.is_none();
            let bytes = if self.chance.one_in(self.profile.large_one_in) {
                self.chance.below(20_000)
            } else {
                self.chance.below(self.profile.payload_bytes)
            };
            let number = self.oracle.new_item(command, lane, &text, message, bytes, now);
            let hash = id_hash(self.log, &text);
            if repeat_of.is_none() {
                let payload =
                    payload::make(&Label { queue, partition, transaction: &text, item: number }, bytes);
                let entry = Entry {
                    id: message,
                    hash,
                    transaction_id: text.as_str().into(),
                    trace: None,
                    producer: None,
                    payload: &payload,
                };
                entry.encode(&mut group.entries);
            }
            group.items.push(PushItem {
                id: message,
                hash,
                minted,
                repeat_of: repeat_of.and_then(|first| u32::try_from(first).ok()),
                end: u32::try_from(group.entries.len()).unwrap_or(u32::MAX),
            });
            sent.items.push(SentItem { number, repeat_of, minted });
            texts.push(text);
        }
        (sent, group)
    }

    fn pop(&mut self) -> Result<(), Failure> {
        let Some(queue) = self.some_queue() else { return Ok(()) };
        let Some((ticket, presence)) = self.process.as_ref().map(|process| process.handle.pop_identity())
        else {
            return Ok(());
        };
        let anything_deleting = self.oracle.model.queues.iter().any(|queue| queue.deleting);
        let name = QUEUES.get(queue).copied().unwrap_or("").to_owned();
        let (target, queue) = match self.chance.below(8) {
            0 if !anything_deleting => {
                (PopTarget::Discovery { namespace: Some("sim".to_owned()), task: None }, None)
            }
            1 | 2 => {
                let partition = self.chance.index(self.profile.partitions);
                let partition = PARTITIONS.get(partition).copied().unwrap_or("").to_owned();
                (PopTarget::Partition { queue: name, partition }, Some(queue))
            }
            _ => (PopTarget::Queue(name), Some(queue)),
        };
        let group = self.chance.index(GROUPS.len());
        let lease_seconds =
            if self.chance.one_in(3) { None } else { Some(self.chance.pick(&[1, 2, 20, 100])) };
        let auto_ack = self.chance.one_in(6);
        let pop = Pop {
            ticket,
            target,
            group: GROUPS.get(group).copied().unwrap_or("").to_owned(),
            batch: self.chance.pick(&[1, 2, 10, 100]),
            partitions: self.chance.pick(&[1, 1, 2, 4]),
            auto_ack,
            wait_us: if self.chance.one_in(2) { 0 } else { self.chance.pick(&[100, 50_000, 3_000_000]) },
            lease_seconds,
            start: if group == LATE { StartRequest::New } else { StartRequest::All },
            presence: std::sync::Arc::clone(&presence),
        };
        let id = self.next_command();
        self.note(format_args!(
            "{id}: pop {:?} for {} batch {} partitions {} auto {auto_ack} wait {} lease {lease_seconds:?}",
            pop.target, pop.group, pop.batch, pop.partitions, pop.wait_us
        ));
        if auto_ack {
            self.oracle.blind_sent(id, queue, group);
        }
        let lease_min = match queue {
            Some(queue) => self.oracle.model.queues.get(queue).map_or(1, |queue| queue.lease_min),
            None => 1,
        };
        let seconds = lease_seconds.unwrap_or(lease_min);
        let asked = Asked::Pop { queue, group: Some(group), auto: auto_ack, seconds, presence, ticket };
        self.send(Command::Pop(pop), asked, id)
    }

    /// A claim that somebody holds, or held.
    fn some_holding(&mut self) -> Option<Holding> {
        let late = self.chance.one_in(8);
        let from = if late || self.holdings.is_empty() { &mut self.old_holdings } else { &mut self.holdings };
        if from.is_empty() {
            return None;
        }
        let index = self.chance.index(from.len());
        let holding = from.get(index).cloned()?;
        let queue = self.oracle.model.facts(holding.lane).queue;
        let deleting = self.oracle.model.queues.get(queue).is_some_and(|queue| queue.deleting);
        if deleting || self.oracle.model.facts(holding.lane).gone {
            from.remove(index);
            return None;
        }
        Some(holding)
    }

    /// What a client does not need any more; it may come back to it, too late.
    fn let_go(&mut self, holding: &Holding) {
        let before = self.holdings.len();
        self.holdings.retain(|one| one.lease != holding.lease || one.lane != holding.lane);
        if self.holdings.len() < before {
            self.old_holdings.push(holding.clone());
            if self.old_holdings.len() > OLD_HOLDINGS {
                self.old_holdings.remove(0);
            }
        }
    }

    /// An acknowledgement of a holding in one of many forms.
    fn some_ack(&mut self, holding: &Holding, plain: bool) -> SentAck {
        let mut lease = Named::Known(holding.lease);
        let all: Vec<String> = holding.messages.iter().map(|(_, text)| text.clone()).collect();
        let style = if plain { self.chance.below(3) } else { self.chance.below(12) };
        let mut keep = false;
        let items: Vec<(String, Word)> = match style {
            0 | 3 | 4 => all.into_iter().map(|text| (text, Word::Completed)).collect(),
            1 => all.into_iter().next_back().map(|text| (text, Word::Completed)).into_iter().collect(),
            2 | 5 => {
                keep = true;
                let count = 1 + self.chance.index(all.len());
                all.into_iter().take(count).map(|text| (text, Word::Completed)).collect()
            }
            6 | 7 => {
                let words = [Word::Completed, Word::Completed, Word::Failed, Word::Retry, Word::DeadLetter];
                all.into_iter().map(|text| (text, self.chance.pick(&words))).collect()
            }
            8 => {
                let word = self.chance.pick(&[Word::Failed, Word::Failed, Word::DeadLetter]);
                all.into_iter().take(1).map(|text| (text, word)).collect()
            }
            9 => {
                lease = Named::Nothing;
                let word = self.chance.pick(&[Word::Completed, Word::Completed, Word::Failed]);
                all.into_iter().next_back().map(|text| (text, word)).into_iter().collect()
            }
            10 => {
                keep = true;
                lease = Named::Foreign;
                all.into_iter().map(|text| (text, Word::Completed)).collect()
            }
            _ => {
                keep = true;
                let word = self.chance.pick(&[Word::Completed, Word::Failed]);
                vec![("never pushed".to_owned(), word)]
            }
        };
        if !keep {
            self.let_go(holding);
        }
        SentAck { lane: holding.lane, group: holding.group, lease, items }
    }

    fn wire_items(&self, ack: &SentAck, partition: comb::types::PartitionId) -> Vec<AckItem> {
        let items = ack.items.iter().map(|(text, word)| AckItem {
            hash: Some(id_hash(self.log, text)),
            partition: Reference::Id(partition),
            status: status(*word),
            lease: reference(ack.lease),
            error: (*word == Word::DeadLetter).then(|| format!("gave {text} up")),
        });
        items.collect()
    }

    fn ack(&mut self) -> Result<(), Failure> {
        let Some(first) = self.some_holding() else { return Ok(()) };
        let mut holdings = vec![first];
        if self.chance.one_in(4)
            && let Some(second) = self.some_holding()
            && holdings.iter().all(|one| one.group == second.group && one.lane != second.lane)
        {
            holdings.push(second);
        }
        let id = self.next_command();
        let mut sent = Vec::new();
        let mut items = Vec::new();
        for holding in &holdings {
            let ack = self.some_ack(holding, false);
            items.extend(self.wire_items(&ack, holding.partition));
            sent.push(ack);
        }
        let group = holdings.first().map_or(0, |holding| holding.group);
        self.note(format_args!("{id}: ack {sent:?}"));
        self.oracle.acks_sent(id, &sent);
        let call = AckCall { group: GROUPS.get(group).copied().unwrap_or("").to_owned(), items };
        self.send(Command::Ack(call), Asked::Ack(sent), id)
    }

    fn transaction(&mut self) -> Result<(), Failure> {
        let Some(holding) = self.some_holding() else { return Ok(()) };
        let id = self.next_command();
        let plain = !self.chance.one_in(4);
        let ack = self.some_ack(&holding, plain);
        let group = GROUPS.get(holding.group).copied().unwrap_or("").to_owned();
        let acks = self
            .wire_items(&ack, holding.partition)
            .into_iter()
            .map(|item| TransactionAck { group: group.clone(), item })
            .collect();
        let required = if self.chance.one_in(2) { vec![Reference::Id(holding.lease)] } else { Vec::new() };
        let (sent, pushes): (Vec<SentGroup>, Vec<PushGroup>) = self.some_groups(id).into_iter().unzip();
        let acks_sent = vec![ack];
        self.note(format_args!("{id}: transaction {acks_sent:?} and push {}", describe_groups(&sent)));
        self.oracle.acks_sent(id, &acks_sent);
        self.oracle.bundle_sent(id, &acks_sent);
        self.transactions.insert(id);
        let transaction = Transaction { acks, pushes, required };
        self.send(Command::Transaction(transaction), Asked::Transaction(acks_sent, sent), id)
    }

    fn extend(&mut self) -> Result<(), Failure> {
        let Some(holding) = self.some_holding() else { return Ok(()) };
        let id = self.next_command();
        let seconds = self.chance.pick(&[1, 10, 200]);
        self.note(format_args!("{id}: extend {} by {seconds}", holding.lease));
        let command = Command::Extend { lease: Reference::Id(holding.lease), seconds };
        self.send(command, Asked::Extend { lease: holding.lease, seconds }, id)
    }

    /// The options that the seed gave the queues.
    pub(crate) fn configure_all(&mut self) -> Result<(), Failure> {
        for queue in 0..self.profile.queues {
            if let Some(options) = self.profile.options.get(queue).copied().flatten() {
                self.configure(queue, options)?;
            }
        }
        Ok(())
    }

    fn reconfigure(&mut self) -> Result<(), Failure> {
        let Some(queue) = self.some_queue() else { return Ok(()) };
        // Every window that a queue ever had weakens what can be said of duplicates, so it mostly stays.
        let dedup = match self.profile.options.get(queue).copied().flatten() {
            Some(options) if !self.chance.one_in(6) => options.dedup_seconds,
            _ => self.chance.pick(&[0, 30, 3600]),
        };
        let options = Options::draw(&mut self.chance, dedup, self.profile.expires);
        self.configure(queue, options)
    }

    fn configure(&mut self, queue: usize, options: Options) -> Result<(), Failure> {
        let id = self.next_command();
        self.note(format_args!("{id}: configure {queue} {options:?}"));
        if let Some(known) = self.oracle.model.queues.get_mut(queue) {
            known.configuring += 1;
            known.limits.allow(&options);
            known.dedup =
                (known.dedup.0.min(options.dedup_seconds), known.dedup.1.max(options.dedup_seconds));
        }
        let configure = Configure {
            queue: QUEUES.get(queue).copied().unwrap_or("").to_owned(),
            namespace: Patch::Set(if queue == 2 { "other" } else { "sim" }.to_owned()),
            options: OptionsPatch {
                lease_seconds: Patch::Set(options.lease_seconds),
                retry_limit: Patch::Set(options.retry_limit),
                dead_letter_queue: Patch::Set(options.dead_letters),
                dlq_after_max_retries: Patch::Set(options.dead_letters),
                delayed_processing_seconds: Patch::Set(options.delay_seconds),
                window_buffer_seconds: Patch::Set(options.window_seconds),
                dedup_window_seconds: Patch::Set(options.dedup_seconds),
                retention_enabled: Patch::Set(options.retention),
                retention_seconds: Patch::Set(options.retention_seconds),
                completed_retention_seconds: Patch::Set(options.completed_seconds),
                max_wait_seconds: Patch::Set(options.max_wait_seconds),
                ..OptionsPatch::default()
            },
            ..Configure::default()
        };
        self.send(Command::Configure(configure), Asked::Configure(queue, options), id)
    }

    /// Deletes a queue that nobody else is busy with.
    fn delete(&mut self, queue: usize) -> Result<(), Failure> {
        if !self.outstanding.is_empty() || self.left_transactions > 0 {
            return Ok(());
        }
        if let Some(known) = self.oracle.model.queues.get_mut(queue) {
            known.deleting = true;
        }
        let id = self.next_command();
        self.note(format_args!("{id}: delete {queue}"));
        let name = QUEUES.get(queue).copied().unwrap_or("").to_owned();
        self.send(Command::DeleteQueue(name), Asked::Delete(queue), id)
    }

    fn list_letters(&mut self) -> Result<(), Failure> {
        let id = self.next_command();
        self.note(format_args!("{id}: dead letters"));
        let query = DeadLetterQuery { limit: 10, ..DeadLetterQuery::default() };
        self.send(Command::DeadLetters(query), Asked::DeadLetters, id)
    }
}

fn describe_groups(groups: &[SentGroup]) -> String {
    let each = groups.iter().map(|group| {
        let items: Vec<u64> = group.items.iter().map(|item| item.number).collect();
        format!("lane {} items {items:?}", group.lane.0)
    });
    each.collect::<Vec<_>>().join(", ")
}
