//! AES-GCM for a device with separate memory: what it needs of an operation, and how its result
//! gets into the packet.
//!
//! A device computes bytes and a tag; it proves nothing. The tag is compared here, so that only
//! this crate creates an [`crate::IcvOk`], and an unverified plaintext never gets into a packet.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use zeroize::Zeroize;

use super::{Direction, Group};
use crate::engine::{aead_spans, equal, nonce};
use crate::{Aad, CipherKind, CryptoOp, KeyMaterial, Suite};

/// Bytes of a body that are compared to find a packet that the device skipped: fewer may be equal
/// by chance.
const SKIPPED_MIN: usize = 16;

/// AES key of a suite with AES-GCM, for devices that expand it themselves.
///
/// The state that an engine keeps is that of its library, from which no device can make its own.
/// Exists only in keys of [`crate::Engine::expand_for_device`]. Zeroed on drop; has no `Debug`.
pub struct DeviceKey {
    id: u64,
    key: [u8; 32],
    key_len: usize,
    salt: [u8; 4],
}

impl DeviceKey {
    /// `None` for suites other than AES-GCM. The lengths must have been checked.
    pub(crate) fn new(suite: &Suite, material: KeyMaterial<'_>) -> Option<Box<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let enc = suite.enc.filter(|enc| enc.kind == CipherKind::AesGcm)?;
        let (key, salt) = material.enc.split_at_checked(enc.key_len)?;
        // Filled in the box, so that no copy stays on the stack.
        let mut made = Box::new(Self { id: 0, key: [0; 32], key_len: key.len(), salt: [0; 4] });
        made.key.get_mut(..key.len())?.copy_from_slice(key);
        made.salt = salt.try_into().ok()?;
        made.id = NEXT.fetch_add(1, Ordering::Relaxed);
        Some(made)
    }

    /// Number of the key, unique in this process: unlike a [`crate::KeyId`] or an address it is not
    /// reused.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The AES key: 16, 24 or 32 bytes.
    pub fn aes_key(&self) -> &[u8] {
        &self.key[..self.key_len]
    }
}

impl Drop for DeviceKey {
    fn drop(&mut self) {
        self.key.zeroize();
        self.salt.zeroize();
    }
}

/// One operation, as a device needs it.
pub struct DeviceOp<'a> {
    /// The key.
    pub key: &'a DeviceKey,
    /// Salt and IV.
    pub nonce: [u8; 12],
    /// Authenticated bytes.
    pub aad: &'a [u8],
    /// Bytes to encrypt or decrypt.
    pub body: &'a [u8],
}

impl<P: AsMut<[u8]>> Group<P> {
    /// Returns the operation of task `i` for a device; `None` if an engine must run it, because it
    /// is not AES-GCM, its key has no [`DeviceKey`], or it does not fit its packet.
    pub fn device_op(&mut self, i: usize) -> Option<DeviceOp<'_>> {
        let task = self.tasks.get_mut(i)?;
        let (op, key) = (&task.op, self.keys.get(task.op.key)?);
        let device_key = key.device_key()?;
        let packet = task.packet.as_mut();
        let [aad, body, _] = spans(op, packet.len(), key.icv_len)?;
        let aad = if let Aad::Inline(bytes) = &op.aad { bytes } else { &packet[aad] };
        Some(DeviceOp { key: device_key, nonce: nonce(&device_key.salt, &op.iv), aad, body: &packet[body] })
    }

    /// Takes the result of a device for task `i`: the body, and the tag that the device computed
    /// over the ciphertext. Seals the packet with it, or compares it with the ICV in constant time
    /// and then takes the plaintext. Returns false and leaves the packet unchanged and without a
    /// result if the operation fails.
    ///
    /// A body of 16 bytes or more that begins as that of the packet is a failure as well: the
    /// device skipped the packet, and the tag may be that of an earlier one. A key stream of 16
    /// zeros should never occur: its probability is 2⁻¹²⁸. A shorter body that was skipped is not
    /// found.
    pub fn finish_device(&mut self, i: usize, body: &[u8], tag: &[u8; 16]) -> bool {
        self.finished(i, body, tag).is_some()
    }

    fn finished(&mut self, i: usize, result: &[u8], tag: &[u8; 16]) -> Option<()> {
        let task = self.tasks.get_mut(i)?;
        // A group may be submitted again: the result of an earlier run is not that of this one.
        self.results.sealed &= !(1 << i);
        self.results.verified &= !(1 << i);
        let key = self.keys.get(task.op.key)?;
        key.device_key()?;
        let packet = task.packet.as_mut();
        let [_, body, icv] = spans(&task.op, packet.len(), key.icv_len)?;
        let tag = tag.get(..key.icv_len)?;
        if body.len() != result.len() || (self.direction == Direction::Open && !equal(tag, &packet[icv.clone()])) {
            return None;
        }
        let first = |bytes: &[u8]| bytes.first_chunk::<SKIPPED_MIN>().copied();
        if let (Some(before), Some(after)) = (first(&packet[body.clone()]), first(result))
            && equal(&before, &after)
        {
            return None;
        }
        packet[body].copy_from_slice(result);
        match self.direction {
            Direction::Seal => {
                packet[icv].copy_from_slice(tag);
                self.results.sealed |= 1 << i;
            }
            Direction::Open => self.results.verified |= 1 << i,
        }
        Some(())
    }
}

