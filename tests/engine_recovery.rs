//! The engine on real files: what was committed is back after a stop at any point, damage is told apart.
//!
//! Method: a small driver stages groups like the storage thread does, on a temporary directory; "crash" drops the
//! engine without closing it. Then files are damaged by hand and recovery is asked what it makes of them.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

#[path = "engine_recovery/checkpoints.rs"]
mod checkpoints;
#[path = "engine_recovery/descriptors.rs"]
mod descriptors;

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use comb::broker::state::State;
use comb::engine::EngineSettings;
use comb::engine::commit::{Channels, Engine};
use comb::engine::lookup::{Ask, LookupWorker, Lookups};
use comb::engine::machine::Machine;
use comb::engine::maintenance::{Job, Maintenance, Outcome};
use comb::engine::recovery::{Recovered, RecoveryError, recover};
use comb::engine::removal::Removal;
use comb::engine::staging::{Bytesource, Room};
use comb::format::delta::{Delta, PartitionDef, QueueDef};
use comb::format::entry::Entry;
use comb::format::file_header::FileKind;
use comb::format::id_hash;
use comb::format::run::{RunForm, RunHeader};
use comb::index::runs::Run;
use comb::index::{Found, IdHit, Ids, Lookup};
use comb::io::{AnyRing, Backend, Clock, DirectFile, Fs, OpenMode, OsFs, ReadAt, SyncMode, Waker, open_ring};
use comb::log::files::Layout;
use comb::log::tail::Verdict;
use comb::types::{
    FileNumber, LogId, LogTime, MessageId, Offset, PartitionId, QueueId, QueueOptions, Seq, WallTime,
};
use tempfile::TempDir;

#[path = "engine_recovery/dropped.rs"]
mod dropped;

#[path = "engine_recovery/old_formats.rs"]
mod old_formats;

#[path = "engine_recovery/indexes.rs"]
mod indexes;

const SEGMENT_BYTES: u64 = 1 << 20;
const CURSOR_BYTES: u64 = 256 << 10;

fn settings() -> EngineSettings {
    EngineSettings {
        segment_bytes: SEGMENT_BYTES,
        cursor_file_bytes: CURSOR_BYTES,
        group_bytes: 128 << 10,
        atomic_group_bytes: 256 << 10,
        pipeline_depth: 2,
        noop_idle_us: 50_000,
        tail_cache_bytes: 256 << 10,
        resident_index_bytes: 0,
        checkpoint_cursor_bytes: u64::MAX / 8,
        checkpoint_message_bytes: u64::MAX / 8,
        prepared_files: 1,
        reserve_bytes: 0,
    }
}

struct Driver {
    dir: PathBuf,
    engine: Engine<AnyRing>,
    state: State,
    log: LogId,
    maintenance: Option<JoinHandle<()>>,
    by_hand: Option<Hand>,
    now: u64,
}

/// Maintenance without a thread: files are prepared at once, what belongs to a checkpoint is done when a test says.
struct Hand {
    maintenance: Maintenance<OsFs>,
    jobs: mpsc::Receiver<Job<DirectFile>>,
    outcomes: mpsc::Sender<Outcome<DirectFile>>,
    held: VecDeque<Job<DirectFile>>,
}

impl Hand {
    /// Takes what was sent; prepares files.
    fn receive(&mut self) {
        for job in self.jobs.try_iter() {
            match job {
                Job::Prepare { .. } => self.outcomes.send(self.maintenance.work(job)).unwrap(),
                held => self.held.push_back(held),
            }
        }
    }

    /// Does the next held job. Whether there was one.
    fn work(&mut self) -> bool {
        self.receive();
        let Some(job) = self.held.pop_front() else { return false };
        self.outcomes.send(self.maintenance.work(job)).unwrap();
        true
    }
}

fn try_recover(dir: &Path) -> Result<Recovered<State, DirectFile>, RecoveryError> {
    recover_with(dir, &settings())
}

fn recover_with(
    dir: &Path,
    settings: &EngineSettings,
) -> Result<Recovered<State, DirectFile>, RecoveryError> {
    let fs = OsFs::new(dir).unwrap();
    recover::<State, OsFs>(&fs, &Layout::new(dir), settings, LogId(77), &|_, _| {})
}

