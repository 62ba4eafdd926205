//! One connection: its timeouts, what is ambiguous in its requests, and whether an answer went out.
//!
//! hyper tells nobody when an idle time begins, when a header begins to arrive, or when an answer has left. All of
//! that shows in the reads and writes of the socket, so it is watched there.
//!
//! Invariants:
//! - An idle connection, a slow header and an answer that nobody reads end the connection; a request in work does not.
//! - A guard is disarmed only when every byte of its answer has been taken by the kernel.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};

use super::head::HeadScan;
use crate::broker::handle::DeliveryGuard;
use crate::config::Limits;

const IDLE: u8 = 0;
const HEAD: u8 = 1;
const BUSY: u8 = 2;

/// What the socket, the service and the answer of one connection share.
#[derive(Default)]
pub(crate) struct Conn {
    phase: AtomicU8,
    /// The last frame of an answer was taken and waits for its flush.
    leaving: AtomicBool,
    carried: Mutex<Option<Carried>>,
    /// The head of the request being read was seen whole by the scanner.
    scanned: AtomicBool,
    ambiguous: AtomicBool,
    /// Bytes were received that may be the beginning of the next head.
    missed: AtomicBool,
    /// No further request is taken.
    ending: AtomicBool,
}

struct Carried {
    guard: Option<DeliveryGuard>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Conn {
    /// A request's head is complete; the service works on it.
    pub(crate) fn begin(&self) -> Begun {
        self.phase.store(BUSY, Ordering::Release);
        Begun {
            scanned: self.scanned.swap(false, Ordering::AcqRel),
            ambiguous: self.ambiguous.swap(false, Ordering::AcqRel),
        }
    }

    /// The present request is the last; the time after its answer is not idle time, but for what is still unread.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Nothing was received since the last answer.
    pub(crate) fn idle(&self) -> bool {
        self.phase.load(Ordering::Acquire) == IDLE
    }

    /// An answer's last frame was taken, or it has none.
    pub(crate) fn last_frame(&self, guard: Option<DeliveryGuard>, permit: Option<OwnedSemaphorePermit>) {
        if guard.is_some() || permit.is_some() {
            let carried = Some(Carried { guard, _permit: permit });
            *self.carried.lock().unwrap_or_else(PoisonError::into_inner) = carried;
        }
        self.leaving.store(true, Ordering::Release);
    }

    /// Everything written so far was taken by the kernel. True when that includes a whole answer.
    fn flushed(&self) -> bool {
        if !self.leaving.swap(false, Ordering::AcqRel) {
            return false;
        }
        let carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Carried { guard: Some(guard), .. }) = carried {
            guard.delivered();
        }
        if !self.ending.load(Ordering::Acquire) {
            self.phase.store(IDLE, Ordering::Release);
        }
        true
    }
}

/// What is known about a request that begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// Its raw head was seen. False when it may have begun behind an earlier request.
    pub(crate) scanned: bool,
    /// Its raw head can be read in two ways.
    pub(crate) ambiguous: bool,
}

/// A socket under watch.
pub(crate) struct Watched<S> {
    socket: S,
    conn: Arc<Conn>,
    limits: Limits,
    /// When the present phase of reading began.
    since: Instant,
    reading: Alarm,
    /// When writing began to stall.
    stalled: Option<Instant>,
    writing: Alarm,
    head: HeadScan,
}

impl<S> Watched<S> {
    pub(crate) fn new(socket: S, conn: Arc<Conn>, limits: Limits) -> Watched<S> {
        Watched {
            socket,
            conn,
            limits,
            since: Instant::now(),
            reading: Alarm::default(),
            stalled: None,
            writing: Alarm::default(),
            head: HeadScan::default(),
        }
    }

    fn received(&mut self, bytes: &[u8]) {
        match self.conn.phase.load(Ordering::Acquire) {
            IDLE => {
                self.conn.phase.store(HEAD, Ordering::Release);
                self.since = Instant::now();
                let missed = self.conn.missed.swap(false, Ordering::AcqRel);
                self.head = if missed { HeadScan::blind() } else { HeadScan::default() };
            }
            HEAD => {}
            _ => {
                // Of a body, most likely; but a pipelined head may have begun.
                self.conn.missed.store(true, Ordering::Release);
                return;
            }
        }
        if let Some(verdict) = self.head.feed(bytes) {
            self.conn.ambiguous.store(verdict.ambiguous, Ordering::Release);
            self.conn.scanned.store(true, Ordering::Release);
            if verdict.more {
                self.conn.missed.store(true, Ordering::Release);
            }
        }
    }

    fn written(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let since = *self.stalled.get_or_insert_with(Instant::now);
        if self.writing.passed(cx, since + self.limits.body_timeout()) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read its answer",
            )));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        match Pin::new(&mut this.socket).poll_read(cx, buf) {
            Poll::Ready(result) => {
                let (_, new) = buf.filled().split_at(before);
                if !new.is_empty() {
                    this.received(new);
                }
                Poll::Ready(result)
            }
            Poll::Pending => {
                let (limit, what) = match this.conn.phase.load(Ordering::Acquire) {
                    IDLE => (this.limits.idle_timeout(), "the connection is idle for too long"),
                    HEAD => (this.limits.header_timeout(), "the request's head takes too long"),
                    _ => return Poll::Pending,
                };
                if this.reading.passed(cx, this.since + limit) {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)));
                }
                Poll::Pending
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.socket).poll_write(cx, buf);
        this.written(cx, result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.socket).poll_write_vectored(cx, bufs);
        this.written(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.socket).poll_flush(cx);
        // hyper flushes the socket only when its own buffer has been written in full.
        if matches!(result, Poll::Ready(Ok(()))) && this.conn.flushed() {
            this.since = Instant::now();
        }
        result
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

/// A timer that is set lazily: while its time only moves away it is left alone and set anew when it fires, so that a
/// busy connection does not touch the timer wheel for every request.
#[derive(Default)]
struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Whether the deadline has passed; if not, the task is woken when it has.
    fn passed(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= deadline {
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }
}
