//! The kernel on real devices: known answers, random batches against the engine of the CPU, and the
//! life of keys. OpenCL runs wherever an ICD is installed (PoCL runs on CPUs), CUDA where there is
//! a GPU; otherwise each test prints why it was skipped.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "opencl")]
mod opencl;
mod random;
mod vectors;

use std::sync::Arc;

use crypto::accelerator::{Accelerator, Direction, GROUP, Group, Task};
use crypto::{Aad, CryptoOp, DerivedKeys, Engine, KeyId, KeyMaterial, KeyTable, Span, Suite};
use random::Random;
use weir_gpu::{Device, Gpu, Settings, Shape};

const SHAPE: Shape = Shape { slots: 3, bytes: 256 << 10, packets: 256, keys: 8 };

/// Checks of one device.
struct Checks<D: Device>(Gpu<D, Vec<u8>>);

impl<D: Device> Checks<D> {
    fn new(device: D) -> Self {
        // A CPU that computes as a device may take long.
        let settings = Settings { watchdog_ns: 60_000_000_000, ..Settings::default() };
        Self(Gpu::new(device, Engine::best(), settings))
    }

    fn wait(&mut self) -> Group<Vec<u8>> {
        loop {
            match self.0.poll() {
                Ok(Some(group)) => return group,
                Ok(None) => std::thread::yield_now(),
                Err(gone) => panic!("{gone}: {:?}", self.0.error()),
            }
        }
    }

    /// Runs groups and returns them in order.
    fn run(&mut self, groups: impl IntoIterator<Item = Group<Vec<u8>>>) -> Vec<Group<Vec<u8>>> {
        let mut done = Vec::new();
        for mut group in groups {
            while let Err(back) = self.0.submit(group) {
                group = back;
                done.push(self.wait());
            }
        }
        self.0.flush();
        while self.0.under_way() > 0 {
            done.push(self.wait());
        }
        done
    }

    /// Random batches: device and CPU must agree on every byte, device and CPU open what the other
    /// sealed, and nothing that was changed.
    fn random_batches(&mut self, rounds: usize, longest: usize) {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for round in 0..rounds {
            let suite = ["aes128gcm16", "aes256gcm16", "aes192gcm12", "aes256gcm8"][round % 4];
            let (keys, ids) = tables(suite, 3, &mut random);
            let mut groups = Vec::new();
            for _ in 0..8 {
                let tasks: Vec<_> =
                    (0..1 + random.below(GROUP)).map(|_| task(suite, &ids, longest, &mut random)).collect();
                groups.push(tasks);
            }
            let made = |direction| {
                let keys = &keys;
                move |tasks: &Vec<(CryptoOp, Vec<u8>)>| {
                    let tasks = tasks.iter().map(|(op, packet)| Task { op: *op, packet: packet.clone() }).collect();
                    Group::new(direction, Arc::clone(keys), Box::new(tasks))
                }
            };
            let sealed = self.run(groups.iter().map(made(Direction::Seal)));
            assert_eq!(sealed.len(), groups.len());
            for (tasks, group) in groups.iter_mut().zip(sealed) {
                let mut direct = made(Direction::Seal)(tasks);
                direct.run(Engine::best(), &DerivedKeys::new(0));
                for (i, (op, packet)) in tasks.iter_mut().enumerate() {
                    assert!(group.sealed(i) && direct.sealed(i));
                    assert!(group.tasks[i].packet == direct.tasks[i].packet, "{suite} {op:?}");
                    std::mem::swap(packet, &mut direct.tasks[i].packet);
                }
            }
            // One packet of each group is changed, at any byte of associated data, body or ICV.
            let changed: Vec<(usize, usize)> = groups
                .iter_mut()
                .map(|tasks| {
                    let i = random.below(tasks.len());
                    let (op, packet) = &mut tasks[i];
                    let first = if let Aad::InPlace(span) = op.aad { span.start } else { op.body.start } as usize;
                    let at = first + random.below(op.icv.end as usize - first);
                    packet[at] ^= 1 << random.below(8);
                    (i, at)
                })
                .collect();
            let opened = self.run(groups.iter().map(made(Direction::Open)));
            for ((tasks, mut group), (changed, at)) in groups.iter().zip(opened).zip(changed) {
                let mut direct = made(Direction::Open)(tasks);
                direct.run(Engine::best(), &DerivedKeys::new(0));
                for (i, (op, packet)) in tasks.iter().enumerate() {
                    let (ok, direct_ok) = (group.take_ok(i).is_some(), direct.take_ok(i).is_some());
                    assert_eq!((ok, direct_ok), (i != changed, i != changed), "{suite} {op:?} {at}");
                    let wanted = if ok { &direct.tasks[i].packet } else { packet };
                    assert!(group.tasks[i].packet == *wanted, "{suite} {op:?}");
                }
            }
        }
        assert_eq!(self.0.counts().on_cpu, 0, "the device ran all");
    }

