//! Bounded readers and writers of little-endian fields.
//!
//! Purpose: the few primitives that every codec of this folder is made of.
//!
//! Invariants: a reader never reads past the bytes it was given, never allocates, and never panics. A varint has
//! exactly one accepted spelling, so that equal values have equal bytes.
//!
//! Must not: know any structure.

use super::DecodeError;

/// Longest varint: ten groups of seven bits hold 64.
pub(super) const VARINT_MAX_BYTES: usize = 10;

/// Where a block structure keeps its crc32; the same in every version, so that a version number is only believed
/// under a matching checksum.
const CRC_AT: usize = 8;

/// A reader over the bytes of one structure.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(what: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { what, rest: bytes }
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The error for a field of this structure.
    pub(super) fn field(&self, field: &'static str, got: u64) -> DecodeError {
        DecodeError::Field { what: self.what, field, got }
    }

    fn short(&self, need: usize) -> DecodeError {
        DecodeError::Short { what: self.what, need, got: self.rest.len() }
    }

    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.short(N))?;
        self.rest = tail;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, DecodeError> {
        self.take().map(i64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, DecodeError> {
        self.take().map(u128::from_le_bytes)
    }

    /// A number of bytes, as a slice of the input.
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.rest.split_at_checked(len).ok_or_else(|| self.short(len))?;
        self.rest = tail;
        Ok(head)
    }

    /// A number of bytes of UTF-8.
    pub(super) fn text(&mut self, field: &'static str, len: usize) -> Result<&'a str, DecodeError> {
        let bytes = self.bytes(len)?;
        std::str::from_utf8(bytes).map_err(|_| DecodeError::Text { what: self.what, field })
    }

    /// UTF-8 behind a varint length.
    pub(super) fn varint_text(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let len = self.varint_len()?;
        self.text(field, len)
    }

    /// An LEB128 number; a spelling longer than necessary is an error.
    pub(super) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0_u64;
        for index in 0..VARINT_MAX_BYTES {
            let byte = self.u8()?;
            let group = u64::from(byte & 0x7f);
            if index == VARINT_MAX_BYTES - 1 && group > 1 {
                return Err(self.field("varint above 64 bits, last byte", u64::from(byte)));
            }
            value |= group << (7 * index);
            if byte & 0x80 == 0 {
                if byte == 0 && index > 0 {
                    return Err(self.field("varint longer than necessary", value));
                }
                return Ok(value);
            }
        }
        Err(self.field("varint longer than ten bytes", value))
    }

    /// A varint that must fit 32 bits.
    pub(super) fn varint32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| self.field(field, value))
    }

    /// A varint that counts bytes which must be there.
    pub(super) fn varint_len(&mut self) -> Result<usize, DecodeError> {
        let len = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        if len > self.rest.len() { Err(self.short(len)) } else { Ok(len) }
    }

    /// All remaining bytes must be zero.
    pub(super) fn zeros(self, field: &'static str) -> Result<(), DecodeError> {
        match self.rest.iter().find(|byte| **byte != 0) {
            None => Ok(()),
            Some(byte) => Err(self.field(field, u64::from(*byte))),
        }
    }

    /// No bytes may remain.
    pub(super) fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.field("number of bytes after the last field", self.rest.len() as u64))
        }
    }
}

/// Appends an LEB128 number.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Appends UTF-8 behind its varint length.
pub(super) fn put_varint_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Small for small differences of either sign.
pub(super) fn zigzag(from: u64, to: u64) -> u64 {
    let difference = to.wrapping_sub(from).cast_signed();
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

/// The `to` that `zigzag(from, to)` came from.
pub(super) fn unzigzag(from: u64, coded: u64) -> u64 {
    let difference = (coded >> 1).cast_signed() ^ -((coded & 1).cast_signed());
    from.wrapping_add(difference.cast_unsigned())
}

/// A writer over a structure of fixed size, whose remaining bytes stay as they are.
pub(super) struct Cells<'a>(&'a mut [u8]);

impl<'a> Cells<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Cells<'a> {
        Cells(out)
    }

    /// Writes the next field.
    pub(super) fn put<const N: usize>(&mut self, field: [u8; N]) {
        let rest = std::mem::take(&mut self.0);
        let (head, tail) = rest.split_first_chunk_mut::<N>().expect("every layout fits its structure");
        *head = field;
        self.0 = tail;
    }
}

