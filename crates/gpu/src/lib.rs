#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! [`Gpu`] is a ring of slots in host memory that the device can read and write. Groups are copied
//! into the slot that is being filled; a launch copies the slot to the device, runs the kernel and
//! copies the results back; a poll compares tags and copies bodies into the packets. Results return
//! in the order of submission. What differs between devices is a [`Device`]: slots, key slots, a
//! launch, and its completion.

#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod key;
mod keys;
#[cfg(feature = "opencl")]
pub mod opencl;
mod packet;
mod ring;
#[cfg(test)]
mod tests;

pub use device::{Device, DeviceError, Launch, Shape};
pub use key::{KEY_WORDS, KeyWords};
pub use packet::{AAD_MAX, DESCRIPTOR_BYTES, Descriptor, LANES_MAX, LANES_PER_UNIT, WORK_GROUP, lanes_shift};
pub use ring::{Counts, Gpu, Settings, SlotState};

/// Source of the kernel, in the common part of OpenCL C and CUDA C++.
pub const KERNEL_SOURCE: &str = include_str!("../kernel/aes_gcm.cl");
/// Name of the kernel.
pub const KERNEL_NAME: &str = "aes_gcm";
