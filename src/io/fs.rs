//! Files and directories of the operating system, with blocking calls.
//!
//! Purpose: what starts, prepares, recovers and reads the data directory; also the open files that both rings
//! write to.
//!
//! Invariants:
//! - Where the file system can, files bypass the page cache: what is read is what the medium holds, and what a
//!   failed write or sync left in memory is never served. Elsewhere a file's clean pages are dropped when it is
//!   opened, which is the next best thing.
//! - Every error names the path.
//! - Nothing replaces an existing file.
//!
//! Must not: know names or layouts of the data directory.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Advice, CWD, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use super::progress::{Progress, Step, Sync};
use super::{
    AlignedBuf, BLOCK_BYTES, Entry, Fs, FsFile, OpenMode, ReadAt, SyncMode, shared_bytes, with_path,
};

/// Permissions of a new file: nothing for others.
const FILE_MODE: u32 = 0o640;

/// Permissions of a new directory.
const DIRECTORY_MODE: u32 = 0o750;

/// A read of more than this is compared with the file's length before memory is taken for it.
const CHECKED_READ_BYTES: usize = 1 << 20;

/// File systems (`statfs(2)` magic) that are known to honour `RWF_DSYNC` on direct writes: ext2 to ext4, XFS, Btrfs.
/// Elsewhere nothing is taken on trust, and every write has its own data sync (`docs/adr/0005`).
const WRITE_DSYNC_FILE_SYSTEMS: [u64; 3] = [0xEF53, 0x5846_5342, 0x9123_683E];

/// The operating system's file system.
#[derive(Clone, Debug)]
pub struct OsFs {
    direct: bool,
    sync: SyncMode,
}

impl OsFs {
    /// Finds out whether the file system of `dir`, an existing directory, takes direct I/O. Leaves nothing behind.
    ///
    /// # Errors
    /// When no file can be made in `dir`, with the path in the text.
    pub fn new(dir: &Path) -> io::Result<OsFs> {
        let direct = takes_direct(dir).map_err(|error| with_path(&error, "trying direct I/O in", dir))?;
        let kind = rustix::fs::statfs(dir)
            .map_err(|error| with_path(&error.into(), "asking for the file system of", dir))?
            .f_type;
        let sync = if direct && WRITE_DSYNC_FILE_SYSTEMS.contains(&(kind as u64)) {
            SyncMode::WriteDsync
        } else {
            SyncMode::LinkedFsync
        };
        Ok(OsFs { direct, sync })
    }

    /// Always through the page cache.
    #[must_use]
    pub fn buffered() -> OsFs {
        OsFs { direct: false, sync: SyncMode::LinkedFsync }
    }

    /// Whether files bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// How writes on this file system are best made durable by a ring.
    #[must_use]
    pub fn sync_mode(&self) -> SyncMode {
        self.sync
    }
}

/// An open file, with direct I/O where that is possible.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    direct: bool,
}

/// What a blocking write does for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durable {
    Not,
    As(SyncMode),
}

impl DirectFile {
    /// Whether it bypasses the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Writes all of `data` and makes it durable, as `Ring::write_sync` does.
    pub(super) fn write_sync_at(&self, position: u64, data: &AlignedBuf, mode: SyncMode) -> io::Result<()> {
        match self.write(position, data, Durable::As(mode)) {
            // Not every file knows the flag; a sync of its own does the same.
            Err(error) if mode == SyncMode::WriteDsync && error.kind() == io::ErrorKind::Unsupported => {
                self.write(position, data, Durable::As(SyncMode::LinkedFsync))
            }
            result => result,
        }
    }

    fn write(&self, position: u64, data: &AlignedBuf, durable: Durable) -> io::Result<()> {
        check_aligned(position, data.len()).map_err(|error| with_path(&error, "writing", &self.path))?;
        let (sync, flags) = match durable {
            Durable::Not => (Sync::Within, ReadWriteFlags::empty()),
            Durable::As(SyncMode::WriteDsync) => (Sync::Within, ReadWriteFlags::DSYNC),
            Durable::As(SyncMode::LinkedFsync) => (Sync::Chained, ReadWriteFlags::empty()),
        };
        let bytes = data.as_slice();
        let (mut progress, mut step) = Progress::start(bytes.len(), sync);
        loop {
            step = match step {
                Step::Write { from } => {
                    let rest = bytes.get(from..).unwrap_or_default();
                    let written = self.write_once(position + from as u64, rest, flags);
                    match sync {
                        Sync::Within => progress.write_ended(written),
                        Sync::Chained => {
                            // Answers like a linked pair would.
                            let whole = written == Ok(rest.len());
                            progress.write_ended(written);
                            progress.sync_ended(if whole { self.sync_once() } else { Err(Errno::CANCELED) })
                        }
                    }
                }
                Step::Sync => progress.sync_ended(self.sync_once()),
                Step::Done => return Ok(()),
                Step::Failed(failure) => {
                    let doing = format!("{} {} bytes at {position} of", failure.doing(), bytes.len());
                    return Err(with_path(&failure.error(), &doing, &self.path));
                }
                Step::Wait => unreachable!("every result was reported"),
            };
        }
    }