fn crc_around(bytes: &[u8], at: usize) -> Option<(u32, u32)> {
    let (before, rest) = bytes.split_at_checked(at)?;
    let (stored, after) = rest.split_first_chunk::<4>()?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(before);
    hasher.update(after);
    Some((hasher.finalize(), u32::from_le_bytes(*stored)))
}

/// Stores at `at` the crc32 of every other byte of the structure.
pub(super) fn seal_crc_at(bytes: &mut [u8], at: usize) {
    let (crc, _) = crc_around(bytes, at).expect("every layout has room for its crc32");
    if let Some(cell) = bytes.get_mut(at..at + 4) {
        cell.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Whether `seal_crc_at` would change nothing.
pub(super) fn check_crc_at(what: &'static str, bytes: &[u8], at: usize) -> Result<(), DecodeError> {
    match crc_around(bytes, at) {
        Some((computed, stored)) if computed == stored => Ok(()),
        Some(_) => Err(DecodeError::Checksum { what }),
        None => Err(DecodeError::Short { what, need: at + 4, got: bytes.len() }),
    }
}

/// The twelve bytes that every block structure begins with, in every version.
pub(super) struct Prefix {
    pub(super) magic: u32,
    pub(super) version: u16,
    pub(super) kind: u8,
}

impl Prefix {
    /// Writes magic, version, kind, no flags and room for the crc32.
    pub(super) fn put(&self, cells: &mut Cells<'_>) {
        cells.put(self.magic.to_le_bytes());
        cells.put(self.version.to_le_bytes());
        cells.put([self.kind, 0, 0, 0, 0, 0]);
    }

    /// Reads the magic alone, for tools that ask what something is.
    pub(super) fn magic_of(bytes: &[u8]) -> Option<u32> {
        bytes.first_chunk().map(|magic| u32::from_le_bytes(*magic))
    }

    /// Checks magic, crc32 and version, in this order, over exactly `size` bytes, and leaves the reader behind the
    /// prefix. A version is believed only under a valid checksum: a damaged structure is damaged, not newer.
    pub(super) fn check<'a>(
        what: &'static str,
        bytes: &'a [u8],
        size: usize,
        magic: u32,
    ) -> Result<(u8, Reader<'a>), DecodeError> {
        let bytes = bytes.get(..size).ok_or(DecodeError::Short { what, need: size, got: bytes.len() })?;
        let mut reader = Reader::new(what, bytes);
        if reader.u32()? != magic {
            return Err(DecodeError::Magic { what });
        }
        check_crc_at(what, bytes, CRC_AT)?;
        let version = reader.u16()?;
        if version > super::FORMAT_VERSION {
            return Err(DecodeError::Version { what, got: version });
        }
        if version == 0 {
            return Err(reader.field("version", 0));
        }
        let kind = reader.u8()?;
        let flags = reader.u8()?;
        if flags != 0 {
            return Err(reader.field("flags", u64::from(flags)));
        }
        let _crc = reader.u32()?;
        Ok((kind, reader))
    }
}

/// Stores the crc32 of a block structure.
pub(super) fn seal_block(bytes: &mut [u8]) {
    seal_crc_at(bytes, CRC_AT);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn varints_have_one_spelling() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), 1 << 63, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader::new("test", &out);
            assert_eq!(reader.varint(), Ok(value));
            reader.end().unwrap();
        }
        for overlong in [&[0x80, 0x00][..], &[0xff, 0x80, 0x00], &[0xff; 11], &[0x80; 10]] {
            assert!(matches!(Reader::new("test", overlong).varint(), Err(DecodeError::Field { .. })));
        }
        let mut above = [0xff; 10];
        above[9] = 0x02;
        assert!(Reader::new("test", &above).varint().is_err());
        assert!(matches!(Reader::new("test", &[0x80]).varint(), Err(DecodeError::Short { .. })));
    }

    #[test]
    fn zigzag_inverts_at_the_edges() {
        for from in [0, 1, 5, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            for to in [0, 1, 4, 5, 6, 1 << 63, u64::MAX] {
                assert_eq!(unzigzag(from, zigzag(from, to)), to);
            }
        }
        assert_eq!(zigzag(10, 10), 0);
        assert_eq!(zigzag(10, 9), 1);
        assert_eq!(zigzag(10, 11), 2);
    }
}
