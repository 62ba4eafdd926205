//! The disk tests itself: every fault of the model is seen, and only where it may be.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Crash, Damage, Faults, SimDisk, SimFile};
use crate::io::{AlignedBuf, BLOCK_BYTES, Clock, Completion, Fs, FsFile, OpenMode, ReadAt, Ring};

const DIR: &str = "/data";

fn path(name: &str) -> std::path::PathBuf {
    Path::new(DIR).join(name)
}

fn blocks(fill: u8, count: usize) -> AlignedBuf {
    AlignedBuf::from(vec![fill; count * BLOCK_BYTES].as_slice())
}

/// A file with a durable name and durable bytes.
fn durable(disk: &SimDisk, name: &str, fill: u8, count: usize) -> SimFile {
    let fs = disk.fs();
    let file = fs.open(&path(name), OpenMode::Create).unwrap();
    file.write_at(0, &blocks(fill, count)).unwrap();
    file.sync_data().unwrap();
    fs.sync_dir(Path::new(DIR)).unwrap();
    file
}

fn contents(disk: &SimDisk, name: &str) -> Option<Vec<u8>> {
    disk.contents(&path(name)).map(|bytes| bytes.to_vec())
}

/// Runs what was queued until so many operations have ended.
fn ends(ring: &mut impl Ring, count: usize) -> Vec<Completion> {
    let mut out = Vec::new();
    ring.submit().unwrap();
    for _ in 0..10_000 {
        if out.len() >= count {
            return out;
        }
        ring.wait(Some(Duration::from_secs(1)), &mut out).unwrap();
    }
    panic!("only {} of {count} operations ended", out.len());
}

#[test]
fn what_was_synced_outlives_every_crash() {
    for seed in 0..100 {
        for how in [Crash::Power, Crash::Kill] {
            let disk = SimDisk::new(seed, Faults::crashes_only());
            durable(&disk, "file", 7, 5);
            disk.crash();
            disk.settle(how);
            assert_eq!(contents(&disk, "file").unwrap(), vec![7; 5 * BLOCK_BYTES], "seed {seed}, {how:?}");
        }
    }
}

#[test]
fn what_was_not_synced_is_lost_kept_or_torn_by_a_power_cut_and_stays_when_the_process_dies() {
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..50 {
        let disk = SimDisk::new(seed, Faults::none());
        let file = durable(&disk, "file", 1, 8);
        file.write_at(0, &blocks(2, 8)).unwrap();
        disk.crash();
        disk.settle(Crash::Power);
        for block in contents(&disk, "file").unwrap().chunks(BLOCK_BYTES) {
            let new = block.iter().take_while(|byte| **byte == 2).count();
            assert!(block.iter().skip(new).all(|byte| *byte == 1), "a torn block keeps a prefix");
            match new {
                0 => lost += 1,
                BLOCK_BYTES => kept += 1,
                _ => torn += 1,
            }
        }
        let killed = SimDisk::new(seed, Faults::none());
        let file = durable(&killed, "file", 1, 8);
        file.write_at(0, &blocks(2, 8)).unwrap();
        killed.crash();
        killed.settle(Crash::Kill);
        assert_eq!(contents(&killed, "file").unwrap(), vec![2; 8 * BLOCK_BYTES]);
    }
    assert!(lost > 20 && kept > 20 && torn > 20, "lost {lost}, kept {kept}, torn {torn}");
}

#[test]
fn names_count_after_their_directory_is_synced() {
    let (mut created, mut renamed, mut removed) = ([0, 0], [0, 0], [0, 0]);
    for seed in 0..50 {
        let disk = SimDisk::new(seed, Faults::none());
        durable(&disk, "old", 1, 1);
        durable(&disk, "gone", 1, 1);
        let fs = disk.fs();
        fs.open(&path("new"), OpenMode::Create).unwrap().sync_data().unwrap();
        fs.rename(&path("old"), &path("other")).unwrap();
        fs.remove(&path("gone")).unwrap();
        disk.crash();
        disk.settle(Crash::Power);
        let there = |name| usize::from(contents(&disk, name).is_some());
        for (counts, name) in [(&mut created, "new"), (&mut renamed, "other"), (&mut removed, "gone")] {
            *counts.get_mut(there(name)).unwrap() += 1;
        }
    }
    for counts in [created, renamed, removed] {
        assert!(counts.iter().all(|count| *count > 10), "absent and present: {counts:?}");
    }
}

