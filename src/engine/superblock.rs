//! Reading, creating and updating the superblock file.

use std::io;

use thiserror::Error;

use crate::format::DecodeError;
use crate::format::superblock::Superblock;
use crate::io::{AlignedBuf, BLOCK_BYTES, Fs, FsFile, OpenMode, ReadAt};
use crate::log::files::Layout;

/// Why the superblock cannot be used.
#[derive(Debug, Error)]
pub enum SuperblockError {
    /// The operating system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Neither slot is valid, or one is of a newer version.
    #[error("SUPERBLOCK: {0}")]
    Decode(#[from] DecodeError),
}

/// Reads it; `None` when there is none.
///
/// # Errors
/// It is there and cannot be used.
pub fn read<F: Fs>(fs: &F, layout: &Layout) -> Result<Option<(Superblock, usize)>, SuperblockError> {
    let file = match fs.open(&layout.superblock(), OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let bytes = usize::try_from(file.bytes()?).unwrap_or(usize::MAX).min(2 * BLOCK_BYTES);
    let data = file.read_at(0, bytes)?;
    let (first, second) = data.split_at(bytes.min(BLOCK_BYTES));
    Ok(Some(Superblock::pick(first, second)?))
}

/// Creates it: both slots, synced, renamed in, directory synced.
///
/// # Errors
/// What the operating system said.
pub fn create<F: Fs>(fs: &F, layout: &Layout, superblock: &Superblock) -> io::Result<()> {
    let temporary = layout.spare_dir().join("SUPERBLOCK.tmp");
    match fs.remove(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = fs.open(&temporary, OpenMode::Create)?;
    let mut data = AlignedBuf::with_capacity(2 * BLOCK_BYTES);
    data.extend_from_slice(&superblock.encode()[..]);
    data.extend_from_slice(&superblock.encode()[..]);
    file.write_at(0, &data)?;
    file.sync_data()?;
    fs.rename(&temporary, &layout.superblock())?;
    fs.sync_dir(layout.root())
}

/// Writes the next generation into the slot that does not hold the present one, synced.
///
/// # Errors
/// What the operating system said; the present one still counts.
pub fn write<F: Fs>(
    fs: &F,
    layout: &Layout,
    current: &mut (Superblock, usize),
    change: impl FnOnce(&mut Superblock),
) -> io::Result<()> {
    let mut next = current.0;
    change(&mut next);
    next.generation += 1;
    let slot = 1 - current.1.min(1);
    let file = fs.open(&layout.superblock(), OpenMode::Write)?;
    let mut data = AlignedBuf::with_capacity(BLOCK_BYTES);
    data.extend_from_slice(&next.encode()[..]);
    file.write_at((slot * BLOCK_BYTES) as u64, &data)?;
    file.sync_data()?;
    *current = (next, slot);
    Ok(())
}
