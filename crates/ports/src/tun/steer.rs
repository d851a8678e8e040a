//! Queue selection of a TUN interface: by the hash of the flow, independent of its reverse
//! direction.
//!
//! By default the kernel moves a flow to the queue to which its reverse direction was last written.
//! This moves the flows of an SA to the worker that owns it, which keeps its sequence numbers in
//! order. But packets of a flow may then wait in one queue while later ones are read from another:
//! a flow with immediate responses is reordered within its first packets. And SAs with a lane per
//! core do not benefit if all flows have moved to one queue.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use wire::IpProto;

use super::TunPort;
use crate::bpf::register::{R0, R1, R6, R7, R8, R9};
use crate::bpf::{self, Assembler, Instruction, Kind, op};

/// Program that selects the queue. Loading it requires a privilege (CAP_BPF, unless the host
/// permits unprivileged BPF); attaching it to an interface of the same process does not.
pub struct FlowSteering(OwnedFd);

impl FlowSteering {
    /// Loads the program.
    ///
    /// # Errors
    /// The operating system's.
    pub fn load() -> io::Result<Self> {
        bpf::load(Kind::SOCKET_FILTER, &program()).map(Self)
    }
}

impl TunPort {
    /// Attaches the program to this interface, so that a flow stays on its queue.
    ///
    /// # Errors
    /// The operating system's.
    pub fn keep_flows(&self, by: &FlowSteering) -> io::Result<()> {
        bpf::set_steering(self.device.as_fd(), by.0.as_fd())
    }
}

/// Protocols that have their ports in their first four bytes.
const WITH_PORTS: [u8; 5] = [IpProto::TCP.0, IpProto::UDP.0, 132, 136, 33];
/// Odd constant with well-mixed bits: the golden ratio.
const SPREAD: i32 = 0x9e37_79b1_u32 as i32;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Label {
    V4,
    V6,
    Upper,
    Ports,
    Spread,
}

/// A number from the addresses and ports of a packet, the same for both directions of a flow; the
/// kernel takes it modulo the number of queues. Ports of fragments, and after IPv6 extension
/// headers, are ignored.
fn program() -> Vec<Instruction> {
    let (addresses, ports, upper) = (R7, R8, R9);
    let mut asm = Assembler::new();
    // Register in which packet loads expect the context.
    asm.of(op::MOVE, R6, R1);
    asm.with(op::MOVE_NUMBER, addresses, 0);
    asm.with(op::MOVE_NUMBER, ports, 0);
    asm.with(op::PACKET_BYTE, R0, 0);
    asm.of(op::MOVE, upper, R0);
    asm.with(op::SHIFT_RIGHT, R0, 4);
    asm.jump(op::IF_EQUAL_NUMBER, R0, 0, 4, Label::V4);
    asm.jump(op::IF_EQUAL_NUMBER, R0, 0, 6, Label::V6);
    asm.jump(op::JUMP, 0, 0, 0, Label::Spread);

    asm.here(Label::V4);
    for word in [12, 16] {
        asm.with(op::PACKET_WORD, R0, word);
        asm.of(op::ADD, addresses, R0);
    }
    asm.with(op::PACKET_HALF, R0, 6);
    asm.with(op::AND_NUMBER, R0, 0x3fff);
    asm.jump(op::IF_OTHER_NUMBER, R0, 0, 0, Label::Spread);
    asm.with(op::AND_NUMBER, upper, 15);
    asm.with(op::SHIFT_LEFT, upper, 2);
    asm.with(op::PACKET_BYTE, R0, 9);
    asm.jump(op::JUMP, 0, 0, 0, Label::Upper);

    asm.here(Label::V6);
    for word in (8..40).step_by(4) {
        asm.with(op::PACKET_WORD, R0, word);
        asm.of(op::ADD, addresses, R0);
    }
    asm.with(op::MOVE_NUMBER, upper, 40);
    asm.with(op::PACKET_BYTE, R0, 6);

    // The protocol is in the first register, and in `upper` where it begins.
    asm.here(Label::Upper);
    for proto in WITH_PORTS {
        asm.jump(op::IF_EQUAL_NUMBER, R0, 0, proto.into(), Label::Ports);
    }
    asm.jump(op::JUMP, 0, 0, 0, Label::Spread);
    asm.here(Label::Ports);
    for half in [0, 2] {
        asm.put(op::PACKET_HALF_FROM, R0, upper, 0, half);
        asm.of(op::ADD, ports, R0);
    }

    asm.here(Label::Spread);
    asm.of(op::MOVE, R0, addresses);
    spread(&mut asm);
    asm.of(op::ADD, R0, ports);
    spread(&mut asm);
    asm.put(op::EXIT, 0, 0, 0, 0);
    asm.finish()
}

