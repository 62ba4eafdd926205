//! The io_uring back end.
//!
//! Purpose: one group commit, several writes and syncs, is one system call; so is waiting for all of them, for a
//! timeout and for other threads.
//!
//! Invariants, besides those of `Ring`:
//! - A write goes out with its data sync linked behind it, or syncs itself; both results are looked at (see
//!   `progress`). The kernel takes pairs apart only when it takes just a part of what is queued; then no sync of
//!   that moment is trusted.
//! - The slab owns file and buffer of an operation until the kernel has reported everything it owes for it.
//!   Dropping the ring waits for that; if waiting is impossible the memory is leaked rather than freed.
//! - The ring is used by the thread that built it: the kernel is promised one issuer, and the type is not `Send`.
//! - The completion queue cannot overflow: there is room for every result of a full slab and of the waker.
//!
//! Must not: poll in the kernel (SQPOLL), drain, or use hard links, which would turn errors into delays.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::io::{Errno, ReadWriteFlags};

use super::fs::check_aligned;
use super::pool::{Job, Pool};
use super::progress::{Progress, Step, Sync};
use super::{AlignedBuf, Completion, DirectFile, ReadAt, Ring, SyncMode, Waker, ring_is_full, with_path};

/// Most bytes of one write entry; the kernel's own limit is just below 2 GiB.
const MAX_WRITE_BYTES: usize = 1 << 30;

/// Largest capacity: two entries each, and some, stay below the kernel's 32768.
const MAX_CAPACITY: usize = 8192;

/// Failures to hand over in a row that are taken for temporary.
const MAX_RETRIES: usize = 100;

/// What a result belongs to; the low bits of its user data. The rest is the slab's index.
const KIND_BITS: u32 = 2;
const KIND_WRITE: u64 = 0;
const KIND_SYNC: u64 = 1;
const KIND_WAKE: u64 = 2;
const KIND_NOP: u64 = 3;

/// A `Ring` on io_uring. Built, used and dropped by one thread.
pub struct UringRing {
    ring: IoUring,
    mode: SyncMode,
    waker: Waker,
    /// Where the kernel puts the eventfd's counter.
    wake_counter: Box<[u8; 8]>,
    wake_read_pending: bool,
    slots: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Writes and reads.
    unfinished: usize,
    /// Refused before they were queued, or ended while handing over.
    refused: Vec<Completion>,
    /// One thread for reads, started by the first.
    reader: Option<Pool>,
    reads: Vec<Job>,
    _one_thread: PhantomData<*const ()>,
}

struct Operation {
    file: Arc<DirectFile>,
    data: Arc<AlignedBuf>,
    position: u64,
    token: u64,
    progress: Progress,
}

impl UringRing {
    /// Sets up a ring and tries it. At most `capacity` operations (1..=8192) may be unfinished; one more is
    /// completed with an error and not done. Call it on the thread that will use the ring.
    ///
    /// # Errors
    /// What the kernel said (ENOSYS, EPERM and ENOMEM are the usual reasons not to have io_uring), `Unsupported`
    /// when it is too old (before 5.11). The caller falls back to threads.
    pub fn new(capacity: usize, mode: SyncMode) -> io::Result<UringRing> {
        let capacity = capacity.clamp(1, MAX_CAPACITY);
        let entries = u32::try_from((2 * capacity + 2).next_power_of_two()).expect("bounded by MAX_CAPACITY");
        let mut ring = UringRing {
            ring: build(entries)?,
            mode,
            waker: Waker::new()?,
            wake_counter: Box::new([0; 8]),
            wake_read_pending: false,
            slots: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
            unfinished: 0,
            refused: Vec::new(),
            reader: None,
            reads: Vec::new(),
            _one_thread: PhantomData,
        };
        ring.try_out()?;
        Ok(ring)
    }

