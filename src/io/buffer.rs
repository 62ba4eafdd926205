//! Byte buffers whose memory starts on a block boundary.
//!
//! Purpose: everything that is written goes through one of these, so that a write may bypass the page cache
//! without a copy.
//!
//! Invariants:
//! - The memory starts on a multiple of `BLOCK_BYTES` and its capacity is a multiple of `BLOCK_BYTES`.
//! - The first `len` bytes are initialised; nothing beyond is ever readable through a safe call.
//! - While an `Arc` of a buffer is shared, nobody can change it: all changes take `&mut self`.
//!
//! Must not: know files.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use super::BLOCK_BYTES;

/// A growable byte buffer, aligned to `BLOCK_BYTES`.
pub struct AlignedBuf {
    start: NonNull<u8>,
    length: usize,
    capacity: usize,
}

/// Gives an unallocated buffer an address that is aligned like an allocated one.
#[repr(align(4096))]
struct Block(#[expect(dead_code, reason = "only the alignment of the type is used")] [u8; BLOCK_BYTES]);

const _: () = assert!(align_of::<Block>() == BLOCK_BYTES);

// SAFETY: the buffer owns its memory alone, like `Vec<u8>`; nothing in it is tied to a thread.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference only reads the initialised bytes; every change needs `&mut`.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// An empty buffer without memory.
    #[must_use]
    pub fn new() -> AlignedBuf {
        AlignedBuf { start: NonNull::<Block>::dangling().cast(), length: 0, capacity: 0 }
    }

    /// An empty buffer with room for at least `bytes` bytes.
    ///
    /// # Panics
    /// When `bytes` is above what an allocation can hold.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::new();
        if bytes > 0 {
            buf.grow_to(bytes);
        }
        buf
    }

    /// A buffer of `bytes` zero bytes.
    #[must_use]
    pub fn zeroed(bytes: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::with_capacity(bytes);
        buf.resize_zeroed(bytes);
        buf
    }

    /// Initialised bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes that fit without another allocation; a multiple of `BLOCK_BYTES`.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Appends `data`.
    pub fn extend_from_slice(&mut self, data: &[u8]) {
        self.reserve(data.len());
        // SAFETY: `reserve` made room for `data.len()` bytes after `length`; `data` is a borrow of other memory,
        // since this buffer is borrowed exclusively, so the ranges do not overlap.
        unsafe {
            self.start.as_ptr().add(self.length).copy_from_nonoverlapping(data.as_ptr(), data.len());
        }
        self.length += data.len();
    }

    /// Makes the length `bytes`: cuts, or appends zeroes.
    pub fn resize_zeroed(&mut self, bytes: usize) {
        if let Some(more) = bytes.checked_sub(self.length) {
            self.reserve(more);
            // SAFETY: `reserve` made room for `more` bytes after `length`.
            unsafe {
                self.start.as_ptr().add(self.length).write_bytes(0, more);
            }
        }
        self.length = bytes;
    }

    /// Appends zeroes up to the next multiple of `BLOCK_BYTES`.
    pub fn pad_to_block(&mut self) {
        self.resize_zeroed(self.length.next_multiple_of(BLOCK_BYTES));
    }

    /// Forgets the bytes after the first `bytes`; a longer `bytes` changes nothing.
    pub fn truncate(&mut self, bytes: usize) {
        self.length = self.length.min(bytes);
    }

    /// Forgets all bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the first `length` bytes are initialised and live as long as `self`; an empty buffer has an
        // aligned, non-null address.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The bytes, to change them in place.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// The room after the bytes, for a read to fill.
    pub(super) fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the memory from `length` to `capacity` is allocated, and `MaybeUninit` promises no content.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.as_ptr().add(self.length).cast::<MaybeUninit<u8>>(),
                self.capacity - self.length,
            )
        }
    }

    /// Counts the first `bytes` bytes of the room as content.
    ///
    /// # Safety
    /// They must have been initialised through `spare`, and `bytes` is at most its length.
    pub(super) unsafe fn advance(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.capacity - self.length);
        self.length += bytes;
    }

    fn reserve(&mut self, more: usize) {
        let needed = self.length.checked_add(more).expect("a buffer is shorter than the address space");
        if needed > self.capacity {
            self.grow_to(needed.max(self.capacity.saturating_mul(2)));
        }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, BLOCK_BYTES).expect("a buffer is shorter than the address space")
    }

    /// Moves the bytes to a new allocation of at least `bytes` bytes; `bytes` is above zero.
    #[cold]
    fn grow_to(&mut self, bytes: usize) {
        let capacity = bytes
            .checked_next_multiple_of(BLOCK_BYTES)
            .expect("a buffer is shorter than the address space")
            .max(BLOCK_BYTES);
        let layout = AlignedBuf::layout(capacity);
        // SAFETY: the layout's size is at least one block.
        let memory = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(memory) else { handle_alloc_error(layout) };
        // SAFETY: the old memory holds `length` initialised bytes, the new one is larger and distinct.
        unsafe {
            start.as_ptr().copy_from_nonoverlapping(self.start.as_ptr(), self.length);
        }
        self.free();
        self.start = start;
        self.capacity = capacity;
    }

    /// Gives the memory back; the caller replaces `start` and `capacity` or never uses them again.
    fn free(&mut self) {
        if self.capacity > 0 {
            // SAFETY: a capacity above zero says that `start` came from `alloc` with this very layout.
            unsafe { dealloc(self.start.as_ptr(), AlignedBuf::layout(self.capacity)) }
        }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        self.free();
    }
}

