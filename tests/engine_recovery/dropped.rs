//! Segments that were dropped, and starts that meet them.

use super::*;

/// A seal is not waited for: a crash may lose it, and whatever stood in the next segment, while the record that
/// dropped the sealed segment is durable.
#[test]
fn a_segment_that_was_dropped_is_never_appended_to_again() {
    let dir = TempDir::new().unwrap();
    let mut driver = Driver::open(dir.path());
    driver.create(1);
    driver.push(1, &[payload(0, 1000)]);
    driver.commit();
    let first = dir.path().join("segments/0000000000000001.seg");
    let messages_end = *frames(&first).last().unwrap() + 4096;
    driver.engine.roll_soon();
    for tries in 0.. {
        driver.stage(&Delta::PartitionStart { partition: PartitionId(1), start: Offset(1) });
        driver.commit();
        if driver.engine.active_segment() == FileNumber(2) {
            break;
        }
        assert!(tries < 1000);
    }
    driver.stage(&Delta::SegmentsDropped { first: FileNumber(1), last: FileNumber(1) });
    driver.commit();
    driver.crash();
    // An index of the successor can only be from a roll that is lost now.
    fs::write(dir.path().join("segments/0000000000000002.idx"), b"stale").unwrap();
    let wipe = |path: &Path, from: u64| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&vec![0; usize::try_from(SEGMENT_BYTES - from).unwrap()], from).unwrap();
    };
    wipe(&first, messages_end);
    wipe(&dir.path().join("segments/0000000000000002.seg"), 4096);

    let mut driver = Driver::open(dir.path());
    assert_eq!(driver.engine.active_segment(), FileNumber(2));
    assert!(!dir.path().join("segments/0000000000000002.idx").exists());
    driver.push(1, &[payload(1, 1000)]);
    driver.commit();
    let before = driver.crash();
    assert_eq!(picture(dir.path(), LogId(77), &try_recover(dir.path()).unwrap().machine), before);
}
