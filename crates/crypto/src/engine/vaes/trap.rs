//! Runs the wide forms on processors without VAES and VPCLMULQDQ, for tests.
//!
//! Such a processor raises an illegal instruction for six opcodes and executes all others,
//! including AVX-512 if it has it. The signal handler emulates the instruction block by block with
//! AES-NI and PCLMULQDQ, in the registers saved in the signal frame, and continues after it. So the
//! tests run exactly the code of wider processors, about a thousand times slower.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use super::Form;

/// Forms that run here with the help of the handler, which is then installed.
pub(super) fn forms() -> &'static [Form] {
    static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| {
        let native = Form::all();
        let two = is_x86_feature_detected!("avx2") && native.contains(&Form::Xmm);
        let four = two && native.contains(&Form::XmmVl);
        let wanted = [(two, Form::Ymm), (four, Form::Zmm)];
        let forms: Vec<_> =
            wanted.into_iter().filter(|(can, form)| *can && !native.contains(form)).map(|(_, form)| form).collect();
        if !forms.is_empty() {
            install();
        }
        forms
    });
    &FORMS
}

fn install() {
    // SAFETY: the handler has the signature of SA_SIGINFO, and touches only the frame of the thread
    // that it interrupted.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
    }
}

unsafe extern "C" fn handle(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the context of the interrupted thread, and its instruction pointer
    // points to the illegal instruction; none is longer than 15 bytes, and the bytes after it are
    // code too.
    unsafe {
        let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let at = machine.gregs[libc::REG_RIP as usize] as *const u8;
        let registers = Registers::of(machine);
        match Instruction::decode(std::slice::from_raw_parts(at, 15)) {
            Some(instruction) => machine.gregs[libc::REG_RIP as usize] += instruction.run(machine, registers) as i64,
            // Not one of these instructions: restoring the default handler ends the process as
            // usual.
            None => _ = libc::signal(libc::SIGILL, libc::SIG_DFL),
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Operation {
    Round,
    LastRound,
    Product { halves: u8 },
}

/// One of the refused instructions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Instruction {
    operation: Operation,
    /// Bytes of a vector: 16, 32 or 64.
    width: usize,
    target: usize,
    first: usize,
    second: Operand,
    len: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Operand {
    Register(usize),
    Memory { base: Option<usize>, index: Option<(usize, i64)>, offset: i64, from_rip: bool },
}

impl Instruction {
    /// Reads VEX and EVEX encodings (Intel SDM volume 2, §2.3 and §2.7).
    fn decode(code: &[u8]) -> Option<Self> {
        let bit = |byte: u8, n: u32| usize::from(byte >> n & 1);
        // What extends the register fields is stored inverted.
        let (map, reg_high, rm_high, index_high, base_high, first, width, head);
        match code[0] {
            0xc4 => {
                (map, head) = (code[1] & 0x1f, 3);
                width = if bit(code[2], 2) == 1 { 32 } else { 16 };
                (reg_high, rm_high) = (8 * (1 - bit(code[1], 7)), 8 * (1 - bit(code[1], 5)));
                (index_high, base_high) = (8 * (1 - bit(code[1], 6)), rm_high);
                first = usize::from(!code[2] >> 3 & 0xf);
            }
            0x62 => {
                (map, head) = (code[1] & 0x7, 4);
                width = 16 << (code[3] >> 5 & 3);
                reg_high = 8 * (1 - bit(code[1], 7)) + 16 * (1 - bit(code[1], 4));
                (index_high, base_high) = (8 * (1 - bit(code[1], 6)), 8 * (1 - bit(code[1], 5)));
                rm_high = base_high + 2 * index_high;
                first = usize::from(!code[2] >> 3 & 0xf) + 16 * (1 - bit(code[3], 3));
                // Neither mask nor broadcast is used with these.
                if code[3] & 0x97 != 0 {
                    return None;
                }
            }
            _ => return None,
        }
        if code[2] & 3 != 1 || width > 64 {
            return None;
        }
        let (modrm, mut len) = (code[head + 1], head + 2);
        let (mode, low) = (modrm >> 6, usize::from(modrm & 7));
        let target = usize::from(modrm >> 3 & 7) + reg_high;
        let second = if mode == 3 {
            Operand::Register(low + rm_high)
        } else {
            let (mut base, mut index, mut from_rip) = (Some(low + base_high), None, false);
            if low == 4 {
                let sib = code[len];
                len += 1;
                let number = usize::from(sib >> 3 & 7) + index_high;
                index = (number != 4).then_some((number, 1 << (sib >> 6)));
                base = (sib & 7 != 5 || mode != 0).then_some(usize::from(sib & 7) + base_high);
            } else if low == 5 && mode == 0 {
                (base, from_rip) = (None, true);
            }
            let long = mode == 2 || mode == 0 && base.is_none();
            let offset = if long {
                len += 4;
                i64::from(i32::from_le_bytes(code[len - 4..len].try_into().ok()?))
            } else if mode == 1 {
                len += 1;
                // EVEX counts short offsets in vectors.
                i64::from(code[len - 1] as i8) * if code[0] == 0x62 { width as i64 } else { 1 }
            } else {
                0
            };
            Operand::Memory { base, index, offset, from_rip }
        };
        let operation = match (map, code[head]) {
            (2, 0xdc) => Operation::Round,
            (2, 0xdd) => Operation::LastRound,
            (3, 0x44) => {
                len += 1;
                Operation::Product { halves: code[len - 1] }
            }
            _ => return None,
        };
        Some(Self { operation, width, target, first, second, len })
    }

    /// Does what the instruction does, and returns its length.
    ///
    /// # Safety
    /// `machine` and `registers` are those of the thread that met it.
    unsafe fn run(self, machine: &libc::mcontext_t, registers: Registers) -> usize {
        const ORDER: [libc::c_int; 16] = [
            libc::REG_RAX,
            libc::REG_RCX,
            libc::REG_RDX,
            libc::REG_RBX,
            libc::REG_RSP,
            libc::REG_RBP,
            libc::REG_RSI,
            libc::REG_RDI,
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
            libc::REG_R11,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
        ];
        let general = |number: usize| machine.gregs[ORDER[number] as usize];
        let mut result = [[0; 16]; 4];
        // SAFETY: the operand in memory is one that the program itself reads here; the features
        // of `block` are those of the narrowest form.
        unsafe {
            let first = registers.read(self.first);
            let second = match self.second {
                Operand::Register(number) => registers.read(number),
                Operand::Memory { base, index, offset, from_rip } => {
                    let mut at =
                        offset + base.map_or(0, general) + index.map_or(0, |(number, scale)| general(number) * scale);
                    if from_rip {
                        at += machine.gregs[libc::REG_RIP as usize] + self.len as i64;
                    }
                    let mut value = [[0; 16]; 4];
                    std::ptr::copy_nonoverlapping(at as *const u8, value.as_mut_ptr().cast(), self.width);
                    value
                }
            };
            for i in 0..self.width / 16 {
                result[i] = block(self.operation, first[i], second[i]);
            }
            registers.write(self.target, result);
        }
        self.len
    }
}

#[target_feature(enable = "aes,pclmulqdq")]
fn block(operation: Operation, first: [u8; 16], second: [u8; 16]) -> [u8; 16] {
    // SAFETY: sixteen bytes are readable, and loads need no alignment.
    let (first, second) = unsafe { (_mm_loadu_si128(first.as_ptr().cast()), _mm_loadu_si128(second.as_ptr().cast())) };
    let made = match operation {
        Operation::Round => _mm_aesenc_si128(first, second),
        Operation::LastRound => _mm_aesenclast_si128(first, second),
        Operation::Product { halves: 0x00 } => _mm_clmulepi64_si128::<0x00>(first, second),
        Operation::Product { halves: 0x01 } => _mm_clmulepi64_si128::<0x01>(first, second),
        Operation::Product { halves: 0x10 } => _mm_clmulepi64_si128::<0x10>(first, second),
        Operation::Product { .. } => _mm_clmulepi64_si128::<0x11>(first, second),
    };
    let mut bytes = [0; 16];
    // SAFETY: as above, writable.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), made) };
    bytes
}

/// The vector registers in a signal frame: the legacy area, the header of XSAVE, and four
/// components at the offsets that the processor reports (Intel SDM volume 1, §13.4 and §13.5).
#[derive(Clone, Copy)]
struct Registers {
    area: *mut u8,
}

/// Bit in the header's XSTATE_BV, bytes of one register, and bytes in all.
const AVX: (u32, usize, usize) = (2, 16, 256);
const ZMM_HIGH: (u32, usize, usize) = (6, 32, 512);
const ZMM_16: (u32, usize, usize) = (7, 64, 1024);

impl Registers {
    unsafe fn of(machine: &libc::mcontext_t) -> Self {
        Self { area: machine.fpregs.cast() }
    }

    /// Address of register `number` in a component. The component is marked as present if it was
    /// not, because registers at their initial value, zero, may be absent from the frame.
    unsafe fn part(self, (bit, size, whole): (u32, usize, usize), number: usize) -> *mut u8 {
        // SAFETY: the processor has these components, and the kernel saves those it has. CPUID has
        // no effect on memory.
        unsafe {
            let component = self.area.add(__cpuid_count(0xd, bit).ebx as usize);
            let present = self.area.add(512).cast::<u64>();
            if *present >> bit & 1 == 0 {
                component.write_bytes(0, whole);
                *present |= 1 << bit;
            }
            component.add(size * number)
        }
    }

    /// Addresses of the four blocks of a register.
    unsafe fn blocks(self, number: usize) -> [*mut u8; 4] {
        // SAFETY: the legacy area has sixteen registers at byte 160; else as for `part`.
        unsafe {
            if number >= 16 {
                let whole = self.part(ZMM_16, number - 16);
                return [whole, whole.add(16), whole.add(32), whole.add(48)];
            }
            let lowest = self.area.add(160 + 16 * number);
            let second = self.part(AVX, number);
            if !is_x86_feature_detected!("avx512f") {
                return [lowest, second, lowest, lowest];
            }
            let high = self.part(ZMM_HIGH, number);
            [lowest, second, high, high.add(16)]
        }
    }

    unsafe fn read(self, number: usize) -> [[u8; 16]; 4] {
        // SAFETY: as for `blocks`.
        unsafe { self.blocks(number).map(|block| block.cast::<[u8; 16]>().read_unaligned()) }
    }

    /// Writes a whole register: what an instruction leaves of it is zero.
    unsafe fn write(self, number: usize, value: [[u8; 16]; 4]) {
        // SAFETY: as for `blocks`. From the highest down, since without AVX-512 the places of the
        // highest two are that of the lowest.
        unsafe {
            for (block, value) in self.blocks(number).into_iter().zip(value).rev() {
                block.cast::<[u8; 16]>().write_unaligned(value);
            }
        }
    }
}

#[test]
fn encodings_are_read() {
    let register = |operation, width, target, first, second, len| Instruction {
        operation,
        width,
        target,
        first,
        second: Operand::Register(second),
        len,
    };
    let padded = |code: &[u8]| Instruction::decode(&[code, &[0; 15]].concat());
    // vaesenc ymm0, ymm1, ymm2; vaesenclast zmm31, zmm30, zmm17; vpclmulqdq zmm8, zmm20, zmm15,
    // 0x10
    let expected = register(Operation::Round, 32, 0, 1, 2, 5);
    assert_eq!(padded(&[0xc4, 0xe2, 0x75, 0xdc, 0xc2]), Some(expected));
    let expected = register(Operation::LastRound, 64, 31, 30, 17, 6);
    assert_eq!(padded(&[0x62, 0x22, 0x0d, 0x40, 0xdd, 0xf9]), Some(expected));
    let expected = register(Operation::Product { halves: 0x10 }, 64, 8, 20, 15, 7);
    assert_eq!(padded(&[0x62, 0x53, 0x5d, 0x40, 0x44, 0xc7, 0x10]), Some(expected));
    // vaesenc zmm1, zmm2, [r9 + 4*rcx + 0x80]: two vectors, written as 2
    let second = Operand::Memory { base: Some(9), index: Some((1, 4)), offset: 128, from_rip: false };
    let expected = Instruction { operation: Operation::Round, width: 64, target: 1, first: 2, second, len: 8 };
    assert_eq!(padded(&[0x62, 0xd2, 0x6d, 0x48, 0xdc, 0x4c, 0x89, 0x02]), Some(expected));
    // vpclmulqdq ymm3, ymm4, [rip + 0x11223344], 1
    let second = Operand::Memory { base: None, index: None, offset: 0x1122_3344, from_rip: true };
    let operation = Operation::Product { halves: 1 };
    let expected = Instruction { operation, width: 32, target: 3, first: 4, second, len: 10 };
    assert_eq!(padded(&[0xc4, 0xe3, 0x5d, 0x44, 0x1d, 0x44, 0x33, 0x22, 0x11, 0x01]), Some(expected));
    // vaesdec, and an instruction of another kind
    assert_eq!(padded(&[0xc4, 0xe2, 0x75, 0xde, 0xc2]), None);
    assert_eq!(padded(&[0x0f, 0x0b]), None);
}
