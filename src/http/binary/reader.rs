//! Reads fields off bytes. A read past the end gives nothing and takes nothing.

/// What is left of some bytes.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    /// All that is left.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(super) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A UUID: 16 bytes in the order of its text.
    pub(super) fn uuid(&mut self) -> Option<u128> {
        self.array().map(u128::from_be_bytes)
    }

    /// A 32-bit length and so many bytes.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let bytes = usize::try_from(self.u32()?).ok()?;
        self.take(bytes)
    }

    /// A 16-bit length and so many bytes of UTF-8.
    ///
    /// # Errors
    /// What is wrong with `field`.
    pub(super) fn text(&mut self, field: &str) -> Result<&'a str, String> {
        let length = self.array().map(u16::from_le_bytes);
        let bytes = length.and_then(|length| self.take(usize::from(length)));
        let bytes = bytes.ok_or_else(|| format!("{field} is cut off"))?;
        std::str::from_utf8(bytes)
            .map_err(|error| format!("{field} is not UTF-8 after byte {}", error.valid_up_to()))
    }
}
