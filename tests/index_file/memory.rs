//! An index file in memory.

use std::io;
use std::path::Path;

use bytes::Bytes;
use comb::format::index::Builder;
use comb::io::{AlignedBuf, FsFile, ReadAt};

/// Bytes that are read like a file.
pub(crate) struct Memory(pub(crate) Vec<u8>);

impl ReadAt for Memory {
    fn read_at(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        let from = usize::try_from(position).map_err(io::Error::other)?;
        let data = from.checked_add(bytes).and_then(|to| self.0.get(from..to));
        data.map(Bytes::copy_from_slice).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn path(&self) -> &Path {
        Path::new("memory")
    }
}

impl FsFile for Memory {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn write_at(&self, _: u64, _: &AlignedBuf) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The bytes of the file that a builder writes.
pub(crate) fn finish(builder: Builder) -> Vec<u8> {
    let mut file = Vec::new();
    let written = builder.finish(|page| {
        file.extend_from_slice(page);
        Ok::<(), io::Error>(())
    });
    assert!(written.is_ok_and(|info| info.file_bytes() == file.len() as u64));
    file
}
