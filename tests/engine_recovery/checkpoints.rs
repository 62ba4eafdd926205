//! Checkpoints that are taken while groups go on, and stops at every point of them.

use comb::engine::machine::{Impossible, SnapshotCursor};
use comb::format::index::{IndexInfo, SpanRow};
use comb::index::runs::Place;
use comb::types::IdHash;

use super::*;

/// Records of a chunk and a half: some slices and two chunks.
const PARTITIONS: u64 = 8000;

fn partition(id: u64, queue: u64, name: &str) -> Delta<'_> {
    Delta::Partition(PartitionDef {
        partition: PartitionId(id),
        queue: QueueId(queue),
        name,
        dead_letters_of: None,
        next: Offset(0),
        start: Offset(0),
        last_created: WallTime(0),
        last_logged: LogTime(0),
        created: WallTime(1),
    })
}

fn queue(driver: &mut Driver, id: u64) {
    driver.stage(&Delta::Queue(QueueDef {
        queue: QueueId(id),
        name: "doomed",
        namespace: "",
        task: "",
        created: WallTime(1),
        options: QueueOptions::configured(),
    }));
}

/// A state that takes many slices, durable, with messages; maintenance by hand.
fn large(dir: &Path) -> Driver {
    let (mut driver, _) = Driver::assemble(dir, settings());
    driver.create(4);
    let name = "n".repeat(180);
    for first in (5..PARTITIONS).step_by(200) {
        for id in first..first + 200 {
            driver.stage(&partition(id, 1, &format!("{name}{id}")));
        }
        driver.commit();
    }
    queue(&mut driver, 2);
    driver.stage(&partition(20_000, 2, "p"));
    driver.push(20_000, &[payload(1, 100)]);
    driver.push(1, &[payload(1, 100)]);
    driver.commit();
    driver
}

/// One step of a storage thread, with something to commit in it.
fn step(driver: &mut Driver, number: u64) {
    driver.push(number % 4 + 1, &[payload(number, 200)]);
    match number {
        3 => driver.stage(&Delta::QueueDeleted(QueueId(2))),
        5 => queue(driver, 3),
        6 => {
            driver.stage(&partition(20_001, 3, "p"));
            driver.push(20_001, &[payload(1, 50)]);
        }
        _ => {}
    }
    driver.commit();
    let last_stamp = driver.state.last_stamp;
    driver.engine.checkpoint(&driver.state, last_stamp);
    driver.by_hand.as_mut().unwrap().receive();
}

/// Steps until nothing is left to do of a checkpoint but what maintenance holds; how many.
fn take(driver: &mut Driver) -> u64 {
    driver.engine.request_checkpoint();
    let mut steps = 0;
    let ended = |driver: &Driver| {
        let held = &driver.by_hand.as_ref().unwrap().held;
        held.iter().any(|job| matches!(job, Job::CheckpointEnd { .. }))
    };
    while !ended(driver) {
        steps += 1;
        assert!(steps < 1000, "the checkpoint does not end");
        step(driver, steps);
    }
    steps
}

fn same_after_start(dir: &Path, before: &[String], checkpoint: bool) -> Seq {
    let recovered = try_recover(dir).unwrap();
    let after = picture(dir, LogId(77), &recovered.machine);
    let differs = after.iter().zip(before).find(|(after, before)| after != before);
    assert!(after.len() == before.len() && differs.is_none(), "{} {} {differs:?}", after.len(), before.len());
    assert_eq!(recovered.report.checkpoint > Seq(0), checkpoint);
    assert!(fs::read_dir(dir.join("spare")).unwrap().next().is_none(), "nothing half-made is left");
    assert_eq!(files(dir, "checkpoints").len(), usize::from(checkpoint));
    recovered.report.checkpoint
}

#[test]
fn commits_go_on_while_a_checkpoint_is_taken() {
    let dir = TempDir::new().unwrap();
    let mut driver = large(dir.path());
    let began = driver.engine.watermark();
    let steps = take(&mut driver);
    assert!(steps > 10, "the test must take many slices: {steps}");
    assert!(driver.engine.watermark().0 > began.0 + 10, "the test must commit between them");
    while driver.by_hand.as_mut().unwrap().work() {}
    driver.engine.poll(Some(Duration::ZERO));
    assert!(!driver.engine.is_checkpointing());
    driver.push(2, &[payload(7, 70)]);
    driver.commit();
    let before = driver.crash();
    assert_eq!(
        same_after_start(dir.path(), &before, true),
        began.next(),
        "it began with the first step's group"
    );
}

