//! Open files: their number does not grow with the log, neither while it is written and read nor at a start, and a file
//! that somebody may still read is not written over.
//!
//! Method: small segments, many of them. Descriptors of this process that point into the test's directory are counted,
//! since other tests run beside.

use super::*;

/// 64 places for segments, and the files of the lanes with a description for each pipeline slot.
const DESCRIPTORS_MAX: usize = 64 + 16;

fn small() -> EngineSettings {
    EngineSettings {
        segment_bytes: 64 << 10,
        atomic_group_bytes: 16 << 10,
        tail_cache_bytes: 0,
        ..settings()
    }
}

fn descriptors(dir: &Path) -> usize {
    let dir = dir.canonicalize().unwrap();
    let all = fs::read_dir("/proc/self/fd").unwrap();
    // Those of other tests may be gone meanwhile.
    let targets = all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(&dir)).count()
}

/// One message of about a quarter of a segment per group; the most descriptors that were open.
fn fill_many(driver: &mut Driver, groups: u64) -> usize {
    let mut most = 0;
    for group in 0..groups {
        driver.push(1, &[payload(group, 15_000)]);
        driver.commit();
        most = most.max(descriptors(&driver.dir));
    }
    most
}

/// Reads everything, and holds all that it reads from until it is through; the most descriptors that were open.
fn read_all(driver: &Driver) -> usize {
    let state = &driver.state;
    let partition = &state.partitions[&PartitionId(1)];
    let (mut most, mut held) = (0, Vec::new());
    for run in state.runs(partition, partition.start).map(Result::unwrap) {
        if let Bytesource::File(file, position) = driver.engine.source(&run) {
            let bytes = file.read_at(position, run.bytes as usize).unwrap();
            assert_eq!(Entry::decode(&bytes).unwrap().0.payload, payload(run.base.0, 15_000));
            held.push(file);
        }
        most = most.max(descriptors(&driver.dir));
    }
    assert!(held.len() > 300, "{} runs were read from files", held.len());
    most
}

#[test]
fn descriptors_do_not_grow_with_the_log() {
    let dir = TempDir::new().unwrap();
    let mut driver = Driver::open_with(dir.path(), small());
    driver.create(1);
    let most = fill_many(&mut driver, 500);
    assert!(files(dir.path(), "segments").len() > 120);
    assert!(most <= DESCRIPTORS_MAX, "{most} while it is written");
    let mut driver = driver.with_cold_rows();
    let most = read_all(&driver);
    assert!(most > 60 && most <= DESCRIPTORS_MAX, "{most} while it is read");
    for checkpointed in [false, true] {
        if checkpointed {
            let last_stamp = driver.state.last_stamp;
            while files(dir.path(), "checkpoints").is_empty() {
                driver.engine.request_checkpoint();
                let Driver { engine, state, .. } = &mut driver;
                engine.checkpoint(state, last_stamp);
                engine.submit();
                engine.poll(Some(Duration::from_millis(5)));
            }
        }
        let before = driver.crash();
        assert_eq!(descriptors(dir.path()), 0);
        // The second start has a checkpoint: most segments are attached by their indexes.
        let most = std::cell::Cell::new(0);
        let os = OsFs::new(dir.path()).unwrap();
        let count = |_, _| most.set(most.get().max(descriptors(dir.path())));
        let recovered =
            recover::<State, OsFs>(&os, &Layout::new(dir.path()), &small(), LogId(77), &count).unwrap();
        assert_eq!(recovered.report.checkpoint > Seq(0), checkpointed);
        assert_eq!(picture(dir.path(), LogId(77), &recovered.machine), before);
        assert!(most.get() <= 16, "{} during the start", most.get());
        assert!(descriptors(dir.path()) <= 16, "{} after the start", descriptors(dir.path()));
        drop(recovered);
        driver = Driver::open_with(dir.path(), small()).with_cold_rows();
        let most = read_all(&driver);
        assert!(most <= DESCRIPTORS_MAX, "{most} while it is read after a start");
    }
    driver.crash();
}

/// Whoever has got a reader may read with it as long as it likes: what it reads is what was there, although its file was
/// closed in between and its segment is gone.
#[test]
fn a_file_whose_reader_is_held_is_not_written_over() {
    let dir = TempDir::new().unwrap();
    let (mut driver, _) = Driver::assemble(dir.path(), small());
    driver.create(1);
    fill_many(&mut driver, 20);
    let partition = &driver.state.partitions[&PartitionId(1)];
    let run = driver.state.runs(partition, Offset(0)).next().unwrap().unwrap();
    assert_eq!(run.place.segment, FileNumber(1));
    let Bytesource::File(held, position) = driver.engine.source(&run) else { panic!("it is in memory") };
    for (segment, name_is_kept) in [(1, false), (2, true)] {
        // The segment's reader is not open: nobody read yet.
        driver.engine.drop_segment(FileNumber(segment));
        let hand = driver.by_hand.as_mut().unwrap();
        hand.receive();
        // Both kept checkpoints are past it.
        hand.maintenance.checkpoints = vec![(Seq(1000), FileNumber(1)), (Seq(1001), FileNumber(1))];
        while hand.work() {}
        assert!(!Layout::new(dir.path()).path(FileKind::Segment, FileNumber(segment)).exists());
        let spare = files(dir.path(), "spare");
        let dead = format!("{segment:016}.dead.tmp");
        assert_eq!(spare.iter().any(|path| path.ends_with(&dead)), name_is_kept, "{spare:?}");
    }
    // The dead file becomes the next segment; what is held is another one.
    fill_many(&mut driver, 20);
    let bytes = held.read_at(position, run.bytes as usize).unwrap();
    assert_eq!(Entry::decode(&bytes).unwrap().0.payload, payload(0, 15_000));
    assert_eq!(files(dir.path(), "spare"), Vec::<PathBuf>::new());
}