#[test]
fn every_error_is_seen_where_it_was_injected() {
    let disk = SimDisk::new(1, Faults::none());
    let file = durable(&disk, "file", 1, 1);
    let fs = disk.fs();
    disk.set_faults(Faults { read_one_in: 1, ..Faults::none() });
    assert!(file.read_at(0, 10).is_err());
    disk.set_faults(Faults { write_one_in: 1, ..Faults::none() });
    assert!(file.write_at(0, &blocks(2, 1)).is_err());
    disk.set_faults(Faults { sync_one_in: 1, ..Faults::none() });
    assert!(file.sync_data().is_err());
    assert!(fs.sync_dir(Path::new(DIR)).is_err());
    let seen = disk.seen();
    assert!(seen.failed_reads == 1 && seen.failed_writes == 1 && seen.failed_syncs == 2, "{seen:?}");
    disk.set_faults(Faults::none());
    assert!(file.read_at(0, 10).is_ok() && file.sync_data().is_ok());
}

#[test]
fn a_failed_sync_leaves_clean_pages_that_the_next_process_may_not_find() {
    let mut differ = 0;
    for seed in 0..50 {
        for how in [Crash::Power, Crash::Kill] {
            let disk = SimDisk::new(seed, Faults::none());
            let file = durable(&disk, "file", 1, 4);
            file.write_at(0, &blocks(2, 4)).unwrap();
            disk.set_faults(Faults { sync_one_in: 1, ..Faults::none() });
            assert!(file.sync_data().is_err());
            disk.set_faults(Faults::none());
            assert!(file.sync_data().is_ok(), "a later sync has nothing to do and says so");
            assert!(
                disk.is_durable(&path("file"), 0, 4).is_err(),
                "and the bytes count as lost all the same"
            );
            assert_eq!(file.read_at(0, 4).unwrap().to_vec(), [2; 4], "the process sees them");
            disk.crash();
            disk.settle(how);
            differ += usize::from(contents(&disk, "file").unwrap() != vec![2; 4 * BLOCK_BYTES]);
        }
    }
    assert!(differ > 50, "{differ} of 100 lost something");
}

#[test]
fn a_full_disk_refuses_new_blocks_and_takes_old_ones() {
    let disk = SimDisk::new(1, Faults::none());
    let file = durable(&disk, "file", 1, 2);
    disk.set_faults(Faults { capacity_bytes: 2 * BLOCK_BYTES as u64, ..Faults::none() });
    assert_eq!(disk.fs().free_bytes(Path::new(DIR)).unwrap(), 0);
    assert!(file.write_at(2 * BLOCK_BYTES as u64, &blocks(2, 1)).is_err());
    assert!(file.write_at(0, &blocks(2, 2)).is_ok(), "what was written once keeps its place");
    assert!(disk.seen().no_space > 0);
}

#[test]
fn new_files_show_what_an_older_one_left() {
    let mut shown = 0;
    for seed in 0..50 {
        let disk = SimDisk::new(seed, Faults { stale_one_in: 2, ..Faults::none() });
        durable(&disk, "old", 9, 4);
        disk.crash();
        disk.settle(Crash::Power);
        let file = disk.fs().open(&path("new"), OpenMode::Create).unwrap();
        file.write_at(3 * BLOCK_BYTES as u64, &blocks(1, 1)).unwrap();
        shown += usize::from(contents(&disk, "new").unwrap().contains(&9));
    }
    assert!((10..50).contains(&shown), "{shown}");
}

#[test]
fn damage_changes_durable_bytes_by_what_it_says() {
    let disk = SimDisk::new(1, Faults::none());
    let file = durable(&disk, "file", 1, 4);
    file.write_at(0, &blocks(5, 1)).unwrap();
    file.sync_data().unwrap();
    let before = contents(&disk, "file").unwrap();
    let differing = |bits: bool| -> u32 {
        let now = contents(&disk, "file").unwrap();
        let pairs = now.iter().zip(&before);
        pairs
            .map(|(now, before)| if bits { (now ^ before).count_ones() } else { u32::from(now != before) })
            .sum()
    };
    assert!(disk.damage(&path("file"), Damage::FlipBit));
    assert_eq!(differing(true), 1);
    assert!(disk.damage(&path("file"), Damage::ZeroBlock));
    assert!(differing(false) as usize >= BLOCK_BYTES);
    while disk.seen().misdirected_writes == 0 {
        disk.damage(&path("file"), Damage::Misdirect);
    }
    assert!(!disk.damage(&path("nowhere"), Damage::FlipBit));
}

