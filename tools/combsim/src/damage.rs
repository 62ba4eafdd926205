//! Damage: what must be refused or isolated by name.
//!
//! A history is brought to rest, so that watermarks vouch for everything that was answered. Then bytes are changed
//! below or above the daemon's feet, and it is started, or asked to deliver, once more.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use comb::broker::start::StartError;
use comb::broker::state::State;
use comb::engine::Layout;
use comb::engine::recovery::recover;
use comb::format::file_header::{FileHeader, FileKind};
use comb::format::frame::FrameKind;
use comb::io::{AlignedBuf, BLOCK_BYTES, Fs, FsFile, OpenMode, ReadAt};
use comb::log::appender::{Appender, Resume, Stamp, empty_body};
use comb::types::{LogId, Seq};

use crate::failure::{Failure, Invariant, check};
use crate::profile::Weather;
use crate::world::World;

/// Most steps in which a history comes to rest.
const STEPS_TO_REST: u32 = 200;

/// What is done to the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hurt {
    /// One bit is turned, with the daemon stopped.
    FlipBit,
    /// One bit of a checkpoint is turned, with the daemon stopped.
    FlipCheckpoint,
    /// One block is zeroed, with the daemon stopped.
    ZeroBlock,
    /// The file is removed, with the daemon stopped.
    Remove,
    /// One bit of a segment is turned while the daemon runs.
    FlipBitLive,
    /// A frame is written that no crash can have left: too far ahead of the last group.
    ForgeAhead,
    /// A frame is written that no crash can have left: too far behind the last group in bytes.
    ForgeApart,
}

impl Hurt {
    /// All of them.
    pub const ALL: [Hurt; 7] = [
        Hurt::FlipBit,
        Hurt::FlipCheckpoint,
        Hurt::ZeroBlock,
        Hurt::Remove,
        Hurt::FlipBitLive,
        Hurt::ForgeAhead,
        Hurt::ForgeApart,
    ];
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The start was refused.
    Refused,
    /// It started, and so many messages could not be read; everything else was there.
    Isolated(u64),
    /// There was no place for this kind of damage.
    Nothing,
}

impl World {
    /// Runs a history, damages what it leaves behind, and judges what comes of it.
    ///
    /// # Errors
    /// A broken rule.
    pub fn run_damaged(&mut self, hurt: Hurt) -> Result<Ended, Failure> {
        self.profile.weather = Weather::Calm;
        self.begin()?;
        self.rest()?;
        if hurt == Hurt::FlipBitLive {
            let Some((path, position)) = self.some_block(&["segments"])? else { return Ok(Ended::Nothing) };
            self.change(&path, position, hurt)?;
            return self.read_what_is_left();
        }
        self.die("stopped to be damaged");
        let file = match hurt {
            Hurt::ForgeAhead | Hurt::ForgeApart => match self.forge(hurt)? {
                Some(path) => path,
                None => return Ok(Ended::Nothing),
            },
            _ => {
                let kinds: &[&str] = match hurt {
                    Hurt::FlipCheckpoint => &["checkpoints"],
                    _ => &["segments", "cursors", "checkpoints", ""],
                };
                let Some((path, position)) = self.some_block(kinds)? else { return Ok(Ended::Nothing) };
                self.change(&path, position, hurt)?;
                path
            }
        };
        match self.start_once() {
            Ok(()) => self.read_what_is_left(),
            Err(error) => {
                let text = error.to_string();
                self.note(format_args!("start refused: {text}"));
                let name =
                    file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                check(
                    matches!(error, StartError::Recovery(_)) && text.contains(&name),
                    Invariant::Damage,
                    || format!("{hurt:?} of {} is refused without its name: {text}", file.display()),
                )?;
                Ok(Ended::Refused)
            }
        }
    }

    /// Everything is answered and vouched for.
    fn rest(&mut self) -> Result<(), Failure> {
        self.stop_faults();
        self.run_dry()?;
        for _ in 0..STEPS_TO_REST {
            if let Some(process) = &mut self.process {
                while process.maintain() {}
            }
            self.step(true)?;
        }
        Ok(())
    }

    fn read_what_is_left(&mut self) -> Result<Ended, Failure> {
        self.damaged = true;
        self.judge_all()?;
        Ok(Ended::Isolated(self.isolated))
    }