#[test]
fn a_stop_between_slices_or_chunks_leaves_no_trace() {
    for done in 0..4 {
        let dir = TempDir::new().unwrap();
        let mut driver = large(dir.path());
        if done == 3 {
            driver.engine.request_checkpoint();
            (1..8).for_each(|number| step(&mut driver, number)); // no end of it yet
            assert!(driver.engine.is_checkpointing());
            while driver.by_hand.as_mut().unwrap().work() {}
        } else {
            take(&mut driver);
            (0..done).for_each(|_| assert!(driver.by_hand.as_mut().unwrap().work()));
        }
        let before = driver.crash();
        same_after_start(dir.path(), &before, false);
    }
}

#[test]
fn a_stop_before_the_name_or_before_the_superblock_leaves_no_trace() {
    for renamed in [false, true] {
        let dir = TempDir::new().unwrap();
        let mut driver = large(dir.path());
        take(&mut driver);
        let superblock = fs::read(dir.path().join("SUPERBLOCK")).unwrap();
        while driver.by_hand.as_mut().unwrap().work() {}
        let before = driver.crash();
        // As it was in front of the last write, or of the rename as well.
        fs::write(dir.path().join("SUPERBLOCK"), superblock).unwrap();
        let [path] = &files(dir.path(), "checkpoints")[..] else { panic!("one checkpoint") };
        if !renamed {
            fs::rename(path, dir.path().join("spare/0000000000000001.ckpt.tmp")).unwrap();
        }
        same_after_start(dir.path(), &before, false);
    }
}