    fn write_once(&self, position: u64, data: &[u8], flags: ReadWriteFlags) -> Result<usize, Errno> {
        if flags.is_empty() {
            rustix::io::pwrite(&self.file, data, position)
        } else {
            rustix::io::pwritev2(&self.file, &[io::IoSlice::new(data)], position, flags)
        }
    }

    fn sync_once(&self) -> Result<(), Errno> {
        rustix::fs::fdatasync(&self.file)
    }

    /// Reads until `wanted` bytes from `position` are there or the file ends.
    fn read_up_to(&self, position: u64, wanted: usize) -> Result<AlignedBuf, Errno> {
        let mut buf = AlignedBuf::with_capacity(wanted);
        let mut furthest = 0;
        while buf.len() < wanted {
            let at = position.saturating_add(buf.len() as u64);
            let missing = wanted - buf.len();
            let room = buf.spare().get_mut(..missing).expect("the capacity is at least the wanted length");
            let read = match rustix::io::pread(&self.file, room, at) {
                Ok((read, _)) => read.len(),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            // SAFETY: the system call initialised the first `read` bytes of the room.
            unsafe { buf.advance(read) };
            if read == 0 || (self.direct && buf.len() <= furthest) {
                break;
            }
            furthest = buf.len();
            if self.direct && buf.len() < wanted {
                // A direct read has to start on a block. One that stops inside a block is at the end of the file
                // or was interrupted; asking for that block again tells which.
                buf.truncate(buf.len() - buf.len() % BLOCK_BYTES);
            }
        }
        Ok(buf)
    }

    fn ends_early(&self, position: u64, bytes: usize) -> io::Error {
        let length =
            self.file.metadata().map_or_else(|_| "unknown".to_owned(), |meta| meta.len().to_string());
        io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("reading {bytes} bytes at {position} of {}: its length is {length}", self.path.display()),
        )
    }
}

