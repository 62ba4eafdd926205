//! Data directories that earlier versions left behind are read as they were.
//!
//! Each directory under `tests/fixtures/data` is what `combsim leave` wrote when its format was new: a daemon that was
//! killed in the middle of its work. What it holds is in `contents.txt` beside its files; both stay as they are, and a
//! new format adds a directory. `COMB_WRITE_FIXTURES=1` writes the text where there is none.

use std::fmt::Write as _;

use comb::format::entry::Entries;
use comb::types::GroupId;
use xxhash_rust::xxh3::xxh3_64;

use super::*;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn group_name(state: &State, id: GroupId) -> &str {
    &state.groups[&id].name
}

/// What users would miss: queues, messages, cursors and leases, dead letters.
fn contents(dir: &Path, log: LogId, state: &State) -> String {
    let mut lines = Vec::new();
    let mut worker = worker(dir, log);
    let os = OsFs::new(dir).unwrap();
    for queue in state.queues.values() {
        let options = &queue.options;
        lines.push(format!(
            "queue {} {}/{} lease {} retries {} window {} keeps {}",
            queue.name,
            queue.namespace,
            queue.task,
            options.lease_seconds,
            options.retry_limit,
            options.dedup_window_seconds,
            options.retention_seconds
        ));
        for group in queue.groups.values() {
            let known = &state.groups[group];
            lines.push(format!("group {} {} from {:?}", queue.name, known.name, known.start));
        }
    }
    for (id, partition) in &state.partitions {
        let name = format!("{}/{}", state.queues[&partition.queue].name, partition.name);
        let owner = partition.dead_letters_of.map(|group| group_name(state, GroupId(group.get())));
        lines.push(format!("partition {id} {name} {owner:?} {}..{}", partition.start, partition.next));
        // Of an internal partition, only the copies count, and the rest may be gone.
        let mut from = if owner.is_some() { partition.next } else { partition.start };
        while from < partition.next {
            let runs = match state.runs(partition, from).next().unwrap() {
                Ok(run) => vec![run],
                Err(lookup) => match look_up(&mut worker, lookup) {
                    Found::Runs(runs) => runs,
                    other => panic!("{other:?}"),
                },
            };
            for run in runs.iter().filter(|run| run.end() > from) {
                let path = Layout::new(dir).path(FileKind::Segment, run.place.segment);
                let file = os.open(&path, OpenMode::Read).unwrap();
                let entries = file.read_at(run.place.position + 48, run.bytes as usize).unwrap();
                for (offset, entry) in (run.base.0..).zip(Entries::new(&entries)) {
                    let entry = entry.unwrap();
                    let hash = xxh3_64(entry.payload);
                    let (id, text) = (entry.id, &entry.transaction_id);
                    lines.push(format!("message {name} {offset:>4} {id} {text} {hash:016x}"));
                }
            }
            from = runs.last().unwrap().end();
        }
    }
    state.snapshot(&mut |delta| match delta {
        Delta::Cursor(cursor) => {
            let state_of = cursor.state;
            let lease = state_of.lease.map(|lease| (lease.id.0, lease.end.0, lease.expires.0));
            lines.push(format!(
                "cursor {} {} at {}, {} retries, {} attempts, lease {lease:?}, settled {:?}",
                cursor.partition,
                group_name(state, cursor.group),
                state_of.next,
                state_of.retries_used,
                state_of.attempts,
                state_of.settled.map(|id| id.0)
            ));
        }
        Delta::DeadLetter(letter) => lines.push(format!(
            "dead letter {} of {} {} for {}, copy {} {}, {} retries, at {}: {}",
            letter.id,
            letter.partition,
            letter.offset,
            group_name(state, letter.group),
            letter.copy_partition,
            letter.copy_offset,
            letter.retries_used,
            letter.failed.0,
            letter.error
        )),
        _ => {}
    });
    lines.sort();
    lines.into_iter().fold(String::new(), |mut text, line| {
        writeln!(text, "{line}").unwrap();
        text
    })
}

#[test]
fn directories_of_earlier_versions_hold_what_they_held() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data");
    let mut seen = 0;
    for entry in fs::read_dir(&fixtures).unwrap().map(Result::unwrap) {
        let (fixture, dir) = (entry.path(), TempDir::new().unwrap());
        copy(&fixture, dir.path());
        let recovered = try_recover(dir.path()).unwrap();
        let found = contents(dir.path(), recovered.parts.log, &recovered.machine);
        let text = fixture.join("contents.txt");
        if std::env::var_os("COMB_WRITE_FIXTURES").is_some() && !text.exists() {
            fs::write(&text, &found).unwrap();
        }
        assert_eq!(found, fs::read_to_string(&text).unwrap(), "{}", fixture.display());
        // The first start has repaired what the kill left: the second finds the same.
        let again = try_recover(dir.path()).unwrap();
        assert_eq!(contents(dir.path(), again.parts.log, &again.machine), found);
        seen += 1;
    }
    assert!(seen > 0);
}
