//! What every ring promises, tried on each of them, with direct and with buffered files.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;

use super::{
    AlignedBuf, AnyRing, BLOCK_BYTES, Backend, Completion, DirectFile, Fs, FsFile, OpenMode, OsFs, ReadAt,
    Ring, SyncMode, open_ring,
};

/// Operations that may be unfinished in most tests.
const CAPACITY: usize = 16;

/// Nothing here takes this long unless it hangs.
const HANG: Duration = Duration::from_secs(60);

struct Bench {
    ring: AnyRing,
    fs: OsFs,
    dir: TempDir,
    mode: SyncMode,
    open: Box<dyn Fn(usize) -> AnyRing>,
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn create(&self, name: &str) -> Arc<DirectFile> {
        Arc::new(self.fs.open(&self.path(name), OpenMode::Create).unwrap())
    }

    /// Waits until `count` operations have ended.
    fn ends(&mut self, count: usize) -> BTreeMap<u64, io::Result<Option<Bytes>>> {
        ends(&mut self.ring, count)
    }

    /// Runs one operation that was queued with token 1.
    fn end(&mut self) -> io::Result<Option<Bytes>> {
        self.ring.submit().unwrap();
        self.ends(1).remove(&1).unwrap()
    }

    /// Waits without expecting anything and says how long that took. A wait may end early with nothing, once or
    /// twice, when a wake-up of an operation that ended before comes late; those are waited out.
    fn quiet(&mut self, timeout: Duration) -> Duration {
        let mut out = Vec::new();
        self.ring.wait(Some(Duration::from_millis(20)), &mut out).unwrap();
        let started = Instant::now();
        self.ring.wait(Some(timeout), &mut out).unwrap();
        assert!(out.is_empty());
        started.elapsed()
    }
}

fn ends(ring: &mut AnyRing, count: usize) -> BTreeMap<u64, io::Result<Option<Bytes>>> {
    let started = Instant::now();
    let mut out = Vec::new();
    while out.len() < count {
        assert!(started.elapsed() < HANG, "only {} of {count} operations ended", out.len());
        ring.wait(Some(HANG), &mut out).unwrap();
    }
    assert_eq!(out.len(), count, "more ended than were asked for");
    let ended: BTreeMap<_, _> = out.into_iter().map(|Completion { token, result }| (token, result)).collect();
    assert_eq!(ended.len(), count, "a token came twice");
    ended
}

/// Bytes that tell where and in which write they were.
fn pattern(seed: u64, blocks: usize) -> Vec<u8> {
    (0..blocks as u64 * 512)
        .flat_map(|at| (at ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes())
        .collect()
}

fn buffer(data: &[u8]) -> Arc<AlignedBuf> {
    Arc::new(AlignedBuf::from(data))
}

fn run(backend: Backend, mode: SyncMode, test: fn(&mut Bench)) {
    if backend == Backend::Uring
        && let Err(error) = open_ring(backend, CAPACITY, mode)
    {
        eprintln!("not tried, no io_uring here: {error}");
        return;
    }
    for direct in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let fs = if direct { OsFs::new(dir.path()).unwrap() } else { OsFs::buffered() };
        let open = Box::new(move |capacity| open_ring(backend, capacity, mode).unwrap());
        test(&mut Bench { ring: open(CAPACITY), fs, dir, mode, open });
    }
}

fn what_was_written_is_read_back(bench: &mut Bench) {
    let file = bench.create("file");
    let data = pattern(1, 3);
    bench.ring.write_sync(&file, BLOCK_BYTES as u64, buffer(&data), 1);
    assert!(bench.end().unwrap().is_none());
    assert_eq!(std::fs::read(bench.path("file")).unwrap()[BLOCK_BYTES..], data);

    let reader: Arc<dyn ReadAt> = Arc::new(bench.fs.open(&bench.path("file"), OpenMode::Read).unwrap());
    for (position, bytes) in [(0, 3 * BLOCK_BYTES), (1, 1), (511, 513), (4095, 2), (5000, 7000), (77, 0)] {
        bench.ring.read(&reader, (BLOCK_BYTES + position) as u64, bytes, 1);
        assert_eq!(bench.end().unwrap().unwrap(), data[position..position + bytes], "{bytes} at {position}");
    }
}

