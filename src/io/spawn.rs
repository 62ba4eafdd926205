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

/// Raises the soft limit of open files to the hard one: every connection is one, and the usual soft limit is
/// 1024. The limit now, if there is one. A limit that cannot be raised is left as it is.
#[must_use]
pub fn raise_file_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

/// Creates a data directory and its parents if they are not there, and makes their names durable.
///
/// # Errors
/// What the operating system said, with the path.
pub fn create_data_dir(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(path).map_err(|error| with_path(&error, "cannot create", path))?;
    // Any of the parents may be new; a name is durable once the directory that holds it is synced.
    let absolute = path.canonicalize().map_err(|error| with_path(&error, "cannot resolve", path))?;
    for parent in absolute.ancestors().skip(1) {
        let synced = std::fs::File::open(parent).and_then(|dir| dir.sync_all());
        match synced {
            // A parent that may not be read is older than this process.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            other => other.map_err(|error| with_path(&error, "cannot sync", parent))?,
        }
    }
    Ok(())
}
