//! `QPB1`: `"QPB1" | u8 flags | [u32 raw_len, flag 1] | groups`.

use bytes::Bytes;

use super::super::error::ApiError;
use super::reader::Reader;
use super::room::Room;
use super::section::{Form, Section};
use super::zstd_frame::{Inflater, declared};
use super::{FLAG_FRAMES, FLAG_IDS, FLAG_SHORT, FLAG_ZSTD, known_flags};

/// A push whose lengths were checked.
pub(crate) struct Push<'l> {
    /// Answer with counts.
    pub(crate) short: bool,
    /// Its messages.
    pub(crate) section: Section<'l>,
}

impl<'l> Push<'l> {
    /// Reads a body that begins with the magic.
    ///
    /// # Errors
    /// 400, 413 or 429; nothing was stored.
    pub(crate) fn read(bytes: &Bytes, mut room: Room<'l>) -> Result<Push<'l>, ApiError> {
        let bad = |text: &str| ApiError::bad_body(format!("bad push body: {text}"));
        let mut reader = Reader::new(bytes);
        let flags = reader.take(4).and_then(|_| reader.u8()).ok_or_else(|| bad("flags are cut off"))?;
        let flags = known_flags(flags, FLAG_ZSTD | FLAG_SHORT | FLAG_IDS | FLAG_FRAMES, "push")?;
        // Frames always carry their transaction ids, so beside them the flag for it says nothing new.
        let form = match flags & FLAG_FRAMES {
            0 => Form::Plain { ids: flags & FLAG_IDS != 0 },
            _ => Form::Framed,
        };
        let section = match flags & FLAG_ZSTD {
            0 => bytes.slice_ref(reader.rest()),
            _ => {
                let raw = reader.u32().ok_or_else(|| bad("raw_len is cut off"))?;
                let frame = reader.rest();
                let size = declared(frame).map_err(|text| bad(&format!("what follows raw_len {text}")))?;
                if let Some(size) = size.filter(|size| *size != u64::from(raw)) {
                    return Err(bad(&format!("raw_len is {raw} and its zstd frame declares {size} bytes")));
                }
                room.inflate(u64::from(raw))?;
                let mut inflated = vec![0; usize::try_from(raw).unwrap_or(usize::MAX)];
                Inflater::new()
                    .inflate(frame, &mut inflated)
                    .map_err(|text| bad(&format!("its zstd frame {text}")))?;
                Bytes::from(inflated)
            }
        };
        let section = Section::read("push", section, form, room)?;
        Ok(Push { short: flags & FLAG_SHORT != 0, section })
    }
}