#[test]
fn operations_of_the_ring_end_once_whole_and_in_any_order() {
    let mut seen = super::Seen::default();
    for seed in 0..20 {
        let disk = SimDisk::new(seed, Faults { short_one_in: 3, ..Faults::none() });
        let files: Vec<Arc<SimFile>> =
            ["a", "b"].map(|name| Arc::new(disk.fs().open(&path(name), OpenMode::Create).unwrap())).into();
        disk.fs().sync_dir(Path::new(DIR)).unwrap();
        let mut ring = disk.ring(Clock::manual(0, 0).1);
        for token in 0..40_u64 {
            let file = files.get(usize::from(token % 2 == 1)).unwrap();
            let position = token / 2 * 2 * BLOCK_BYTES as u64;
            ring.write_sync(file, position, Arc::new(blocks(token as u8, 2)), token);
        }
        let ended = ends(&mut ring, 40);
        assert!(ended.iter().all(|completion| completion.result.is_ok()));
        let mut tokens: Vec<u64> = ended.iter().map(|completion| completion.token).collect();
        let in_order = tokens.is_sorted();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..40).collect::<Vec<_>>(), "each ends once");
        assert!(!in_order, "seed {seed}: nothing was reordered");
        for (index, name) in ["a", "b"].into_iter().enumerate() {
            assert_eq!(
                disk.is_durable(&path(name), 0, 40 * BLOCK_BYTES as u64),
                Ok(()),
                "a completion is a promise"
            );
            for (at, block) in contents(&disk, name).unwrap().chunks(2 * BLOCK_BYTES).enumerate() {
                assert!(block.iter().all(|byte| usize::from(*byte) == 2 * at + index));
            }
        }
        seen.short_writes += disk.seen().short_writes;
        seen.interrupted_writes += disk.seen().interrupted_writes;
    }
    assert!(seen.short_writes > 50 && seen.interrupted_writes > 50, "{seen:?}");
}

#[test]
fn writes_in_flight_leave_some_of_their_blocks() {
    let mut parts = [0; 5];
    for seed in 0..60 {
        let disk = SimDisk::new(seed, Faults::none());
        let file = Arc::new(durable(&disk, "file", 1, 4));
        let mut ring = disk.ring(Clock::manual(0, 0).1);
        ring.write_sync(&file, 0, Arc::new(blocks(2, 4)), 1);
        ring.submit().unwrap();
        disk.crash();
        drop(ring);
        disk.settle(Crash::Kill);
        let new = contents(&disk, "file").unwrap().iter().filter(|byte| **byte == 2).count();
        *parts.get_mut(new / BLOCK_BYTES).unwrap() += 1;
    }
    assert!(parts.iter().all(|count| *count > 0), "{parts:?}");
}

#[test]
fn the_machine_stops_at_any_operation_and_its_processes_only_fail() {
    let work = |disk: &SimDisk| -> std::io::Result<()> {
        let fs = disk.fs();
        let file = fs.open(&path("file"), OpenMode::Create)?;
        file.write_at(0, &blocks(1, 1))?;
        file.sync_data()?;
        fs.rename(&path("file"), &path("other"))?;
        fs.sync_dir(Path::new(DIR))?;
        file.read_at(0, 1).map(drop)
    };
    let whole = SimDisk::new(1, Faults::none());
    work(&whole).unwrap();
    for operations in 0..whole.operations() {
        let disk = SimDisk::new(1, Faults::none());
        disk.crash_after(operations);
        assert!(work(&disk).is_err(), "{operations}");
        assert!(disk.crashed() && disk.seen().crashes == 1);
        let old = disk.fs();
        disk.settle(Crash::Power);
        assert!(old.list(Path::new(DIR)).is_err(), "a handle of an earlier process");
        assert!(disk.fs().list(Path::new(DIR)).is_ok());
    }
}

#[test]
fn the_same_seed_makes_the_same_disk() {
    let work = |seed| {
        let disk = SimDisk::new(seed, Faults::crashes_only());
        let file = durable(&disk, "file", 1, 8);
        file.write_at(0, &blocks(2, 8)).unwrap();
        disk.crash();
        disk.settle(Crash::Power);
        disk.digest()
    };
    let digests: Vec<u64> = (0..20).map(work).collect();
    assert_eq!(digests, (0..20).map(work).collect::<Vec<_>>());
    assert!(digests.iter().any(|digest| Some(digest) != digests.first()), "the seed decides");
}

#[test]
fn the_tracker_knows_what_a_barrier_covered() {
    let disk = SimDisk::new(1, Faults::none());
    let fs = disk.fs();
    let file = fs.open(&path("file"), OpenMode::Create).unwrap();
    file.write_at(0, &blocks(1, 2)).unwrap();
    assert!(disk.is_durable(&path("file"), 0, 1).is_err(), "neither name nor bytes");
    fs.sync_dir(Path::new(DIR)).unwrap();
    assert!(disk.is_durable(&path("file"), 0, 1).is_err(), "the name only");
    file.sync_data().unwrap();
    assert_eq!(disk.is_durable(&path("file"), 0, 2 * BLOCK_BYTES as u64), Ok(()));
    file.write_at(BLOCK_BYTES as u64, &blocks(2, 1)).unwrap();
    assert_eq!(disk.is_durable(&path("file"), 0, BLOCK_BYTES as u64), Ok(()));
    assert!(disk.is_durable(&path("file"), 0, 2 * BLOCK_BYTES as u64).is_err());
    assert!(disk.tracker_violations().is_empty());
    fs.rename(&path("file"), &path("final")).unwrap();
    assert_eq!(disk.tracker_violations().len(), 1, "renamed before it was synced");
}