    /// Asks for what is needed and lets one empty operation pass, since setting up may be allowed where using is
    /// not.
    fn try_out(&mut self) -> io::Result<()> {
        let unsupported = |what: &str| {
            io::Error::new(io::ErrorKind::Unsupported, format!("this kernel's io_uring has no {what}"))
        };
        if !self.ring.params().is_feature_ext_arg() {
            return Err(unsupported("timeout on waiting"));
        }
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe)?;
        for (code, name) in
            [(opcode::Write::CODE, "write"), (opcode::Fsync::CODE, "fsync"), (opcode::Read::CODE, "read")]
        {
            if !probe.is_supported(code) {
                return Err(unsupported(name));
            }
        }
        self.push(&[opcode::Nop::new().build().user_data(KIND_NOP)]);
        self.ring.submit_and_wait(1)?;
        match self.ring.completion().next() {
            Some(entry) if entry.user_data() == KIND_NOP && entry.result() == 0 => Ok(()),
            _ => Err(unsupported("working queue")),
        }
    }

    /// Queues entries next to each other. There is always room: every operation has at most two entries queued,
    /// the waker one.
    fn push(&mut self, entries: &[squeue::Entry]) {
        // SAFETY: what the entries point to lives until their results came: buffers and files are in `slots`,
        // the counter is boxed in `self`, and dropping `self` waits for all of them or leaks them.
        let pushed = unsafe { self.ring.submission().push_multiple(entries) };
        pushed.expect("the queue has room for a full slab and the waker");
    }

    fn queue_is_empty(&mut self) -> bool {
        self.ring.submission().is_empty()
    }

    /// Queues what an operation has to do next, or ends it.
    fn follow(&mut self, index: usize, step: Step, out: &mut Vec<Completion>) {
        let Some(Some(operation)) = self.slots.get(index) else {
            debug_assert!(false, "a step of an operation that is not there");
            return;
        };
        let fd = Fd(operation.file.as_fd().as_raw_fd());
        let data = |kind: u64| ((index as u64) << KIND_BITS) | kind;
        let sync = opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build().user_data(data(KIND_SYNC));
        let result = match step {
            Step::Wait => return,
            Step::Sync => return self.push(&[sync]),
            Step::Write { from } => {
                let rest = operation.data.as_slice().get(from..).unwrap_or_default();
                let bytes =
                    u32::try_from(rest.len().min(MAX_WRITE_BYTES)).expect("bounded by MAX_WRITE_BYTES");
                let write =
                    opcode::Write::new(fd, rest.as_ptr(), bytes).offset(operation.position + from as u64);
                let write = match self.mode {
                    SyncMode::LinkedFsync => write.build().flags(squeue::Flags::IO_LINK),
                    SyncMode::WriteDsync => {
                        let dsync = i32::try_from(ReadWriteFlags::DSYNC.bits()).expect("a small flag");
                        write.rw_flags(dsync).build()
                    }
                };
                let write = write.user_data(data(KIND_WRITE));
                return match self.mode {
                    SyncMode::LinkedFsync => self.push(&[write, sync]),
                    SyncMode::WriteDsync => self.push(&[write]),
                };
            }
            Step::Done => Ok(None),
            Step::Failed(failure) => {
                let bytes = operation.data.len();
                let doing = format!("{} {bytes} bytes at {} of", failure.doing(), operation.position);
                Err(with_path(&failure.error(), &doing, operation.file.path()))
            }
        };
        debug_assert!(!operation.progress.is_outstanding(), "the kernel still has the buffer");
        out.push(Completion { token: operation.token, result });
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = None;
        }
        self.free.push(index);
        self.unfinished -= 1;
    }

    /// Takes every result that is there, without a system call.
    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.refused);
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            let result = match usize::try_from(entry.result()) {
                Ok(count) => Ok(count),
                Err(_) => Err(Errno::from_raw_os_error(entry.result().wrapping_neg())),
            };
            let kind = entry.user_data() & ((1 << KIND_BITS) - 1);
            if kind == KIND_WAKE {
                self.wake_read_pending = false;
                continue;
            }
            let index = usize::try_from(entry.user_data() >> KIND_BITS).unwrap_or(usize::MAX);
            let Some(Some(operation)) = self.slots.get_mut(index) else {
                debug_assert!(false, "a result of an operation that is not there");
                continue;
            };
            let step = match kind {
                KIND_WRITE => operation.progress.write_ended(result),
                _ => operation.progress.sync_ended(result.map(|_| ())),
            };
            self.follow(index, step, out);
        }
        if let Some(reader) = &self.reader {
            self.unfinished -= reader.take_done(out);
        }
    }

    /// One system call that hands over the queue and, if asked, waits until there is a result.
    fn enter(&mut self, mut wait: Option<Option<Duration>>) -> io::Result<()> {
        let mut retries = 0;
        loop {
            let submitter = self.ring.submitter();
            let entered = match wait {
                None => submitter.submit(),
                Some(None) => submitter.submit_and_wait(1),
                Some(Some(timeout)) => {
                    let timeout = Timespec::from(timeout);
                    submitter.submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
                }
            };
            let left_over = !self.queue_is_empty();
            match entered {
                Ok(_) if !left_over => return Ok(()),
                Ok(_) => {
                    // The cut may have fallen between a write and its sync.
                    for operation in self.slots.iter_mut().flatten() {
                        operation.progress.link_in_doubt();
                    }
                }
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::TIME) => return Ok(()),
                    Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) if !left_over => return Ok(()),
                    Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                    _ => return Err(error),
                },
            }
            retries += 1;
            if retries >= MAX_RETRIES {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    format!("io_uring took only a part of the queue in {MAX_RETRIES} attempts"),
                ));
            }
            // What keeps the kernel from taking more may be results that nobody took.
            let mut ended = Vec::new();
            self.reap(&mut ended);
            self.refused.append(&mut ended);
            wait = None;
        }
    }

    /// Queues a read of the eventfd, so that a wake-up is a result like any other.
    fn queue_wake_read(&mut self) {
        if self.wake_read_pending {
            return;
        }
        let fd = Fd(self.waker.eventfd().as_raw_fd());
        let read = opcode::Read::new(fd, self.wake_counter.as_mut_ptr(), 8).build().user_data(KIND_WAKE);
        self.push(&[read]);
        self.wake_read_pending = true;
    }

    fn hand_over_reads(&mut self) {
        if let Some(reader) = &self.reader {
            reader.hand_over(&mut self.reads);
        }
    }

    /// Whether there are results that only a system call makes visible.
    fn holds_results_back(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }
}

