//! Whether anything that is durable, or was promised, rests on something that is not.
//!
//! A crash shows a missing barrier only where it falls between two writes; this looks at the barriers themselves, at
//! any moment: at what the tracker of the simulated disk knows of every byte and name.
//!
//! Must not: change the disk.

use std::path::Path;

use comb::format::file_header::{FileHeader, FileKind};
use comb::format::frame::{FrameHeader, FrameKind, frame_bytes, mark};
use comb::format::superblock::Superblock;
use comb::io::BLOCK_BYTES;
use comb::io::sim::SimDisk;
use comb::log::files::Layout;
use comb::types::{LogId, Seq};

/// Looks at everything. `watermark`: the highest seq that the daemon has promised.
///
/// # Errors
/// What is not durable, and who promises that it is.
pub fn audit(disk: &SimDisk, layout: &Layout, log: LogId, watermark: Seq) -> Result<(), String> {
    let frames = frames(disk, log);
    let mut promised = (watermark, "the daemon".to_owned());
    for frame in &frames {
        if frame.header.watermark > promised.0 && frame.durable.is_ok() {
            promised = (frame.header.watermark, format!("a frame of seq {}", frame.header.seq));
        }
    }
    let newest = frames.iter().map(|frame| frame.header.seq).max().unwrap_or(Seq(0));
    if newest < promised.0 {
        return Err(format!("{} vouches for seq {}, and frames end at seq {newest}", promised.1, promised.0));
    }
    for frame in frames.iter().filter(|frame| frame.header.kind == FrameKind::Commit) {
        if frame.header.seq <= promised.0
            && let Err(error) = &frame.durable
        {
            let (seq, who) = (frame.header.seq, &promised.1);
            return Err(format!("{who} vouches for seq {}, and of seq {seq}, {error}", promised.0));
        }
    }
    let block = BLOCK_BYTES as u64;
    let superblock = layout.superblock();
    let bytes = disk.contents(&superblock).unwrap_or_default();
    for slot in 0..2_u64 {
        let at = usize::try_from(slot * block).unwrap_or(usize::MAX);
        let Some(Ok(known)) = bytes.get(at..at + BLOCK_BYTES).map(Superblock::decode) else { continue };
        if disk.is_durable(&superblock, slot * block, block).is_err() {
            continue;
        }
        for seq in [known.checkpoint, known.previous_checkpoint].into_iter().filter(|seq| *seq > Seq(0)) {
            let path = layout.checkpoint(seq);
            // The older slot may name one that is gone.
            let Some(whole) = disk.contents(&path) else { continue };
            disk.is_durable(&path, 0, whole.len() as u64)
                .map_err(|error| format!("slot {slot} of the superblock names a checkpoint: {error}"))?;
        }
    }
    Ok(())
}

struct Frame {
    header: FrameHeader,
    durable: Result<(), String>,
}

fn frames(disk: &SimDisk, log: LogId) -> Vec<Frame> {
    let mut frames = Vec::new();
    for path in disk.files() {
        let Some(bytes) = disk.contents(&path) else { continue };
        let Some(file) = bytes.get(..BLOCK_BYTES).and_then(|block| FileHeader::decode_any(block).ok()) else {
            continue;
        };
        if file.kind == FileKind::Checkpoint || file.log != log || is_aside(&path) {
            continue;
        }
        let mut position = BLOCK_BYTES;
        while let Some(block) = bytes.get(position..position + BLOCK_BYTES) {
            let header = FrameHeader::decode(block, file.number).ok();
            let Some(header) = header.filter(|header| header.mark == mark(log, file.number)) else {
                position += BLOCK_BYTES;
                continue;
            };
            let length = frame_bytes(header.body_bytes as usize);
            let durable = disk.is_durable(&path, position as u64, length);
            frames.push(Frame { header, durable });
            position += usize::try_from(length).unwrap_or(usize::MAX);
        }
    }
    frames
}

/// Files that are being prepared, or that are dead.
fn is_aside(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "tmp")
}
