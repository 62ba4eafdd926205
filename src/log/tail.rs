//! What the end of the log means: the decision table between torn tail, corruption and clean end.
//!
//! Replay stops at the first group `S` that is not whole. What stands behind it in both files and in later files
//! says why. Only watermarks vouch; that something exists vouches for nothing. Rows are ordered from worst to
//! harmless, and the first that matches wins.

use crate::types::Seq;

/// What was collected behind the first group that is not whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Highest watermark of any frame of either file, seal, checkpoint or superblock.
    pub vouched: Seq,
    /// Highest seq of a valid commit frame at or behind the stop.
    pub highest_seq: Option<Seq>,
    /// Bytes of this life behind the stop reach further than the groups in flight can have written.
    pub too_wide: bool,
    /// A frame is valid, chain and all, but its content is impossible.
    pub impossible: bool,
    /// A file number is missing between files that hold frames.
    pub gap: bool,
    /// Bytes that are not zero stand where the next frame would begin.
    pub damage: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Acknowledged data is damaged: refuse.
    Corruption,
    /// No crash can have left this: refuse.
    Impossible,
    /// The damage is wider than what was in flight: refuse.
    NotATornWrite,
    /// `S` was in flight together with later groups: cut all of them, loudly.
    CutInFlight,
    /// `S` itself is torn and nothing follows: cut it.
    TornTail,
    /// Nothing of this life follows: scrub and go on.
    CleanEnd,
}

/// The table. `stop` is the first seq that is not whole, `depth` the pipeline depth of the file.
#[must_use]
pub fn decide(stop: Seq, depth: u32, found: &Findings) -> Verdict {
    let beyond_flight = found.highest_seq.is_some_and(|seq| seq.0 >= stop.0 + u64::from(depth));
    match () {
        () if found.vouched >= stop => Verdict::Corruption,
        () if beyond_flight || found.impossible || found.gap => Verdict::Impossible,
        () if found.too_wide => Verdict::NotATornWrite,
        () if found.highest_seq.is_some() => Verdict::CutInFlight,
        () if found.damage => Verdict::TornTail,
        () => Verdict::CleanEnd,
    }
}

#[cfg(test)]
mod tests {
    use super::{Findings, Verdict, decide};
    use crate::types::Seq;

    /// Every combination of the inputs hits exactly the worst row that matches it.
    #[test]
    fn every_combination_of_findings_has_one_verdict() {
        let stop = Seq(10);
        let depth = 2;
        for bits in 0..16_u32 {
            let flag = |bit: u32| bits & (1 << bit) != 0;
            for vouched in [Seq(0), Seq(9), Seq(10), Seq(11)] {
                for highest in [None, Some(Seq(10)), Some(Seq(11)), Some(Seq(12))] {
                    let found = Findings {
                        vouched,
                        highest_seq: highest,
                        too_wide: flag(0),
                        impossible: flag(1),
                        gap: flag(2),
                        damage: flag(3),
                    };
                    let expected = if vouched.0 >= 10 {
                        Verdict::Corruption
                    } else if highest == Some(Seq(12)) || flag(1) || flag(2) {
                        Verdict::Impossible
                    } else if flag(0) {
                        Verdict::NotATornWrite
                    } else if highest.is_some() {
                        Verdict::CutInFlight
                    } else if flag(3) {
                        Verdict::TornTail
                    } else {
                        Verdict::CleanEnd
                    };
                    assert_eq!(decide(stop, depth, &found), expected, "{found:?}");
                }
            }
        }
    }
}