fn many_operations_each_end_once(bench: &mut Bench) {
    const WRITES: u64 = 300;
    let files: Vec<_> = (0..3).map(|number| bench.create(&number.to_string())).collect();
    let (mut next, mut ended, mut out) = (0, Vec::new(), Vec::new());
    while ended.len() < WRITES as usize {
        while next < WRITES && (next as usize) < ended.len() + CAPACITY {
            // A stride that is no divisor mixes the order of positions.
            let number = next * 97 % WRITES;
            let position = number / 3 * 2 * BLOCK_BYTES as u64;
            let blocks = 1 + (number % 2) as usize;
            bench.ring.write_sync(
                &files[(number % 3) as usize],
                position,
                buffer(&pattern(number, blocks)),
                number,
            );
            next += 1;
        }
        bench.ring.submit().unwrap();
        bench.ring.wait(Some(HANG), &mut out).unwrap();
        ended.extend(out.drain(..).map(|done| {
            done.result.unwrap();
            done.token
        }));
    }
    ended.sort_unstable();
    assert!(ended.iter().copied().eq(0..WRITES));
    for number in 0..WRITES {
        let expected = pattern(number, 1 + (number % 2) as usize);
        let position = number / 3 * 2 * BLOCK_BYTES as u64;
        assert_eq!(files[(number % 3) as usize].read_at(position, expected.len()).unwrap(), expected);
    }
}

fn large_writes_arrive_whole(bench: &mut Bench) {
    let file = bench.create("file");
    let data = pattern(5, 2048);
    bench.ring.write_sync(&file, 0, buffer(&data), 1);
    bench.end().unwrap();
    assert_eq!(file.read_at(0, data.len()).unwrap(), data);
}

fn partial_blocks_are_refused(bench: &mut Bench) {
    let file = bench.create("file");
    for (position, bytes) in [(1, BLOCK_BYTES), (512, BLOCK_BYTES), (0, BLOCK_BYTES + 1), (0, 100)] {
        bench.ring.write_sync(&file, position, Arc::new(AlignedBuf::zeroed(bytes)), 1);
        let error = bench.end().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("file"), "{error}");
    }
    assert_eq!(file.bytes().unwrap(), 0, "nothing was written");
}

fn a_read_past_the_end_names_the_file(bench: &mut Bench) {
    let file = bench.create("short-file");
    file.write_at(0, &AlignedBuf::zeroed(BLOCK_BYTES)).unwrap();
    let reader: Arc<dyn ReadAt> = file;
    for (position, bytes) in [(1, BLOCK_BYTES), (BLOCK_BYTES as u64, 1), (1 << 50, 1), (0, usize::MAX)] {
        bench.ring.read(&reader, position, bytes, 1);
        let error = bench.end().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
        let text = error.to_string();
        assert!(text.contains("short-file") && text.contains(&position.to_string()), "{text}");
    }
}

fn a_wake_before_a_wait_ends_it(bench: &mut Bench) {
    let started = Instant::now();
    bench.ring.waker().wake();
    bench.ring.wait(Some(HANG), &mut Vec::new()).unwrap();
    assert!(started.elapsed() < HANG / 2);
    assert!(bench.quiet(Duration::from_millis(40)) >= Duration::from_millis(40), "one wake ends one wait");
}

fn a_wake_ends_a_running_wait(bench: &mut Bench) {
    for timeout in [Some(HANG), None] {
        let waker = bench.ring.waker();
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            waker.wake();
        });
        let started = Instant::now();
        bench.ring.wait(timeout, &mut Vec::new()).unwrap();
        let waited = started.elapsed();
        assert!(waited >= Duration::from_millis(30) && waited < HANG / 2, "{waited:?}");
        other.join().unwrap();
    }
}