impl Driver {
    fn open(dir: &Path) -> Driver {
        Driver::open_with(dir, settings())
    }

    fn open_with(dir: &Path, settings: EngineSettings) -> Driver {
        let (mut driver, waker) = Driver::assemble(dir, settings);
        let Hand { maintenance, jobs, outcomes, .. } = driver.by_hand.take().unwrap();
        driver.maintenance = Some(std::thread::spawn(move || maintenance.run(&jobs, &outcomes, &waker)));
        driver
    }

    fn assemble(dir: &Path, settings: EngineSettings) -> (Driver, Waker) {
        let fs = OsFs::new(dir).unwrap();
        let layout = Layout::new(dir);
        let recovered = recover_with(dir, &settings).unwrap();
        let log = recovered.parts.log;
        let (jobs, jobs_receiver) = mpsc::channel();
        let (outcomes, outcomes_receiver) = mpsc::channel();
        let ring = open_ring(Backend::Auto, 64, SyncMode::default()).unwrap();
        let waker = comb::io::Ring::waker(&ring);
        let maintenance = Maintenance {
            fs,
            layout,
            settings: settings.clone(),
            log,
            epoch: recovered.parts.epoch,
            superblock: recovered.superblock,
            checkpoints: recovered.checkpoints,
            writing: None,
            removal: Removal::default(),
            filters: comb::index::tiers::Builder::default(),
        };
        let (asks, asked) = mpsc::channel();
        let (_, looked_up) = mpsc::channel();
        let lookups = Lookups::new(asks, looked_up);
        drop(asked); // nothing is looked up here
        let channels = Channels { jobs, outcomes: outcomes_receiver, lookups };
        let engine = Engine::new(ring, Clock::system(), settings, recovered.parts, channels);
        let now = recovered.machine.last_stamp.0 + 1;
        let by_hand = Some(Hand { maintenance, jobs: jobs_receiver, outcomes, held: VecDeque::new() });
        let driver = Driver {
            dir: dir.to_owned(),
            engine,
            state: recovered.machine,
            log,
            maintenance: None,
            by_hand,
            now,
        };
        (driver, waker)
    }

    fn stage(&mut self, delta: &Delta<'_>) {
        self.engine.stage(delta);
        self.state.apply(delta).unwrap();
    }

    fn create(&mut self, partitions: u64) {
        self.stage(&Delta::Queue(QueueDef {
            queue: QueueId(1),
            name: "orders",
            namespace: "orders",
            task: "",
            created: WallTime(1),
            options: QueueOptions::configured(),
        }));
        for id in 1..=partitions {
            self.stage(&Delta::Partition(PartitionDef {
                partition: PartitionId(id),
                queue: QueueId(1),
                name: &format!("p{id}"),
                dead_letters_of: None,
                next: Offset(0),
                start: Offset(0),
                last_created: WallTime(0),
                last_logged: LogTime(0),
                created: WallTime(1),
            }));
        }
    }

    fn push(&mut self, partition: u64, payloads: &[Vec<u8>]) {
        let entries: Vec<Vec<u8>> = payloads
            .iter()
            .enumerate()
            .map(|(index, payload)| {
                let id = MessageId(u128::from(self.now) << 16 | index as u128);
                let text = id.text();
                let mut bytes = Vec::new();
                Entry {
                    id,
                    hash: id_hash(self.log, &text),
                    transaction_id: text.into(),
                    trace: None,
                    producer: None,
                    payload,
                }
                .encode(&mut bytes);
                bytes
            })
            .collect();
        let slices: Vec<&[u8]> = entries.iter().map(Vec::as_slice).collect();
        let bytes: usize = slices.iter().map(|entry| entry.len()).sum();
        for _ in 0..1000 {
            match self.engine.room(bytes as u64 + 48, 0) {
                Room::Now => break,
                Room::Later => {
                    self.engine.submit();
                    self.engine.poll(Some(Duration::from_millis(20)));
                }
                other => panic!("{other:?}"),
            }
        }
        self.now += 1;
        let run = RunHeader {
            form: RunForm::Pushed,
            partition: PartitionId(partition),
            base: self.state.partitions[&PartitionId(partition)].next,
            count: u32::try_from(entries.len()).unwrap(),
            bytes: u32::try_from(bytes).unwrap(),
            created: WallTime(self.now),
            logged: self.engine.log_time(),
        };
        let ids: Vec<_> = entries
            .iter()
            .map(|entry| {
                let (hash, id, _) = comb::format::entry::peek(entry).unwrap();
                (hash, id)
            })
            .collect();
        let place = self.engine.stage_run(&run, &slices);
        self.state.apply_run(&run, &ids, place).unwrap();
    }

