#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! The engine is a ring of slots in host memory that the device can read and write. Groups are copied
//! into the slot that is being filled; a launch copies the slot to the device, runs the kernel and
//! copies the results back; a poll compares tags and copies bodies into the packets. Results return
//! in the order of submission. What differs between devices is a `Device`: slots, key slots, a
//! launch, and its completion.

mod key;

pub use key::{KEY_WORDS, KeyWords};