fn timeouts_are_kept(bench: &mut Bench) {
    for millis in [1, 25, 120] {
        let timeout = Duration::from_millis(millis);
        let waited = bench.quiet(timeout);
        assert!(waited >= timeout, "{waited:?} instead of {timeout:?}");
        assert!(waited < timeout + Duration::from_secs(2), "{waited:?} instead of {timeout:?}");
    }
    let started = Instant::now();
    for _ in 0..100 {
        bench.ring.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    }
    assert!(started.elapsed() < Duration::from_secs(2), "zero does not wait");
}

fn a_zero_timeout_still_finds_what_ended(bench: &mut Bench) {
    let file = bench.create("file");
    bench.ring.write_sync(&file, 0, buffer(&pattern(1, 1)), 1);
    let (started, mut out) = (Instant::now(), Vec::new());
    while out.is_empty() {
        assert!(started.elapsed() < HANG);
        bench.ring.wait(Some(Duration::ZERO), &mut out).unwrap();
    }
    assert!(out.remove(0).result.is_ok());
}

fn a_failed_write_is_reported_and_the_ring_goes_on(bench: &mut Bench) {
    bench.create("read-only");
    let read_only = Arc::new(bench.fs.open(&bench.path("read-only"), OpenMode::Read).unwrap());
    let full = Arc::new(OsFs::buffered().open(Path::new("/dev/full"), OpenMode::Write).unwrap());
    let good = bench.create("good");
    for _ in 0..3 {
        bench.ring.write_sync(&read_only, 0, buffer(&pattern(1, 1)), 1);
        bench.ring.write_sync(&full, 0, buffer(&pattern(2, 2)), 2);
        bench.ring.write_sync(&good, 0, buffer(&pattern(3, 1)), 3);
        bench.ring.submit().unwrap();
        let ended = bench.ends(3);
        let error = ended[&1].as_ref().unwrap_err();
        assert!(error.to_string().contains("read-only"), "{error}");
        let error = ended[&2].as_ref().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        assert!(error.to_string().contains("writing 8192 bytes at 0 of /dev/full"), "{error}");
        assert!(ended[&3].is_ok());
    }
}

/// `/dev/null` takes every write and cannot be synced.
fn a_failed_sync_is_reported(bench: &mut Bench) {
    let null = Arc::new(OsFs::buffered().open(Path::new("/dev/null"), OpenMode::Write).unwrap());
    bench.ring.write_sync(&null, 0, buffer(&pattern(1, 1)), 1);
    let result = bench.end();
    match bench.mode {
        SyncMode::LinkedFsync => {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("syncing") && text.contains("/dev/null"), "{text}");
        }
        // There is no sync of its own that could fail.
        SyncMode::WriteDsync => assert!(result.is_ok()),
    }
}

/// A write across the largest file size is cut short by the kernel, and its rest then refused.
fn a_short_write_is_taken_up_again(bench: &mut Bench) {
    let file = bench.create("huge");
    let probe = File::options().write(true).open(bench.path("huge")).unwrap();
    let (mut possible, mut impossible) = (0u64, 1u64 << 63);
    while impossible - possible > 1 {
        let middle = possible + (impossible - possible) / 2;
        match probe.set_len(middle) {
            Ok(()) => possible = middle,
            Err(_) => impossible = middle,
        }
    }
    probe.set_len(0).unwrap();
    let limit = possible;
    if !limit.is_multiple_of(BLOCK_BYTES as u64) || limit < 4 * BLOCK_BYTES as u64 {
        eprintln!("not tried: the largest file here, {limit} bytes, does not end on a block");
        return;
    }
    let position = limit - 2 * BLOCK_BYTES as u64;
    let data = pattern(9, 3);
    bench.ring.write_sync(&file, position, buffer(&data), 1);
    let error = bench.end().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "the rest was tried and said why: {error}");
    let written = file.read_at(position, 2 * BLOCK_BYTES).unwrap();
    assert_eq!(written, data[..2 * BLOCK_BYTES], "the write was short, not refused");
}

