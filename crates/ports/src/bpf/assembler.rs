//! Assembler: operations to eBPF instructions.

use std::collections::HashMap;
use std::hash::Hash;

/// One instruction of eBPF: operation, registers (target below, source above), offset, number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) op: u8,
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) number: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// Operations (RFC 9669 §4, §5).
pub(crate) mod op {
    pub(crate) const LOAD_BYTE: u8 = 0x71;
    pub(crate) const LOAD_HALF: u8 = 0x69;
    pub(crate) const LOAD_WORD: u8 = 0x61;
    pub(crate) const LOAD_LONG: u8 = 0x79;
    pub(crate) const LOAD_NUMBER: u8 = 0x18;
    /// Loads packet data in host order into the first register. A load beyond the packet ends the
    /// program with 0 (§5.7).
    pub(crate) const PACKET_BYTE: u8 = 0x30;
    pub(crate) const PACKET_HALF: u8 = 0x28;
    pub(crate) const PACKET_WORD: u8 = 0x20;
    /// The same, from the offset in the source register.
    pub(crate) const PACKET_HALF_FROM: u8 = 0x48;
    pub(crate) const MOVE: u8 = 0xbf;
    pub(crate) const MOVE_NUMBER: u8 = 0xb7;
    pub(crate) const ADD: u8 = 0x0f;
    pub(crate) const ADD_NUMBER: u8 = 0x07;
    pub(crate) const MULTIPLY_NUMBER: u8 = 0x27;
    pub(crate) const XOR: u8 = 0xaf;
    pub(crate) const AND_NUMBER: u8 = 0x57;
    pub(crate) const SHIFT_LEFT: u8 = 0x67;
    pub(crate) const SHIFT_RIGHT: u8 = 0x77;
    pub(crate) const JUMP: u8 = 0x05;
    pub(crate) const IF_GREATER: u8 = 0x2d;
    pub(crate) const IF_EQUAL: u8 = 0x1d;
    pub(crate) const IF_EQUAL_NUMBER: u8 = 0x16;
    pub(crate) const IF_OTHER_NUMBER: u8 = 0x56;
    pub(crate) const IF_OTHER: u8 = 0x5d;
    pub(crate) const CALL: u8 = 0x85;
    pub(crate) const EXIT: u8 = 0x95;
}

/// Registers: result, arguments and scratch, and callee-saved ones (RFC 9669 §2.2).
pub(crate) mod register {
    pub(crate) const R0: u8 = 0;
    pub(crate) const R1: u8 = 1;
    pub(crate) const R2: u8 = 2;
    pub(crate) const R3: u8 = 3;
    pub(crate) const R4: u8 = 4;
    pub(crate) const R6: u8 = 6;
    pub(crate) const R7: u8 = 7;
    pub(crate) const R8: u8 = 8;
    pub(crate) const R9: u8 = 9;
}

/// Program under construction, with labels of type `P`.
pub(crate) struct Assembler<P> {
    code: Vec<Instruction>,
    places: HashMap<P, usize>,
    jumps: Vec<(usize, P)>,
}

impl<P: Copy + Eq + Hash> Assembler<P> {
    pub(crate) fn new() -> Self {
        Self { code: Vec::new(), places: HashMap::new(), jumps: Vec::new() }
    }

    pub(crate) fn put(&mut self, op: u8, target: u8, source: u8, offset: i16, number: i32) {
        self.code.push(Instruction { op, registers: target | source << 4, offset, number });
    }

    /// An operation between a register and a number.
    pub(crate) fn with(&mut self, op: u8, target: u8, number: i32) {
        self.put(op, target, 0, 0, number);
    }

    /// An operation between two registers.
    pub(crate) fn of(&mut self, op: u8, target: u8, source: u8) {
        self.put(op, target, source, 0, 0);
    }

    /// Defines a label at the current position.
    pub(crate) fn here(&mut self, place: P) {
        self.places.insert(place, self.code.len());
    }

    pub(crate) fn load(&mut self, op: u8, target: u8, source: u8, offset: i16) {
        self.put(op, target, source, offset, 0);
    }

    /// Loads a 64-bit number, or an object of `kind` with that number.
    pub(crate) fn long(&mut self, target: u8, kind: u8, number: u64) {
        self.put(op::LOAD_NUMBER, target, kind, 0, number as i32);
        self.put(0, 0, 0, 0, (number >> 32) as i32);
    }

    pub(crate) fn jump(&mut self, op: u8, target: u8, source: u8, number: u32, place: P) {
        self.jumps.push((self.code.len(), place));
        self.put(op, target, source, 0, number as i32);
    }

    /// The program.
    ///
    /// # Panics
    /// If a jump has an undefined label: a bug of the caller.
    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (at, place) in self.jumps {
            self.code[at].offset = (self.places[&place] as isize - at as isize - 1) as i16;
        }
        self.code
    }
}
