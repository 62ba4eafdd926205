//! Index lookups: answered on a thread of their own, by positional reads, so that the storage thread never waits for a
//! disk or a page fault.
//!
//! Invariant: an answer is whole or an error. A damaged or missing index file is built anew from its segment, once per
//! question, before anything is answered from it.
//!
//! Must not: change the state.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc;

use crate::engine::index_file::{self, IndexFileError};
use crate::format::index::RunRow;
use crate::index::runs::{Place, Run};
use crate::index::{Found, IdHit, Lookup};
use crate::io::{Fs, OpenMode, Waker};
use crate::log::files::Layout;
use crate::log::sealed::{IndexError, Sealed};
use crate::types::{FileNumber, LogId, Offset};

/// Index files that are kept open. Each takes a descriptor; the oldest in use goes first.
pub(super) const OPEN_MAX: usize = 64;

/// Runs that one lookup gives at most: some pops' worth, in two pages or three.
const RUNS_MAX: u32 = 256;

/// Questions under one key.
#[derive(Debug)]
pub enum Ask {
    /// Answer these.
    Look {
        /// Names the asker.
        key: u64,
        /// The questions.
        lookups: Vec<Lookup>,
    },
    /// A segment is gone: close its index.
    Forget(FileNumber),
}

/// A question and its answer, or why there is none.
pub type Answer = (Lookup, Result<Found, String>);

/// The answers for one key.
pub type LookedUp = (u64, Vec<Answer>);

/// The engine's end.
#[derive(Debug)]
pub struct Lookups {
    asks: mpsc::Sender<Ask>,
    answers: mpsc::Receiver<LookedUp>,
    /// Answered without the thread: it is gone.
    refused: Vec<LookedUp>,
    unanswered: usize,
}

impl Lookups {
    /// The engine's end of these channels.
    #[must_use]
    pub fn new(asks: mpsc::Sender<Ask>, answers: mpsc::Receiver<LookedUp>) -> Lookups {
        Lookups { asks, answers, refused: Vec::new(), unanswered: 0 }
    }

    pub(super) fn ask(&mut self, key: u64, lookups: Vec<Lookup>) {
        self.unanswered += 1;
        if let Err(mpsc::SendError(Ask::Look { key, lookups })) = self.asks.send(Ask::Look { key, lookups }) {
            let gone = "the thread that reads indexes is gone".to_owned();
            self.refused.push((key, lookups.into_iter().map(|lookup| (lookup, Err(gone.clone()))).collect()));
        }
    }

    pub(super) fn forget(&mut self, segment: FileNumber) {
        // A thread that is gone has no file open.
        let _ = self.asks.send(Ask::Forget(segment));
    }

    pub(super) fn take(&mut self) -> Vec<LookedUp> {
        let mut taken = std::mem::take(&mut self.refused);
        if self.unanswered > taken.len() {
            taken.extend(self.answers.try_iter());
        }
        self.unanswered -= taken.len();
        taken
    }

    pub(super) fn is_idle(&self) -> bool {
        self.unanswered == 0
    }
}

/// The thread's state.
pub struct LookupWorker<F: Fs> {
    fs: F,
    layout: Layout,
    log: LogId,
    /// Open index files, the one used last at the end.
    open: VecDeque<(FileNumber, Sealed<F::File>)>,
}

