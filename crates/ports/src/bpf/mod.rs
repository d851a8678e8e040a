//! Small programs for the kernel, assembled here (eBPF, RFC 9669).

mod assembler;
#[cfg(test)]
pub(super) mod run;
mod sys;

pub(super) use assembler::{Assembler, Instruction, op, register};
pub(super) use sys::{Attr, Kind, load, owned, set_steering};
