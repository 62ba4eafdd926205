//! One process per data directory.
//!
//! Invariants:
//! - The lock belongs to the open file, not to its content or its existence: the kernel drops it with the process,
//!   however that ended, so there is no such thing as a stale one.
//! - Taking it needs no free space.
//!
//! Must not: remove the file. A successor could lock the removed one while a third process makes a new one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

use super::{path_in, with_path};

const NAME: &str = "LOCK";

/// Bytes of the process id in the file, padded, so that a shorter number leaves nothing of a longer one.
const PID_BYTES: usize = 20;

/// Holds a data directory for this process until it is dropped.
#[derive(Debug)]
pub struct LockGuard {
    _file: File,
}

impl LockGuard {
    /// Takes the lock of `dir`, an existing directory.
    ///
    /// # Errors
    /// `WouldBlock` when another process has it; the text names the directory and that process. Otherwise what
    /// the operating system said, with the path.
    pub fn acquire(dir: &Path) -> io::Result<LockGuard> {
        let path = path_in(dir, NAME);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .open(&path)
            .map_err(|error| with_path(&error, "opening", &path))?;
        match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    format!(
                        "data directory {} is in use by process {}: stop that process or choose another directory",
                        dir.display(),
                        holder(&file)
                    ),
                ));
            }
            Err(errno) => return Err(with_path(&io::Error::from(errno), "locking", &path)),
        }
        // The number only serves the other process's error text, so a full disk is no reason to stop.
        let pid = format!("{:<width$}\n", std::process::id(), width = PID_BYTES - 1);
        if let Err(error) = file.write_all_at(pid.as_bytes(), 0) {
            tracing::warn!(path = %path.display(), %error, "cannot note the process id in the lock file");
        }
        Ok(LockGuard { _file: file })
    }
}

/// The process id in the file.
fn holder(file: &File) -> String {
    let mut text = [0u8; PID_BYTES];
    let read = file.read_at(&mut text, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(text.get(..read).unwrap_or_default());
    match text.trim().parse::<u32>() {
        Ok(pid) => pid.to_string(),
        Err(_) => "(unknown)".to_owned(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_told_who_and_where() {
        let dir = tempfile::tempdir().unwrap();
        let guard = LockGuard::acquire(dir.path()).unwrap();
        let error = LockGuard::acquire(dir.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let text = error.to_string();
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        assert!(text.contains(&dir.path().display().to_string()), "{text}");
        drop(guard);
        LockGuard::acquire(dir.path()).unwrap();
    }

    #[test]
    fn what_a_killed_process_left_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), "4294967295 and more than twenty bytes").unwrap();
        let _guard = LockGuard::acquire(dir.path()).unwrap();
        let text = LockGuard::acquire(dir.path()).unwrap_err().to_string();
        assert!(text.contains(&format!("process {}:", std::process::id())), "{text}");
    }
}
