//! Building a checkpoint from the state, and believing one at start.

use crate::engine::machine::Machine;
use crate::format::checkpoint::{CheckpointInfo, Encoder};
use crate::types::{Epoch, LogId};

/// The bytes of a checkpoint file of the state as of `info.seq`; `info.records` is filled in.
#[must_use]
pub fn encode<M: Machine>(machine: &M, log: LogId, epoch: Epoch, mut info: CheckpointInfo) -> Vec<u8> {
    let mut encoder = Encoder::new(log, info.seq, epoch);
    let mut records = 0;
    machine.snapshot(&mut |delta| {
        encoder.push(delta);
        records += 1;
    });
    info.records = records;
    encoder.finish(info)
}
