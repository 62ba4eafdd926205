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
    use super::{Fit, Journal, Place, Run, Source};
    use crate::format::delta::Delta;
    use crate::format::run::RunHeader;
    use crate::types::{FileNumber, PartitionId};

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
            Place { segment: FileNumber(1), position: self.runs.len() as u64 - 1 }
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
