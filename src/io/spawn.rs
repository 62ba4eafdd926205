//! Threads, and the one directory that is made before a file system is chosen for it.

use std::io;
use std::path::Path;
use std::thread::JoinHandle;

use super::with_path;

/// Starts a named thread.
///
/// # Errors
/// The operating system has none to give.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Creates a data directory and its parents if they are not there.
///
/// # Errors
/// What the operating system said, with the path.
pub fn create_data_dir(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path).map_err(|error| with_path(&error, "cannot create", path))
}
