//! Known answers and second opinions, all through the public interface: a vector is laid out as a
//! packet, sealed, compared, opened, and refused after a flipped bit.

mod differential;
mod rfc;
mod signatures;
mod wycheproof;

use std::sync::Arc;

use weir_crypto::{Aad, CryptoOp, DerivedKeys, Engine, Job, Key, KeyId, KeyMaterial, KeyTable, Keys, Span, Suite};

/// Bytes of hexadecimal text; blanks are for the reader.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in {text}");
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

fn esp(name: &str) -> Suite {
    Suite::parse_esp(name).expect(name)
}

fn iv(bytes: &[u8]) -> [u8; 16] {
    let mut iv = [0; 16];
    iv[..bytes.len()].copy_from_slice(bytes);
    iv
}

/// Packets at once: enough for an engine that works on several to do so.
const MANY: usize = 16;

/// One key for each engine.
struct Rig {
    suite: Suite,
    tables: Vec<(Engine, KeyTable)>,
    derived: DerivedKeys,
}

impl Rig {
    fn new(suite: Suite, enc: &[u8], integ: &[u8]) -> Self {
        let table = |engine: Engine| {
            let key: Key = engine.expand(&suite, KeyMaterial { enc, integ }).expect("material that fits");
            let mut table = KeyTable::default();
            table.insert(Arc::new(key));
            (engine, table)
        };
        Self { suite, tables: Engine::real().map(table).collect(), derived: DerivedKeys::new(0) }
    }

    /// A packet of associated data, body and ICV, `shift` bytes from where its memory begins.
    fn layout(&self, shift: usize, aad: &[u8], iv: [u8; 16], body: &[u8], icv: &[u8]) -> (CryptoOp, Vec<u8>) {
        let packet = [&vec![0xee; shift][..], aad, body, icv].concat();
        let (aad_end, body_end) = (shift + aad.len(), shift + aad.len() + body.len());
        let covered = if self.suite.integ.is_some() { body_end } else { aad_end };
        let op = CryptoOp {
            key: KeyId(0),
            aad: Aad::InPlace(Span::new(shift, covered)),
            body: Span::new(aad_end, body_end),
            icv: Span::new(body_end, packet.len()),
            iv,
        };
        (op, packet)
    }

    fn seal(&self, op: CryptoOp, packet: &mut [u8]) {
        assert!(self.by_every_engine(op, packet, Engine::seal, |job| job.sealed()));
    }

    fn open(&self, op: CryptoOp, packet: &mut [u8]) -> bool {
        self.by_every_engine(op, packet, Engine::open, |job| job.take_ok().is_some())
    }

    /// The outcome of `run` for `packet`, in which all engines must agree, one packet at a time and
    /// many.
    fn by_every_engine(
        &self,
        op: CryptoOp,
        packet: &mut [u8],
        run: fn(Engine, Keys<'_>, &mut [Job<'_>]),
        ok: fn(&mut Job<'_>) -> bool,
    ) -> bool {
        let mut outcome = None;
        let before = packet.to_vec();
        for (engine, table) in &self.tables {
            let keys = Keys { table, derived: &self.derived };
            for count in [1, MANY] {
                let mut many = vec![before.clone(); count];
                let mut jobs: Vec<_> = many.iter_mut().map(|packet| Job::new(op, &mut packet[..])).collect();
                run(*engine, keys, &mut jobs);
                let done: Vec<bool> = jobs.iter_mut().map(ok).collect();
                let first = *outcome.get_or_insert(done[0]);
                assert_eq!(done, vec![first; count], "{} {}", engine.name(), self.suite);
                if outcome.is_some() && (*engine, count) != (self.tables[0].0, 1) {
                    let same = !first || many.iter().all(|other| other == packet);
                    assert!(same, "{} {}", engine.name(), self.suite);
                } else {
                    packet.copy_from_slice(&many[0]);
                }
            }
        }
        outcome.unwrap_or(false)
    }

    /// Seals, and checks that opening works and that a flipped bit makes it fail.
    fn check(&self, shift: usize, aad: &[u8], iv: [u8; 16], clear: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let icv_len = self.suite.icv_len();
        let (op, mut packet) = self.layout(shift, aad, iv, clear, &vec![0; icv_len]);
        self.seal(op, &mut packet);
        assert!(packet[..shift].iter().all(|b| *b == 0xee), "bytes before the packet changed");
        let sealed = (packet[op.body.range()].to_vec(), packet[op.icv.range()].to_vec());

        let authenticated = packet.len() - shift;
        let at = shift + (clear.len() * 31 + aad.len() * 7 + 5) % authenticated;
        let mut forged = packet.clone();
        forged[at] ^= 0x10;
        assert!(!self.open(op, &mut forged), "{}: flipped byte {at}", self.suite);

        assert!(self.open(op, &mut packet), "{}", self.suite);
        assert_eq!(packet[op.body.range()], *clear, "{}", self.suite);
        sealed
    }
}
