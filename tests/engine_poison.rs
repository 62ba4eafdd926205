//! A first failed write poisons the engine: what rests on it is never claimed, nor is anything after it.
//!
//! Method: the real ring behind a wrapper that turns the completion of one chosen write into an error.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use comb::broker::state::State;
use comb::engine::commit::{Channels, Engine};
use comb::engine::lookup::Lookups;
use comb::engine::recovery::recover;
use comb::engine::{EngineSettings, Layout};
use comb::format::delta::Delta;
use comb::io::{
    AlignedBuf, AnyRing, Backend, Clock, Completion, DirectFile, OsFs, ReadAt, Ring, SyncMode, Waker,
    open_ring,
};
use comb::types::{GroupId, LogId, PartitionId, QueueId, Seq};

/// Fails the write with this number, from 1.
struct Failing {
    inner: AnyRing,
    fails: u64,
    writes: Vec<u64>,
}

impl Ring for Failing {
    type File = DirectFile;

    fn write_sync(&mut self, file: &Arc<DirectFile>, position: u64, data: Arc<AlignedBuf>, token: u64) {
        self.writes.push(token);
        self.inner.write_sync(file, position, data, token);
    }

    fn read(&mut self, file: &Arc<dyn ReadAt>, position: u64, bytes: usize, token: u64) {
        self.inner.read(file, position, bytes, token);
    }

    fn submit(&mut self) -> io::Result<()> {
        self.inner.submit()
    }

    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()> {
        self.inner.wait(timeout, out)?;
        let chosen = usize::try_from(self.fails - 1).ok().and_then(|index| self.writes.get(index));
        for completion in out {
            if Some(&completion.token) == chosen {
                let result: io::Result<Option<Bytes>> = Err(io::Error::other("injected EIO"));
                completion.result = result;
            }
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn name(&self) -> &'static str {
        "failing"
    }
}

#[test]
fn the_first_failed_write_poisons_and_nothing_is_claimed_after_it() {
    let dir = tempfile::TempDir::new().unwrap();
    let settings = EngineSettings {
        segment_bytes: 1 << 20,
        cursor_file_bytes: 256 << 10,
        group_bytes: 64 << 10,
        atomic_group_bytes: 256 << 10,
        pipeline_depth: 2,
        noop_idle_us: 3_600_000_000,
        tail_cache_bytes: 0,
        resident_index_bytes: 0,
        checkpoint_cursor_bytes: u64::MAX / 8,
        checkpoint_message_bytes: u64::MAX / 8,
        prepared_files: 1,
        reserve_bytes: 0,
    };
    let fs = OsFs::new(dir.path()).unwrap();
    let layout = Layout::new(dir.path());
    let recovered = recover::<State, OsFs>(&fs, &layout, &settings, LogId(5), &|_, _| {}).unwrap();
    let inner = open_ring(Backend::Auto, 64, SyncMode::default()).unwrap();
    // Nobody prepares files here: the first ones are large enough. The ends must live, though.
    let (jobs, _jobs) = mpsc::channel();
    let (_outcomes, outcomes) = mpsc::channel();
    let ring = Failing { inner, fails: 3, writes: Vec::new() };
    let (asks, _asks) = mpsc::channel();
    let (_looked_up, looked_up) = mpsc::channel();
    let channels = Channels { jobs, outcomes, lookups: Lookups::new(asks, looked_up) };
    let mut engine = Engine::new(ring, Clock::system(), settings, recovered.parts, channels);
    let stage = |engine: &mut Engine<Failing>, until: Seq| {
        engine.stage(&Delta::NextIds {
            queue: QueueId(until.0),
            partition: PartitionId(1),
            group: GroupId(1),
        });
        assert_eq!(engine.staged(), until);
        engine.submit();
        for _ in 0..500 {
            if engine.watermark() >= until || engine.poison().is_some() {
                break;
            }
            engine.poll(Some(Duration::from_millis(10)));
        }
    };
    stage(&mut engine, Seq(1));
    stage(&mut engine, Seq(2));
    assert_eq!(engine.watermark(), Seq(2));
    assert!(engine.poison().is_none());
    stage(&mut engine, Seq(3));
    assert_eq!(engine.watermark(), Seq(2), "what failed is not claimed");
    assert!(engine.poison().unwrap().0.contains("injected EIO"), "the first cause is kept");
    // Nothing is handed to the kernel any more, and the watermark stands for good.
    engine.stage(&Delta::QueueDeleted(QueueId(9)));
    assert!(!engine.submit());
    engine.poll(Some(Duration::from_millis(20)));
    assert_eq!(engine.watermark(), Seq(2));
    assert!(!engine.close(), "what was staged can never become durable");
    assert_eq!(engine.watermark(), Seq(2));
}
