//! One zstd frame: what it declares, and inflating it into exactly that.

use zstd::bulk::Decompressor;
use zstd::zstd_safe::{find_frame_compressed_size, get_frame_content_size};

/// The first bytes of a zstd frame that holds data.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The content size that a frame declares, if it does; the bytes must be one whole frame and nothing else. Nothing is
/// inflated.
///
/// # Errors
/// What is wrong with it.
pub(super) fn declared(frame: &[u8]) -> Result<Option<u64>, &'static str> {
    if !frame.starts_with(&MAGIC) {
        return Err("is not a zstd frame");
    }
    match find_frame_compressed_size(frame) {
        Ok(bytes) if bytes == frame.len() => {}
        Ok(_) => return Err("has bytes behind its zstd frame"),
        Err(_) => return Err("is a zstd frame that is damaged or cut off"),
    }
    get_frame_content_size(frame).map_err(|_| "is a zstd frame with a damaged head")
}

/// Inflates frames, one after the other.
pub(super) struct Inflater(Decompressor<'static>);

impl Inflater {
    pub(super) fn new() -> Inflater {
        Inflater(Decompressor::default())
    }

    /// Fills `into` with what a frame holds.
    ///
    /// # Errors
    /// What is wrong with it, also when it holds more or less than `into` takes.
    pub(super) fn inflate(&mut self, frame: &[u8], into: &mut [u8]) -> Result<(), String> {
        let declared = into.len();
        match self.0.decompress_to_buffer(frame, into) {
            Ok(bytes) if bytes == declared => Ok(()),
            Ok(bytes) => Err(format!("inflates to {bytes} bytes and declares {declared}")),
            Err(error) => Err(format!("does not inflate to the {declared} bytes that it declares: {error}")),
        }
    }
}
