//! XDP program that selects the frames for kernel bypass.
//!
//! It redirects unfragmented packets of the configured protocols and addresses. Everything else
//! passes to the kernel's stack, including fragments and packets with IPv4 options or IPv6
//! extension headers, which the other sockets receive.

use std::net::IpAddr;

use wire::IpProto;

use crate::bpf::register::{R0, R1, R2, R3, R4, R6, R7, R8, R9};
use crate::bpf::{Assembler, Instruction, op};

/// Packets to take.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BypassFilter {
    /// Addresses of this host.
    pub local: Vec<IpAddr>,
    /// Protocols directly after the IP header.
    pub protocols: Vec<IpProto>,
    /// UDP ports.
    pub udp: Vec<u16>,
    /// The UDP port on which the non-ESP marker (RFC 3948 §2.2) distinguishes IKE messages.
    pub with_ike: Option<u16>,
}

/// Linux: return codes of an XDP program.
pub(super) const XDP_PASS: i32 = 2;
/// Linux: helper `bpf_redirect_map`.
pub(super) const REDIRECT_MAP: i32 = 51;
/// Linux: the number of a load is a descriptor of a map.
const MAP_DESCRIPTOR: u8 = 1;
/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;
/// Bytes of an Ethernet header.
const ETHER: i16 = 14;

/// Registers: start and end of the frame, and the context.
const FRAME: u8 = R6;
const END: u8 = R7;
const CONTEXT: u8 = R9;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Label {
    V4,
    V6,
    /// After the check of the n-th IPv6 address.
    After(usize),
    Upper,
    UpperV6,
    Ike,
    Take,
    Pass,
}

/// Passes frames with fewer than `bytes` on.
fn at_least(asm: &mut Assembler<Label>, bytes: i16) {
    asm.of(op::MOVE, R2, FRAME);
    asm.with(op::ADD_NUMBER, R2, bytes.into());
    asm.jump(op::IF_GREATER, R2, END, 0, Label::Pass);
}

/// A number of the packet, as it is loaded.
fn half(number: u16) -> u32 {
    u16::from_be(number).into()
}

/// The program; `map` is the descriptor of the map from receive queues to sockets.
pub(super) fn program(wanted: &BypassFilter, map: i32) -> Vec<Instruction> {
    let mut asm = Assembler::new();
    asm.put(op::MOVE, CONTEXT, R1, 0, 0);
    asm.load(op::LOAD_WORD, FRAME, R1, DATA);
    asm.load(op::LOAD_WORD, END, R1, DATA_END);
    at_least(&mut asm, ETHER);
    asm.load(op::LOAD_HALF, R2, FRAME, 12);
    asm.jump(op::IF_EQUAL_NUMBER, R2, 0, half(0x0800), Label::V4);
    asm.jump(op::IF_EQUAL_NUMBER, R2, 0, half(0x86dd), Label::V6);
    asm.jump(op::JUMP, 0, 0, 0, Label::Pass);
    v4(&mut asm, wanted);
    v6(&mut asm, wanted);
    // The protocol is in R3 and its offset in R4; 12 bytes there are checked.
    asm.here(Label::Upper);
    for proto in &wanted.protocols {
        asm.jump(op::IF_EQUAL_NUMBER, R3, 0, proto.0.into(), Label::Take);
    }
    asm.jump(op::IF_OTHER_NUMBER, R3, 0, IpProto::UDP.0.into(), Label::Pass);
    asm.load(op::LOAD_HALF, R2, R4, 2);
    for port in &wanted.udp {
        let place = if wanted.with_ike == Some(*port) { Label::Ike } else { Label::Take };
        asm.jump(op::IF_EQUAL_NUMBER, R2, 0, half(*port), place);
    }
    asm.jump(op::JUMP, 0, 0, 0, Label::Pass);
    // The verifier rejects unreachable code.
    if wanted.with_ike.is_some_and(|port| wanted.udp.contains(&port)) {
        asm.here(Label::Ike);
        asm.load(op::LOAD_WORD, R2, R4, 8);
        asm.jump(op::IF_EQUAL_NUMBER, R2, 0, 0, Label::Pass);
    }
    asm.here(Label::Take);
    asm.long(R1, MAP_DESCRIPTOR, map as u32 as u64);
    asm.load(op::LOAD_WORD, R2, CONTEXT, RX_QUEUE);
    // Action for a frame on a queue without a socket.
    asm.put(op::MOVE_NUMBER, R3, 0, 0, XDP_PASS);
    asm.put(op::CALL, 0, 0, 0, REDIRECT_MAP);
    asm.put(op::EXIT, 0, 0, 0, 0);
    asm.here(Label::Pass);
    asm.put(op::MOVE_NUMBER, R0, 0, 0, XDP_PASS);
    asm.put(op::EXIT, 0, 0, 0, 0);
    asm.finish()
}

