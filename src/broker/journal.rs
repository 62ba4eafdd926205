//! What the broker asks of the engine while it decides: staging, room, and where bytes are.

use crate::broker::command::Source;
use crate::engine::commit::Engine;
use crate::engine::staging::Bytesource;
pub use crate::engine::staging::Room as Fit;
use crate::format::delta::Delta;
use crate::format::run::RunHeader;
use crate::index::runs::{Place, Run};
use crate::io::Ring;
use crate::types::PartitionId;

/// The engine, as the broker sees it. What is staged is never taken back.
pub trait Journal {
    /// Whether runs of `run_bytes` bytes in all (headers included) in `runs` runs, and `delta_bytes` bytes of
    /// records, can be staged now, in one group.
    fn fits(&self, run_bytes: u64, delta_bytes: u64) -> Fit;

    /// Stages one record into the open group.
    fn stage(&mut self, delta: &Delta<'_>);

    /// Stages one run into the open group; `entries` are its encoded entries, `run.bytes` in all.
    fn stage_run(&mut self, run: &RunHeader, entries: &[&[u8]]) -> Place;

    /// Where the entries of a staged or stored run are to be had. The bytes of a staged run are in memory.
    fn source(&self, partition: PartitionId, run: &Run) -> Source;
}

/// Upper bound of the bytes that records of fixed size take, for `Journal::fits`.
pub const DELTA_BYTES: u64 = 256;

impl<R: Ring> Journal for Engine<R> {
    fn fits(&self, run_bytes: u64, delta_bytes: u64) -> Fit {
        self.room(run_bytes, delta_bytes)
    }

    fn stage(&mut self, delta: &Delta<'_>) {
        Engine::stage(self, delta);
    }

    fn stage_run(&mut self, run: &RunHeader, entries: &[&[u8]]) -> Place {
        Engine::stage_run(self, run, entries)
    }

    fn source(&self, _: PartitionId, run: &Run) -> Source {
        match Engine::source(self, run) {
            Bytesource::Memory(bytes) => Source::Memory(bytes),
            Bytesource::File(file, position) => Source::File { file, position, bytes: run.bytes },
        }
    }
}

/// A journal in memory, for tests of the layers above the engine.
#[cfg(test)]
pub(crate) mod memory {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::{Fit, Journal, Place, Run, Source};
    use crate::broker::core::Core;
    use crate::format::delta::Delta;
    use crate::format::run::RunHeader;
    use crate::index::rows::SegmentRows;
    use crate::index::{Found, Ids, Lookup};
    use crate::types::{FileNumber, PartitionId};

    /// Runs of a segment, so that nearly everything a test does meets messages in sealed segments.
    const RUNS_PER_SEGMENT: usize = 2;
    /// Sealed segments at most, so that tests with very many messages stay quick.
    const SEGMENTS_MAX: usize = 32;

    /// Index files in memory: drops rows of sealed segments from the state, and answers from them.
    #[derive(Default)]
    pub(crate) struct MemoryIndex {
        rows: BTreeMap<FileNumber, Arc<SegmentRows>>,
    }

    impl MemoryIndex {
        /// Seals all segments but the newest and drops their rows.
        pub(crate) fn seal<J: Journal>(&mut self, core: &mut Core<J>) {
            let mut number = self.rows.last_key_value().map_or(FileNumber(1), |(last, _)| last.next());
            while core.state.index.rows(number.next()).is_some() {
                if let Some(rows) = core.state.index.rows(number) {
                    self.rows.insert(number, rows);
                    core.state.index.set_indexed(number);
                }
                number = number.next();
            }
            let partitions = &mut core.state.partitions;
            while core.state.index.evict(0, |partition, see| {
                if let Some(partition) = partitions.get_mut(&partition) {
                    see(&mut partition.spans);
                }
            }) {}
        }

        /// Answers lookups.
        pub(crate) fn answer<J: Journal>(&self, core: &mut Core<J>, lookups: &[Lookup]) {
            for lookup in lookups {
                let segment = lookup.segment();
                let rows = self.rows.get(&segment).expect("only sealed segments are looked up");
                let mut runs = Vec::new();
                rows.each(segment, |partition, run, _, _| {
                    if partition == lookup.partition() {
                        runs.push(run);
                    }
                });
                let found = match *lookup {
                    Lookup::Runs { from, .. } => {
                        Found::Runs(runs.into_iter().filter(|run| run.end() > from).collect())
                    }
                    Lookup::Created { time, end, .. } => {
                        let first = runs.iter().find(|run| run.created >= time);
                        Found::Created(first.map_or(end, |run| run.base))
                    }
                    Lookup::Find { partition, hash, .. } => {
                        let mut ids = Ids::new();
                        rows.find(partition, hash, &mut ids);
                        Found::Ids(ids)
                    }
                };
                core.answer_lookup(*lookup, found);
            }
        }
    }

    /// Keeps runs in memory and counts records.
    #[derive(Default)]
    pub(crate) struct MemoryJournal {
        runs: Vec<Vec<u8>>,
        /// Debug text of every staged record, in order.
        pub(crate) records: Vec<String>,
        /// Runs of more bytes than this find the disk full.
        pub(crate) full_above: Option<u64>,
        /// Answer of `fits`, if not `Now`.
        pub(crate) fit: Option<Fit>,
        /// Hand out files that cannot be read instead of bytes, to reach the path that loads.
        pub(crate) cold: bool,
    }

    struct Unreadable;

    impl crate::io::ReadAt for Unreadable {
        fn read_at(&self, _: u64, _: usize) -> std::io::Result<bytes::Bytes> {
            Err(std::io::Error::other("unreadable"))
        }

        fn path(&self) -> &std::path::Path {
            std::path::Path::new("memory")
        }
    }

    impl Journal for MemoryJournal {
        fn fits(&self, run_bytes: u64, _: u64) -> Fit {
            if self.full_above.is_some_and(|most| run_bytes > most) {
                return Fit::Full { free_bytes: 0, copies: true };
            }
            self.fit.unwrap_or(Fit::Now)
        }

        fn stage(&mut self, delta: &Delta<'_>) {
            self.records.push(format!("{delta:?}"));
        }

        fn stage_run(&mut self, run: &RunHeader, entries: &[&[u8]]) -> Place {
            let bytes: Vec<u8> = entries.concat();
            assert_eq!(bytes.len(), run.bytes as usize);
            self.runs.push(bytes);
            let run = self.runs.len() - 1;
            let segment = (run / RUNS_PER_SEGMENT).min(SEGMENTS_MAX);
            Place { segment: FileNumber(segment as u64 + 1), position: run as u64 }
        }

        fn source(&self, _: PartitionId, run: &Run) -> Source {
            if self.cold {
                return Source::File {
                    file: std::sync::Arc::new(Unreadable),
                    position: run.place.position,
                    bytes: run.bytes,
                };
            }
            let index = usize::try_from(run.place.position).expect("small");
            Source::Memory(self.runs.get(index).expect("staged").clone().into())
        }
    }
}
