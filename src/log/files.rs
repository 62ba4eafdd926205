//! Names of the files of a data directory, and how a new one comes into being.

use std::io;
use std::path::{Path, PathBuf};

use crate::format::file_header::{FileHeader, FileKind};
use crate::io::{AlignedBuf, BLOCK_BYTES, Fs, FsFile, OpenMode};
use crate::types::{FileNumber, Seq};

/// Bytes written at a time while a file is filled with zeros.
const FILL_BYTES: usize = 1 << 20;

/// Where everything is in a data directory.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout of a data directory.
    #[must_use]
    pub fn new(root: &Path) -> Layout {
        Layout { root: root.to_owned() }
    }

    /// The data directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `SUPERBLOCK`.
    #[must_use]
    pub fn superblock(&self) -> PathBuf {
        self.root.join("SUPERBLOCK")
    }

    /// Directory of a kind of file.
    #[must_use]
    pub fn dir(&self, kind: FileKind) -> PathBuf {
        self.root.join(match kind {
            FileKind::Segment => "segments",
            FileKind::Cursor => "cursors",
            FileKind::Checkpoint => "checkpoints",
        })
    }

    /// Files being prepared.
    #[must_use]
    pub fn spare_dir(&self) -> PathBuf {
        self.root.join("spare")
    }

    /// Copies of what recovery cut off.
    #[must_use]
    pub fn quarantine_dir(&self) -> PathBuf {
        self.root.join("quarantine")
    }

    /// Path of a numbered file.
    #[must_use]
    pub fn path(&self, kind: FileKind, number: FileNumber) -> PathBuf {
        self.dir(kind).join(format!("{:016}.{}", number.0, extension(kind)))
    }

    /// Path of a segment's index.
    #[must_use]
    pub fn index(&self, segment: FileNumber) -> PathBuf {
        self.dir(FileKind::Segment).join(format!("{:016}.idx", segment.0))
    }

    /// Path of a checkpoint.
    #[must_use]
    pub fn checkpoint(&self, seq: Seq) -> PathBuf {
        self.path(FileKind::Checkpoint, FileNumber(seq.0))
    }

    /// Creates the directories and makes their names durable.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn create<F: Fs>(&self, fs: &F) -> io::Result<()> {
        fs.create_dir(&self.root)?;
        for kind in [FileKind::Segment, FileKind::Cursor, FileKind::Checkpoint] {
            fs.create_dir(&self.dir(kind))?;
        }
        fs.create_dir(&self.spare_dir())?;
        fs.create_dir(&self.quarantine_dir())?;
        fs.sync_dir(&self.root)
    }

    /// Numbers of the files of a kind, ascending, and the names there that are not of that form.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn numbers<F: Fs>(&self, fs: &F, kind: FileKind) -> io::Result<(Vec<FileNumber>, Vec<String>)> {
        let mut numbers = Vec::new();
        let mut strangers = Vec::new();
        for entry in fs.list(&self.dir(kind))? {
            match number_of(&entry.name, kind) {
                Some(number) if !entry.directory => numbers.push(number),
                None if kind == FileKind::Segment && numbered(&entry.name, "idx").is_some() => {}
                _ => strangers.push(entry.name),
            }
        }
        numbers.sort_unstable();
        Ok((numbers, strangers))
    }

    /// Segments that have an index file.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn indexes<F: Fs>(&self, fs: &F) -> io::Result<Vec<FileNumber>> {
        let entries = fs.list(&self.dir(FileKind::Segment))?;
        Ok(entries.iter().filter_map(|entry| numbered(&entry.name, "idx")).collect())
    }
}

fn extension(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Segment => "seg",
        FileKind::Cursor => "wal",
        FileKind::Checkpoint => "ckpt",
    }
}

fn number_of(name: &str, kind: FileKind) -> Option<FileNumber> {
    numbered(name, extension(kind))
}

fn numbered(name: &str, extension: &str) -> Option<FileNumber> {
    let digits = name.strip_suffix(extension)?.strip_suffix('.')?;
    if digits.len() != 16 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().map(FileNumber)
}

/// Makes a new segment or cursor file: header and zeros over its whole size, synced, renamed in, directory synced.
/// Overwriting blocks that were written before costs no metadata at commit time (`docs/adr/0003`).
///
/// # Errors
/// What the operating system said; nothing of the file is visible under its name then.
pub fn prepare<F: Fs>(fs: &F, layout: &Layout, header: &FileHeader) -> io::Result<()> {
    let path = layout.path(header.kind, header.number);
    let temporary =
        layout.spare_dir().join(format!("{:016}.{}.tmp", header.number.0, extension(header.kind)));
    match fs.remove(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let filled = fs.open(&temporary, OpenMode::Create).and_then(|file| fill(&file, header));
    if let Err(error) = filled.and_then(|()| fs.rename(&temporary, &path)) {
        // A file that could not be filled must not keep its space: the disk is probably full.
        if let Err(error) = fs.remove(&temporary) {
            tracing::warn!("cannot remove {}: {error}", temporary.display());
        }
        return Err(error);
    }
    fs.sync_dir(&layout.dir(header.kind))?;
    fs.sync_dir(&layout.spare_dir())
}

/// Writes a file's header and zeros over the rest of its size, and syncs.
///
/// # Errors
/// What the operating system said.
pub fn fill<F: FsFile>(file: &F, header: &FileHeader) -> io::Result<()> {
    let mut first = AlignedBuf::with_capacity(BLOCK_BYTES);
    first.extend_from_slice(&header.encode()[..]);
    let mut zeros = AlignedBuf::with_capacity(FILL_BYTES);
    zeros.resize_zeroed(FILL_BYTES);
    file.write_at(0, &first)?;
    let mut position = BLOCK_BYTES as u64;
    while position < header.file_bytes {
        let left = header.file_bytes - position;
        if left < FILL_BYTES as u64 {
            zeros = AlignedBuf::with_capacity(FILL_BYTES);
            zeros.resize_zeroed(usize::try_from(left).unwrap_or(FILL_BYTES));
        }
        file.write_at(position, &zeros)?;
        position += zeros.len() as u64;
    }
    file.sync_data()
}

/// Whether a block holds nothing. A comparison with zeros runs at memory speed, in every build.
#[must_use]
pub fn is_blank(block: &[u8]) -> bool {
    const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
    ZEROS.get(..block.len()).is_some_and(|zeros| zeros == block)
}

/// Overwrites a stretch of a file with zeros, block by block where something else is there, and syncs. Returns the
/// bytes that were not zero.
///
/// # Errors
/// What the operating system said.
pub fn scrub<F: FsFile>(file: &F, from: u64, to: u64) -> io::Result<u64> {
    let mut scrubbed = 0;
    let mut position = from;
    while position < to {
        let bytes = usize::try_from((to - position).min(FILL_BYTES as u64)).unwrap_or(FILL_BYTES);
        let data = file.read_at(position, bytes)?;
        for (index, block) in data.chunks(BLOCK_BYTES).enumerate() {
            if !is_blank(block) {
                let mut zeros = AlignedBuf::with_capacity(BLOCK_BYTES);
                zeros.resize_zeroed(BLOCK_BYTES);
                file.write_at(position + (index * BLOCK_BYTES) as u64, &zeros)?;
                scrubbed += BLOCK_BYTES as u64;
            }
        }
        position += bytes as u64;
    }
    if scrubbed > 0 {
        file.sync_data()?;
    }
    Ok(scrubbed)
}
