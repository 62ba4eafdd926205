#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::io::AlignedBuf;

const PLACES: usize = 4;

/// What the files of a test share.
#[derive(Debug, Default)]
struct Shared {
    live: AtomicUsize,
    most: AtomicUsize,
    opens: AtomicUsize,
    /// As many may be live; 0: any number.
    limit: AtomicUsize,
    gone: AtomicBool,
}

/// A file whose bytes are the number in its name.
#[derive(Debug)]
struct Counted {
    path: PathBuf,
    shared: Arc<Shared>,
}

impl Counted {
    fn open(path: &Path, shared: &Arc<Shared>) -> io::Result<Counted> {
        if shared.gone.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let limit = shared.limit.load(Ordering::SeqCst);
        if limit > 0 && shared.live.load(Ordering::SeqCst) >= limit {
            return Err(io::Error::other("too many open files"));
        }
        shared.opens.fetch_add(1, Ordering::SeqCst);
        let live = shared.live.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most.fetch_max(live, Ordering::SeqCst);
        Ok(Counted { path: path.to_owned(), shared: Arc::clone(shared) })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.live.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ReadAt for Counted {
    fn read_at(&self, _: u64, _: usize) -> io::Result<Bytes> {
        std::thread::yield_now();
        Ok(Bytes::from(self.path.file_stem().unwrap().to_string_lossy().into_owned()))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl FsFile for Counted {
    fn bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn write_at(&self, _: u64, _: &AlignedBuf) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn readers(segments: u64) -> (Readers<Counted>, Arc<Shared>) {
    let shared = Arc::new(Shared::default());
    let ours = Arc::clone(&shared);
    let open = Box::new(move |path: &Path| Counted::open(path, &ours));
    let mut readers = Readers::with_places(&Layout::new(Path::new("data")), PLACES, open);
    (1..=segments).for_each(|number| readers.add(FileNumber(number)));
    (readers, shared)
}

fn check(reader: &Reader<Counted>, number: u64) {
    assert_eq!(reader.read_at(0, 1).unwrap(), format!("{number:016}"));
}

fn read(readers: &Readers<Counted>, number: u64) {
    check(readers.get(FileNumber(number)).unwrap(), number);
}

#[test]
fn a_few_are_open_and_those_that_were_closed_open_again() {
    let (readers, shared) = readers(100);
    assert_eq!(shared.opens.load(Ordering::SeqCst), 0, "nothing is opened before it is read");
    for _ in 0..2 {
        (1..=100).for_each(|number| read(&readers, number));
    }
    assert_eq!(shared.opens.load(Ordering::SeqCst), 200);
    assert_eq!(shared.most.load(Ordering::SeqCst), PLACES);
    // 97 to 100 are open. The one that was used longest ago goes.
    read(&readers, 97);
    read(&readers, 1);
    read(&readers, 97);
    assert_eq!(shared.opens.load(Ordering::SeqCst), 201);
    read(&readers, 98);
    assert_eq!(shared.opens.load(Ordering::SeqCst), 202);
}

#[test]
fn readers_on_many_threads_share_the_places() {
    let (readers, shared) = readers(40);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let readers = &readers;
            scope.spawn(move || (0..500).for_each(|round| read(readers, (round * 7 + thread * 3) % 40 + 1)));
        }
    });
    assert!(shared.most.load(Ordering::SeqCst) <= PLACES);
}

#[test]
fn a_dropped_segment_has_no_new_holder_and_is_closed_with_its_last() {
    let (mut readers, shared) = readers(2);
    let held = Arc::clone(readers.get(FileNumber(1)).unwrap());
    check(&held, 1);
    let dropped = readers.remove(FileNumber(1)).unwrap();
    assert!(readers.get(FileNumber(1)).is_none());
    assert!(readers.remove(FileNumber(1)).is_none());
    assert_eq!(Arc::strong_count(&dropped), 2, "the pool holds none");
    drop(held);
    assert_eq!(Arc::strong_count(&dropped), 1);
    drop(dropped);
    assert_eq!(shared.live.load(Ordering::SeqCst), 0);
}

#[test]
fn a_reader_that_is_closed_counts_and_a_kept_one_reads_on_without_its_name() {
    let (mut readers, shared) = readers(20);
    let held = Arc::clone(readers.get(FileNumber(1)).unwrap());
    (1..=20).for_each(|number| read(&readers, number));
    let dropped = readers.remove(FileNumber(1)).unwrap();
    assert_eq!(Arc::strong_count(&dropped), 2, "it was closed, and somebody holds it all the same");
    dropped.keep().unwrap();
    shared.gone.store(true, Ordering::SeqCst);
    check(&held, 1);
    drop((held, dropped));
    assert_eq!(shared.live.load(Ordering::SeqCst), PLACES);
}

#[test]
fn what_cannot_be_opened_is_an_error_of_the_read() {
    let (readers, shared) = readers(20);
    read(&readers, 1);
    shared.gone.store(true, Ordering::SeqCst);
    let unread = readers.get(FileNumber(2)).unwrap();
    for _ in 0..2 * PLACES {
        assert_eq!(unread.read_at(0, 1).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
    assert_eq!(unread.keep().unwrap_err().kind(), io::ErrorKind::NotFound);
    read(&readers, 1);
    shared.gone.store(false, Ordering::SeqCst);
    check(unread, 2);
}

#[test]
fn without_descriptors_files_that_nobody_reads_are_closed() {
    let (readers, shared) = readers(20);
    shared.limit.store(2, Ordering::SeqCst);
    (1..=20).for_each(|number| read(&readers, number));
    shared.limit.store(1, Ordering::SeqCst);
    (1..=20).for_each(|number| read(&readers, number));
    // Somebody else took all of them.
    shared.live.fetch_add(1, Ordering::SeqCst);
    assert!(readers.get(FileNumber(5)).unwrap().read_at(0, 1).is_err());
    shared.live.fetch_sub(1, Ordering::SeqCst);
    (1..=20).for_each(|number| read(&readers, number));
}
