//! From operations to instructions.

use std::collections::HashMap;
use std::hash::Hash;

/// One instruction of eBPF: operation, registers (target below, source above), offset, number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub(in crate::port) struct Instruction {
    pub(in crate::port) op: u8,
    pub(in crate::port) registers: u8,
    pub(in crate::port) offset: i16,
    pub(in crate::port) number: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// Operations (RFC 9669 §4, §5).
pub(in crate::port) mod op {
    pub(in crate::port) const LOAD_BYTE: u8 = 0x71;
    pub(in crate::port) const LOAD_HALF: u8 = 0x69;
    pub(in crate::port) const LOAD_WORD: u8 = 0x61;
    pub(in crate::port) const LOAD_LONG: u8 = 0x79;
    pub(in crate::port) const LOAD_NUMBER: u8 = 0x18;
    /// Of the packet, to host order into the first register; where the packet is shorter, the program ends with 0 (§5.7).
    pub(in crate::port) const PACKET_BYTE: u8 = 0x30;
    pub(in crate::port) const PACKET_HALF: u8 = 0x28;
    pub(in crate::port) const PACKET_WORD: u8 = 0x20;
    /// The same, from where the source register says on.
    pub(in crate::port) const PACKET_HALF_FROM: u8 = 0x48;
    pub(in crate::port) const MOVE: u8 = 0xbf;
    pub(in crate::port) const MOVE_NUMBER: u8 = 0xb7;
    pub(in crate::port) const ADD: u8 = 0x0f;
    pub(in crate::port) const ADD_NUMBER: u8 = 0x07;
    pub(in crate::port) const MULTIPLY_NUMBER: u8 = 0x27;
    pub(in crate::port) const XOR: u8 = 0xaf;
    pub(in crate::port) const AND_NUMBER: u8 = 0x57;
    pub(in crate::port) const SHIFT_LEFT: u8 = 0x67;
    pub(in crate::port) const SHIFT_RIGHT: u8 = 0x77;
    pub(in crate::port) const JUMP: u8 = 0x05;
    pub(in crate::port) const IF_GREATER: u8 = 0x2d;
    pub(in crate::port) const IF_EQUAL: u8 = 0x1d;
    pub(in crate::port) const IF_EQUAL_NUMBER: u8 = 0x16;
    pub(in crate::port) const IF_OTHER_NUMBER: u8 = 0x56;
    pub(in crate::port) const IF_OTHER: u8 = 0x5d;
    pub(in crate::port) const CALL: u8 = 0x85;
    pub(in crate::port) const EXIT: u8 = 0x95;
}

/// Registers: result, arguments and scratch, and those that calls leave alone (RFC 9669 §2.2).
pub(in crate::port) mod register {
    pub(in crate::port) const R0: u8 = 0;
    pub(in crate::port) const R1: u8 = 1;
    pub(in crate::port) const R2: u8 = 2;
    pub(in crate::port) const R3: u8 = 3;
    pub(in crate::port) const R4: u8 = 4;
    pub(in crate::port) const R6: u8 = 6;
    pub(in crate::port) const R7: u8 = 7;
    pub(in crate::port) const R8: u8 = 8;
    pub(in crate::port) const R9: u8 = 9;
}

/// A program in the making, with jumps to places of the kind `P`.
pub(in crate::port) struct Assembler<P> {
    code: Vec<Instruction>,
    places: HashMap<P, usize>,
    jumps: Vec<(usize, P)>,
}

impl<P: Copy + Eq + Hash> Assembler<P> {
    pub(in crate::port) fn new() -> Self {
        Self { code: Vec::new(), places: HashMap::new(), jumps: Vec::new() }
    }

    pub(in crate::port) fn put(&mut self, op: u8, target: u8, source: u8, offset: i16, number: i32) {
        self.code.push(Instruction { op, registers: target | source << 4, offset, number });
    }

    /// An operation between a register and a number.
    pub(in crate::port) fn with(&mut self, op: u8, target: u8, number: i32) {
        self.put(op, target, 0, 0, number);
    }

    /// An operation between two registers.
    pub(in crate::port) fn of(&mut self, op: u8, target: u8, source: u8) {
        self.put(op, target, source, 0, 0);
    }

    /// What follows is at this place.
    pub(in crate::port) fn here(&mut self, place: P) {
        self.places.insert(place, self.code.len());
    }

    pub(in crate::port) fn load(&mut self, op: u8, target: u8, source: u8, offset: i16) {
        self.put(op, target, source, offset, 0);
    }

    /// A number of 64 bits, or what `kind` makes of it.
    pub(in crate::port) fn long(&mut self, target: u8, kind: u8, number: u64) {
        self.put(op::LOAD_NUMBER, target, kind, 0, number as i32);
        self.put(0, 0, 0, 0, (number >> 32) as i32);
    }

    pub(in crate::port) fn jump(&mut self, op: u8, target: u8, source: u8, number: u32, place: P) {
        self.jumps.push((self.code.len(), place));
        self.put(op, target, source, 0, number as i32);
    }

    /// The program.
    ///
    /// # Panics
    /// When a jump goes to a place that is nowhere: a bug of the caller.
    pub(in crate::port) fn finish(mut self) -> Vec<Instruction> {
        for (at, place) in self.jumps {
            self.code[at].offset = (self.places[&place] as isize - at as isize - 1) as i16;
        }
        self.code
    }
}
