//! The audit sees what is promised and not durable.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;

use comb::broker::command::{Command, Configure};
use comb::broker::handle::Request;
use comb::engine::Layout;
use comb::io::sim::{Faults, SimDisk};
use comb::io::{AlignedBuf, Clock, Fs, FsFile, OpenMode};
use comb::types::Seq;
use combsim::audit::audit;
use combsim::process::Process;
use combsim::profile::Profile;

/// Writes what is there once more, and does not sync it.
fn touch(disk: &SimDisk, path: &Path, position: u64) {
    let bytes = disk.contents(path).unwrap();
    let from = usize::try_from(position).unwrap();
    let mut block = AlignedBuf::with_capacity(4096);
    block.extend_from_slice(bytes.get(from..from + 4096).unwrap());
    disk.fs().open(path, OpenMode::Write).unwrap().write_at(position, &block).unwrap();
}

#[test]
fn what_is_promised_and_not_durable_is_seen() {
    let mut settings = Profile::new(1).settings;
    settings.engine.checkpoint_cursor_bytes = 4096;
    let (clock, hands) = Clock::manual(1_000_000, 1_700_000_000_000_000);
    let disk = SimDisk::new(1, Faults::none());
    let mut process = Process::start(&disk, &clock, &hands, 1, &settings).unwrap();
    for number in 0..20 {
        let configure = Configure { queue: format!("q{number}"), ..Configure::default() };
        let request = Request { command: Command::Configure(configure), reply: None };
        assert!(process.handle.send(request).is_ok());
        for _ in 0..20 {
            while process.maintain() {}
            assert!(process.step_awake().is_none());
            process.take_answers(|| {});
            hands.advance_us(100_000);
        }
    }
    let (layout, log) = (Layout::new(&settings.data), process.handle.log());
    let watermark = process.watermark();
    assert!(watermark >= Seq(20));
    audit(&disk, &layout, log, watermark).unwrap();
    let error = audit(&disk, &layout, log, Seq(watermark.0 + 1)).unwrap_err();
    assert!(error.contains("frames end at seq"), "{error}");

    let checkpoint =
        disk.files().into_iter().find(|path| path.extension().is_some_and(|e| e == "ckpt")).unwrap();
    touch(&disk, &checkpoint, 0);
    let error = audit(&disk, &layout, log, watermark).unwrap_err();
    assert!(error.contains("names a checkpoint"), "{error}");

    let cursors = disk.files().into_iter().find(|path| path.extension().is_some_and(|e| e == "wal")).unwrap();
    touch(&disk, &cursors, 4096);
    let error = audit(&disk, &layout, log, watermark).unwrap_err();
    assert!(error.contains("vouches") && error.contains("not synced"), "{error}");
    // Later frames vouch for it, whatever the daemon says.
    let error = audit(&disk, &layout, log, Seq(0)).unwrap_err();
    assert!(error.contains("a frame of seq"), "{error}");
}