    /// Every length at which something is different, with each of the lengths of associated data.
    fn every_length(&mut self, longest: usize) {
        let mut random = Random(7);
        let (keys, ids) = tables("aes128gcm16", 1, &mut random);
        let lens: Vec<usize> = (0..=longest).collect();
        let groups: Vec<_> = lens
            .chunks(GROUP)
            .map(|lens| {
                let tasks = lens.iter().map(|len| {
                    let (op, packet) = layout(ids[0], [0, 8, 12, 16][len % 4], *len, 16, &mut random);
                    Task { op, packet }
                });
                Group::new(Direction::Seal, Arc::clone(&keys), Box::new(tasks.collect()))
            })
            .collect();
        let copies: Vec<Vec<_>> = groups
            .iter()
            .map(|group| group.tasks.iter().map(|task| (task.op, task.packet.clone())).collect())
            .collect();
        for (group, tasks) in self.run(groups).into_iter().zip(copies) {
            for (i, (op, packet)) in tasks.into_iter().enumerate() {
                let tasks = std::iter::once(Task { op, packet }).collect();
                let mut direct = Group::new(Direction::Seal, Arc::clone(&keys), Box::new(tasks));
                direct.run(Engine::best(), &DerivedKeys::new(0));
                assert!(group.sealed(i) && group.tasks[i].packet == direct.tasks[0].packet, "{op:?}");
            }
        }
    }

    /// A key that was removed leaves the device, and another one gets its slot.
    fn keys_come_and_go(&mut self) {
        let mut random = Random(3);
        for round in 0..2 * SHAPE.keys {
            let (keys, ids) = tables("aes256gcm16", 1, &mut random);
            let (op, packet) = layout(ids[0], 8, 64, 16, &mut random);
            let make = |packet| {
                let tasks = std::iter::once(Task { op, packet }).collect();
                Group::new(Direction::Seal, Arc::clone(&keys), Box::new(tasks))
            };
            let mut direct = make(packet.clone());
            direct.run(Engine::best(), &DerivedKeys::new(0));
            let done = self.run([make(packet)]).pop().expect("a group");
            assert!(done.tasks[0].packet == direct.tasks[0].packet, "{round}");
        }
        self.0.remove_keys();
        assert_eq!((self.0.keys_on_device(), self.0.counts().on_cpu), (0, 0));
    }
}

impl Random {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 56) as u8).collect()
    }
}

fn tables(suite: &str, keys: usize, random: &mut Random) -> (Arc<KeyTable>, Vec<KeyId>) {
    let suite = Suite::parse_esp(suite).expect("a suite");
    let mut table = KeyTable::default();
    let ids = (0..keys)
        .map(|_| {
            let material = random.bytes(suite.enc_material_len());
            let key = Engine::best().expand_for_device(&suite, KeyMaterial { enc: &material, integ: &[] });
            table.insert(Arc::new(key.expect("material that fits")))
        })
        .collect();
    (Arc::new(table), ids)
}

fn task(suite: &str, ids: &[KeyId], longest: usize, random: &mut Random) -> (CryptoOp, Vec<u8>) {
    let icv = Suite::parse_esp(suite).expect("a suite").icv_len();
    // One in eight is as long as a jumbo frame.
    let most = if random.below(8) == 0 { longest } else { longest.min(1500) };
    let (key, len, aad) = (ids[random.below(ids.len())], random.below(most + 1), [0, 8, 12, 16][random.below(4)]);
    layout(key, aad, len, icv, random)
}

/// A packet of random bytes: associated data, of which twelve bytes may be inline, body and ICV.
fn layout(key: KeyId, aad: usize, len: usize, icv: usize, random: &mut Random) -> (CryptoOp, Vec<u8>) {
    let before = random.below(5);
    let packet = random.bytes(before + aad + len + icv);
    let iv = random.bytes(16).try_into().expect("16 bytes");
    let inline = aad == 12 && random.below(2) == 0;
    let aad_span = Span::new(before, before + aad);
    let aad = if inline { Aad::Inline(random.bytes(12).try_into().expect("12 bytes")) } else { Aad::InPlace(aad_span) };
    let body_at = aad_span.end as usize;
    let (body, icv) = (Span::new(body_at, body_at + len), Span::new(body_at + len, body_at + len + icv));
    (CryptoOp { key, aad, body, icv, iv }, packet)
}
