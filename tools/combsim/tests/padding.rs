//! A stream of single messages fills blocks with padding; what of it stays is packed later.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use comb::broker::command::{
    Command, Pop, PopTarget, PopTicket, Presence, PushGroup, PushItem, Reply, StartRequest,
};
use comb::broker::handle::Request;
use comb::format::entry::Entry;
use comb::format::id_hash;
use comb::io::sim::{Faults, SimDisk};
use comb::io::{Clock, ManualClock};
use combsim::process::Process;
use combsim::profile::Profile;
use tokio::sync::oneshot;

struct Bench {
    process: Process,
    hands: ManualClock,
}

impl Bench {
    fn call(&mut self, command: Command) -> Reply {
        let (sender, mut receiver) = oneshot::channel();
        assert!(self.process.handle.send(Request { command, reply: Some(sender) }).is_ok());
        for _ in 0..1000 {
            self.turn();
            if let Ok(answer) = receiver.try_recv() {
                let (reply, guard) = answer.split();
                guard.delivered();
                return reply;
            }
        }
        panic!("no answer")
    }

    fn turn(&mut self) {
        while self.process.maintain() {}
        assert!(self.process.step_awake().is_none());
        self.process.take_answers(|| {});
        self.hands.advance_us(1_000);
    }

    fn push(&mut self, number: u64) {
        let ids = self.process.handle.ids().clone();
        let (id, text) = (ids.message_id(), format!("t{number}"));
        let hash = id_hash(self.process.handle.log(), &text);
        let payload = format!("{{\"number\":{number:01200}}}");
        let mut group =
            PushGroup { queue: "q".to_owned(), partition: "p".to_owned(), ..PushGroup::default() };
        let payload = payload.as_bytes();
        Entry { id, hash, transaction_id: text.into(), trace: None, producer: None, payload }
            .encode(&mut group.entries);
        let end = u32::try_from(group.entries.len()).unwrap();
        group.items.push(PushItem { id, hash, minted: false, repeat_of: None, end });
        assert!(matches!(self.call(Command::Push(vec![group])), Reply::Push(_)));
    }

    fn pop(&mut self) -> u64 {
        let reply = self.call(Command::Pop(Pop {
            ticket: PopTicket(u64::MAX),
            target: PopTarget::Queue("q".to_owned()),
            group: "g".to_owned(),
            batch: 1000,
            partitions: 1,
            auto_ack: true,
            wait_us: 0,
            lease_seconds: None,
            start: StartRequest::All,
            presence: Arc::new(Presence::default()),
        }));
        let Reply::Pop(reply) = reply else { panic!("{reply:?}") };
        let pieces = reply.claims.iter().flat_map(|claim| &claim.pieces);
        pieces.map(|piece| piece.last.0 + 1 - piece.first.0).sum()
    }
}

#[test]
fn messages_that_stay_are_packed_once_and_only_once() {
    let mut settings = Profile::new(1).settings;
    settings.engine.segment_bytes = 256 << 10;
    settings.engine.group_bytes = 64 << 10;
    settings.engine.checkpoint_message_bytes = 256 << 10;
    let (clock, hands) = Clock::manual(1_000_000, 1_700_000_000_000_000);
    let disk = SimDisk::new(1, Faults::none());
    let process = Process::start(&disk, &clock, &hands, 1, &settings).unwrap();
    let mut bench = Bench { process, hands };
    // One message of about 1,300 bytes fills a block: 63 of them a segment, which is not sparse by that.
    for number in 0..600 {
        bench.push(number);
    }
    let segments = || {
        disk.files()
            .iter()
            .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
            .count()
    };
    let before = segments();
    assert!(before >= 10, "{before}");
    for _ in 0..5_000 {
        bench.hands.advance_us(200_000);
        bench.turn();
    }
    let packed = segments();
    assert!(packed <= 6, "{before} segments became {packed}");
    let operations = disk.operations();
    for _ in 0..1_000 {
        bench.hands.advance_us(2_000_000);
        bench.turn();
    }
    let idle = disk.operations() - operations;
    assert_eq!(segments(), packed);
    assert!(idle < 100, "nothing is rewritten again: {idle} operations");
    let popped: u64 = (0..600).map(|_| bench.pop()).sum();
    assert_eq!(popped, 600);
}
