//! AGGFRAG payloads of one stream in any order: each chunk of the input is one payload, with its
//! sequence number and the time since the last one before it. What is received is packed again.

#![no_main]

use ipsec::aggfrag::{Buffers, Inner, Packer, Payloads, Receiver, Settings, Taken};
use libfuzzer_sys::fuzz_target;
use wire::ip::Brief;

const BUFFERS: usize = 2;

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

fn take(receiver: &mut Receiver<Vec<u8>>, buffers: &mut Buffers, packets: &mut Vec<Vec<u8>>) {
    while let Some(taken) = receiver.take::<true>(buffers, &mut drop) {
        let packet = match taken {
            Taken::Inner(Inner::Packet(packet)) => packet.to_vec(),
            Taken::Last(payload, range) => payload[range].to_vec(),
            Taken::Inner(Inner::Dropped(_)) => continue,
        };
        assert_eq!(Brief::read(&packet).expect("a packet").total_len, packet.len());
        packets.push(packet);
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
    let (mut receiver, mut buffers) = (Receiver::new(settings), Buffers::with_limit(BUFFERS));
    let (mut packets, mut now_ms) = (Vec::new(), 0);
    while let Some(([seq, wait, len @ ..], rest)) = input.split_first_chunk::<4>() {
        let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
        let (payload, rest) = rest.split_at(len.min(rest.len()));
        input = rest;
        now_ms += u64::from(*wait);
        receiver.push(now_ms, u64::from(*seq), payload.to_vec());
        take(&mut receiver, &mut buffers, &mut packets);
        receiver.expire(now_ms, &mut buffers);
        take(&mut receiver, &mut buffers, &mut packets);
        assert!(receiver.payloads() <= usize::from(settings.reorder_window) && buffers.in_use() <= BUFFERS);
    }
    receiver.clear(&mut buffers, &mut drop);
    assert_eq!((receiver.payloads(), buffers.in_use()), (0, 0));

    let settings = Settings { refuse_fragments: false, ..settings };
    let (mut packer, mut sent) = (Packer::new(5 + usize::from(how) * 7, &settings), Sent::default());
    packets.iter().for_each(|packet| packer.pack(packet, &mut sent).expect("room"));
    let (mut again, mut receiver) = (Vec::new(), Receiver::new(settings));
    for (payload, seq) in sent.0.into_iter().zip(1..) {
        receiver.push(0, seq, payload);
        take(&mut receiver, &mut buffers, &mut again);
    }
    assert_eq!(packets, again);
});