/// Associated data in the packet, body and ICV; `None` if they do not fit the packet, or if the
/// associated data is not contiguous.
fn spans(op: &CryptoOp, packet_len: usize, icv_len: usize) -> Option<[Range<usize>; 3]> {
    let is_whole = matches!(op.aad, Aad::InPlace(_) | Aad::Inline(_));
    aead_spans(op, packet_len, icv_len, false).filter(|_| is_whole)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::accelerator::Task;
    use crate::{DerivedKeys, Engine, KeyId, KeyTable, Span};

    fn group(engine: Engine, direction: Direction, body: &[u8], icv: &[u8]) -> Group<Vec<u8>> {
        let suite = Suite::parse_esp("aes256gcm16").unwrap();
        let mut table = KeyTable::default();
        let key = engine.expand_for_device(&suite, KeyMaterial { enc: &[7; 36], integ: &[] }).unwrap();
        let id = table.insert(Arc::new(key));
        let packet = [&[1; 8], body, icv].concat();
        let (end, aad) = (8 + body.len(), Aad::InPlace(Span::new(0, 8)));
        let op = CryptoOp { key: id, aad, body: Span::new(8, end), icv: Span::new(end, end + 16), iv: [3; 16] };
        Group::new(Direction::Seal, Arc::new(table), Box::new([Task { op, packet }].into_iter().collect()))
            .turned(direction)
    }

    impl Group<Vec<u8>> {
        fn turned(mut self, direction: Direction) -> Self {
            self.direction = direction;
            self
        }
    }

    #[test]
    fn an_operation_has_the_key_and_the_parts_of_its_packet() {
        for engine in Engine::real() {
            let mut group = group(engine, Direction::Seal, &[5; 40], &[0; 16]);
            let op = group.device_op(0).unwrap();
            assert_eq!((op.key.aes_key(), op.nonce), (&[7; 32][..], [7, 7, 7, 7, 3, 3, 3, 3, 3, 3, 3, 3]));
            assert_eq!((op.aad, op.body), (&[1; 8][..], &[5; 40][..]));
            assert!(group.device_op(1).is_none());
        }
    }

    #[test]
    fn only_aes_gcm_made_for_devices_has_a_key_for_them_and_each_another_number() {
        let suite = |name: &str| Suite::parse_esp(name).unwrap();
        let for_device = |name: &str, len| {
            let material = vec![9; len];
            Engine::AwsLc.expand_for_device(&suite(name), KeyMaterial { enc: &material, integ: &[] }).unwrap()
        };
        let first = for_device("aes128gcm16", 20);
        let second = for_device("aes128gcm8", 20);
        assert_ne!(first.device_key().unwrap().id(), second.device_key().unwrap().id());
        assert!(for_device("chacha20poly1305", 36).device_key().is_none());
        assert!(for_device("aes128gmac", 20).device_key().is_none());
        let usual = Engine::AwsLc.expand(&suite("aes128gcm16"), KeyMaterial { enc: &[9; 20], integ: &[] }).unwrap();
        assert!(usual.device_key().is_none());
    }

    #[test]
    fn operations_that_do_not_fit_their_packet_have_no_part_for_a_device() {
        let mut group = group(Engine::AwsLc, Direction::Open, &[5; 40], &[2; 16]);
        let good = group.tasks[0].op;
        let bad = [
            CryptoOp { icv: Span::new(48, 65), ..good },
            CryptoOp { icv: Span::new(48, 63), ..good },
            CryptoOp { body: Span::new(8, 50), ..good },
            CryptoOp { aad: Aad::InPlace(Span::new(0, 9)), ..good },
            CryptoOp { aad: Aad::InPlaceThen(Span::new(0, 8), [0; 4]), ..good },
            CryptoOp { aad: Aad::InlineThen([0; 12], Span::new(0, 8)), ..good },
            CryptoOp { key: KeyId(7), ..good },
            CryptoOp { key: KeyId(KeyId::DERIVED), ..good },
        ];
        for (i, op) in bad.into_iter().enumerate() {
            group.tasks[0].op = op;
            assert!(group.device_op(0).is_none(), "{i}");
            assert!(!group.finish_device(0, &[6; 40], &[2; 16]), "{i}");
        }
    }

    #[test]
    fn a_tag_is_compared_before_the_plaintext_is_taken() {
        let mut group = group(Engine::AwsLc, Direction::Open, &[5; 40], &[2; 16]);
        for byte in 0..16 {
            let mut tag = [2; 16];
            tag[byte] ^= 0x80;
            assert!(!group.finish_device(0, &[6; 40], &tag), "{byte}");
        }
        assert!(!group.finish_device(0, &[6; 39], &[2; 16]), "another length");
        assert!(group.take_ok(0).is_none() && group.tasks[0].packet[8..48] == [5; 40]);
        assert!(group.finish_device(0, &[6; 40], &[2; 16]));
        assert!(group.take_ok(0).is_some() && group.take_ok(0).is_none() && !group.sealed(0));
        assert_eq!(group.tasks[0].packet[8..48], [6; 40]);
    }

    #[test]
    fn a_sealed_packet_has_body_and_tag() {
        let mut group = group(Engine::AwsLc, Direction::Seal, &[5; 40], &[0; 16]);
        assert!(group.finish_device(0, &[6; 40], &[2; 16]) && group.sealed(0) && group.take_ok(0).is_none());
        assert_eq!(group.tasks[0].packet[8..], [[6; 40].as_slice(), &[2; 16]].concat());
    }

    #[test]
    fn a_group_that_runs_again_has_no_result_of_the_first_run() {
        let mut group = group(Engine::AwsLc, Direction::Open, &[5; 40], &[2; 16]);
        assert!(group.finish_device(0, &[6; 40], &[2; 16]));
        assert!(!group.finish_device(0, &[7; 40], &[3; 16]));
        assert!(group.take_ok(0).is_none() && group.tasks[0].packet[8..48] == [6; 40]);
        group.direction = Direction::Seal;
        assert!(group.finish_device(0, &[8; 40], &[4; 16]) && group.sealed(0));
        assert!(!group.finish_device(0, &[9; 39], &[4; 16]) && !group.sealed(0));
    }

    #[test]
    fn a_packet_that_the_device_skipped_is_a_failure() {
        for direction in [Direction::Seal, Direction::Open] {
            for len in [16, 40] {
                let mut group = group(Engine::AwsLc, direction, &[5; 40][..len], &[2; 16]);
                assert!(!group.finish_device(0, &[5; 40][..len], &[2; 16]), "{direction:?} {len}");
                assert!(!group.sealed(0) && group.take_ok(0).is_none());
            }
            // One byte is unchanged by chance once in 256 packets.
            assert!(group(Engine::AwsLc, direction, &[5], &[2; 16]).finish_device(0, &[5], &[2; 16]));
        }
    }

    #[test]
    fn chosen_tasks_run_here_and_leave_the_results_of_others() {
        let mut group = group(Engine::AwsLc, Direction::Seal, &[5; 40], &[0; 16]);
        let task = &group.tasks[0];
        let (op, packet) = (task.op, task.packet.clone());
        group.tasks.push(Task { op, packet: packet.clone() });
        group.tasks.push(Task { op, packet });
        assert!(group.finish_device(0, &[6; 40], &[2; 16]));
        group.run_some(1 << 2, Engine::AwsLc, &DerivedKeys::new(0));
        assert_eq!([0, 1, 2].map(|i| group.sealed(i)), [true, false, true]);
        assert_eq!(group.tasks[1].packet[8..48], [5; 40], "not run");
        assert_ne!(group.tasks[2].packet[8..48], [5; 40]);
    }
}
