//! AGGFRAG payloads of one stream in any order: each chunk of the input is one payload, with its
//! sequence number and the time since the last one before it. The two ways to take inner packets
//! return the same. What is received is packed again.

#![no_main]

use ipsec::DropReason;
use ipsec::aggfrag::{Buffers, Inner, Packer, Payloads, Receiver, Settings, Taken};
use libfuzzer_sys::fuzz_target;
use wire::ip::Brief;

const BUFFERS: usize = 2;
/// Each of so many packets is left to `take`.
const LEFT: usize = 5;

#[derive(Default)]
struct Sent(Vec<Vec<u8>>);

impl Payloads for Sent {
    fn begin(&mut self, header: &[u8]) -> bool {
        self.0.push(header.to_vec());
        true
    }

    fn append(&mut self, bytes: &[u8]) {
        self.0.last_mut().expect("begun").extend(bytes);
    }
}

/// Inner packets and dropped ones, in order.
type Results = Vec<Result<Vec<u8>, DropReason>>;

/// A receiver with all that it returned.
struct Receiving {
    receiver: Receiver<Vec<u8>>,
    buffers: Buffers,
    results: Results,
    /// Whole packets are taken by `take_whole`, except for those that it has to leave.
    whole: bool,
}

impl Receiving {
    fn new(settings: Settings, whole: bool) -> Self {
        let (receiver, buffers) = (Receiver::new(settings), Buffers::with_limit(BUFFERS));
        Self { receiver, buffers, results: Vec::new(), whole }
    }

    fn push(&mut self, now_ms: u64, seq: u64, payload: &[u8]) {
        self.receiver.push(now_ms, seq, payload.to_vec());
        self.take();
    }

    fn expire(&mut self, now_ms: u64) {
        self.receiver.expire(now_ms, &mut self.buffers);
        self.take();
    }

    fn take(&mut self) {
        let Self { receiver, buffers, results, whole } = self;
        loop {
            if *whole {
                receiver.take_whole(|packet| {
                    let wanted = !(results.len() + 1).is_multiple_of(LEFT);
                    results.extend(wanted.then(|| Ok(packet.to_vec())));
                    wanted
                });
            }
            results.push(match receiver.take(buffers, &mut drop) {
                Some(Taken::Inner(Inner::Packet(packet))) => Ok(packet.to_vec()),
                Some(Taken::Last(payload, range)) => Ok(payload[range].to_vec()),
                Some(Taken::Inner(Inner::Dropped(why))) => Err(why),
                None => return,
            });
        }
    }

    /// The inner packets.
    fn packets(self) -> Vec<Vec<u8>> {
        self.results.into_iter().flatten().collect()
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&how, mut input)) = input.split_first() else { return };
    let settings = Settings {
        reorder_window: how & 7,
        refuse_fragments: how & 8 != 0,
        prefer_whole: how & 16 != 0,
        ..Settings::default()
    };
    let mut ways = [false, true].map(|whole| Receiving::new(settings, whole));
    let mut now_ms = 0;
    while let Some(([seq, wait, len @ ..], rest)) = input.split_first_chunk::<4>() {
        let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
        let (payload, rest) = rest.split_at(len.min(rest.len()));
        input = rest;
        now_ms += u64::from(*wait);
        for way in &mut ways {
            way.push(now_ms, u64::from(*seq), payload);
            way.expire(now_ms);
            assert!(way.receiver.payloads() <= usize::from(settings.reorder_window));
            assert!(way.buffers.in_use() <= BUFFERS);
        }
    }
    for way in &mut ways {
        way.receiver.clear(&mut way.buffers, &mut drop);
        assert_eq!((way.receiver.payloads(), way.buffers.in_use()), (0, 0));
    }
    let [one, other] = ways;
    assert_eq!(one.results, other.results);
    let packets = one.packets();
    for packet in &packets {
        assert_eq!(Brief::read(packet).expect("a packet").total_len, packet.len());
    }

    let settings = Settings { refuse_fragments: false, ..settings };
    let (mut packer, mut sent) = (Packer::new(5 + usize::from(how) * 7, &settings), Sent::default());
    packets.iter().for_each(|packet| packer.pack(packet, &mut sent).expect("room"));
    let mut again = Receiving::new(settings, how & 32 != 0);
    for (payload, seq) in sent.0.iter().zip(1..) {
        again.push(0, seq, payload);
    }
    assert_eq!(packets, again.packets());
});