#[test]
fn a_log_that_ends_before_the_checkpoint_knows_is_refused() {
    let dir = TempDir::new().unwrap();
    let mut driver = large(dir.path());
    driver.engine.request_checkpoint();
    step(&mut driver, 1);
    step(&mut driver, 2);
    let copies: Vec<(PathBuf, Vec<u8>)> = ["segments", "cursors"]
        .into_iter()
        .flat_map(|kind| files(dir.path(), kind))
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    let ends = driver.engine.watermark();
    take(&mut driver);
    while driver.by_hand.as_mut().unwrap().work() {}
    driver.crash();
    for (path, bytes) in copies {
        fs::write(path, bytes).unwrap();
    }
    match try_recover(dir.path()) {
        Err(error @ RecoveryError::Refused { verdict: Verdict::Corruption, seq, .. }) => {
            assert_eq!(seq, ends.next());
            assert!(error.to_string().contains("holds what groups up to seq"), "{error}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a state that never was"),
    }
}

#[test]
fn a_checkpoint_that_fails_is_given_up_and_the_next_one_is_written() {
    let dir = TempDir::new().unwrap();
    let mut driver = large(dir.path());
    driver.commit();
    let obstacle = dir.path().join(format!("spare/{:016}.ckpt.tmp", driver.engine.watermark().0 + 1));
    fs::create_dir(&obstacle).unwrap();
    driver.engine.request_checkpoint();
    step(&mut driver, 1);
    assert!(driver.engine.is_checkpointing());
    step(&mut driver, 2);
    while driver.by_hand.as_mut().unwrap().work() {}
    driver.engine.poll(Some(Duration::ZERO));
    assert!(!driver.engine.is_checkpointing(), "its file could not be begun");
    fs::remove_dir(&obstacle).unwrap();
    take(&mut driver);
    while driver.by_hand.as_mut().unwrap().work() {}
    driver.engine.poll(Some(Duration::ZERO));
    assert!(!driver.engine.is_checkpointing());
    let before = driver.crash();
    same_after_start(dir.path(), &before, true);
}

#[test]
fn message_bytes_make_a_checkpoint_due() {
    let dir = TempDir::new().unwrap();
    let few = EngineSettings { checkpoint_message_bytes: 64 << 10, ..settings() };
    let (mut driver, _) = Driver::assemble(dir.path(), few);
    driver.create(4);
    for number in 1..10 {
        step(&mut driver, number + 100);
    }
    assert!(!driver.engine.is_checkpointing());
    for number in 1..10 {
        step(&mut driver, number + 100);
    }
    let held = &driver.by_hand.as_ref().unwrap().held;
    assert_eq!(held.len(), 2, "begin and end: {held:?}");
    driver.crash();
}

/// A state that has no end.
struct Endless(String);

impl Machine for Endless {
    fn apply(&mut self, _: &Delta<'_>) -> Result<(), Impossible> {
        Ok(())
    }

    fn apply_run(&mut self, _: &RunHeader, _: &[(IdHash, MessageId)], _: Place) -> Result<(), Impossible> {
        Ok(())
    }

    fn attach_segment(&mut self, _: &IndexInfo) {}

    fn is_dropped(&self, _: FileNumber) -> bool {
        false
    }

    fn attach_span(&mut self, _: FileNumber, _: &SpanRow) {}

    fn forget_notes(&mut self) {}

    fn verify(&self) -> Result<(), Impossible> {
        Ok(())
    }

    fn set_catching_up(&mut self, _: bool) {}

    fn snapshot_slice(
        &self,
        cursor: &mut SnapshotCursor,
        budget: usize,
        each: &mut dyn FnMut(&Delta<'_>),
    ) -> bool {
        for _ in 0..budget {
            let id = cursor.below.map_or(1, |last| last + 1);
            cursor.below = Some(id);
            each(&partition(id as u64, 1, &self.0));
        }
        false
    }
}

#[test]
fn slices_and_chunks_in_flight_are_bounded_whatever_the_state() {
    for name_bytes in [10, 60_000] {
        let dir = TempDir::new().unwrap();
        let no_noop = EngineSettings { noop_idle_us: u64::MAX / 8, ..settings() };
        let (mut driver, _) = Driver::assemble(dir.path(), no_noop);
        driver.create(1);
        driver.commit();
        let endless = Endless("n".repeat(name_bytes));
        driver.engine.request_checkpoint();
        let chunks = |driver: &mut Driver| {
            let hand = driver.by_hand.as_mut().unwrap();
            hand.receive();
            let bytes = hand.held.iter().map(|job| match job {
                Job::CheckpointChunk { bytes, .. } => bytes.len(),
                _ => 0,
            });
            (bytes.clone().filter(|bytes| *bytes > 0).count(), bytes.max().unwrap_or(0))
        };
        let mut steps = 0;
        while chunks(&mut driver).0 < 4 {
            driver.engine.checkpoint(&endless, WallTime(1));
            assert_eq!(
                driver.engine.idle_timeout().is_some_and(|time| time.is_zero()),
                chunks(&mut driver).0 < 4
            );
            steps += 1;
            assert!(steps < 10_000);
        }
        assert!(steps > 4 * 2, "{steps}");
        for _ in 0..100 {
            driver.engine.checkpoint(&endless, WallTime(1));
        }
        let (number, most) = chunks(&mut driver);
        assert_eq!(number, 4, "no slice is taken while they wait");
        assert!(most < 3 << 20, "{most}");
        while driver.by_hand.as_mut().unwrap().work() {}
        driver.engine.poll(Some(Duration::ZERO));
        for _ in 0..10_000 {
            driver.engine.checkpoint(&endless, WallTime(1));
        }
        assert_eq!(chunks(&mut driver).0, 4, "it goes on when maintenance took them");
        driver.crash();
    }
}

#[test]
fn a_checkpoint_ends_only_when_all_that_it_knows_is_durable() {
    let dir = TempDir::new().unwrap();
    let (mut driver, _) = Driver::assemble(dir.path(), settings());
    driver.create(1);
    driver.commit();
    let go_on = |driver: &mut Driver| {
        driver.engine.checkpoint(&driver.state, WallTime(driver.now));
        let hand = driver.by_hand.as_mut().unwrap();
        hand.receive();
        hand.held.iter().any(|job| matches!(job, Job::CheckpointEnd { .. }))
    };
    driver.engine.request_checkpoint();
    assert!(!go_on(&mut driver), "it begins");
    driver.push(1, &[payload(1, 100)]);
    for _ in 0..10 {
        assert!(!go_on(&mut driver), "its records know a message that is only staged");
    }
    driver.commit();
    assert!(go_on(&mut driver));
    while driver.by_hand.as_mut().unwrap().work() {}
    let before = driver.crash();
    same_after_start(dir.path(), &before, true);
}