impl Ring for UringRing {
    type File = DirectFile;

    fn write_sync(&mut self, file: &Arc<DirectFile>, position: u64, data: Arc<AlignedBuf>, token: u64) {
        if let Err(error) = check_aligned(position, data.len()) {
            let error = with_path(&error, "writing", file.path());
            self.refused.push(Completion { token, result: Err(error) });
            return;
        }
        let free = if self.unfinished < self.slots.len() { self.free.pop() } else { None };
        let Some((index, slot)) = free.and_then(|index| Some((index, self.slots.get_mut(index)?))) else {
            let error = ring_is_full(self.slots.len());
            self.refused.push(Completion { token, result: Err(error) });
            return;
        };
        let sync = match self.mode {
            SyncMode::LinkedFsync => Sync::Chained,
            SyncMode::WriteDsync => Sync::Within,
        };
        let (progress, step) = Progress::start(data.len(), sync);
        *slot = Some(Operation { file: Arc::clone(file), data, position, token, progress });
        self.unfinished += 1;
        self.follow(index, step, &mut Vec::new());
    }

    fn read(&mut self, file: &Arc<dyn ReadAt>, position: u64, bytes: usize, token: u64) {
        let capacity = self.slots.len();
        if self.unfinished >= capacity {
            self.refused.push(Completion { token, result: Err(ring_is_full(capacity)) });
            return;
        }
        if self.reader.is_none() {
            match Pool::start("comb-read", 1, capacity, self.waker.clone()) {
                Ok(reader) => self.reader = Some(reader),
                Err(error) => {
                    let error = with_path(&error, "starting a thread to read", file.path());
                    self.refused.push(Completion { token, result: Err(error) });
                    return;
                }
            }
        }
        self.unfinished += 1;
        self.reads.push(Job::Read { file: Arc::clone(file), position, bytes, token });
    }

    fn submit(&mut self) -> io::Result<()> {
        self.hand_over_reads();
        if self.queue_is_empty() {
            return Ok(());
        }
        self.enter(None)
    }

    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()> {
        let started = Instant::now();
        let had = out.len();
        self.hand_over_reads();
        let mut woken = self.waker.disarm();
        loop {
            self.reap(out);
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            if woken || out.len() > had || left == Some(Duration::ZERO) {
                // Follow-ups of what was reaped, a rest to write for instance, must not wait for the next call.
                // A call that found nothing asks the kernel to report what it has held back.
                if !self.queue_is_empty() || (out.len() == had && self.holds_results_back()) {
                    self.enter(None)?;
                    self.reap(out);
                }
                return Ok(());
            }
            if self.waker.arm() {
                self.queue_wake_read();
                let entered = self.enter(Some(left));
                woken = self.waker.disarm();
                entered?;
            } else {
                woken = self.waker.disarm();
            }
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn name(&self) -> &'static str {
        "uring"
    }
}

impl Drop for UringRing {
    fn drop(&mut self) {
        // Ends the pending read of the eventfd.
        self.waker.signal();
        let mut out = Vec::new();
        while self.wake_read_pending || self.slots.iter().any(Option::is_some) {
            if self.enter(Some(None)).is_err() {
                // The kernel may still write to or read from this memory, and nothing can be asked any more.
                std::mem::forget(std::mem::take(&mut self.slots));
                std::mem::forget(std::mem::take(&mut self.wake_counter));
                return;
            }
            self.reap(&mut out);
            out.clear();
        }
    }
}

/// Sets up with the options that spare the kernel interruptions of this thread, as far as it knows them.
fn build(entries: u32) -> io::Result<IoUring> {
    let attempts: [fn(&mut io_uring::Builder); 3] = [
        |builder| {
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
                .dontfork();
        },
        |builder| {
            builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        },
        |_| {},
    ];
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for attempt in attempts {
        let mut builder = IoUring::builder();
        attempt(&mut builder);
        match builder.build(entries) {
            Ok(ring) => return Ok(ring),
            Err(error) => last = error,
        }
        if Errno::from_io_error(&last) != Some(Errno::INVAL) {
            break;
        }
    }
    Err(last)
}
