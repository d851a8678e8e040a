//! Interface of the ring to a device.

use std::ops::Range;

use crate::packet::{DESCRIPTOR_BYTES, TAG_BYTES};
use crate::{KEY_WORDS, KeyWords};

/// Reason why a device cannot be used, or failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The library of the driver, or of the compiler, is not installed.
    #[error("{library} cannot be loaded: {why}")]
    NoLibrary {
        /// File name.
        library: &'static str,
        /// Message of the loader.
        why: String,
    },
    /// The driver has no device.
    #[error("{api} has no device number {number}")]
    NoDevice {
        /// OpenCL or CUDA.
        api: &'static str,
        /// Number that was requested.
        number: usize,
    },
    /// The kernel was not compiled.
    #[error("the kernel does not compile: {log}")]
    Compile {
        /// Output of the compiler.
        log: String,
    },
    /// A call of the driver failed.
    #[error("{call} failed with {code}")]
    Call {
        /// Function.
        call: &'static str,
        /// Its result.
        code: i64,
    },
    /// A size of a [`Shape`] is invalid.
    #[error("{size} = {value} is invalid; use {valid}")]
    Shape {
        /// Name of the size.
        size: &'static str,
        /// Its value.
        value: usize,
        /// Valid values.
        valid: &'static str,
    },
    /// The slot or the key slot does not exist, or is in use by the device.
    #[error("slot {slot} does not exist or is in flight")]
    Busy {
        /// Number of the slot.
        slot: usize,
    },
}

/// Sizes of the memory that ring and device share. A slot and all key slots have less than 4 GiB
/// each: the kernel counts them in 32 bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    /// Slots, at least 1.
    pub slots: usize,
    /// Bytes for bodies in a slot, a multiple of 16.
    pub bytes: usize,
    /// Maximum number of packets in a slot.
    pub packets: usize,
    /// Key slots.
    pub keys: usize,
}

impl Shape {
    /// Checks the sizes. Every device must do so before it allocates memory.
    ///
    /// # Errors
    /// [`DeviceError::Shape`]: no slot, bodies that are not aligned, or more memory than the kernel
    /// can address.
    pub fn check(&self) -> Result<(), DeviceError> {
        let most = u128::from(u32::MAX);
        let per_packet = self.packets as u128 * (DESCRIPTOR_BYTES + TAG_BYTES) as u128;
        // With what the alignment of the bodies takes.
        let slot_bytes = self.bytes as u128 + per_packet + 256;
        let key_bytes = self.keys as u128 * 4 * KEY_WORDS as u128;
        let invalid = |size, value, valid| Err(DeviceError::Shape { size, value, valid });
        match self {
            Self { slots: 0, .. } => invalid("slots", 0, "1 or more"),
            _ if !self.bytes.is_multiple_of(16) => invalid("bytes", self.bytes, "a multiple of 16"),
            _ if per_packet > most => invalid("packets", self.packets, "less than 4 GiB of descriptors and tags"),
            _ if slot_bytes > most => invalid("bytes", self.bytes, "less than 4 GiB with descriptors and tags"),
            _ if key_bytes > most => invalid("keys", self.keys, "less than 4 GiB of key slots"),
            _ => Ok(()),
        }
    }

    /// First byte of the bodies: after the descriptors, and aligned for every device.
    pub fn data_at(&self) -> usize {
        (self.packets * DESCRIPTOR_BYTES).next_multiple_of(256)
    }

    /// Bytes of a slot: descriptors, bodies, tags.
    pub fn slot_bytes(&self) -> usize {
        self.data_at() + self.bytes + self.packets * TAG_BYTES
    }
}

/// Packets of a launch, and their places in bytes from the start of the slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Launch {
    /// Number of packets, at least 1.
    pub packets: usize,
    /// First byte of the bodies, a multiple of 16. The descriptor of packet `i` is
    /// [`crate::DESCRIPTOR_BYTES`]` · (i + 1)` before it.
    pub data_at: usize,
    /// First byte of the tags, one after the last byte of the bodies; a multiple of 16.
    pub tags_at: usize,
    /// Binary logarithm of the lanes per packet.
    pub lanes_shift: u32,
}

impl Launch {
    /// Bytes that the device needs: descriptors and bodies.
    pub fn to_device(&self) -> Range<usize> {
        self.data_at - self.packets * DESCRIPTOR_BYTES..self.tags_at
    }

    /// Returns true if all of it is within a slot, so that neither copies nor the kernel leave it.
    pub fn fits(&self, shape: &Shape) -> bool {
        let whole = |at: usize| at.is_multiple_of(16) && at <= shape.slot_bytes();
        whole(self.data_at)
            && whole(self.tags_at)
            && (1..=shape.packets).contains(&self.packets)
            && self.packets * DESCRIPTOR_BYTES <= self.data_at
            && self.data_at <= self.tags_at
            && self.tags_at + self.packets * TAG_BYTES <= shape.slot_bytes()
            // Not 1 << lanes_shift, which is 1 again for a shift by 32.
            && self.lanes_shift <= crate::LANES_MAX.ilog2()
    }

    /// Bytes that the device returns: bodies and tags.
    pub fn to_host(&self) -> Range<usize> {
        self.data_at..self.tags_at + self.packets * TAG_BYTES
    }
}

/// A device with slots. Used by one ring.
///
/// A drop waits for launches, zeroes the keys on the device and frees its memory.
pub trait Device: Send {
    /// Sizes.
    fn shape(&self) -> Shape;

    /// Number of lanes that run in the time of one: far below it more lanes per packet cost
    /// nothing.
    fn lanes_at_once(&self) -> usize;

    /// Memory of a slot, [`Shape::slot_bytes`] long.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] between a launch and its completion: the device writes it then.
    fn memory(&mut self, slot: usize) -> Result<&mut [u8], DeviceError>;

    /// Starts copy, kernel and copy back of a slot, and returns without a wait.
    ///
    /// # Errors
    /// Any failure of the driver.
    fn launch(&mut self, slot: usize, launch: &Launch) -> Result<(), DeviceError>;

    /// Returns true if nothing is in flight in a slot. Never waits.
    ///
    /// # Errors
    /// The launch has failed, or the driver.
    fn is_done(&self, slot: usize) -> Result<bool, DeviceError>;

    /// Starts to zero a part of the device's copy of a slot that is done, and should not wait.
    /// Without a copy there is nothing to do. Must end before a later launch of the slot, and
    /// before a drop frees the memory.
    ///
    /// # Errors
    /// Any failure of the driver, or [`DeviceError::Busy`] for a part that is not in the slot.
    fn wipe(&mut self, slot: usize, part: Range<usize>) -> Result<(), DeviceError>;

    /// Writes a key slot and waits until the device has it: for as long as the launches in flight
    /// take, if it orders the write after them.
    ///
    /// # Errors
    /// Any failure of the driver.
    fn set_key(&mut self, key: u32, words: &KeyWords) -> Result<(), DeviceError>;

    /// Zeroes a key slot and waits until the device has done so: as [`Device::set_key`].
    ///
    /// # Errors
    /// Any failure of the driver.
    fn clear_key(&mut self, key: u32) -> Result<(), DeviceError>;

    /// Gives the device up without a wait: memory that it may still write is leaked. The ring has
    /// zeroed the memory of slots that are not in flight; keys stay on the device.
    fn abandon(self);
}