fn owners_may_leave_while_an_operation_runs(bench: &mut Bench) {
    for number in 0..CAPACITY as u64 {
        let file = bench.create(&number.to_string());
        bench.ring.write_sync(&file, 0, buffer(&pattern(number, 64)), number);
        let source: Arc<dyn ReadAt> = Arc::new(Fixed(PathBuf::from("fixed")));
        drop(file);
        if number % 2 == 0 {
            bench.ring.submit().unwrap();
        }
        drop(source);
        // Takes the place of freed memory, if it was freed.
        let noise = AlignedBuf::from(&[0xee; 64 * BLOCK_BYTES][..]);
        assert_eq!(noise.len(), 64 * BLOCK_BYTES);
    }
    bench.ring.submit().unwrap();
    for (number, result) in bench.ends(CAPACITY) {
        result.unwrap();
        assert_eq!(std::fs::read(bench.path(&number.to_string())).unwrap(), pattern(number, 64));
    }
}

fn a_dropped_ring_finishes_first(bench: &mut Bench) {
    let files: Vec<_> = (0..8u64).map(|number| bench.create(&number.to_string())).collect();
    let mut ring = (bench.open)(CAPACITY);
    let reader: Arc<dyn ReadAt> = Arc::new(Fixed(PathBuf::from("fixed")));
    for (number, file) in (0u64..).zip(&files) {
        ring.write_sync(file, 0, buffer(&pattern(number, 64)), number);
        if number == 3 {
            ring.read(&reader, 0, 10, 100);
            // Leaves the wake-up's own operation behind as well.
            ring.submit().unwrap();
            ring.wait(Some(Duration::from_micros(1)), &mut Vec::new()).unwrap();
        }
    }
    drop(ring);
    for (number, file) in (0u64..).zip(&files) {
        assert_eq!(file.read_at(0, 64 * BLOCK_BYTES).unwrap(), pattern(number, 64));
        assert_eq!(Arc::strong_count(file), 1, "nothing holds the file any more");
    }
}