impl AsFd for DirectFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl ReadAt for DirectFile {
    fn read_at(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        let failed = |error: io::Error| {
            with_path(&error, &format!("reading {bytes} bytes at {position} of"), &self.path)
        };
        if bytes > CHECKED_READ_BYTES && position.saturating_add(bytes as u64) > self.bytes()? {
            return Err(self.ends_early(position, bytes));
        }
        let before =
            if self.direct { usize::try_from(position % BLOCK_BYTES as u64).unwrap_or(0) } else { 0 };
        let too_long = || failed(io::ErrorKind::InvalidInput.into());
        let end = before.checked_add(bytes).ok_or_else(too_long)?;
        let wanted =
            if self.direct { end.checked_next_multiple_of(BLOCK_BYTES).ok_or_else(too_long)? } else { end };
        let buf = self
            .read_up_to(position - before as u64, wanted)
            .map_err(|errno| failed(io::Error::from(errno)))?;
        if buf.len() < end {
            return Err(self.ends_early(position, bytes));
        }
        Ok(shared_bytes(&Arc::new(buf)).slice(before..end))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl FsFile for DirectFile {
    fn bytes(&self) -> io::Result<u64> {
        let meta =
            self.file.metadata().map_err(|error| with_path(&error, "asking the length of", &self.path))?;
        Ok(meta.len())
    }

    fn write_at(&self, position: u64, data: &AlignedBuf) -> io::Result<()> {
        self.write(position, data, Durable::Not)
    }

    fn sync_data(&self) -> io::Result<()> {
        retry_on_intr(|| self.sync_once())
            .map_err(|errno| with_path(&io::Error::from(errno), "syncing", &self.path))
    }
}

impl Fs for OsFs {
    type File = DirectFile;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<DirectFile> {
        let (flags, doing) = match mode {
            OpenMode::Read | OpenMode::Cached => (OFlags::RDONLY, "opening"),
            OpenMode::Write => (OFlags::RDWR, "opening for writing"),
            OpenMode::Create => (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, "creating"),
        };
        let open = |extra: OFlags| {
            retry_on_intr(|| {
                rustix::fs::open(path, flags | extra | OFlags::CLOEXEC, Mode::from_raw_mode(FILE_MODE))
            })
        };
        let fail = |errno: Errno| with_path(&io::Error::from(errno), doing, path);
        let cached = mode == OpenMode::Cached;
        if self.direct && !cached {
            match open(OFlags::DIRECT) {
                Ok(fd) => return Ok(DirectFile { file: fd.into(), path: path.to_owned(), direct: true }),
                // Another file system may be mounted further down. Not when creating: the refusal can leave the
                // name behind, and a second attempt would find it.
                Err(Errno::INVAL | Errno::OPNOTSUPP) if mode != OpenMode::Create => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
        let fd = open(OFlags::empty()).map_err(fail)?;
        if !cached {
            // Only advice: on a failure the pages stay.
            let _ = rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed);
        }
        Ok(DirectFile { file: fd.into(), path: path.to_owned(), direct: false })
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(path)
            .map_err(|error| with_path(&error, "creating directory", path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let fail = |error: io::Error| with_path(&error, "listing", dir);
        let mut entries = Vec::new();
        for entry in dir.read_dir().map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                // Removed since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(with_path(&error, "listing", &entry.path())),
            };
            entries.push(Entry {
                name: entry.file_name().to_string_lossy().into_owned(),
                bytes: if meta.is_dir() { 0 } else { meta.len() },
                directory: meta.is_dir(),
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn links(&self, path: &Path) -> io::Result<u64> {
        let meta = path.symlink_metadata().map_err(|error| with_path(&error, "asking the links of", path))?;
        Ok(std::os::unix::fs::MetadataExt::nlink(&meta))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let fail = |error: io::Error| with_path(&error, &format!("renaming {} to", from.display()), to);
        match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            // Some file systems cannot; nobody else makes names here, so looking first is as good.
            Err(Errno::INVAL | Errno::NOSYS) => match to.symlink_metadata() {
                Ok(_) => Err(fail(io::ErrorKind::AlreadyExists.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    std::fs::rename(from, to).map_err(fail)
                }
                Err(error) => Err(fail(error)),
            },
            Err(errno) => Err(fail(io::Error::from(errno))),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path).map_err(|error| with_path(&error, "removing", path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)
            .and_then(|file| file.sync_all())
            .map_err(|error| with_path(&error, "syncing directory", dir))
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let stat = retry_on_intr(|| rustix::fs::statvfs(path))
            .map_err(|errno| with_path(&io::Error::from(errno), "asking the free space of", path))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Refuses a write that is not whole blocks.
pub(super) fn check_aligned(position: u64, bytes: usize) -> io::Result<()> {
    if position.is_multiple_of(BLOCK_BYTES as u64) && bytes.is_multiple_of(BLOCK_BYTES) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{bytes} bytes at {position} are not whole blocks of {BLOCK_BYTES}"),
    ))
}

/// Whether a file in `dir` can be written and read past the page cache. A full disk does not decide it.
fn takes_direct(dir: &Path) -> io::Result<bool> {
    let mode = Mode::from_raw_mode(FILE_MODE);
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
    let unnamed = retry_on_intr(|| rustix::fs::open(dir, flags | OFlags::TMPFILE, mode));
    let fd = match unnamed {
        Ok(fd) => fd,
        Err(Errno::INVAL) => return Ok(false),
        // No unnamed files here (an old kernel says EISDIR): a named one, removed at once.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {
            let path = dir.join(format!(".direct-io-probe.{}", std::process::id()));
            let made = retry_on_intr(|| rustix::fs::open(&path, flags | OFlags::CREATE, mode));
            // A refused O_DIRECT can leave the name behind, so it is removed either way.
            let _ = std::fs::remove_file(&path);
            match made {
                Ok(fd) => fd,
                Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(errno) => return Err(errno.into()),
    };
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    match retry_on_intr(|| rustix::io::pwrite(&fd, block.as_slice(), 0)) {
        Ok(_) => {}
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(false),
        Err(Errno::NOSPC | Errno::DQUOT) => return Ok(true),
        Err(errno) => return Err(errno.into()),
    }
    match retry_on_intr(|| rustix::io::pread(&fd, block.as_mut_slice(), 0)) {
        Ok(_) => Ok(true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Bytes that differ at every position.
    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
    }

    fn both(dir: &Path) -> [OsFs; 2] {
        [OsFs::new(dir).unwrap(), OsFs::buffered()]
    }

    #[test]
    fn the_probe_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        OsFs::new(dir.path()).unwrap();
        assert_eq!(OsFs::buffered().list(dir.path()).unwrap(), []);
        let missing = dir.path().join("missing");
        let error = OsFs::new(&missing).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }

    #[test]
    fn reads_any_alignment() {
        let dir = tempfile::tempdir().unwrap();
        for fs in both(dir.path()) {
            let data = pattern(3 * BLOCK_BYTES);
            let path = dir.path().join(format!("file-{}", fs.is_direct()));
            let file = fs.open(&path, OpenMode::Create).unwrap();
            assert_eq!(file.is_direct(), fs.is_direct());
            file.write_at(0, &AlignedBuf::from(&data[..])).unwrap();
            file.sync_data().unwrap();
            assert_eq!(file.bytes().unwrap(), 3 * BLOCK_BYTES as u64);
            for from in [0, 1, 511, 4095, 4096, 4097, 8191, 12_287] {
                for bytes in [0, 1, 2, 4095, 4096, 4097, 8192, 12_288] {
                    let read = file.read_at(from as u64, bytes);
                    match data.get(from..from + bytes) {
                        Some(expected) => assert_eq!(read.unwrap(), expected, "{bytes} at {from}"),
                        None => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof),
                    }
                }
            }
        }
    }

    #[test]
    fn reads_to_the_exact_end_of_a_file_that_ends_inside_a_block() {
        let dir = tempfile::tempdir().unwrap();
        let data = pattern(BLOCK_BYTES + 1000);
        let path = dir.path().join("odd");
        std::fs::write(&path, &data).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        for fs in both(dir.path()) {
            let file = fs.open(&path, OpenMode::Read).unwrap();
            assert_eq!(file.read_at(0, data.len()).unwrap(), data);
            assert_eq!(file.read_at(4990, 106).unwrap(), &data[4990..]);
            for (position, bytes) in [(4990, 107), (0, data.len() + 1), (5096, 1), (1 << 40, 1), (0, 1 << 40)]
            {
                let error = file.read_at(position, bytes).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                let text = error.to_string();
                assert!(text.contains("odd") && text.contains(&position.to_string()), "{text}");
            }
        }
    }

    #[test]
    fn refuses_writes_that_are_not_whole_blocks() {
        let dir = tempfile::tempdir().unwrap();
        for fs in both(dir.path()) {
            let file = fs.open(&dir.path().join(fs.is_direct().to_string()), OpenMode::Create).unwrap();
            for (position, bytes) in [(1, BLOCK_BYTES), (0, 1), (512, 512)] {
                let error = file.write_at(position, &AlignedBuf::zeroed(bytes)).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            }
            assert_eq!(file.bytes().unwrap(), 0);
        }
    }

    #[test]
    fn modes_of_opening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for fs in both(dir.path()) {
            assert_eq!(fs.open(&path, OpenMode::Write).unwrap_err().kind(), io::ErrorKind::NotFound);
            fs.open(&path, OpenMode::Create).unwrap();
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o137, 0, "nothing for others");
            let again = fs.open(&path, OpenMode::Create).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            let reader = fs.open(&path, OpenMode::Read).unwrap();
            let error = reader.write_at(0, &AlignedBuf::zeroed(BLOCK_BYTES)).unwrap_err();
            assert!(error.to_string().contains("file"), "{error}");
            fs.remove(&path).unwrap();
        }
    }

    #[test]
    fn a_rename_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let fs = OsFs::buffered();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        std::fs::write(&from, "new").unwrap();
        std::fs::write(&to, "old").unwrap();
        let error = fs.rename(&from, &to).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&to).unwrap(), b"old");
        fs.remove(&to).unwrap();
        fs.rename(&from, &to).unwrap();
        fs.sync_dir(dir.path()).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"new");
        assert!(!from.exists());
    }

    #[test]
    fn lists_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let fs = OsFs::buffered();
        fs.create_dir(&dir.path().join("b/c")).unwrap();
        fs.create_dir(&dir.path().join("b/c")).unwrap();
        std::fs::write(dir.path().join("c"), "12345").unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        let found: Vec<_> =
            fs.list(dir.path()).unwrap().into_iter().map(|e| (e.name, e.bytes, e.directory)).collect();
        let expected = [("a", 0, false), ("b", 0, true), ("c", 5, false)];
        assert_eq!(found, expected.map(|(name, bytes, directory)| (name.to_owned(), bytes, directory)));
        assert!(fs.free_bytes(dir.path()).unwrap() > 0);
        assert!(fs.list(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn a_full_device_is_an_error_of_the_write() {
        let file = OsFs::buffered().open(Path::new("/dev/full"), OpenMode::Write).unwrap();
        for mode in [SyncMode::LinkedFsync, SyncMode::WriteDsync] {
            let error = file.write_sync_at(0, &AlignedBuf::zeroed(BLOCK_BYTES), mode).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
            assert!(error.to_string().contains("/dev/full"), "{error}");
        }
    }
}