impl Default for AlignedBuf {
    fn default() -> AlignedBuf {
        AlignedBuf::new()
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl From<&[u8]> for AlignedBuf {
    fn from(data: &[u8]) -> AlignedBuf {
        let mut buf = AlignedBuf::with_capacity(data.len());
        buf.extend_from_slice(data);
        buf
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} of {} bytes)", self.length, self.capacity)
    }
}

/// Keeps a shared buffer alive for as long as slices of it are around.
struct SharedBuf(Arc<AlignedBuf>);

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// All bytes of a shared buffer, without a copy; slices of the answer keep the buffer alive.
#[must_use]
pub fn shared_bytes(buf: &Arc<AlignedBuf>) -> Bytes {
    Bytes::from_owner(SharedBuf(Arc::clone(buf)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(buf: &AlignedBuf) -> bool {
        buf.as_slice().as_ptr().addr().is_multiple_of(BLOCK_BYTES)
    }

    #[test]
    fn stays_aligned_while_it_grows() {
        let mut buf = AlignedBuf::new();
        assert!(aligned(&buf), "also without memory");
        let mut expected = Vec::new();
        for round in 0u32..3000 {
            let piece = round.to_le_bytes();
            buf.extend_from_slice(&piece);
            expected.extend_from_slice(&piece);
            assert!(aligned(&buf));
            assert!(buf.capacity().is_multiple_of(BLOCK_BYTES) && buf.capacity() >= buf.len());
        }
        assert_eq!(buf.as_slice(), expected);
    }

    #[test]
    fn pads_with_zeroes_only_to_the_boundary() {
        let mut buf = AlignedBuf::from(&[7u8; 5000][..]);
        buf.truncate(4097);
        buf.pad_to_block();
        assert_eq!(buf.len(), 2 * BLOCK_BYTES);
        assert_eq!(
            buf.as_slice().iter().filter(|byte| **byte == 7).count(),
            4097,
            "old bytes do not reappear"
        );
        buf.pad_to_block();
        assert_eq!(buf.len(), 2 * BLOCK_BYTES, "a full block needs no padding");
        buf.clear();
        buf.pad_to_block();
        assert!(buf.is_empty());
    }

    #[test]
    fn a_slice_outlives_the_buffers_other_owner() {
        let buf = Arc::new(AlignedBuf::from(&b"0123456789"[..]));
        let slice = shared_bytes(&buf).slice(3..6);
        drop(buf);
        assert_eq!(&slice[..], b"345");
    }
}