    /// Has indexes written for sealed segments and drops what they know, as the storage thread does.
    fn tend_index(&mut self) {
        for segment in self.engine.take_sealed() {
            if let Some(rows) = self.state.index.rows(segment) {
                self.engine.index(segment, rows);
            }
        }
        for segment in self.engine.take_indexed() {
            self.state.index.set_indexed(segment);
        }
        if let Some(filters) = self.engine.take_filters() {
            let replaced = self.state.index.set_tiers(filters);
            self.engine.drop_filters(replaced);
        }
        let partitions = &mut self.state.partitions;
        while self
            .state
            .index
            .evict(0, |partition, see| see(&mut partitions.get_mut(&partition).unwrap().spans))
        {}
    }

    /// Submits and waits until everything staged is durable.
    fn commit(&mut self) -> Seq {
        let seq = self.engine.staged();
        self.tend_index();
        while self.engine.watermark() < seq {
            self.engine.submit();
            if let Some(hand) = &mut self.by_hand {
                hand.receive();
            }
            self.engine.poll(Some(Duration::from_millis(50)));
            assert!(self.engine.poison().is_none(), "{:?}", self.engine.poison());
        }
        seq
    }

    /// Looks up the rows of everything that is not in memory.
    fn with_cold_rows(mut self) -> Driver {
        let mut worker = worker(&self.dir, self.log);
        loop {
            let state = &self.state;
            let mut missing =
                state.partitions.values().flat_map(|partition| state.runs(partition, partition.start));
            let Some(lookup) = missing.find_map(Result::err) else { return self };
            match look_up(&mut worker, lookup) {
                Found::Runs(runs) => {
                    self.state.index.cold.insert(lookup.segment(), lookup.partition(), runs);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn crash(mut self) -> Vec<String> {
        self.state.forget_notes(); // what deleted queues left is in no picture
        let Driver { engine, maintenance, state, log, dir, .. } = self;
        drop(engine);
        if let Some(thread) = maintenance {
            thread.join().unwrap();
        }
        picture(&dir, log, &state)
    }

    fn close(mut self) -> Vec<String> {
        while !self.engine.close() {
            self.engine.submit();
            self.engine.poll(Some(Duration::from_millis(10)));
            assert!(self.engine.poison().is_none());
        }
        self.crash()
    }
}

/// Everything the state says, order-free: its records, where each message is and which id it has.
fn picture(dir: &Path, log: LogId, state: &State) -> Vec<String> {
    let mut lines = Vec::new();
    let mut worker = worker(dir, log);
    state.snapshot(&mut |delta| lines.push(format!("{delta:?}")));
    for (id, partition) in &state.partitions {
        let mut from = partition.start;
        while from < partition.next {
            let found = state.runs(partition, from).next().unwrap();
            let runs = match found {
                Ok(run) => vec![run],
                Err(lookup) => match look_up(&mut worker, lookup) {
                    Found::Runs(runs) => runs,
                    other => panic!("{other:?}"),
                },
            };
            for run in runs {
                lines.push(format!("{id} {run:?}"));
                for hit in ids_of(dir, &mut worker, state, partition.id, &run) {
                    lines.push(format!("{id} {hit:?}"));
                }
                from = run.end();
            }
        }
    }
    lines.sort();
    lines
}

fn look_up(worker: &mut LookupWorker<OsFs>, lookup: Lookup) -> Found {
    let (_, mut answers) = worker.work(Ask::Look { key: 0, lookups: vec![lookup] }).unwrap();
    answers.remove(0).1.unwrap()
}

fn worker(dir: &Path, log: LogId) -> LookupWorker<OsFs> {
    LookupWorker::new(OsFs::new(dir).unwrap(), Layout::new(dir), log)
}

/// Each message of a run, found by its transaction id.
fn ids_of(
    dir: &Path,
    worker: &mut LookupWorker<OsFs>,
    state: &State,
    partition: PartitionId,
    run: &Run,
) -> Vec<IdHit> {
    let fs = OsFs::new(dir).unwrap();
    let path = Layout::new(dir).path(FileKind::Segment, run.place.segment);
    let file = fs.open(&path, OpenMode::Read).unwrap();
    let mut entries = &file.read_at(run.place.position + 48, run.bytes as usize).unwrap()[..];
    let mut hits = Vec::new();
    while !entries.is_empty() {
        let (hash, _, bytes) = comb::format::entry::peek(entries).unwrap();
        entries = &entries[bytes..];
        let mut found = Ids::new();
        state.index.find_resident(partition, hash, LogTime(0), &mut found);
        for segment in state.index.elsewhere(partition, hash, LogTime(0)) {
            match look_up(worker, Lookup::Find { segment, partition, hash }) {
                Found::Ids(ids) => found.extend(ids),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(found.len(), 1, "{partition} {hash:?}");
        hits.extend(found);
    }
    assert_eq!(hits.len(), run.count as usize);
    hits
}

fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let digits = number.to_string();
    format!("\"{}{digits}\"", "0".repeat(bytes.saturating_sub(2 + digits.len()))).into_bytes()
}

/// Groups over several segments and cursor files; returns the picture and the last seq.
fn fill(dir: &Path, groups: u64) -> (Vec<String>, Seq) {
    let mut driver = Driver::open(dir);
    driver.create(4);
    for group in 0..groups {
        driver.push(group % 4 + 1, &[payload(group, 900), payload(group, 10)]);
        driver.push((group + 1) % 4 + 1, &[payload(group, 3000)]);
        driver.commit();
    }
    let seq = driver.engine.watermark();
    (driver.crash(), seq)
}

fn files(dir: &Path, kind: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir.join(kind)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_none_or(|extension| extension != "idx"));
    paths.sort();
    paths
}

/// Byte positions of the frames of a file, by the magic of its first frame.
fn frames(path: &Path) -> Vec<u64> {
    let data = fs::read(path).unwrap();
    let magic = &data[4096..4100];
    (1..data.len() / 4096)
        .map(|block| block * 4096)
        .filter(|at| &data[*at..*at + 4] == magic && data[*at..*at + 64].iter().any(|byte| *byte != 0))
        .map(|at| at as u64)
        .collect()
}

fn flip(path: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
}

/// The last cursor file that holds a frame, and its frames.
fn last_cursor(dir: &Path) -> (PathBuf, Vec<u64>) {
    files(dir, "cursors")
        .into_iter()
        .rev()
        .map(|path| {
            let found = frames(&path);
            (path, found)
        })
        .find(|(_, frames)| !frames.is_empty())
        .unwrap()
}

#[test]
fn everything_committed_is_back_over_many_files() {
    let dir = TempDir::new().unwrap();
    let (before, seq) = fill(dir.path(), 400);
    assert!(files(dir.path(), "segments").len() > 2, "the test must roll segments");
    assert!(files(dir.path(), "cursors").len() > 2, "the test must roll cursor files");
    let recovered = try_recover(dir.path()).unwrap();
    assert_eq!(recovered.parts.last_seq, seq);
    assert_eq!(picture(dir.path(), LogId(77), &recovered.machine), before);
    drop(recovered);
    // Recovery is idempotent, and what comes after it is kept as well.
    let mut driver = Driver::open(dir.path());
    driver.push(1, &[payload(1, 100)]);
    driver.commit();
    let after = driver.crash();
    assert_eq!(picture(dir.path(), LogId(77), &try_recover(dir.path()).unwrap().machine), after);
}

#[test]
fn a_clean_stop_leaves_nothing_to_look_for() {
    let dir = TempDir::new().unwrap();
    let mut driver = Driver::open(dir.path());
    driver.create(1);
    driver.push(1, &[payload(1, 100)]);
    let before = driver.close();
    let recovered = try_recover(dir.path()).unwrap();
    assert_eq!(recovered.report.cut, None);
    assert_eq!(picture(dir.path(), LogId(77), &recovered.machine), before);
}

#[test]
fn a_torn_last_cursor_frame_is_cut_and_its_messages_never_come_back() {
    let dir = TempDir::new().unwrap();
    let (_, seq) = fill(dir.path(), 10);
    let (path, found) = last_cursor(dir.path());
    flip(&path, found.last().unwrap() + 130);
    let recovered = try_recover(dir.path()).unwrap();
    assert_eq!(recovered.report.cut, Some(seq));
    assert_eq!(recovered.parts.last_seq, Seq(seq.0 - 1));
    let before = picture(dir.path(), LogId(77), &recovered.machine);
    drop(recovered);
    assert!(!files(dir.path(), "quarantine").is_empty());
    // A new group takes the seq; the old frames are gone from both files.
    let mut driver = Driver::open(dir.path());
    assert_eq!(picture(dir.path(), LogId(77), &driver.state), before);
    driver.push(2, &[payload(7, 50)]);
    assert_eq!(driver.commit(), seq);
    let after = driver.crash();
    assert_eq!(picture(dir.path(), LogId(77), &try_recover(dir.path()).unwrap().machine), after);
}

#[test]
fn a_torn_last_message_frame_is_cut() {
    let dir = TempDir::new().unwrap();
    let (_, seq) = fill(dir.path(), 10);
    let path = files(dir.path(), "segments").remove(0);
    let last = *frames(&path).last().unwrap();
    flip(&path, last + 200);
    let recovered = try_recover(dir.path()).unwrap();
    assert_eq!(recovered.report.cut, Some(seq));
    assert_eq!(recovered.parts.last_seq, Seq(seq.0 - 1));
}

#[test]
fn damage_that_a_later_watermark_vouches_for_is_refused() {
    for kind in ["segments", "cursors"] {
        let dir = TempDir::new().unwrap();
        fill(dir.path(), 20);
        let path = files(dir.path(), kind).remove(0);
        let found = frames(&path);
        flip(&path, found[5] + 140);
        let before = fs::read(&path).unwrap();
        match try_recover(dir.path()) {
            Err(RecoveryError::Refused { verdict, seq, .. }) => {
                assert_eq!(verdict, Verdict::Corruption, "{kind}");
                assert_eq!(seq, Seq(6), "{kind}");
            }
            Err(other) => panic!("{kind}: {other}"),
            Ok(_) => panic!("{kind}: damage was accepted"),
        }
        assert_eq!(fs::read(&path).unwrap(), before, "a refusal writes nothing");
    }
}

#[test]
fn a_missing_file_is_refused_by_name() {
    for kind in ["segments", "cursors"] {
        for index in 0..2 {
            let dir = TempDir::new().unwrap();
            fill(dir.path(), 400);
            let path = files(dir.path(), kind).remove(index);
            fs::remove_file(&path).unwrap();
            let error = match try_recover(dir.path()) {
                Err(error) => error.to_string(),
                Ok(_) => panic!("{kind} {index}: a missing file was accepted"),
            };
            assert!(error.contains(path.file_name().unwrap().to_str().unwrap()), "{error}");
        }
    }
    let dir = TempDir::new().unwrap();
    fill(dir.path(), 3);
    fs::remove_file(dir.path().join("SUPERBLOCK")).unwrap();
    assert!(matches!(try_recover(dir.path()), Err(RecoveryError::MissingSuperblock { .. })));
}

#[test]
fn recovery_begins_with_the_newest_checkpoint_and_survives_its_loss() {
    let dir = TempDir::new().unwrap();
    let eager = EngineSettings { checkpoint_cursor_bytes: 64 << 10, ..settings() };
    let mut driver = Driver::open_with(dir.path(), eager);
    driver.create(4);
    driver.commit();
    let (first, aside) = (dir.path().join("cursors/0000000000000001.wal"), TempDir::new().unwrap());
    fs::copy(&first, aside.path().join("first")).unwrap();
    for group in 0..400 {
        driver.push(group % 4 + 1, &[payload(group, 700)]);
        driver.commit();
        let last_stamp = driver.state.last_stamp;
        let Driver { engine, state, .. } = &mut driver;
        engine.checkpoint(state, last_stamp);
        if group % 50 == 0 {
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    let before = driver.crash();
    assert_eq!(files(dir.path(), "checkpoints").len(), 2, "two are kept");
    assert!(!first.exists(), "cursor files below the older checkpoint go");
    // A crash may undo the removal of one and not that of the next.
    fs::copy(aside.path().join("first"), &first).unwrap();
    assert!(!dir.path().join("cursors/0000000000000002.wal").exists());
    let recovered = try_recover(dir.path()).unwrap();
    assert!(recovered.report.checkpoint > Seq(0));
    assert_eq!(picture(dir.path(), LogId(77), &recovered.machine), before);
    drop(recovered);
    // The older checkpoint stands in for a damaged newer one.
    let newest = files(dir.path(), "checkpoints").remove(1);
    flip(&newest, 5000);
    let recovered = try_recover(dir.path()).unwrap();
    assert_eq!(picture(dir.path(), LogId(77), &recovered.machine), before);
    drop(recovered);
    // Without either, nothing is made up.
    flip(&files(dir.path(), "checkpoints").remove(0), 5000);
    assert!(matches!(try_recover(dir.path()), Err(RecoveryError::Checkpoint { .. })));
}

#[test]
fn messages_are_readable_from_memory_and_from_the_file() {
    let dir = TempDir::new().unwrap();
    let mut driver = Driver::open(dir.path());
    driver.create(1);
    for group in 0..200 {
        driver.push(1, &[payload(group, 2000)]);
        driver.commit();
    }
    driver.push(1, &[payload(200, 2000)]); // staged, not submitted
    let mut from_file = 0;
    let driver = driver.with_cold_rows();
    let runs: Vec<Run> = {
        let partition = &driver.state.partitions[&PartitionId(1)];
        driver.state.runs(partition, Offset(0)).map(Result::unwrap).collect()
    };
    assert_eq!(runs.len(), 201);
    for run in &runs {
        let bytes = match driver.engine.source(run) {
            Bytesource::Memory(bytes) => bytes,
            Bytesource::File(file, position) => {
                from_file += 1;
                file.read_at(position, run.bytes as usize).unwrap()
            }
        };
        let (entry, _) = Entry::decode(&bytes).unwrap();
        assert_eq!(entry.payload, payload(run.base.0, 2000));
    }
    assert!(from_file > 0, "the tail cache is small enough that some are read from the file");
    let mut driver = driver;
    driver.commit();
    driver.crash();
}

/// Without any tail cache, what is being written has nobody but the writer.
#[test]
fn messages_in_flight_are_never_read_from_the_file() {
    let dir = TempDir::new().unwrap();
    let mut driver = Driver::open_with(dir.path(), EngineSettings { tail_cache_bytes: 0, ..settings() });
    driver.create(1);
    driver.commit();
    for group in 0..20 {
        driver.push(1, &[payload(group, 2000)]);
        driver.engine.submit();
        let partition = &driver.state.partitions[&PartitionId(1)];
        let run = driver.state.runs(partition, Offset(group)).next().unwrap().unwrap();
        let Bytesource::Memory(bytes) = driver.engine.source(&run) else { panic!("group {group}") };
        assert_eq!(Entry::decode(&bytes).unwrap().0.payload, payload(group, 2000));
        driver.commit();
        assert!(matches!(driver.engine.source(&run), Bytesource::File(..)));
    }
    driver.crash();
}

#[test]
fn first_files_are_numbered_one() {
    let dir = TempDir::new().unwrap();
    let recovered = try_recover(dir.path()).unwrap();
    assert_eq!(recovered.parts.segments.active.number(), FileNumber(1));
    assert_eq!(recovered.parts.cursors.active.number(), FileNumber(1));
    assert_eq!(recovered.parts.last_seq, Seq(0));
}

/// Files keep the limits of their headers: what larger settings allow must not go into an older, smaller file, where
/// the next recovery would take it for damage.
#[test]
fn frames_that_only_larger_settings_allow_survive_in_a_log_made_with_smaller_ones() {
    let dir = TempDir::new().unwrap();
    let mut driver = Driver::open(dir.path());
    driver.create(1);
    driver.push(1, &[payload(1, 100)]);
    driver.commit();
    driver.crash();
    let larger = EngineSettings {
        segment_bytes: 4 * SEGMENT_BYTES,
        cursor_file_bytes: 8 * CURSOR_BYTES,
        group_bytes: 1 << 20,
        atomic_group_bytes: 1 << 20,
        pipeline_depth: 4,
        ..settings()
    };
    let mut driver = Driver::open_with(dir.path(), larger.clone());
    // A cursor frame above a quarter of the old cursor file, then a message frame above half of the old segment.
    for id in 2..=2000 {
        driver.stage(&Delta::Partition(PartitionDef {
            partition: PartitionId(id),
            queue: QueueId(1),
            name: &format!("a-partition-with-a-rather-long-name-{id}"),
            dead_letters_of: None,
            next: Offset(0),
            start: Offset(0),
            last_created: WallTime(0),
            last_logged: LogTime(0),
            created: WallTime(1),
        }));
    }
    driver.commit();
    driver.push(1, &[payload(2, 700 << 10)]);
    let seq = driver.commit();
    let before = driver.crash();
    for settings in [&larger, &settings()] {
        let recovered = recover_with(dir.path(), settings).unwrap();
        assert_eq!(recovered.parts.last_seq, seq);
        assert_eq!(recovered.report.cut, None);
        assert_eq!(picture(dir.path(), LogId(77), &recovered.machine), before);
    }
}

/// Half of a segment is not always whole blocks; the largest frame that is accepted must be one that is read back.
#[test]
fn the_largest_frame_of_a_segment_of_odd_blocks_is_read_back() {
    let dir = TempDir::new().unwrap();
    let odd = EngineSettings {
        segment_bytes: SEGMENT_BYTES + 4096,
        group_bytes: 1 << 20,
        atomic_group_bytes: 1 << 20,
        ..settings()
    };
    let mut driver = Driver::open_with(dir.path(), odd.clone());
    driver.create(1);
    let limit =
        (1..1 << 20).rev().find(|bytes| !matches!(driver.engine.room(*bytes, 0), Room::TooLarge { .. }));
    driver.push(1, &[payload(1, usize::try_from(limit.unwrap()).unwrap() - 300)]);
    let seq = driver.commit();
    let before = driver.crash();
    let recovered = recover_with(dir.path(), &odd).unwrap();
    assert_eq!(recovered.parts.last_seq, seq);
    assert_eq!(picture(dir.path(), LogId(77), &recovered.machine), before);
}

#[test]
fn what_a_process_left_half_made_is_removed_at_the_next_start() {
    let dir = TempDir::new().unwrap();
    fill(dir.path(), 3);
    let half = dir.path().join("spare/0000000000000009.ckpt.tmp");
    let unnamed = dir.path().join("checkpoints/0000000000000003.ckpt");
    fs::write(&half, [1; 4096]).unwrap();
    fs::write(&unnamed, [1; 4096]).unwrap();
    try_recover(dir.path()).unwrap();
    assert!(!half.exists() && !unnamed.exists());
}

/// A file that an earlier try left under its final name must not keep the next try from preparing it.
#[test]
fn a_file_that_an_earlier_try_left_is_prepared_anew() {
    let dir = TempDir::new().unwrap();
    drop(try_recover(dir.path()).unwrap());
    for kind in ["segments/0000000000000002.seg", "cursors/0000000000000002.wal"] {
        let path = dir.path().join(kind);
        assert!(!path.exists());
    }
    let mut driver = Driver::open(dir.path());
    // Behind recovery's back, as a try that failed after its rename leaves them.
    fs::write(dir.path().join("segments/0000000000000003.seg"), b"left").unwrap();
    fs::write(dir.path().join("cursors/0000000000000003.wal"), b"left").unwrap();
    driver.create(1);
    for group in 0..200 {
        driver.push(1, &[payload(group, 16 << 10)]);
        driver.commit();
    }
    let before = driver.crash();
    assert!(dir.path().join("segments/0000000000000003.seg").metadata().unwrap().len() == SEGMENT_BYTES);
    assert_eq!(picture(dir.path(), LogId(77), &try_recover(dir.path()).unwrap().machine), before);
}