fn v4(asm: &mut Assembler<Label>, wanted: &BypassFilter) {
    asm.here(Label::V4);
    at_least(asm, ETHER + 20 + 12);
    asm.load(op::LOAD_BYTE, R2, FRAME, ETHER);
    asm.jump(op::IF_OTHER_NUMBER, R2, 0, 0x45, Label::Pass);
    asm.load(op::LOAD_HALF, R2, FRAME, ETHER + 6);
    asm.put(op::AND_NUMBER, R2, 0, 0, half(0x3fff) as i32);
    asm.jump(op::IF_OTHER_NUMBER, R2, 0, 0, Label::Pass);
    asm.load(op::LOAD_BYTE, R3, FRAME, ETHER + 9);
    asm.put(op::MOVE, R4, FRAME, 0, 0);
    asm.put(op::ADD_NUMBER, R4, 0, 0, (ETHER + 20).into());
    asm.load(op::LOAD_WORD, R2, FRAME, ETHER + 16);
    for address in &wanted.local {
        if let IpAddr::V4(address) = address {
            asm.jump(op::IF_EQUAL_NUMBER, R2, 0, u32::from_ne_bytes(address.octets()), Label::Upper);
        }
    }
    asm.jump(op::JUMP, 0, 0, 0, Label::Pass);
}

fn v6(asm: &mut Assembler<Label>, wanted: &BypassFilter) {
    asm.here(Label::V6);
    at_least(asm, ETHER + 40 + 12);
    asm.load(op::LOAD_BYTE, R3, FRAME, ETHER + 6);
    asm.put(op::MOVE, R4, FRAME, 0, 0);
    asm.put(op::ADD_NUMBER, R4, 0, 0, (ETHER + 40).into());
    for (n, address) in wanted.local.iter().enumerate() {
        let IpAddr::V6(address) = address else { continue };
        let octets = address.octets();
        for (half, last) in [(0, false), (8, true)] {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&octets[half..half + 8]);
            asm.load(op::LOAD_LONG, R1, FRAME, ETHER + 24 + half as i16);
            asm.long(R2, 0, u64::from_ne_bytes(bytes));
            let (op, place) = if last { (op::IF_EQUAL, Label::Upper) } else { (op::IF_OTHER, Label::After(n)) };
            asm.jump(op, R1, R2, 0, place);
        }
        asm.here(Label::After(n));
    }
    asm.jump(op::JUMP, 0, 0, 0, Label::Pass);
}

/// Results of [`filter`] for packets to take and for others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdicts {
    take: i32,
    pass: i32,
}

/// Linux: a socket filter returns the number of bytes that the socket gets.
pub(super) const COPY: Verdicts = Verdicts { take: -1, pass: 0 };
/// Linux: `TCX_DROP`, and `TCX_NEXT`, which continues with the next program of the hook.
pub(super) const DROP: Verdicts = Verdicts { take: 2, pass: -1 };
/// Offsets in `struct __sk_buff`.
const LEN: i16 = 0;
const PACKET_TYPE: i16 = 4;
const VLAN_PRESENT: i16 = 20;