/// Why a lookup has no answer from a file.
#[derive(Debug, thiserror::Error)]
enum LookupError {
    #[error("{0}")]
    Index(#[from] IndexError),
    #[error("{0}")]
    File(#[from] IndexFileError),
    #[error("segment {segment} has no message {offset} of partition {partition}")]
    Missing { segment: FileNumber, partition: crate::types::PartitionId, offset: Offset },
}

impl<F: Fs> LookupWorker<F> {
    /// A worker over the index files of a data directory.
    #[must_use]
    pub fn new(fs: F, layout: Layout, log: LogId) -> LookupWorker<F> {
        LookupWorker { fs, layout, log, open: VecDeque::new() }
    }

    /// Answers until the other end is gone.
    pub fn run(mut self, asks: &mpsc::Receiver<Ask>, answers: &mpsc::Sender<LookedUp>, waker: &Waker) {
        while let Ok(ask) = asks.recv() {
            if let Some(looked_up) = self.work(ask) {
                if answers.send(looked_up).is_err() {
                    return;
                }
                waker.wake();
            }
        }
    }

    /// Does what is asked.
    pub fn work(&mut self, ask: Ask) -> Option<LookedUp> {
        match ask {
            Ask::Look { key, lookups } => {
                let answers = lookups.into_iter().map(|lookup| (lookup, self.answer(lookup))).collect();
                Some((key, answers))
            }
            Ask::Forget(segment) => {
                self.open.retain(|(number, _)| *number != segment);
                None
            }
        }
    }

    fn answer(&mut self, lookup: Lookup) -> Result<Found, String> {
        self.look(lookup).or_else(|error| {
            let segment = lookup.segment();
            tracing::warn!("building the index of segment {segment} anew: {error}");
            self.open.retain(|(number, _)| *number != segment);
            index_file::rebuild(&self.fs, &self.layout, self.log, segment)
                .map_err(LookupError::from)
                .and_then(|()| self.look(lookup))
                .map_err(|error| format!("{}: {error}", self.layout.index(segment).display()))
        })
    }

    fn sealed(&mut self, segment: FileNumber) -> Result<&Sealed<F::File>, LookupError> {
        let known = self.open.iter().position(|(number, _)| *number == segment);
        let entry = match known.and_then(|at| self.open.remove(at)) {
            Some(entry) => entry,
            None => {
                if self.open.len() >= OPEN_MAX {
                    self.open.pop_front();
                }
                let path = self.layout.index(segment);
                let file = match self.fs.open(&path, OpenMode::Cached) {
                    // There may be no descriptor left: one more try without those that are open here.
                    Err(error) if error.kind() != io::ErrorKind::NotFound && !self.open.is_empty() => {
                        self.open.clear();
                        self.fs.open(&path, OpenMode::Cached)
                    }
                    opened => opened,
                };
                (segment, Sealed::open(file.map_err(IndexError::from)?, self.log, segment)?)
            }
        };
        self.open.push_back(entry);
        match self.open.back() {
            Some((_, sealed)) => Ok(sealed),
            None => unreachable!("it was put there"),
        }
    }

    fn look(&mut self, lookup: Lookup) -> Result<Found, LookupError> {
        let segment = lookup.segment();
        let partition = lookup.partition();
        let sealed = self.sealed(segment)?;
        let missing = |offset| LookupError::Missing { segment, partition, offset };
        let run = |row: &RunRow| Run {
            base: row.base,
            count: row.count,
            bytes: row.bytes,
            created: row.created,
            logged: row.logged,
            place: Place { segment, position: u64::from(row.position) },
        };
        Ok(match lookup {
            Lookup::Runs { from, .. } => {
                let span = sealed.span(partition, from)?.ok_or_else(|| missing(from))?;
                let rows = sealed.runs(&span, from, RUNS_MAX)?;
                if rows.first().is_none_or(|row| row.base > from) {
                    return Err(missing(from));
                }
                Found::Runs(rows.iter().map(run).collect())
            }
            Lookup::Created { base, end, time, .. } => {
                let span = sealed.span(partition, base)?.ok_or_else(|| missing(base))?;
                let first = sealed.first_created(&span, time)?;
                Found::Created(first.map_or(end, |row| row.base.clamp(base, end)))
            }
            Lookup::Find { hash, .. } => {
                let ids = sealed.find(partition, hash)?;
                Found::Ids(ids.into_iter().map(|(offset, id, logged)| IdHit { offset, id, logged }).collect())
            }
        })
    }
}
