//! Interpreter of eBPF programs, for tests.

use super::{Instruction, op};

/// Address of the packet for a program that receives its address.
const BASE: u64 = 1 << 20;

/// Runs a program on `packet`. `context` gives words of the context, with `(start, end)` of the
/// packet as addresses; `call` is given the first three arguments of a call. Returns what the
/// program returns.
pub(crate) fn run(
    code: &[Instruction],
    packet: &[u8],
    context: impl Fn(i16, (u64, u64)) -> u64,
    mut call: impl FnMut([u64; 3]) -> u64,
) -> u64 {
    let (mut registers, mut at) = ([0_u64; 11], 0);
    loop {
        let Instruction { op: what, registers: both, offset, number } = code[at];
        at += 1;
        let (target, source) = (usize::from(both & 15), usize::from(both >> 4));
        let bytes = |from: usize, len: usize| packet.get(from..from + len);
        let load = |len: usize| {
            if registers[source] == 0 {
                return context(offset, (BASE, BASE + packet.len() as u64));
            }
            let from = (registers[source] - BASE) as usize + offset as usize;
            let mut word = [0; 8];
            word[..len].copy_from_slice(&packet[from..from + len]);
            u64::from_le_bytes(word)
        };
        let of_packet = |from: u64, len: usize| {
            bytes((from + number as u64) as usize, len)
                .map(|bytes| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        };
        let jump = |taken: bool, at: usize| if taken { (at as isize + offset as isize) as usize } else { at };
        let fetched = match what {
            op::PACKET_BYTE => Some(of_packet(0, 1)),
            op::PACKET_HALF => Some(of_packet(0, 2)),
            op::PACKET_WORD => Some(of_packet(0, 4)),
            op::PACKET_HALF_FROM => Some(of_packet(registers[source], 2)),
            _ => None,
        };
        if let Some(word) = fetched {
            let Some(word) = word else { return 0 };
            assert_eq!(registers[6], 0, "the context is not where these operations want it");
            // These operations change what calls change.
            registers[1..6].fill(0xdead);
            registers[0] = word;
            continue;
        }
        match what {
            op::LOAD_BYTE => registers[target] = load(1),
            op::LOAD_HALF => registers[target] = load(2),
            op::LOAD_WORD => registers[target] = load(4),
            op::LOAD_LONG => registers[target] = load(8),
            op::LOAD_NUMBER => {
                registers[target] = u64::from(number as u32) | u64::from(code[at].number as u32) << 32;
                at += 1;
            }
            op::MOVE => registers[target] = registers[source],
            op::MOVE_NUMBER => registers[target] = number as u64,
            op::ADD => registers[target] = registers[target].wrapping_add(registers[source]),
            op::ADD_NUMBER => registers[target] = registers[target].wrapping_add(number as u64),
            op::MULTIPLY_NUMBER => registers[target] = registers[target].wrapping_mul(number as u64),
            op::XOR => registers[target] ^= registers[source],
            op::AND_NUMBER => registers[target] &= number as u64,
            op::SHIFT_LEFT => registers[target] <<= number,
            op::SHIFT_RIGHT => registers[target] >>= number,
            op::JUMP => at = jump(true, at),
            op::IF_GREATER => at = jump(registers[target] > registers[source], at),
            op::IF_EQUAL => at = jump(registers[target] == registers[source], at),
            op::IF_OTHER => at = jump(registers[target] != registers[source], at),
            op::IF_EQUAL_NUMBER => at = jump(registers[target] as u32 == number as u32, at),
            op::IF_OTHER_NUMBER => at = jump(registers[target] as u32 != number as u32, at),
            op::CALL => registers[0] = call([registers[1], registers[2], registers[3]]),
            op::EXIT => return registers[0],
            other => panic!("{other:#x} is none of ours"),
        }
    }
}