/// The same selection without UDP for a socket filter or the ingress hook, which have a socket
/// buffer instead of a frame. Packets with a VLAN tag and packets to other hosts pass: the kernel
/// has removed the tag here. A load beyond the packet would end the program with 0: at the ingress
/// hook that is `TCX_PASS`, which skips the programs of others after it. So lengths come first.
pub(super) fn filter(wanted: &BypassFilter, verdicts: Verdicts) -> Vec<Instruction> {
    let mut asm = Assembler::new();
    let fetch = |asm: &mut Assembler<Label>, op, offset: i16| asm.put(op, 0, 0, 0, offset.into());
    let at_least = |asm: &mut Assembler<Label>, bytes: i16| {
        asm.load(op::LOAD_WORD, R2, R6, LEN);
        asm.with(op::MOVE_NUMBER, R3, bytes.into());
        asm.jump(op::IF_GREATER, R3, R2, 0, Label::Pass);
    };
    // Register of the context that loads from the packet require.
    asm.of(op::MOVE, R6, R1);
    for field in [PACKET_TYPE, VLAN_PRESENT] {
        asm.load(op::LOAD_WORD, R2, R6, field);
        asm.jump(op::IF_OTHER_NUMBER, R2, 0, 0, Label::Pass);
    }
    at_least(&mut asm, ETHER);
    fetch(&mut asm, op::PACKET_HALF, 12);
    asm.jump(op::IF_EQUAL_NUMBER, R0, 0, 0x0800, Label::V4);
    asm.jump(op::IF_EQUAL_NUMBER, R0, 0, 0x86dd, Label::V6);
    asm.jump(op::JUMP, 0, 0, 0, Label::Pass);
    asm.here(Label::V4);
    at_least(&mut asm, ETHER + 20 + 12);
    fetch(&mut asm, op::PACKET_BYTE, ETHER);
    asm.jump(op::IF_OTHER_NUMBER, R0, 0, 0x45, Label::Pass);
    fetch(&mut asm, op::PACKET_HALF, ETHER + 6);
    asm.put(op::AND_NUMBER, R0, 0, 0, 0x3fff);
    asm.jump(op::IF_OTHER_NUMBER, R0, 0, 0, Label::Pass);
    fetch(&mut asm, op::PACKET_BYTE, ETHER + 9);
    asm.of(op::MOVE, R7, R0);
    fetch(&mut asm, op::PACKET_WORD, ETHER + 16);
    for address in &wanted.local {
        if let IpAddr::V4(address) = address {
            asm.jump(op::IF_EQUAL_NUMBER, R0, 0, (*address).into(), Label::Upper);
        }
    }
    asm.jump(op::JUMP, 0, 0, 0, Label::Pass);
    asm.here(Label::V6);
    at_least(&mut asm, ETHER + 40 + 12);
    // The last word of the destination remains in R0.
    for (word, register) in [(0, Some(R7)), (4, Some(R8)), (8, Some(R9)), (12, None)] {
        fetch(&mut asm, op::PACKET_WORD, ETHER + 24 + word);
        register.into_iter().for_each(|register| asm.of(op::MOVE, register, R0));
    }
    for (n, address) in wanted.local.iter().enumerate() {
        let IpAddr::V6(address) = address else { continue };
        let octets = address.octets();
        let (words, _) = octets.as_chunks::<4>();
        for (word, register) in words.iter().zip([R7, R8, R9, R0]) {
            asm.jump(op::IF_OTHER_NUMBER, register, 0, u32::from_be_bytes(*word), Label::After(n));
        }
        asm.jump(op::JUMP, 0, 0, 0, Label::UpperV6);
        asm.here(Label::After(n));
    }
    asm.jump(op::JUMP, 0, 0, 0, Label::Pass);
    // The verifier rejects unreachable code.
    if wanted.local.iter().any(IpAddr::is_ipv6) {
        asm.here(Label::UpperV6);
        fetch(&mut asm, op::PACKET_BYTE, ETHER + 6);
        asm.of(op::MOVE, R7, R0);
    }
    // The protocol is in R7.
    asm.here(Label::Upper);
    for proto in &wanted.protocols {
        asm.jump(op::IF_EQUAL_NUMBER, R7, 0, proto.0.into(), Label::Take);
    }
    for (place, verdict) in [(Label::Pass, verdicts.pass), (Label::Take, verdicts.take)] {
        asm.here(place);
        asm.put(op::MOVE_NUMBER, R0, 0, 0, verdict);
        asm.put(op::EXIT, 0, 0, 0, 0);
    }
    asm.finish()
}

