//! One packet at a time: lay out, run the engine, complete.
//!
//! A gateway works on batches and calls the steps of this crate itself. A program with one packet
//! in its hand uses [`Context`], which does the same steps in the same order.

use crypto::{DerivedKeys, Engine, Job, KeyTable, Keys};
use wire::registry::CodePoints;
use wire::udp::{self, UdpHeader};
use wire::{IpPacket, IpProto, SeqNo};

use crate::{
    Delivered, DropReason, Frame, InboundSa, OutboundSa, Protocol, SaCounters, finish_in, finish_out, prepare_in,
    prepare_out,
};

/// Free bytes that [`Context::seal`] needs at most before a packet: an IPv6 header (40), UDP (8),
/// and EESP with options and IV, or AH with the copy of the original header (up to 300).
pub const HEADROOM: usize = 384;

/// Free bytes that [`Context::seal`] needs at most after a packet: ESP padding (up to 255), trailer
/// and ICV (up to 34). With TFC padding also what the packet lacks to the path MTU.
pub const TAILROOM: usize = 320;

/// Derived keys that a [`Context`] caches: those of PSP, and of EESP Sub SAs beyond the table.
const DERIVED_KEYS: usize = 64;

/// Engine and keys for packets that are sealed and opened one at a time.
///
/// The SAs belong to the caller; their keys are in [`Context::keys`], where
/// [`crate::esp::outbound`] and the like put them. Sealing and opening allocate nothing, except
/// that a replay window is made by the first packet of a lane, and a key by the first packet that
/// needs it derived. On an error the frame is empty, so that it cannot be sent or delivered by
/// mistake.
pub struct Context {
    /// The engine that made the keys.
    pub engine: Engine,
    /// Keys of SAs.
    pub keys: KeyTable,
    /// Keys that packets make necessary.
    pub derived: DerivedKeys,
}

impl Context {
    /// A context without keys.
    pub fn new(engine: Engine) -> Self {
        Self { engine, keys: KeyTable::default(), derived: DerivedKeys::new(DERIVED_KEYS) }
    }

    /// Protects the IP packet in `frame`, which afterwards is the packet to send, from its outer IP
    /// header on. The next sequence number of the first lane is used and never again, whatever
    /// comes of it.
    ///
    /// Selectors are not looked at: that the SA is for the packet is the caller's decision
    /// ([`crate::Spd`]).
    ///
    /// # Errors
    /// The reason to drop, which is counted. [`DropReason::NoRoom`] with less than [`HEADROOM`] and
    /// [`TAILROOM`], [`DropReason::TooBig`] beyond the SA's [`inner_mtu`](OutboundSa::inner_mtu).
    pub fn seal(&self, sa: &OutboundSa, frame: &mut Frame<'_>) -> Result<(), DropReason> {
        let sealed = self.seal_next(sa, frame);
        settle(&sa.common.counters, frame, sealed)
    }

    /// Returns the length of the packet that was protected.
    fn seal_next(&self, sa: &OutboundSa, frame: &mut Frame<'_>) -> Result<usize, DropReason> {
        sa.common.check_lifetime()?;
        // An AGGFRAG payload is not a packet, and a packet is not a payload.
        if sa.common.aggfrag().is_some() {
            return Err(DropReason::Inconsistent);
        }
        let ip = IpPacket::parse(frame.bytes())?;
        if sa.exceeds_path(ip.total_len) && !sa.may_exceed_path(&ip) {
            return Err(DropReason::TooBig);
        }
        let lane = &sa.lanes[0];
        let seq = SeqNo(lane.seq.reserve(1)?.first);
        let (op, pending) = prepare_out(sa, lane, seq, &ip, frame)?;
        let mut jobs = [Job::new(op, frame.bytes_mut())];
        self.engine.seal(Keys { table: &self.keys, derived: &self.derived }, &mut jobs);
        // What was not sealed may still be plaintext.
        if !jobs[0].sealed() {
            return Err(DropReason::NoKey);
        }
        finish_out(sa, frame, pending)?;
        Ok(ip.total_len)
    }

