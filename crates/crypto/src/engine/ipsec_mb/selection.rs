//! Selection of library calls per suite, by processor and version of the library.
//!
//! Multi-buffer code is slower than single-buffer code if there are few packets, and the direct
//! calls for GCM are faster than jobs on processors with VAES. The selection is a table instead of
//! a benchmark at the start, because a benchmark selected different calls from one start to the
//! next, so that two runs of one build could not be compared.

use std::fmt;

use super::sys::Library;

/// The calls to use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Selection {
    /// Run AES-GCM in bursts instead of by direct calls. With VAES the functions that bursts call
    /// are not linked (`build/unused.rs`).
    pub(super) gcm_in_bursts: bool,
    /// Minimum body in bytes for which ChaCha20-Poly1305 runs in bursts instead of in AWS-LC.
    pub(super) chacha_from: usize,
    /// Minimum number of packets for which a suite with a separate MAC runs in bursts.
    pub(super) fewest: usize,
    /// Run DES and 3DES in the library. Version 2.0.2 returns wrong packets where AVX-512 encrypts
    /// several at once.
    pub(super) des: bool,
}

/// A row of the table: name of the instruction set in the library, first major version, calls.
struct SelectionRow(&'static str, u32, Selection);

/// The first matching row is used; the last one always matches. [`Selection::des`] depends on the
/// version alone.
const TABLE: [SelectionRow; 7] = [
    // Jobs of version 2 take a tenth longer.
    SelectionRow("avx512 with vaes", 2, Selection { gcm_in_bursts: false, chacha_from: 512, fewest: 8, des: true }),
    SelectionRow("avx512 with vaes", 0, Selection { gcm_in_bursts: false, chacha_from: 256, fewest: 8, des: true }),
    SelectionRow("avx512", 2, Selection { gcm_in_bursts: false, chacha_from: 512, fewest: 8, des: true }),
    // Version 1 seals small packets faster as jobs where there is no VAES.
    SelectionRow("avx512", 0, Selection { gcm_in_bursts: true, chacha_from: 256, fewest: 8, des: true }),
    SelectionRow("avx2 with vaes", 0, Selection { gcm_in_bursts: false, chacha_from: 512, fewest: 8, des: true }),
    SelectionRow("avx2", 0, Selection { gcm_in_bursts: false, chacha_from: 512, fewest: 8, des: true }),
    SelectionRow("", 0, Selection { gcm_in_bursts: false, chacha_from: usize::MAX, fewest: 16, des: true }),
];

impl Selection {
    /// The calls for this processor and library.
    #[inline]
    pub(super) fn get() -> &'static Self {
        Library::get().map_or(&TABLE[TABLE.len() - 1].2, |library| &library.selection)
    }

    /// The calls for the instruction set `arch` and version `version` of the library, e.g. `avx512`
    /// and `1.3.0`.
    pub(super) fn find(arch: &str, version: &str) -> Self {
        let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
        let row = TABLE.iter().find(|SelectionRow(of, from, _)| (of.is_empty() || *of == arch) && major >= *from);
        let selection = row.map_or(TABLE[TABLE.len() - 1].2, |SelectionRow(.., selection)| *selection);
        Self { des: major < 2, ..selection }
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gcm = if self.gcm_in_bursts { "in bursts" } else { "by direct calls" };
        let chacha = match self.chacha_from {
            usize::MAX => "by AWS-LC".to_owned(),
            from => format!("in bursts from {from} bytes on"),
        };
        write!(f, "AES-GCM {gcm}, ChaCha20 {chacha}, CBC with HMAC in bursts from {} packets on", self.fewest)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{expand, seal_by};
    use super::*;
    use crate::engine::protect::State;
    use crate::{Aad, CryptoOp, DerivedKeys, Job, Key, KeyId, KeyMaterial, KeyTable, Keys, Span, Suite};

    /// Jobs of a call, as many as the packet path hands over at once.
    const JOBS: usize = 16;
    const DIRECT: Selection =
        Selection { gcm_in_bursts: false, chacha_from: usize::MAX, fewest: usize::MAX, des: true };

    /// Bursts of everything that this processor may run in bursts.
    fn bursts() -> Selection {
        Selection { chacha_from: 0, fewest: 1, ..*Selection::get() }
    }

    /// Packets after each of three rounds of sealing; each round seals what the one before left.
    fn seal(name: &str, selection: &Selection) -> Vec<Vec<Vec<u8>>> {
        let suite = Suite::parse_esp(name).unwrap();
        let (enc, integ) = (vec![1; suite.enc_material_len()], vec![2; suite.integ_material_len()]);
        let material = KeyMaterial { enc: &enc, integ: &integ };
        let state = expand(&suite, material, State::new(&suite, material).unwrap());
        let separate = suite.integ.is_some();
        let mut table = KeyTable::default();
        table.insert(Arc::new(Key { suite, icv_len: suite.icv_len(), state, device: None }));
        let mut packets = vec![vec![9; 2048]; JOBS];
        let body = Span::new(32, 32 + 512);
        let aad = Aad::InPlace(Span { start: 0, end: if separate { body.end } else { 16 } });
        let icv = Span { start: body.end, end: body.end + 16 };
        let op = CryptoOp { key: KeyId(0), aad, body, icv, iv: [7; 16] };
        let round = |count| {
            let mut jobs: Vec<Job<'_>> = packets.iter_mut().take(count).map(|p| Job::new(op, &mut p[..])).collect();
            seal_by(Keys { table: &table, derived: &DerivedKeys::new(0) }, &mut jobs, selection);
            assert!(jobs.iter().all(Job::sealed), "{name}");
            drop(jobs);
            packets.clone()
        };
        [1, 5, JOBS].map(round).to_vec()
    }

    #[test]
    fn every_way_seals_the_same() {
        for name in ["aes128gcm16", "chacha20poly1305", "aes128-sha256"] {
            let direct = seal(name, &DIRECT);
            assert_eq!(direct, seal(name, &bursts()), "{name}");
            assert_ne!(direct[0][0], [9; 2048], "{name}");
        }
    }

    #[test]
    fn two_starts_use_the_same_calls() {
        for (arch, version, gcm_in_bursts, chacha_from) in [
            ("avx512 with vaes", "1.3.0", false, 256),
            ("avx512", "1.3.0", true, 256),
            ("avx512 with vaes", "2.0.2", false, 512),
            ("avx512", "2.0.2", false, 512),
            ("avx2", "1.5", false, 512),
            ("sse", "2.0.2", false, usize::MAX),
            ("", "", false, usize::MAX),
        ] {
            let selection = Selection::find(arch, version);
            assert_eq!(
                (selection.gcm_in_bursts, selection.chacha_from),
                (gcm_in_bursts, chacha_from),
                "{arch} {version}"
            );
            assert_eq!(selection, Selection::find(arch, version));
            assert!((1..=JOBS).contains(&selection.fewest));
            assert_eq!(selection.des, !version.starts_with('2'), "{version}");
        }
    }

    /// `build/unused.rs` leaves out what these would call.
    #[test]
    fn no_processor_with_vaes_runs_gcm_in_bursts() {
        for SelectionRow(arch, _, selection) in TABLE {
            assert!(!arch.ends_with("with vaes") || !selection.gcm_in_bursts, "{arch}");
        }
    }

    #[test]
    fn the_calls_are_named() {
        let selection = Selection { gcm_in_bursts: false, chacha_from: 512, fewest: 3, des: true };
        let text =
            "AES-GCM by direct calls, ChaCha20 in bursts from 512 bytes on, CBC with HMAC in bursts from 3 packets on";
        assert_eq!(selection.to_string(), text);
    }
}