/// A program for the ingress hook that passes all packets to the stack (`TCX_PASS`).
#[cfg(test)]
pub(super) const PASSES: [Instruction; 2] = [
    Instruction { op: op::MOVE_NUMBER, registers: 0, offset: 0, number: 0 },
    Instruction { op: op::EXIT, registers: 0, offset: 0, number: 0 },
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bpf::run::run;

    /// Result of the map look-up in a test.
    const TAKEN: u64 = 4;

    /// Returns whether the frame is taken.
    fn takes(code: &[Instruction], frame: &[u8]) -> bool {
        let context = |offset, (start, end)| match offset {
            DATA => start,
            DATA_END => end,
            _ => 3,
        };
        let redirect = |arguments| {
            assert_eq!(arguments, [77, 3, XDP_PASS as u64]);
            TAKEN
        };
        match run(code, frame, context, redirect) {
            TAKEN => true,
            other => {
                assert_eq!(other, XDP_PASS as u64);
                false
            }
        }
    }

    /// Returns whether the filter takes the frame; `fields` are the packet type, and whether a VLAN
    /// tag is present.
    fn filter_takes(code: &[Instruction], verdicts: Verdicts, frame: &[u8], fields: [u64; 2]) -> bool {
        let context = |offset, _| match offset {
            LEN => frame.len() as u64,
            PACKET_TYPE => fields[0],
            VLAN_PRESENT => fields[1],
            other => panic!("{other}"),
        };
        let verdict = run(code, frame, context, |_| panic!("no calls"));
        assert!([verdicts.take as u64, verdicts.pass as u64].contains(&verdict), "others are skipped");
        verdict == verdicts.take as u64
    }

    fn wanted() -> BypassFilter {
        BypassFilter {
            local: ["192.0.2.1", "2001:db8::1", "198.51.100.255", "2001:db8::2"].map(|a| a.parse().unwrap()).to_vec(),
            protocols: vec![IpProto::ESP, IpProto::AH, IpProto(253)],
            udp: vec![4500, 1000],
            with_ike: Some(4500),
        }
    }

    /// Reference verdict, by the parser of the data path.
    fn model(wanted: &BypassFilter, frame: &[u8]) -> bool {
        let Some((ether, packet)) = frame.split_at_checked(14) else { return false };
        let (head, fits) = match (ether[12], ether[13]) {
            (8, 0) => (20, packet.len() >= 32 && packet[0] == 0x45 && packet[6] & 0x3f == 0 && packet[7] == 0),
            (0x86, 0xdd) => (40, packet.len() >= 52),
            _ => return false,
        };
        if !fits {
            return false;
        }
        let (proto, dst): (u8, IpAddr) = match head {
            20 => (packet[9], <[u8; 4]>::try_from(&packet[16..20]).unwrap().into()),
            _ => (packet[6], <[u8; 16]>::try_from(&packet[24..40]).unwrap().into()),
        };
        let upper = &packet[head..];
        let port = u16::from_be_bytes([upper[2], upper[3]]);
        let ike = wanted.with_ike == Some(port) && upper[8..12] == [0; 4];
        wanted.local.contains(&dst)
            && (wanted.protocols.contains(&IpProto(proto)) || proto == 17 && wanted.udp.contains(&port) && !ike)
    }

    fn frame(v6: bool, dst: IpAddr, proto: u8, port: u16, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, proto, 64]);
            frame.extend([9; 16]);
        } else {
            frame.extend([8, 0, 0x45, 0, 0, 0, 0, 0]);
            frame.extend(fragment.to_be_bytes());
            frame.extend([64, proto, 0, 0, 9, 9, 9, 9]);
        }
        match dst {
            IpAddr::V4(dst) => frame.extend(dst.octets()),
            IpAddr::V6(dst) => frame.extend(dst.octets()),
        }
        frame.extend([1, 1]);
        frame.extend(port.to_be_bytes());
        frame.extend(payload);
        frame
    }

    proptest! {
        #[test]
        fn frames_are_taken_as_the_model_says(
            local in 0..4_usize, other: bool, proto in prop_oneof![Just(50_u8), Just(51), Just(253), Just(17), Just(6), any::<u8>()],
            port in prop_oneof![Just(4500_u16), Just(1000), Just(500), any::<u16>()],
            fragment in prop_oneof![Just(0_u16), Just(0x4000), Just(0x2000), Just(7), any::<u16>()],
            payload in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..30), cut in 0..90_usize, spoil in any::<Option<(u8, u8)>>(),
        ) {
            let wanted = wanted();
            let dst = match wanted.local[local] {
                IpAddr::V4(dst) if other => IpAddr::V4((u32::from(dst) ^ 1).into()),
                IpAddr::V6(dst) if other => IpAddr::V6((u128::from(dst) ^ 1 << 70).into()),
                dst => dst,
            };
            let mut frame = frame(dst.is_ipv6(), dst, proto, port, fragment, &payload);
            if let Some((at, byte)) = spoil && usize::from(at) < frame.len() {
                frame[usize::from(at)] = byte;
            }
            frame.truncate(100 - cut.min(60));
            prop_assert_eq!(takes(&program(&wanted, 77), &frame), model(&wanted, &frame));
            let without_udp = BypassFilter { udp: vec![], ..wanted };
            for verdicts in [COPY, DROP] {
                let code = filter(&without_udp, verdicts);
                prop_assert_eq!(filter_takes(&code, verdicts, &frame, [0; 2]), model(&without_udp, &frame));
                prop_assert!(!filter_takes(&code, verdicts, &frame, [3, 0]), "to another host");
                prop_assert!(!filter_takes(&code, verdicts, &frame, [0, 1]), "with a VLAN tag");
            }
        }
    }

    #[test]
    fn what_is_asked_for_is_taken() {
        let (wanted, payload) = (wanted(), [5; 40]);
        let code = program(&wanted, 77);
        for dst in &wanted.local {
            for (proto, port) in [(50, 0), (51, 0), (253, 0), (17, 4500), (17, 1000)] {
                assert!(
                    takes(&code, &frame(dst.is_ipv6(), *dst, proto, port, 0x4000, &payload)),
                    "{dst} {proto} {port}"
                );
            }
        }
    }
}