fn one_more_than_the_capacity_is_refused(bench: &mut Bench) {
    let mut ring = (bench.open)(3);
    let file = bench.create("file");
    let reader: Arc<dyn ReadAt> = Arc::new(Fixed(PathBuf::from("fixed")));
    for round in 0..20u64 {
        ring.write_sync(&file, 0, buffer(&pattern(1, 1)), 1);
        ring.read(&reader, 0, 1, 2);
        ring.write_sync(&file, 4096, buffer(&pattern(2, 1)), 3);
        ring.write_sync(&file, 8192, buffer(&pattern(3, 1)), 4);
        ring.read(&reader, 0, 1, 5);
        ring.submit().unwrap();
        let ended = ends(&mut ring, 5);
        for token in 1..=3 {
            assert!(ended[&token].is_ok(), "round {round}, operation {token}: {:?}", ended[&token]);
        }
        for token in 4..=5 {
            assert_eq!(ended[&token].as_ref().unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        }
    }
    assert_eq!(file.bytes().unwrap(), 2 * BLOCK_BYTES as u64, "refused means not done");
}

fn a_storm_of_wakes_loses_none(bench: &mut Bench) {
    storm(bench, 8, 400);
}

/// One thread that answers at once hits the moment at which the sleeper falls asleep far more often than many.
fn wakes_in_the_moment_of_falling_asleep_count(bench: &mut Bench) {
    storm(bench, 1, 5000);
}

fn storm(bench: &mut Bench, threads: u64, rounds: u64) {
    let announced = Arc::new(AtomicU64::new(0));
    let seen = Arc::new(AtomicU64::new(0));
    let wakers: Vec<_> = (0..threads)
        .map(|_| {
            let (announced, seen, waker) = (Arc::clone(&announced), Arc::clone(&seen), bench.ring.waker());
            thread::spawn(move || {
                for _ in 0..rounds {
                    let mine = announced.fetch_add(1, Ordering::Relaxed) + 1;
                    waker.wake();
                    // With everybody waiting here, a single lost wake-up stops the test.
                    while seen.load(Ordering::Relaxed) < mine {
                        std::hint::spin_loop();
                        if threads > 1 {
                            thread::yield_now();
                        }
                    }
                }
            })
        })
        .collect();
    while seen.load(Ordering::Relaxed) < threads * rounds {
        let started = Instant::now();
        bench.ring.wait(Some(HANG), &mut Vec::new()).unwrap();
        assert!(started.elapsed() < HANG, "a wake-up was lost");
        seen.store(announced.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    for waker in wakers {
        waker.join().unwrap();
    }
}

fn wakes_and_writes_do_not_disturb_each_other(bench: &mut Bench) {
    let file = bench.create("file");
    let waker = bench.ring.waker();
    let stop = Arc::new(AtomicU64::new(0));
    let stopped = Arc::clone(&stop);
    let noise = thread::spawn(move || {
        while stopped.load(Ordering::Relaxed) == 0 {
            waker.wake();
            thread::sleep(Duration::from_micros(50));
        }
    });
    for number in 0..100u64 {
        let position = number * BLOCK_BYTES as u64;
        bench.ring.write_sync(&file, position, buffer(&pattern(number, 1)), 1);
        bench.end().unwrap();
        assert_eq!(file.read_at(position, BLOCK_BYTES).unwrap(), pattern(number, 1));
    }
    stop.store(1, Ordering::Relaxed);
    noise.join().unwrap();
}

/// Reads that no kernel knows how to do.
struct Fixed(PathBuf);

impl ReadAt for Fixed {
    fn read_at(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        thread::sleep(Duration::from_millis(5));
        Ok(Bytes::from(vec![position.to_le_bytes()[0]; bytes]))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

fn anything_readable_can_be_read(bench: &mut Bench) {
    let source: Arc<dyn ReadAt> = Arc::new(Fixed(PathBuf::from("fixed")));
    for token in 0..5 {
        bench.ring.read(&source, token, 3, token);
    }
    drop(source);
    bench.ring.submit().unwrap();
    for (token, result) in bench.ends(5) {
        let byte = token.to_le_bytes()[0];
        assert_eq!(result.unwrap().unwrap()[..], [byte, byte, byte]);
    }
}

macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        suite!(@ uring, Backend::Uring, SyncMode::LinkedFsync, [$($test),*]);
        suite!(@ uring_dsync, Backend::Uring, SyncMode::WriteDsync, [$($test),*]);
        suite!(@ threads, Backend::Threads, SyncMode::LinkedFsync, [$($test),*]);
        suite!(@ threads_dsync, Backend::Threads, SyncMode::WriteDsync, [$($test),*]);
    };
    (@ $module:ident, $backend:expr, $mode:expr, [$($test:ident),*]) => {
        mod $module {
            use super::*;
            $(#[test] fn $test() { run($backend, $mode, super::$test); })*
        }
    };
}

suite!(
    what_was_written_is_read_back,
    many_operations_each_end_once,
    large_writes_arrive_whole,
    partial_blocks_are_refused,
    a_read_past_the_end_names_the_file,
    a_wake_before_a_wait_ends_it,
    a_wake_ends_a_running_wait,
    timeouts_are_kept,
    a_zero_timeout_still_finds_what_ended,
    a_failed_write_is_reported_and_the_ring_goes_on,
    a_failed_sync_is_reported,
    a_short_write_is_taken_up_again,
    owners_may_leave_while_an_operation_runs,
    a_dropped_ring_finishes_first,
    one_more_than_the_capacity_is_refused,
    a_storm_of_wakes_loses_none,
    wakes_in_the_moment_of_falling_asleep_count,
    wakes_and_writes_do_not_disturb_each_other,
    anything_readable_can_be_read,
);
