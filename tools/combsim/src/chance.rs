//! The one source of decisions of a history: splitmix64 from the seed.
//!
//! Must not: be shared between the harness and the disk, so that a change of one leaves the other's sequence alone.

/// A generator that repeats itself for the same seed.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// A generator for a seed and a purpose.
    #[must_use]
    pub fn new(seed: u64, purpose: u64) -> Chance {
        let mut chance = Chance(seed ^ purpose.rotate_left(32));
        chance.bits();
        chance
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.bits() % end }
    }

    /// An index below `len`; 0 when `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// A number from `low` to `high`, both possible.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n.max(1)) == 0
    }

    /// One of these.
    ///
    /// # Panics
    /// When there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let index = self.index(from.len());
        *from.get(index).expect("something to pick from")
    }
}
