//! Filters: which segments cannot hold an id, without asking their index files.
//!
//! A blocked Bloom filter: all bits of a key are in one cache line, so that asking costs one access to memory.
//!
//! Invariant: a key that was inserted is never denied.

use super::{FILTER_BLOCK_BYTES, filter_blocks, place_of};

/// Bits of a key. With twelve bits of room a key about one in two hundred others passes.
const BITS: u32 = 6;

/// One filter.
#[derive(Clone, Debug)]
pub struct Filter {
    bits: Vec<u8>,
    blocks: u32,
}

impl Filter {
    /// An empty filter with room for so many messages.
    #[must_use]
    pub fn for_messages(messages: u32) -> Filter {
        let blocks = filter_blocks(messages);
        Filter { bits: vec![0; blocks as usize * FILTER_BLOCK_BYTES], blocks }
    }

    /// A filter from its bytes: whole blocks, at least one.
    #[must_use]
    pub fn from_bytes(bits: Vec<u8>) -> Option<Filter> {
        let blocks = u32::try_from(bits.len() / FILTER_BLOCK_BYTES).ok()?;
        (blocks > 0 && bits.len().is_multiple_of(FILTER_BLOCK_BYTES)).then_some(Filter { bits, blocks })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bits
    }

    /// Where a key's bits are: byte and mask. Nine bits choose one of a block's 512, from the low half of the key,
    /// which has no part in the choice of the block.
    fn places(&self, key: u64) -> impl Iterator<Item = (usize, u8)> + use<> {
        let block = place_of(key, self.blocks) as usize * FILTER_BLOCK_BYTES;
        let mixed = (key & 0xFFFF_FFFF).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (0..BITS).map(move |index| {
            let bit = (mixed >> (9 * index + 1)) as usize & 511;
            (block + bit / 8, 1 << (bit % 8))
        })
    }

    /// Adds a key.
    pub fn insert(&mut self, key: u64) {
        for (byte, mask) in self.places(key) {
            if let Some(byte) = self.bits.get_mut(byte) {
                *byte |= mask;
            }
        }
    }

    /// Whether a key may have been added.
    #[must_use]
    pub fn may_hold(&self, key: u64) -> bool {
        self.places(key).all(|(byte, mask)| self.bits.get(byte).is_some_and(|byte| byte & mask != 0))
    }
}
