//! The cells with two files: forms in which one group commit could reach the disk.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::ProbeError;
use crate::disk::{Aligned, Device, Layout, Mode, Target};
use crate::report::{Rounds, Sample};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const CURSOR_BYTES: usize = 4 * KIB;
const MESSAGE_FILE_BYTES: u64 = 256 * MIB as u64;
const CURSOR_FILE_BYTES: u64 = 64 * MIB as u64;

/// How the messages and the cursors of a group reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Messages written and synced, then cursors written and synced.
    Serial,
    /// Both written and synced at the same time.
    Parallel,
    /// Both written and synced at the same time, each with the durable-write flag.
    ParallelFlag,
    /// Both in one frame of one file.
    Embedded,
    /// Both written, only the cursor file synced. Not durable; shows what the second sync costs.
    OneSync,
}

impl Form {
    fn word(self) -> &'static str {
        match self {
            Form::Serial => "two files, serial",
            Form::Parallel => "two files, parallel",
            Form::ParallelFlag => "two files, parallel, RWF_DSYNC",
            Form::Embedded => "one file, embedded",
            Form::OneSync => "two files, ONE sync (unsafe)",
        }
    }
}

/// What the helper thread of a slot is asked to do: position of the cursor frame.
type Order = u64;

struct Files {
    messages: Target,
    cursors: Target,
}

impl Files {
    fn again(&self) -> Result<Files, ProbeError> {
        Ok(Files { messages: self.messages.again(Mode::Direct)?, cursors: self.cursors.again(Mode::Direct)? })
    }
}

/// All forms, with one and with two commits in flight.
pub(crate) fn commits(
    dir: &Path,
    device: &Device,
    budget: Duration,
    rounds: &mut Rounds,
) -> Result<(), ProbeError> {
    let files = Files {
        messages: Target::create(&dir.join("messages"), Layout::Zeroed, MESSAGE_FILE_BYTES, Mode::Direct)?,
        cursors: Target::create(&dir.join("cursors"), Layout::Zeroed, CURSOR_FILE_BYTES, Mode::Direct)?,
    };
    for message_bytes in [4 * KIB, 64 * KIB, MIB] {
        for form in [Form::Serial, Form::Parallel, Form::ParallelFlag, Form::Embedded, Form::OneSync] {
            for depth in [1, 2] {
                let name = format!("{}, {depth} in flight", form.word());
                let sample = measure(&files, device, form, message_bytes, depth, budget)?;
                rounds.add(&name, message_bytes, sample);
            }
        }
    }
    files.messages.remove()?;
    files.cursors.remove()
}

fn measure(
    files: &Files,
    device: &Device,
    form: Form,
    message_bytes: usize,
    depth: usize,
    budget: Duration,
) -> Result<Sample, ProbeError> {
    // The smallest group fits one block together with its cursors; a larger one takes one more.
    let frame_bytes = match form {
        Form::Embedded if message_bytes > CURSOR_BYTES => message_bytes + CURSOR_BYTES,
        _ => message_bytes,
    };
    let next = AtomicU64::new(0);
    let slots = (0..depth).map(|_| files.again()).collect::<Result<Vec<_>, _>>()?;
    let helpers = (0..depth).map(|_| files.again()).collect::<Result<Vec<_>, _>>()?;
    let mut sample = Sample::start(device, message_bytes as u64);
    let deadline = Instant::now() + budget;
    let latencies = thread::scope(|scope| {
        let running: Vec<_> = slots
            .into_iter()
            .zip(helpers)
            .map(|(mine, helper)| {
                let next = &next;
                let (orders, inbox) = sync_channel::<Order>(1);
                let (outbox, answers) = sync_channel(1);
                scope.spawn(move || help(&helper, form, &inbox, &outbox));
                scope.spawn(move || slot(&mine, form, frame_bytes, next, deadline, &orders, &answers))
            })
            .collect();
        running
            .into_iter()
            .map(|handle| handle.join().map_err(|_| ProbeError::Worker)?)
            .collect::<Result<Vec<_>, _>>()
    })?;
    for latency in latencies.into_iter().flatten() {
        sample.commit(latency);
    }
    Ok(sample.end(device))
}

/// One pipeline slot: a commit after the other until the time is over.
fn slot(
    files: &Files,
    form: Form,
    frame_bytes: usize,
    next: &AtomicU64,
    deadline: Instant,
    orders: &SyncSender<Order>,
    answers: &Receiver<Result<(), ProbeError>>,
) -> Result<Vec<Duration>, ProbeError> {
    let frame = Aligned::filled(frame_bytes, 0xa5);
    let cursor = Aligned::filled(CURSOR_BYTES, 0x5a);
    let mut latencies = Vec::new();
    while Instant::now() < deadline {
        let turn = next.fetch_add(1, Ordering::Relaxed);
        // Overwriting an earlier turn costs the same as a fresh block of a prepared file.
        let at = turn % (MESSAGE_FILE_BYTES / frame_bytes as u64) * frame_bytes as u64;
        let cursor_at = turn % (CURSOR_FILE_BYTES / CURSOR_BYTES as u64) * CURSOR_BYTES as u64;
        let begun = Instant::now();
        match form {
            Form::Serial => {
                files.messages.write(at, frame.bytes())?;
                files.messages.sync()?;
                files.cursors.write(cursor_at, cursor.bytes())?;
                files.cursors.sync()?;
            }
            Form::Parallel | Form::ParallelFlag => {
                orders.send(cursor_at).map_err(|_| ProbeError::Worker)?;
                if form == Form::Parallel {
                    files.messages.write(at, frame.bytes())?;
                    files.messages.sync()?;
                } else {
                    files.messages.write_durable(at, frame.bytes())?;
                }
                answers.recv().map_err(|_| ProbeError::Worker)??;
            }
            Form::Embedded => {
                files.messages.write(at, frame.bytes())?;
                files.messages.sync()?;
            }
            Form::OneSync => {
                files.messages.write(at, frame.bytes())?;
                files.cursors.write(cursor_at, cursor.bytes())?;
                files.cursors.sync()?;
            }
        }
        latencies.push(begun.elapsed());
    }
    Ok(latencies)
}

/// The helper of a slot: writes and syncs the cursor frame while the slot does the messages.
fn help(files: &Files, form: Form, inbox: &Receiver<Order>, outbox: &SyncSender<Result<(), ProbeError>>) {
    let cursor = Aligned::filled(CURSOR_BYTES, 0x5a);
    while let Ok(position) = inbox.recv() {
        let done = if form == Form::ParallelFlag {
            files.cursors.write_durable(position, cursor.bytes())
        } else {
            files.cursors.write(position, cursor.bytes()).and_then(|()| files.cursors.sync())
        };
        if outbox.send(done).is_err() {
            return;
        }
    }
}
