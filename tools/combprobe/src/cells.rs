//! The cells with one file: layouts, modes, ways to make a write durable, and what preparing a file costs.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::ProbeError;
use crate::disk::{Aligned, Device, Layout, Mode, Target};
use crate::report::{Rounds, Sample};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Sizes of one write.
const SIZES: [usize; 3] = [4 * KIB, 64 * KIB, MIB];

/// Size of a segment by default.
const SEGMENT_BYTES: u64 = 64 * MIB as u64;

/// How a write becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durable {
    /// A write, then a data sync.
    Sync,
    /// One write with the flag that asks for it.
    Flag,
}

/// Serial durable writes: every layout in both modes, and the flag instead of a sync for direct ones.
pub(crate) fn writes(
    dir: &Path,
    device: &Device,
    budget: Duration,
    rounds: &mut Rounds,
) -> Result<(), ProbeError> {
    for size in SIZES {
        for layout in [Layout::Zeroed, Layout::Reserved, Layout::Appended] {
            for (mode, durable) in [
                (Mode::Direct, Durable::Sync),
                (Mode::Buffered, Durable::Sync),
                (Mode::Direct, Durable::Flag),
            ] {
                let name = format!(
                    "{}, {}{}",
                    layout.word(),
                    mode.word(),
                    if durable == Durable::Flag { ", RWF_DSYNC" } else { "" }
                );
                // Large writes need a larger file to last for the whole budget.
                let file_bytes = if size == MIB { 4 * SEGMENT_BYTES } else { SEGMENT_BYTES };
                let target = Target::create(&dir.join("write"), layout, file_bytes, mode)?;
                let data = Aligned::filled(size, 0xa5);
                let mut sample = Sample::start(device, size as u64);
                let deadline = Instant::now() + budget;
                let mut position = 0;
                while position < file_bytes && Instant::now() < deadline {
                    let begun = Instant::now();
                    match durable {
                        Durable::Sync => {
                            target.write(position, data.bytes())?;
                            target.sync()?;
                        }
                        Durable::Flag => target.write_durable(position, data.bytes())?,
                    }
                    sample.commit(begun.elapsed());
                    position += size as u64;
                }
                rounds.add(&name, size, sample.end(device));
                target.remove()?;
            }
        }
    }
    Ok(())
}

/// Filling one file of a segment's size from nothing: what preparation costs, and what it saves afterwards.
pub(crate) fn preparation(dir: &Path, device: &Device, rounds: &mut Rounds) -> Result<(), ProbeError> {
    for size in SIZES {
        for layout in [Layout::Zeroed, Layout::Reserved, Layout::Appended] {
            // Small writes of a whole file would take long; a sixteenth of it shows the rate.
            let part = if size == 4 * KIB { SEGMENT_BYTES / 16 } else { SEGMENT_BYTES };
            let mut sample = Sample::start(device, size as u64);
            let begun = Instant::now();
            let target = Target::create(&dir.join("fill"), layout, SEGMENT_BYTES, Mode::Direct)?;
            sample.prepared(begun.elapsed());
            let data = Aligned::filled(size, 0xa5);
            let mut position = 0;
            while position < part {
                let begun = Instant::now();
                target.write(position, data.bytes())?;
                target.sync()?;
                sample.commit(begun.elapsed());
                position += size as u64;
            }
            rounds.add(layout.word(), size, sample.end(device));
            target.remove()?;
        }
    }
    Ok(())
}
