//! The end of a history: faults stop, requests end, a last start, and everything is read and compared.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use comb::broker::command::{Command, DeadLetterQuery, Pop, PopTarget, Presence, Reply, StartRequest};
use comb::format::entry::Entries;
use comb::types::QUEUE_MODE_GROUP;

use crate::answers::{read, span};
use crate::failure::{Failure, Invariant, check};
use crate::oracle::claims::Claimed;
use crate::oracle::model::Lane;
use crate::profile::{GROUPS, LATE, QUEUES};
use crate::world::World;

/// Longer than every lease, delay and window of a history.
const EVERYTHING_IS_OVER_US: u64 = 7_200_000_000;

/// Turns of storage in which a sweep goes over the few partitions of a history, rows looked up on the way.
const STEPS_OF_A_SWEEP: u32 = 40;

/// A reader that nobody was before.
const READER: &str = "reader";

impl World {
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        self.note(format_args!("the end"));
        self.quiet_down()?;
        self.judge_all()?;
        let violations = self.disk.tracker_violations();
        check(violations.is_empty(), Invariant::Durable, || violations.join("; "))
    }

    pub(crate) fn leave_behind(&mut self, dir: &Path) -> Result<usize, Box<dyn Error>> {
        self.begin()?;
        self.quiet_down()?;
        self.die("left behind");
        let files = self.disk.files();
        for path in &files {
            let to = dir.join(path.strip_prefix(&self.profile.settings.data)?);
            if let Some(parent) = to.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(to, self.disk.contents(path).unwrap_or_default())?;
        }
        Ok(files.len())
    }

    /// Reads everything and compares.
    pub(crate) fn judge_all(&mut self) -> Result<(), Failure> {
        self.delete_what_is_left()?;
        self.pass(EVERYTHING_IS_OVER_US);
        self.sweep()?;
        let read = self.drain(READER, None)?;
        let transactions = self.transactions.clone();
        let now = self.now();
        self.oracle.judge_contents(&read, &transactions, self.damaged, now)?;
        self.letters()?;
        for (group, name) in GROUPS.iter().enumerate() {
            self.drain(name, Some(group))?;
            if group != LATE {
                let now = self.now();
                self.oracle.judge_end(group, &read, now)?;
            }
        }
        Ok(())
    }

    /// Whether faults stop in the middle of what is going on or behind a crash, everything ends.
    fn quiet_down(&mut self) -> Result<(), Failure> {
        if self.chance.one_in(2) {
            self.stop_faults();
            self.run_dry()?;
        }
        self.calm_down()
    }

    /// Deletions without an answer are asked for again.
    fn delete_what_is_left(&mut self) -> Result<(), Failure> {
        for (index, name) in QUEUES.iter().enumerate() {
            if self.oracle.model.queues.get(index).is_some_and(|queue| queue.deleting) {
                let (reply, _) = self.call(Command::DeleteQueue((*name).to_owned()))?;
                check(matches!(reply, Reply::DeleteQueue(_)), Invariant::Progress, || format!("{reply:?}"))?;
                self.oracle.model.forget_queue(index);
            }
        }
        Ok(())
    }

    /// Lets a sweep of retention go over everything.
    fn sweep(&mut self) -> Result<(), Failure> {
        self.pass(self.profile.settings.core.retention_sweep_us);
        for _ in 0..STEPS_OF_A_SWEEP {
            if let Some(process) = &mut self.process {
                while process.maintain() {}
            }
            self.step(false)?;
        }
        Ok(())
    }

    /// Reads everything that is left to a group, committed at delivery; where each lane begins and ends. `group`: its index, if
    /// it was used before.
    fn drain(&mut self, name: &str, group: Option<usize>) -> Result<BTreeMap<Lane, (u64, u64)>, Failure> {
        let mut ends: BTreeMap<Lane, (u64, u64)> = BTreeMap::new();
        for (index, queue) in QUEUES.iter().enumerate().take(self.profile.queues) {
            loop {
                let sent = self.now();
                let pop = Pop {
                    ticket: comb::broker::command::PopTicket(u64::MAX),
                    target: PopTarget::Queue((*queue).to_owned()),
                    group: name.to_owned(),
                    batch: 200,
                    partitions: 4,
                    auto_ack: true,
                    wait_us: 0,
                    lease_seconds: None,
                    start: if group == Some(LATE) { StartRequest::New } else { StartRequest::All },
                    presence: Arc::new(Presence::default()),
                };
                let (reply, guard) = self.call(Command::Pop(pop))?;
                guard.delivered();
                let Reply::Pop(reply) = reply else {
                    return Err(Failure::new(Invariant::Progress, format!("a pop was answered {reply:?}")));
                };
                if reply.claims.is_empty() {
                    break;
                }
                for claim in &reply.claims {
                    let lane = self.oracle.lane_of(claim.partition, index, &claim.partition_name)?;
                    let Some((first, last)) = span(claim) else { continue };
                    let begin = ends.get(&lane).map_or(first, |(begin, _)| *begin);
                    let expected = ends.insert(lane, (begin, last + 1)).map_or(0, |(_, end)| end);
                    match group {
                        None => {
                            self.oracle.is_there(lane, first)?;
                            check(expected <= first, Invariant::CursorOrder, || {
                                format!(
                                    "{name} got {first} of {} after {expected}",
                                    self.oracle.model.name(lane)
                                )
                            })?;
                            let now = self.now();
                            self.oracle.begins_at(lane, expected, first, now)?;
                        }
                        Some(group) => {
                            let now = self.now();
                            let claimed = Claimed {
                                command: 0,
                                lane,
                                group,
                                lease: None,
                                first,
                                last,
                                sent,
                                now,
                                seconds: 0,
                            };
                            self.oracle.claimed(&claimed)?;
                        }
                    }
                    let messages = self.read_claim(claim, lane)?;
                    if group.is_none() {
                        self.judge_kept(lane, first, last)?;
                    }
                    check(messages.is_some(), Invariant::AcknowledgedPush, || {
                        format!("{first} to {last} of {} cannot be read", self.oracle.model.name(lane))
                    })?;
                }
            }
        }
        Ok(ends)
    }

    /// None of these messages is too old to be there.
    fn judge_kept(&self, lane: Lane, first: u64, last: u64) -> Result<(), Failure> {
        let places = &self.oracle.model.facts(lane).places;
        let swept = self.now() - self.profile.settings.core.retention_sweep_us;
        places.range(first..=last).try_for_each(|(_, number)| self.oracle.judge_kept(lane, *number, swept))
    }

    /// Every dead letter, with its copy.
    fn letters(&mut self) -> Result<(), Failure> {
        let mut all = Vec::new();
        loop {
            let query =
                DeadLetterQuery { limit: 100, offset: all.len() as u64, ..DeadLetterQuery::default() };
            let (reply, _) = self.call(Command::DeadLetters(query))?;
            let Reply::DeadLetters(page) = reply else {
                return Err(Failure::new(Invariant::DeadLetter, format!("a list was answered {reply:?}")));
            };
            let done = page.rows.is_empty();
            all.extend(page.rows);
            // A page ends where its copies grow too large, but it holds one row at least.
            if done {
                check(all.len() as u64 == page.total, Invariant::DeadLetter, || {
                    format!("{} rows of {}", all.len(), page.total)
                })?;
                break;
            }
        }
        let mut rows = Vec::new();
        for row in &all {
            let queue = QUEUES.iter().position(|name| **name == *row.queue);
            let group = GROUPS.iter().position(|name| **name == *row.group);
            let (Some(queue), Some(group)) = (queue, group) else {
                return Err(Failure::new(Invariant::DeadLetter, format!("a row of nobody: {row:?}")));
            };
            let lane = self.oracle.lane_of(row.partition, queue, &row.partition_name)?;
            let bytes = read(&row.copy);
            let at = usize::try_from(row.copy.first.0 - row.copy.run.base.0).unwrap_or(usize::MAX);
            let entry = bytes.as_ref().ok().and_then(|bytes| Entries::new(bytes).nth(at)?.ok());
            rows.push((lane, group, row.offset.0));
            let Some(entry) = entry else {
                self.isolated += 1;
                check(self.damaged, Invariant::DeadLetter, || format!("the copy of {row:?} cannot be read"))?;
                continue;
            };
            self.oracle.delivered(lane, row.offset.0, &entry)?;
        }
        self.oracle.judge_letters(&rows)
    }
}

/// The group of callers that name none is the first.
const _: () = assert!(GROUPS.len() == 4 && QUEUE_MODE_GROUP.len() == GROUPS[0].len());