    /// A block of some file that is not blank.
    fn some_block(&mut self, directories: &[&str]) -> Result<Option<(PathBuf, u64)>, Failure> {
        let fs = self.disk.fs();
        let root = self.profile.settings.data.clone();
        let mut files = Vec::new();
        for directory in directories {
            let directory = if directory.is_empty() { root.clone() } else { root.join(directory) };
            for entry in fs.list(&directory).map_err(|error| harness(&error))? {
                if !entry.directory {
                    files.push(directory.join(entry.name));
                }
            }
        }
        if files.is_empty() {
            return Ok(None);
        }
        let Some(path) = files.get(self.chance.index(files.len())).cloned() else { return Ok(None) };
        let data = read_file(&fs, &path)?;
        let used: Vec<u64> = (0_u64..)
            .zip(data.chunks(BLOCK_BYTES))
            .filter(|(_, block)| block.iter().any(|byte| *byte != 0))
            .map(|(index, _)| index * BLOCK_BYTES as u64)
            .collect();
        if used.is_empty() {
            return Ok(None);
        }
        let position = used.get(self.chance.index(used.len())).copied().unwrap_or(0);
        Ok(Some((path, position)))
    }

    fn change(&mut self, path: &Path, position: u64, hurt: Hurt) -> Result<(), Failure> {
        self.note(format_args!("{hurt:?} at {position} of {}", path.display()));
        let fs = self.disk.fs();
        if hurt == Hurt::Remove {
            let directory = path.parent().unwrap_or(path);
            return fs.remove(path).and_then(|()| fs.sync_dir(directory)).map_err(|error| harness(&error));
        }
        let file = fs.open(path, OpenMode::Write).map_err(|error| harness(&error))?;
        let block = file.read_at(position, BLOCK_BYTES).map_err(|error| harness(&error))?;
        let mut data = AlignedBuf::with_capacity(BLOCK_BYTES);
        data.extend_from_slice(&block);
        let bytes = data.as_mut_slice();
        if hurt == Hurt::ZeroBlock {
            bytes.fill(0);
        } else {
            let used: Vec<usize> =
                (0..bytes.len()).filter(|at| bytes.get(*at).is_some_and(|byte| *byte != 0)).collect();
            let at = used.get(self.chance.index(used.len())).copied().unwrap_or(0);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << self.chance.below(8);
            }
        }
        file.write_at(position, &data).and_then(|()| file.sync_data()).map_err(|error| harness(&error))
    }

    /// Writes a whole frame where no crash can have left one.
    fn forge(&mut self, hurt: Hurt) -> Result<Option<PathBuf>, Failure> {
        let fs = self.disk.fs();
        let layout = Layout::new(&self.profile.settings.data);
        let recovered =
            recover::<State, _>(&fs, &layout, &self.profile.settings.engine, LogId(1), &|_, _| {})
                .map_err(|error| Failure::new(Invariant::Recovery, error.to_string()))?;
        let last = recovered.parts.last_seq;
        let active = recovered.parts.cursors.active.number();
        let from = recovered.parts.cursors.active.position();
        let path = layout.path(FileKind::Cursor, active);
        let data = read_file(&fs, &path)?;
        let block =
            data.first_chunk::<BLOCK_BYTES>().ok_or_else(|| harness(&"a cursor file without a header"))?;
        let header = FileHeader::decode(block, FileKind::Cursor, active).map_err(|error| harness(&error))?;
        let end = header.file_bytes - BLOCK_BYTES as u64;
        let window = header.max_frame_bytes * u64::from(header.pipeline_depth + 1);
        let (seq, position) = match hurt {
            Hurt::ForgeAhead => (Seq(last.0 + 20), from + BLOCK_BYTES as u64),
            _ => (last.next(), end),
        };
        if position > end || (hurt == Hurt::ForgeApart && end <= from + window) {
            return Ok(None);
        }
        let file = Arc::new(fs.open(&path, OpenMode::Write).map_err(|error| harness(&error))?);
        let resume = Resume { position, chain: 0, frames: 0, last_seq: last };
        let mut appender = Appender::new(&header, vec![Arc::clone(&file)], resume);
        let stamp = Stamp {
            log: recovered.parts.log,
            epoch: recovered.parts.epoch,
            watermark: Seq(0),
            log_time: recovered.parts.log_time,
        };
        let frame = appender.frame(FrameKind::Commit, seq, 0, stamp, empty_body());
        self.note(format_args!("{hurt:?}: seq {seq} at {position} of {}", path.display()));
        file.write_at(frame.position, &frame.data)
            .and_then(|()| file.sync_data())
            .map_err(|error| harness(&error))?;
        Ok(Some(path))
    }
}

fn read_file<F: Fs>(fs: &F, path: &Path) -> Result<bytes::Bytes, Failure> {
    let file = fs.open(path, OpenMode::Read).map_err(|error| harness(&error))?;
    let bytes = file.bytes().map_err(|error| harness(&error))?;
    file.read_at(0, usize::try_from(bytes).unwrap_or(0)).map_err(|error| harness(&error))
}

fn harness(error: &impl ToString) -> Failure {
    Failure::new(Invariant::Damage, format!("the damage could not be done: {}", error.to_string()))
}
