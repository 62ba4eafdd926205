//! Index files of sealed segments: whatever becomes of them, the start and the lookups find everything.

use super::*;
use comb::engine::maintenance::{Job, Outcome};
use comb::index::tiers::Builder;

/// The picture of a log over several segments, most of them in front of the newest checkpoint, each with its index.
fn fill_with_indexes(dir: &Path) -> Vec<String> {
    let eager = EngineSettings { checkpoint_cursor_bytes: 64 << 10, ..settings() };
    let mut driver = Driver::open_with(dir, eager);
    driver.create(4);
    for group in 0..500 {
        driver.push(group % 4 + 1, &[payload(group, 3000), payload(group, 3000)]);
        driver.push((group + 1) % 4 + 1, &[payload(group, 1000)]);
        driver.commit();
        let last_stamp = driver.state.last_stamp;
        let Driver { engine, state, .. } = &mut driver;
        engine.checkpoint(state, last_stamp);
        if group % 100 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let sealed = files(dir, "segments").len() - 2; // one is written, one is prepared
    assert!(sealed >= 3, "the test must roll segments");
    for _ in 0..500 {
        driver.tend_index();
        driver.engine.submit();
        driver.engine.poll(Some(Duration::from_millis(10)));
        if indexes(dir).len() >= sealed {
            break;
        }
    }
    driver.crash()
}

fn indexes(dir: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(dir.join("segments")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = names.filter(|path| path.extension().is_some_and(|it| it == "idx")).collect();
    paths.sort();
    paths
}

/// Takes a state in whose first segments only index files know.
fn recovered(dir: &Path) -> Recovered<State, DirectFile> {
    let recovered = try_recover(dir).unwrap();
    assert!(recovered.report.checkpoint > Seq(0));
    for segment in [FileNumber(1), FileNumber(2)] {
        assert!(recovered.machine.index.rows(segment).is_none(), "{segment} is in memory");
    }
    recovered
}

type Damage = fn(path: &Path, whole: &[u8], other: &[u8]);

/// What may become of an index file.
const DAMAGES: &[(&str, Damage)] = &[
    ("deleted", |path, _, _| fs::remove_file(path).unwrap()),
    ("emptied", |path, _, _| fs::write(path, b"").unwrap()),
    ("zeros", |path, whole, _| fs::write(path, vec![0; whole.len()]).unwrap()),
    ("halved", |path, whole, _| fs::write(path, &whole[..whole.len() / 2]).unwrap()),
    ("doubled", |path, whole, _| fs::write(path, [whole, whole].concat()).unwrap()),
    ("a bit of the header", |path, _, _| flip(path, 50)),
    ("a bit of the runs", |path, _, _| flip(path, 4096 + 20)),
    ("bits of every page", |path, whole, _| {
        (0..whole.len() / 4096).for_each(|page| flip(path, page as u64 * 4096 + 4091));
    }),
    ("of another segment", |path, _, other| fs::write(path, other).unwrap()),
];

#[test]
fn whatever_happens_to_index_files_the_start_finds_everything() {
    let dir = TempDir::new().unwrap();
    let before = fill_with_indexes(dir.path());
    assert_eq!(picture(dir.path(), LogId(77), &recovered(dir.path()).machine), before);
    let paths = indexes(dir.path());
    let whole: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    for (what, damage) in DAMAGES {
        for (at, path) in paths.iter().enumerate() {
            damage(path, &whole[at], &whole[(at + 1) % whole.len()]);
            assert!(fs::read(path).ok().as_ref() != Some(&whole[at]), "{what}: nothing was damaged");
        }
        assert_eq!(picture(dir.path(), LogId(77), &recovered(dir.path()).machine), before, "{what}");
        // What was built anew is what was written first.
        for (path, whole) in paths.iter().zip(&whole).take(2) {
            assert_eq!(&fs::read(path).unwrap(), whole, "{what}: {}", path.display());
        }
        paths.iter().zip(&whole).for_each(|(path, whole)| fs::write(path, whole).unwrap());
    }
}

#[test]
fn an_index_without_its_segment_is_removed() {
    let dir = TempDir::new().unwrap();
    let before = fill_with_indexes(dir.path());
    let stray = dir.path().join("segments/0000000000000999.idx");
    fs::copy(&indexes(dir.path())[0], &stray).unwrap();
    assert_eq!(picture(dir.path(), LogId(77), &recovered(dir.path()).machine), before);
    assert!(!stray.exists());
}

/// The worker keeps files open: what happens to them meanwhile is noticed with the next question.
#[test]
fn an_index_that_is_damaged_while_it_is_in_use_is_built_anew() {
    let dir = TempDir::new().unwrap();
    fill_with_indexes(dir.path());
    let recovered = recovered(dir.path());
    let state = &recovered.machine;
    let (partition, segment) = (&state.partitions[&PartitionId(1)], FileNumber(1));
    let Some(Err(runs)) = state.runs(partition, partition.start).next() else { panic!("it is in memory") };
    assert_eq!(runs.segment(), segment);
    let mut worker = LookupWorker::new(OsFs::new(dir.path()).unwrap(), Layout::new(dir.path()), LogId(77));
    let mut ask = |lookup| {
        let (key, mut answers) = worker.work(Ask::Look { key: 5, lookups: vec![lookup] }).unwrap();
        assert_eq!((key, answers.len()), (5, 1));
        answers.remove(0).1
    };
    let Found::Runs(found) = ask(runs).unwrap() else { panic!("not runs") };
    let id = look_up_first_id(dir.path(), &found[0]);
    let third = found[2];
    let questions = [
        runs,
        Lookup::Created {
            segment,
            partition: PartitionId(1),
            base: found[0].base,
            end: found.last().unwrap().end(),
            time: third.created,
        },
        Lookup::Find { segment, partition: PartitionId(1), hash: id.0 },
    ];
    let right: Vec<Found> = questions.iter().map(|question| ask(*question).unwrap()).collect();
    assert_eq!(right[1], Found::Created(third.base));
    assert!(matches!(&right[2], Found::Ids(ids) if ids[0].id == id.1 && ids[0].offset == found[0].base));

    let path = Layout::new(dir.path()).index(segment);
    let whole = fs::read(&path).unwrap();
    for question in 0..questions.len() {
        // In place, so that the open file has it too.
        for page in 1..whole.len() / 4096 {
            flip(&path, page as u64 * 4096 + 100);
        }
        assert_eq!(ask(questions[question]).unwrap(), right[question]);
        assert_eq!(fs::read(&path).unwrap(), whole, "built anew");
    }
    // Cut short, gone, and another one's: the open file is the one that is read, so it is closed in between.
    for damage in [DAMAGES[0].1, DAMAGES[3].1, DAMAGES[1].1] {
        damage(&path, &whole, &[]);
        let mut fresh = LookupWorker::new(OsFs::new(dir.path()).unwrap(), Layout::new(dir.path()), LogId(77));
        let (_, answers) = fresh.work(Ask::Look { key: 1, lookups: questions.to_vec() }).unwrap();
        for ((_, answer), right) in answers.into_iter().zip(&right) {
            assert_eq!(&answer.unwrap(), right);
        }
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    // Without the segment there is nothing to build it from: an error that names the file, not an answer.
    fs::remove_file(&path).unwrap();
    fs::remove_file(Layout::new(dir.path()).path(FileKind::Segment, segment)).unwrap();
    let mut fresh = LookupWorker::new(OsFs::new(dir.path()).unwrap(), Layout::new(dir.path()), LogId(77));
    let (_, mut answers) = fresh.work(Ask::Look { key: 1, lookups: vec![questions[2]] }).unwrap();
    let error = answers.remove(0).1.unwrap_err();
    assert!(error.contains(path.file_name().unwrap().to_str().unwrap()), "{error}");
}

/// Hash and id of the first message of a run.
fn look_up_first_id(dir: &Path, run: &Run) -> (comb::types::IdHash, MessageId) {
    let path = Layout::new(dir).path(FileKind::Segment, run.place.segment);
    let file = OsFs::new(dir).unwrap().open(&path, OpenMode::Read).unwrap();
    let entries = file.read_at(run.place.position + 48, run.bytes as usize).unwrap();
    let (hash, id, _) = comb::format::entry::peek(&entries).unwrap();
    (hash, id)
}

/// Loads filters step by step as the storage and the maintenance thread do; how many steps it took.
fn load_filters(maintenance: &mut Maintenance<OsFs>, state: &mut State) -> usize {
    let mut job = Job::LoadFilters(state.index.unknown().collect());
    for step in 0.. {
        let Outcome::Filtered { filters, more } = maintenance.work(job) else { panic!("another outcome") };
        let replaced = filters.map(|filters| state.index.set_tiers(filters));
        if !more {
            return step;
        }
        job = Job::Filters(replaced);
    }
    unreachable!("it returns")
}

#[test]
fn after_a_start_filters_are_loaded_and_damaged_ones_are_done_without() {
    let dir = TempDir::new().unwrap();
    let before = fill_with_indexes(dir.path());
    for damaged in [false, true] {
        let Recovered { machine: mut state, parts, superblock, checkpoints, .. } = recovered(dir.path());
        let cold: Vec<FileNumber> = state.index.unknown().collect();
        assert!(cold.contains(&FileNumber(1)) && cold.contains(&FileNumber(2)));
        let absent = |state: &State| {
            let asked = |number: u128| {
                state.index.elsewhere(PartitionId(1), comb::types::IdHash(number << 64 | 1), LogTime(0)).len()
            };
            (0..200).map(asked).sum::<usize>()
        };
        assert_eq!(absent(&state), 200 * cold.len(), "without filters every segment may hold everything");
        if damaged {
            // The last page is filter bits, the checksum of every other page is right.
            let path = Layout::new(dir.path()).index(FileNumber(1));
            let bytes = fs::metadata(&path).unwrap().len();
            (4096..bytes).step_by(4096).for_each(|page| flip(&path, page + 4090));
        }
        let mut maintenance = Maintenance {
            writing: None,
            removal: Removal::default(),
            fs: OsFs::new(dir.path()).unwrap(),
            layout: Layout::new(dir.path()),
            settings: settings(),
            log: LogId(77),
            epoch: parts.epoch,
            superblock,
            checkpoints,
            filters: Builder::default(),
        };
        assert!(load_filters(&mut maintenance, &mut state) >= cold.len());
        let left: Vec<FileNumber> = state.index.unknown().collect();
        if damaged {
            assert_eq!(left, [FileNumber(1)]);
            assert!(
                absent(&state) >= 200 && absent(&state) < 220,
                "it is asked each time, the others are not"
            );
        } else {
            assert_eq!(left, []);
            assert!(absent(&state) < 5, "{} of 200 absent ids led to an index file", absent(&state));
        }
        // Every message is found, and a lookup mends what was damaged.
        assert_eq!(picture(dir.path(), LogId(77), &state), before);
        assert_eq!(load_filters(&mut maintenance, &mut state), 1 + usize::from(damaged));
        assert_eq!(state.index.unknown().count(), 0);
    }
}
