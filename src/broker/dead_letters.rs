//! Dead letters: the list.
//!
//! Purpose: answer which messages were given up, with their copies. Reading changes nothing.
//!
//! Must not: read payloads; a row says where its copy is.

use super::command::{DeadLetterPage, DeadLetterQuery, DeadLetterRow, Piece, Reply};
use super::core::{Block, Core, Step};
use super::journal::Journal;
use super::state::{DeadLetter, Group, Partition, Queue};
use crate::index::Lookup;

impl<J: Journal> Core<J> {
    /// A page of the dead letters that match, newest failure first.
    pub(super) fn dead_letters(&self, query: &DeadLetterQuery) -> Step {
        let mut page = DeadLetterPage::default();
        let mut asked = Vec::new();
        let mut bytes = 0_u64;
        let end = query.offset.saturating_add(u64::from(query.limit));
        for letter in self.state.dead_letters.values().rev() {
            let Some((queue, partition, group)) = self.origin(letter) else { continue };
            let matches = query.queue.as_deref().is_none_or(|name| name == &*queue.name)
                && query.group.as_deref().is_none_or(|name| name == &*group.name);
            if !matches {
                continue;
            }
            // A page ends early where its copies grow too large, and shows one row at least.
            if (query.offset..end).contains(&page.total)
                && (page.rows.is_empty() || bytes < self.settings.pop_bytes)
                && let Some(copy) = self.copy_of(letter, &mut asked)
            {
                bytes += u64::from(copy.run.bytes);
                page.rows.push(DeadLetterRow {
                    id: letter.id,
                    queue: queue.name.clone(),
                    partition_name: partition.name.clone(),
                    partition: letter.partition,
                    group: group.name.clone(),
                    offset: letter.offset,
                    error: letter.error.clone(),
                    retries_used: letter.retries_used,
                    created: letter.created,
                    failed: letter.failed,
                    copy,
                });
            }
            page.total += 1;
        }
        if asked.is_empty() {
            Step::Done(Reply::DeadLetters(page))
        } else {
            Step::Blocked(Block::Index(asked))
        }
    }

    /// Where a letter comes from; nothing once its queue is deleted.
    fn origin(&self, letter: &DeadLetter) -> Option<(&Queue, &Partition, &Group)> {
        let partition = self.state.partitions.get(&letter.partition)?;
        let group = self.state.group_of_letters(letter.group)?;
        Some((self.state.queues.get(&partition.queue)?, partition, group))
    }

    fn copy_of(&self, letter: &DeadLetter, asked: &mut Vec<Lookup>) -> Option<Piece> {
        let copies = self.state.partitions.get(&letter.copy_partition)?;
        let run = match self.state.runs(copies, letter.copy_offset).next()? {
            Ok(run) => Some(run).filter(|run| run.base <= letter.copy_offset)?,
            Err(lookup) => {
                if asked.last() != Some(&lookup) {
                    asked.push(lookup);
                }
                return None;
            }
        };
        Some(Piece {
            run: run.header(copies.id),
            source: self.journal.source(copies.id, &run),
            first: letter.copy_offset,
            last: letter.copy_offset,
        })
    }
}
