//! Files, aligned memory and the counters of the device below.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::ReadWriteFlags;

use crate::ProbeError;

/// Alignment of direct writes.
const BLOCK: usize = 4096;

/// Bytes that a direct write accepts, cut out of a larger vector at a block boundary.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` bytes of `fill`.
    pub(crate) fn filled(len: usize, fill: u8) -> Aligned {
        let bytes = vec![fill; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Aligned { bytes, start, len }
    }

    /// The aligned part.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..self.start + self.len).expect("the vector is one block longer than needed")
    }
}

/// Whether writes pass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `O_DIRECT`.
    Direct,
    /// Through the page cache.
    Buffered,
}

impl Mode {
    /// Word for the tables.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Mode::Direct => "direct",
            Mode::Buffered => "buffered",
        }
    }
}

/// What a file holds before it is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Zeroes over its whole size, synced.
    Zeroed,
    /// Space reserved with `fallocate`, never written.
    Reserved,
    /// Nothing: every write extends it.
    Appended,
}

impl Layout {
    /// Word for the tables.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Layout::Zeroed => "zeroed",
            Layout::Reserved => "fallocate",
            Layout::Appended => "appended",
        }
    }
}

/// One open file of the probe.
pub(crate) struct Target {
    file: File,
    path: PathBuf,
}

impl Target {
    /// Creates a file with a layout and opens it in a mode. Everything about it is durable before this returns.
    pub(crate) fn create(path: &Path, layout: Layout, bytes: u64, mode: Mode) -> Result<Target, ProbeError> {
        let made = Target::open(path, Mode::Direct, true)?;
        match layout {
            Layout::Zeroed => {
                const CHUNK: usize = 1 << 20;
                let zeroes = Aligned::filled(CHUNK, 0);
                let mut position = 0;
                while position < bytes {
                    made.write(position, zeroes.bytes())?;
                    position += CHUNK as u64;
                }
            }
            Layout::Reserved => rustix::fs::fallocate(&made.file, FallocateFlags::empty(), 0, bytes)
                .map_err(|e| ProbeError::os("reserving space for", path, e))?,
            Layout::Appended => {}
        }
        made.file.sync_all().map_err(|e| ProbeError::os("syncing", path, e))?;
        drop(made);
        Target::open(path, mode, false)
    }

    /// Opens the file once more: an open file description of its own.
    pub(crate) fn again(&self, mode: Mode) -> Result<Target, ProbeError> {
        Target::open(&self.path, mode, false)
    }

    fn open(path: &Path, mode: Mode, create: bool) -> Result<Target, ProbeError> {
        let flags = match mode {
            Mode::Direct => OFlags::DIRECT.bits(),
            Mode::Buffered => 0,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(create)
            .custom_flags(i32::try_from(flags).expect("open flags are small"))
            .open(path)
            .map_err(|e| ProbeError::os("opening", path, e))?;
        Ok(Target { file, path: path.to_owned() })
    }

    /// One positional write.
    pub(crate) fn write(&self, position: u64, bytes: &[u8]) -> Result<(), ProbeError> {
        let got = rustix::io::pwrite(&self.file, bytes, position)
            .map_err(|e| ProbeError::os("writing to", &self.path, e))?;
        self.whole(position, bytes.len(), got)
    }

    /// One positional write that the kernel makes durable before it returns.
    pub(crate) fn write_durable(&self, position: u64, bytes: &[u8]) -> Result<(), ProbeError> {
        let parts = [std::io::IoSlice::new(bytes)];
        let got = rustix::io::pwritev2(&self.file, &parts, position, ReadWriteFlags::DSYNC)
            .map_err(|e| ProbeError::os("writing durably to", &self.path, e))?;
        self.whole(position, bytes.len(), got)
    }

    /// A data sync.
    pub(crate) fn sync(&self) -> Result<(), ProbeError> {
        rustix::fs::fdatasync(&self.file).map_err(|e| ProbeError::os("syncing", &self.path, e))
    }

    /// Removes the file.
    pub(crate) fn remove(self) -> Result<(), ProbeError> {
        std::fs::remove_file(&self.path).map_err(|e| ProbeError::os("removing", &self.path, e))
    }

    fn whole(&self, position: u64, wanted: usize, got: usize) -> Result<(), ProbeError> {
        if got == wanted {
            return Ok(());
        }
        Err(ProbeError::Short { path: self.path.clone(), position, wanted, got })
    }
}

/// Write counters of a block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Completed writes.
    pub(crate) writes: u64,
    /// 512-byte sectors written.
    pub(crate) sectors: u64,
    /// Completed flushes.
    pub(crate) flushes: u64,
}

impl Counters {
    /// What happened since an earlier reading.
    pub(crate) fn since(self, earlier: Counters) -> Counters {
        Counters {
            writes: self.writes.saturating_sub(earlier.writes),
            sectors: self.sectors.saturating_sub(earlier.sectors),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }

    /// Parses the one line of a `stat` file of a block device; the last fields are younger than the first ones.
    pub(crate) fn parse(line: &str) -> Option<Counters> {
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u64>);
        let writes = fields.nth(4)?.ok()?;
        let sectors = fields.nth(1)?.ok()?;
        let flushes = fields.nth(8).and_then(Result::ok).unwrap_or(0);
        Some(Counters { writes, sectors, flushes })
    }
}

/// The block device below a directory, if it can be found.
pub(crate) struct Device {
    sys: PathBuf,
}

impl Device {
    /// Finds the device of a path by its number.
    pub(crate) fn of(path: &Path) -> Result<Device, ProbeError> {
        let dev = std::fs::metadata(path).map_err(|e| ProbeError::os("looking at", path, e))?.dev();
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        Ok(Device { sys: PathBuf::from(format!("/sys/dev/block/{major}:{minor}")) })
    }

    /// Its counters now; `None` where there is no such device (tmpfs, overlay).
    pub(crate) fn counters(&self) -> Option<Counters> {
        Counters::parse(&std::fs::read_to_string(self.sys.join("stat")).ok()?)
    }

    /// One of its queue settings.
    pub(crate) fn setting(&self, name: &str) -> String {
        std::fs::read_to_string(self.sys.join("queue").join(name))
            .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    }

    /// Its kernel name.
    pub(crate) fn name(&self) -> String {
        std::fs::canonicalize(&self.sys)
            .ok()
            .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "unknown device".to_owned())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn counters_come_from_their_fields() {
        let line = " 1 2 3 4 50 6 700 8 0 10 11 12 13 14 15 160 17\n";
        assert_eq!(Counters::parse(line).unwrap(), Counters { writes: 50, sectors: 700, flushes: 160 });
        assert_eq!(Counters::parse("1 2 3 4 50 6 700 8 0 10 11").unwrap().flushes, 0);
        assert!(Counters::parse("").is_none());
        assert!(Counters::parse("1 2 3 4 x 6 7").is_none());
    }

    #[test]
    fn memory_is_aligned() {
        for len in [BLOCK, 16 * BLOCK] {
            let aligned = Aligned::filled(len, 7);
            assert_eq!(aligned.bytes().len(), len);
            assert_eq!(aligned.bytes().as_ptr().align_offset(BLOCK), 0);
            assert!(aligned.bytes().iter().all(|&byte| byte == 7));
        }
    }
}