/// Mixes every bit of the first register into its low half.
fn spread(asm: &mut Assembler<Label>) {
    asm.with(op::MULTIPLY_NUMBER, R0, SPREAD);
    asm.of(op::MOVE, R1, R0);
    asm.with(op::SHIFT_RIGHT, R1, 32);
    asm.of(op::XOR, R0, R1);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bpf::run::run;

    /// The number that the program has for a packet.
    fn number(packet: &[u8]) -> u32 {
        run(&program(), packet, |_, _| panic!("it reads nothing of its context"), |_| panic!("it calls nothing")) as u32
    }

    fn v4(src: u32, dst: u32, proto: u8, fragment: u16, words: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x40 | words, 0, 0, 0, 0, 0];
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, proto, 0, 0]);
        packet.extend(src.to_be_bytes());
        packet.extend(dst.to_be_bytes());
        packet.resize(usize::from(words) * 4, 1);
        packet.extend(rest);
        packet
    }

    fn v6(src: u128, dst: u128, proto: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 1, 2, 3, 0, 0, proto, 64];
        packet.extend(src.to_be_bytes());
        packet.extend(dst.to_be_bytes());
        packet.extend(rest);
        packet
    }

    fn ports(src: u16, dst: u16) -> Vec<u8> {
        [src.to_be_bytes(), dst.to_be_bytes(), [9; 2], [9; 2]].concat()
    }

    proptest! {
        #[test]
        fn both_directions_have_one_number(a: u32, b: u32, c: u128, d: u128, from: u16, to: u16, at in 0..5_usize) {
            let proto = WITH_PORTS[at];
            let there = number(&v4(a, b, proto, 0x4000, 5, &ports(from, to)));
            prop_assert_eq!(there, number(&v4(b, a, proto, 0, 5, &ports(to, from))));
            // Options are no part of the flow.
            prop_assert_eq!(there, number(&v4(a, b, proto, 0, 7, &ports(from, to))));
            let there = number(&v6(c, d, proto, &ports(from, to)));
            prop_assert_eq!(there, number(&v6(d, c, proto, &ports(to, from))));
        }

        #[test]
        fn fragments_and_others_go_by_their_addresses(a: u32, b: u32, c: u128, d: u128, from: u16, to: u16, more: bool, at in 0..8191_u16) {
            let fragment = if more { 0x2000 | at } else { at + 1 };
            let of = |rest: &[u8]| number(&v4(a, b, 17, fragment, 5, rest));
            prop_assert_eq!(of(&ports(from, to)), of(&[]));
            prop_assert_eq!(number(&v4(a, b, 1, 0, 5, &ports(from, to))), of(&[]));
            prop_assert_eq!(number(&v6(c, d, 58, &ports(from, to))), number(&v6(c, d, 44, &[])));
        }

        #[test]
        fn any_bytes_have_a_number(packet in prop::collection::vec(any::<u8>(), 0..80)) {
            number(&packet);
        }
    }

    #[test]
    fn flows_are_spread() {
        for queues in [2, 3, 4, 8, 16] {
            let mut by_port = vec![0; queues];
            let mut by_host = vec![0; queues];
            for n in 0..1024_u16 {
                by_port[number(&v4(0x0a01_0101, 0x0a01_0201, 17, 0, 5, &ports(40_000 + n, 443))) as usize % queues] +=
                    1;
                by_host[number(&v4(0x0a01_0000 + u32::from(n), 0x0a02_0001, 1, 0, 5, &[])) as usize % queues] += 1;
            }
            for used in [by_port, by_host] {
                let (least, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
                assert!(least * 2 > *most, "{queues} queues: {used:?}");
            }
        }
    }
}