    /// Opens the packet in `frame`, from its outer IP header on. Afterwards the frame is the inner
    /// IP packet.
    ///
    /// The outer packet must be whole ([`crate::Reassembler`]). That the inner packet matches the
    /// policy of the SA (RFC 4301 §5.2) is checked by the caller, with [`crate::Spd`] or selectors
    /// of its own.
    ///
    /// # Errors
    /// The reason to drop, which is counted: [`DropReason::NoSa`] for a packet of another SA,
    /// [`DropReason::Replay`] for one that was there before, [`DropReason::BadIcv`] for a forged
    /// one.
    pub fn open(&mut self, sa: &InboundSa, frame: &mut Frame<'_>) -> Result<Delivered, DropReason> {
        let opened = self.open_next(sa, frame);
        settle(&sa.common.counters, frame, opened.map(|_| frame.len()))?;
        opened
    }

    fn open_next(&mut self, sa: &InboundSa, frame: &mut Frame<'_>) -> Result<Delivered, DropReason> {
        sa.common.check_lifetime()?;
        let outer = IpPacket::parse(frame.bytes())?;
        frame.truncate(outer.total_len)?;
        let at = find(sa, &outer, frame.bytes())?;
        // A batch of one: the derived key must stay in the cache until the engine has run.
        self.derived.begin_batch();
        let (op, pending) = prepare_in(sa, &outer, at, frame, &mut self.derived)?;
        let mut jobs = [Job::new(op, frame.bytes_mut())];
        self.engine.open(Keys { table: &self.keys, derived: &self.derived }, &mut jobs);
        let ok = jobs[0].take_ok().ok_or(DropReason::BadIcv)?;
        let delivered = finish_in(sa, frame, &pending, ok)?;
        IpPacket::parse(frame.bytes()).map_err(|_| DropReason::BadInner)?;
        Ok(delivered)
    }
}

/// Counts what came of a packet of `len` bytes; one that is dropped leaves the frame empty.
fn settle(counters: &SaCounters, frame: &mut Frame<'_>, len: Result<usize, DropReason>) -> Result<(), DropReason> {
    match len {
        Ok(len) => counters.of(0).add(1, len as u64),
        Err(why) => {
            counters.count_drop(why);
            // Shortening always succeeds.
            frame.truncate(0)?;
            return Err(why);
        }
    }
    Ok(())
}

/// The offset of the protocol header in `packet`, which must be of `sa`: its protocol, SPI and
/// destination.
fn find(sa: &InboundSa, outer: &IpPacket, packet: &[u8]) -> Result<usize, DropReason> {
    if outer.fragment.is_some() {
        return Err(DropReason::Fragment);
    }
    let protocol = sa.protocol();
    let at = match outer.upper {
        IpProto::UDP => outer.upper_at + find_in_udp(protocol, outer, &packet[outer.upper_at..])?,
        // The number of EESP is configurable: the caller compares it, if at all.
        number => {
            let code_points = CodePoints { eesp_protocol: number, ..CodePoints::default() };
            match Protocol::of_ip(number, &code_points) {
                Some(found) if found == protocol => outer.upper_at,
                _ if matches!(number, IpProto::ESP | IpProto::AH) => return Err(DropReason::NoSa),
                _ => return Err(DropReason::NotIpsec),
            }
        }
    };
    // An AEAD authenticates the SPI of the packet, not that of the SA.
    let spi = packet.get(at..).and_then(|header| protocol.spi(header)).ok_or(DropReason::Truncated)?;
    let is_own = protocol == Protocol::Psp || spi == sa.spi;
    if is_own && outer.dst == sa.common.outer.peer.local { Ok(at) } else { Err(DropReason::NoSa) }
}

