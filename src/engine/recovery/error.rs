//! Why a start is refused.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::engine::index_file::IndexFileError;
use crate::engine::machine::Impossible;
use crate::engine::superblock::SuperblockError;
use crate::format::DecodeError;
use crate::log::sealed::IndexError;
use crate::log::tail::Verdict;
use crate::log::walk::OpenError;
use crate::types::Seq;

/// Why a start is refused. Nothing was changed.
#[derive(Debug, Error)]
pub enum RecoveryError {
    /// The operating system said no. What it said names the file; nothing is known to be damaged.
    #[error("{0}; check the disk and start again, nothing that was acknowledged was changed")]
    Io(#[from] io::Error),
    /// The superblock cannot be used.
    #[error("SUPERBLOCK: {0}; restore it from a backup, nothing was changed")]
    Superblock(DecodeError),
    /// There are files and no superblock.
    #[error(
        "{dir} holds {files} segment or cursor files and no SUPERBLOCK; restore it from a backup or start with an empty directory, nothing was changed"
    )]
    MissingSuperblock {
        /// The data directory.
        dir: PathBuf,
        /// Files found.
        files: usize,
    },
    /// A file that must be there is not.
    #[error("{path} is missing: {why}; restore it from a backup, nothing was changed")]
    MissingFile {
        /// The file.
        path: PathBuf,
        /// How that is known.
        why: String,
    },
    /// A file cannot be opened for what it is.
    #[error("{path}: {error}; restore it from a backup, nothing was changed")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: OpenError,
    },
    /// No kept checkpoint can be used.
    #[error("{path}: {error}; restore it from a backup, nothing was changed")]
    Checkpoint {
        /// The newest one.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// An index file was built anew and still cannot be read.
    #[error("{path}: {error}; check the disk, nothing of the log was changed")]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// A segment cannot be read whole.
    #[error("{0}; restore it from a backup, nothing was changed")]
    Segment(IndexFileError),
    /// What is there does not add up to what the records promise.
    #[error("{dir}: {error}; restore the missing file from a backup, nothing was changed")]
    Incomplete {
        /// The data directory.
        dir: PathBuf,
        /// What is missing.
        error: Impossible,
    },
    /// A record that no writer writes.
    #[error(
        "{path}: frame at byte {position}, seq {seq}: {error}; this is a bug or tampering, nothing was changed"
    )]
    Impossible {
        /// The file.
        path: PathBuf,
        /// Byte of the frame.
        position: u64,
        /// Its seq.
        seq: Seq,
        /// What is wrong.
        error: String,
    },
    /// The tail rule refuses.
    #[error(
        "{path}: damage at byte {position}, seq {seq}: {verdict:?} ({detail}); acknowledged data may be there, so it is not cut; nothing was changed"
    )]
    Refused {
        /// The file.
        path: PathBuf,
        /// Byte of the first frame that is not whole.
        position: u64,
        /// The first seq that is not whole.
        seq: Seq,
        /// The row of the table.
        verdict: Verdict,
        /// What was found behind it.
        detail: String,
    },
}

impl RecoveryError {
    pub(super) fn file(path: &Path, error: OpenError) -> RecoveryError {
        match error {
            OpenError::Io(error) => RecoveryError::Io(error),
            error => RecoveryError::File { path: path.to_owned(), error },
        }
    }

    pub(super) fn index(path: PathBuf, error: IndexError) -> RecoveryError {
        match error {
            IndexError::Io(error) => RecoveryError::Io(error),
            error => RecoveryError::Index { path, error: error.to_string() },
        }
    }
}

impl From<SuperblockError> for RecoveryError {
    fn from(error: SuperblockError) -> RecoveryError {
        match error {
            SuperblockError::Io(error) => RecoveryError::Io(error),
            SuperblockError::Decode(error) => RecoveryError::Superblock(error),
        }
    }
}

impl From<IndexFileError> for RecoveryError {
    fn from(error: IndexFileError) -> RecoveryError {
        match error {
            IndexFileError::Io(error) => RecoveryError::Io(error),
            error => RecoveryError::Segment(error),
        }
    }
}

/// Why a checkpoint cannot be used.
#[derive(Debug, Error)]
pub(super) enum LoadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Decode(#[from] DecodeError),
    #[error("{0}")]
    Impossible(#[from] Impossible),
}