/// The offset of the protocol header in a UDP datagram.
fn find_in_udp(protocol: Protocol, outer: &IpPacket, datagram: &[u8]) -> Result<usize, DropReason> {
    let (header, payload) = UdpHeader::parse_exact(datagram)?;
    if header.checksum.get() != 0 && !udp::is_valid(outer.src, outer.dst, datagram) {
        return Err(DropReason::BadChecksum);
    }
    // PSP has a port of its own.
    if protocol != Protocol::Psp && Protocol::in_nat_t(payload, protocol.sets_first_bit())? != protocol {
        return Err(DropReason::NoSa);
    }
    Ok(UdpHeader::LEN)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use crypto::Suite;

    use super::*;
    use crate::testkit::{hex, ipv4_udp, ipv6_udp};
    use crate::{Lifetime, Mode, Outer, SaCommon, UdpPorts, ah, esp};

    const MOON: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const SUN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn suite(name: &str) -> Suite {
        Suite::parse_esp(name).unwrap()
    }

    fn spec<'a>(name: &str, keys: &'a [u8; 80]) -> esp::Spec<'a> {
        let suite = suite(name);
        let (enc, integ) = (suite.enc_material_len(), suite.integ_material_len());
        esp::Spec { integ_key: &keys[..integ], ..esp::Spec::new(0x1001.try_into().unwrap(), suite, &keys[..enc]) }
    }

    /// Both ends of one SA in one context.
    fn pair(mode: Mode, outer: Outer, spec: &esp::Spec<'_>) -> (Context, OutboundSa, InboundSa) {
        let mut context = Context::new(Engine::best());
        let back = Outer { peer: outer.peer.reversed(), ..outer };
        let common = |outer| SaCommon::new("net", mode, outer, Lifetime::NONE);
        let out = esp::outbound(common(outer), spec, context.engine, &mut context.keys).unwrap();
        let inn = esp::inbound(common(back), spec, context.engine, &mut context.keys).unwrap();
        (context, out, inn)
    }

    fn buffer(packet: &[u8]) -> Vec<u8> {
        [&[0xa5; HEADROOM][..], packet, &[0xa5; TAILROOM]].concat()
    }

    fn seal(context: &Context, sa: &OutboundSa, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
        let mut buffer = buffer(packet);
        let mut frame = Frame::new(&mut buffer, HEADROOM..HEADROOM + packet.len())?;
        let sealed = context.seal(sa, &mut frame);
        assert_eq!(sealed.is_err(), frame.bytes().is_empty());
        sealed.map(|()| frame.bytes().to_vec())
    }

    fn open(context: &mut Context, sa: &InboundSa, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
        let mut buffer = buffer(packet);
        let mut frame = Frame::new(&mut buffer, HEADROOM..HEADROOM + packet.len())?;
        let opened = context.open(sa, &mut frame);
        assert_eq!(opened.is_err(), frame.bytes().is_empty());
        opened.map(|_| frame.bytes().to_vec())
    }

    const SUITES: [&str; 6] =
        ["aes128gcm16", "aes256-sha512", "chacha20poly1305", "null-sha256", "aes128gmac", "3des-sha1"];

    #[test]
    fn every_suite_and_mode_has_room_and_returns_the_packet() {
        let keys = [7; 80];
        let v4 = Outer::new(MOON, SUN);
        let v6 = Outer::new("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let udp = Outer { udp: Some(UdpPorts { src: 4500, dst: 4500 }), udp_checksum: true, ..v6 };
        for (name, len) in SUITES.into_iter().flat_map(|name| [(name, 0), (name, 13), (name, 1200)]) {
            let inner4 = ipv4_udp([192, 0, 2, 1], [192, 0, 2, 2], len);
            let inner6 = ipv6_udp([0xfd; 16], [0xfe; 16], len);
            for (mode, outer, packet) in [
                (Mode::Tunnel, v4, &inner4),
                (Mode::Tunnel, v4, &inner6),
                (Mode::Tunnel, v6, &inner4),
                (Mode::Tunnel, udp, &inner6),
                (Mode::Transport, v4, &inner4),
            ] {
                let (mut context, out, inn) = pair(mode, outer, &spec(name, &keys));
                let sealed = seal(&context, &out, packet).unwrap();
                assert_ne!(&sealed, packet);
                assert_eq!(open(&mut context, &inn, &sealed).as_ref(), Ok(packet), "{name} {mode:?} {len}");
                assert_eq!((out.common.counters.packets(), inn.common.counters.bytes()), (1, packet.len() as u64));
            }
        }
    }

    #[test]
    fn ah_keeps_its_copy_in_the_headroom() {
        let (mut context, keys) = (Context::new(Engine::best()), [9; 64]);
        let spec = ah::Spec {
            spi: 0x2001.try_into().unwrap(),
            suite: Suite::parse_ah("sha512").unwrap(),
            integ_key: &keys,
            esn: true,
            window: 64,
            first_seq: 0,
            persistent: false,
            align8_v4: true,
        };
        let common = |local, remote| SaCommon::new("ah", Mode::Tunnel, Outer::new(local, remote), Lifetime::NONE);
        let out = ah::outbound(common(MOON, SUN), &spec, context.engine, &mut context.keys).unwrap();
        let inn = ah::inbound(common(SUN, MOON), &spec, context.engine, &mut context.keys).unwrap();
        let packet = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], 100);
        let sealed = seal(&context, &out, &packet).unwrap();
        assert_eq!(open(&mut context, &inn, &sealed), Ok(packet));
    }

    #[test]
    fn what_is_not_of_the_sa_is_refused_and_moves_no_window() {
        let keys = [7; 80];
        let (mut context, out, inn) = pair(Mode::Tunnel, Outer::new(MOON, SUN), &spec("aes128gcm16", &keys));
        let packet = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], 60);
        let sealed = seal(&context, &out, &packet).unwrap();
        let with = |at: usize, to: u8| {
            let mut changed = sealed.clone();
            changed[at] = to;
            wire::ip::update_checksum_v4(&mut changed).unwrap();
            changed
        };
        // The SPI, the destination, the protocol, a byte of the payload.
        assert_eq!(open(&mut context, &inn, &with(23, 2)), Err(DropReason::NoSa));
        assert_eq!(open(&mut context, &inn, &with(19, 3)), Err(DropReason::NoSa));
        assert_eq!(open(&mut context, &inn, &with(9, 51)), Err(DropReason::NoSa));
        assert_eq!(open(&mut context, &inn, &with(9, 6)), Err(DropReason::NotIpsec));
        assert_eq!(open(&mut context, &inn, &with(40, sealed[40] ^ 1)), Err(DropReason::BadIcv));
        assert_eq!(open(&mut context, &inn, &sealed[..30]), Err(DropReason::Truncated));
        assert_eq!(open(&mut context, &inn, &[]), Err(DropReason::Truncated));
        assert_eq!(open(&mut context, &inn, &sealed), Ok(packet));
        assert_eq!(open(&mut context, &inn, &sealed), Err(DropReason::Replay));
        assert_eq!(inn.common.counters.packets(), 1);
        // Expired, without its key, or with too little room, nothing leaves.
        let packet = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], 60);
        assert_eq!(seal(&Context::new(Engine::best()), &out, &packet), Err(DropReason::NoKey));
        let mut tight = packet.clone();
        let mut frame = Frame::new(&mut tight, 0..packet.len()).unwrap();
        assert_eq!(context.seal(&out, &mut frame), Err(DropReason::NoRoom));
        assert!(frame.bytes().is_empty());
        assert_eq!(seal(&context, &out, &ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], 1472)), Err(DropReason::TooBig));
        assert_eq!(seal(&context, &out, &hex("4500")), Err(DropReason::Truncated));
        out.common.expired.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(seal(&context, &out, &packet), Err(DropReason::Expired));
        assert_eq!(out.common.counters.packets(), 1);
    }

    #[test]
    fn what_shares_the_udp_port_is_told_apart() {
        let keys = [7; 80];
        let outer = Outer { udp: Some(UdpPorts { src: 4500, dst: 4500 }), ..Outer::new(MOON, SUN) };
        let (mut context, out, inn) = pair(Mode::Tunnel, outer, &spec("aes128gcm16", &keys));
        let sealed = seal(&context, &out, &ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], 60)).unwrap();
        let mut ike = sealed.clone();
        ike[28..32].fill(0);
        assert_eq!(open(&mut context, &inn, &ike), Err(DropReason::IkeMessage));
        let mut short = sealed;
        short[25] = 9;
        short[28] = 0xff;
        assert!(matches!(
            open(&mut context, &inn, &short),
            Err(DropReason::Keepalive | DropReason::Malformed | DropReason::Truncated)
        ));
    }
}
