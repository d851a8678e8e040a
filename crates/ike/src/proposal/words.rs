//! Proposal keywords: `aes256gcm16-prfsha384-ecp384-ke1_mlkem768`.
//!
//! Keywords and their combination follow strongSwan; EESP adds `sn64` and `snnone` for sequence
//! numbers, and `sskdfsha256` and similar ones for the keys of Sub SAs.

use std::fmt;

use crypto::ike::{KeMethod, Prf, SkSuite};
use crypto::kdf::SubSaKdf;
use crypto::{EncAlg, IntegAlg, IntegKind};

use super::choice;
use super::transforms::sskdf_words;
use super::{ChildProposal, ChildProtocol, IkeProposal, SequenceNumbers};

/// Error in a proposal.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProposalError {
    /// No algorithm has this name.
    #[error("unknown algorithm '{word}'; did you mean '{nearest}'?")]
    Unknown {
        /// The input.
        word: String,
        /// The closest known keyword.
        nearest: String,
    },
    /// A known algorithm that is not implemented. No similar keyword is suggested, because it would
    /// be another algorithm.
    #[error("algorithm '{word}' is not supported; use e.g. '{instead}'")]
    Unsupported {
        /// The input.
        word: String,
        /// An algorithm of the same kind.
        instead: &'static str,
    },
    /// A keyword that is invalid in this type of proposal.
    #[error("'{word}' does not belong into a proposal for {protocol}: {why}")]
    Misplaced {
        /// The input.
        word: String,
        /// For what the proposal is.
        protocol: &'static str,
        /// Reason and correction.
        why: &'static str,
    },
    /// An incomplete or contradictory combination.
    #[error("'{proposal}' is no proposal for {protocol}: {why}")]
    Incomplete {
        /// The input.
        proposal: String,
        /// For what the proposal is.
        protocol: &'static str,
        /// Missing or extra words, and the correction.
        why: &'static str,
    },
}

const WHY_NO_ENC: &str = "a cipher is missing, e.g. 'aes256gcm16'";
const WHY_NO_INTEG: &str = "an integrity algorithm is missing, e.g. 'sha256'";
const WHY_NO_PRF: &str = "a pseudo-random function is missing, e.g. 'prfsha256'";
const WHY_NO_KE: &str = "a key exchange is missing, e.g. 'x25519'";
const WHY_MIXED: &str =
    "a cipher that authenticates by itself and one that does not stand in two proposals, separated by a comma";
const WHY_KE: &str = "its key exchanges cannot be chosen so that no method occurs twice";
const WHY_IIV: &str = "a cipher with implicit IV takes it from the sequence number: leave 'snnone' out";
const WHY_KE_BASE: &str = "additional key exchanges need a first one, e.g. 'x25519'";
const WHY_IKE_CIPHER: &str = "this cipher cannot protect IKE messages; take e.g. 'aes256gcm16'";
const WHY_IKE_NONE: &str = "an IKE SA always has a key exchange";
const WHY_IKE_SN: &str = "sequence numbers are a matter of Child SAs";
const WHY_PRF: &str = "pseudo-random functions are a matter of the IKE SA; leave it out";
const WHY_AH_ENC: &str = "AH encrypts nothing";
const WHY_EESP_AEAD: &str = "EESP version 0 takes only ciphers that authenticate by themselves, e.g. 'aes256gcm16'";
const WHY_ESP_WORD: &str = "it is for ESP and AH; write 'sn64' or nothing";
const WHY_EESP_WORD: &str = "it is for EESP";
const WHY_SHA256_96: &str =
    "write 'sha256' and set 'sha256_96 = yes' in the child: peers negotiate it under the number of 'sha256'";

/// Meaning of one keyword.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Word {
    Enc(&'static EncAlg),
    Integ(&'static IntegAlg),
    Prf(Prf),
    Ke(Option<KeMethod>),
    Additional(usize, Option<KeMethod>),
    Sn(SequenceNumbers),
    Sskdf(Option<SubSaKdf>),
}

/// Returns every keyword with its meaning. Slow, so it should be used only to parse a
/// configuration.
fn vocabulary() -> Vec<(String, Word)> {
    let mut words = Vec::new();
    let mut add = |names: &[&str], word| words.extend(names.iter().map(|name| ((*name).to_owned(), word)));
    for alg in EncAlg::all() {
        add(&[alg.name], Word::Enc(alg));
        add(alg.aliases, Word::Enc(alg));
    }
    for alg in IntegAlg::all().filter(|alg| alg.is_negotiable()) {
        add(&[alg.name], Word::Integ(alg));
        add(alg.aliases, Word::Integ(alg));
    }
    add(&["md5_128"], Word::Integ(integ(IntegKind::HmacMd5)));
    Prf::all().for_each(|prf| add(&[prf.name()], Word::Prf(prf)));
    for method in KeMethod::all() {
        add(&[method.name()], Word::Ke(Some(method)));
        add(method.aliases(), Word::Ke(Some(method)));
        for slot in 0..7 {
            let names = std::iter::once(method.name()).chain(method.aliases().iter().copied());
            names.for_each(|name| add(&[&format!("ke{}_{name}", slot + 1)], Word::Additional(slot, Some(method))));
        }
    }
    add(&["none", "modpnone"], Word::Ke(None));
    (0..7).for_each(|slot| add(&[&format!("ke{}_none", slot + 1)], Word::Additional(slot, None)));
    SequenceNumbers::ALL.into_iter().for_each(|sn| add(&[sn.word()], Word::Sn(sn)));
    let kdfs = SubSaKdf::ALL.into_iter().map(Some).chain([None]);
    kdfs.for_each(|kdf| add(&[sskdf_words(kdf).0], Word::Sskdf(kdf)));
    words
}

fn integ(kind: IntegKind) -> &'static IntegAlg {
    IntegAlg::all().find(|alg| alg.kind == kind).expect("each kind has a row")
}

impl SequenceNumbers {
    fn word(self) -> &'static str {
        match self {
            Self::Bits32 => "noesn",
            Self::Extended => "esn",
            Self::Bits64 => "sn64",
            Self::None => "snnone",
        }
    }
}

/// Keywords of one proposal, sorted by type.
#[derive(Default)]
struct Sorted {
    enc: Vec<&'static EncAlg>,
    integ: Vec<&'static IntegAlg>,
    prf: Vec<Prf>,
    ke: Vec<Option<KeMethod>>,
    additional: [Vec<Option<KeMethod>>; 7],
    sn: Vec<SequenceNumbers>,
    sskdf: Vec<Option<SubSaKdf>>,
}

fn once<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

impl Sorted {
    /// `misplaced` states why a word is not allowed.
    fn parse(
        protocol: &'static str,
        text: &str,
        misplaced: impl Fn(Word) -> Option<&'static str>,
    ) -> Result<Self, ProposalError> {
        let vocabulary = vocabulary();
        let mut sorted = Self::default();
        for written in text.split('-').map(str::trim) {
            let refuse = |why| Err(ProposalError::Misplaced { word: written.to_owned(), protocol, why });
            let lower = written.to_ascii_lowercase();
            if lower == "sha256_96" || lower == "sha2_256_96" {
                return refuse(WHY_SHA256_96);
            }
            let Some((_, word)) = vocabulary.iter().find(|(name, _)| *name == lower) else {
                if let Some(instead) = instead_of(&lower) {
                    return Err(ProposalError::Unsupported { word: shortened(written), instead });
                }
                // Only canonical names should be suggested; otherwise the suggestion for
                // 'aes128gcm99' would be the alias 'aes128gcm96'.
                let fits =
                    vocabulary.iter().filter(|(name, word)| misplaced(*word).is_none() && is_canonical(name, *word));
                // Some users write 'aes-256-gcm', which is split into three words, and no keyword
                // is similar to '256'.
                let joined = text.to_ascii_lowercase().replace('-', "");
                let number = lower.bytes().all(|byte| byte.is_ascii_digit()) && !lower.is_empty();
                let searched = if number { joined.as_str() } else { lower.as_str() };
                return Err(unknown(written, searched, fits.map(|(name, _)| name.as_str())));
            };
            if let Some(why) = misplaced(*word) {
                return refuse(why);
            }
            sorted.add(*word);
        }
        Ok(sorted)
    }

    fn add(&mut self, word: Word) {
        match word {
            Word::Enc(alg) => once(&mut self.enc, alg),
            Word::Integ(alg) => once(&mut self.integ, alg),
            Word::Prf(prf) => once(&mut self.prf, prf),
            Word::Ke(method) => once(&mut self.ke, method),
            Word::Additional(slot, method) => once(&mut self.additional[slot], method),
            Word::Sn(sn) => once(&mut self.sn, sn),
            Word::Sskdf(kdf) => once(&mut self.sskdf, kdf),
        }
    }

    /// Returns the error in the ciphers and integrity algorithms, if any. With AEADs integrity
    /// algorithms are ignored, because they are often written in place of the PRF.
    fn settle_ciphers(&mut self) -> Option<&'static str> {
        let aeads = self.enc.iter().filter(|enc| enc.kind.is_aead()).count();
        if self.enc.is_empty() {
            Some(WHY_NO_ENC)
        } else if aeads == self.enc.len() {
            self.integ.clear();
            None
        } else if aeads > 0 {
            Some(WHY_MIXED)
        } else {
            self.integ.is_empty().then_some(WHY_NO_INTEG)
        }
    }
}

fn unknown<'a>(written: &str, lower: &str, known: impl Iterator<Item = &'a str>) -> ProposalError {
    // A truncated keyword should match the keyword that it is a prefix of, regardless of the edit
    // distance.
    let cut = |known: &str| lower.len() > 2 && known.starts_with(lower);
    let distance = |known: &&str| if cut(known) { 1 } else { crypto::edit_distance(lower, known) };
    let nearest = known.min_by_key(distance).unwrap_or("aes256gcm16").to_owned();
    ProposalError::Unknown { word: shortened(written), nearest }
}

/// A log line should stay short, even if the word is a whole pasted file.
fn shortened(written: &str) -> String {
    written.chars().take(64).collect()
}

/// Returns whether this is the name of an algorithm rather than an alias.
fn is_canonical(name: &str, word: Word) -> bool {
    match word {
        Word::Enc(alg) => alg.name == name,
        Word::Integ(alg) => alg.name == name,
        _ => true,
    }
}

/// Prefixes of algorithms that strongSwan supports and Weir does not, with a replacement of the
/// same type.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("blowfish", "aes256gcm16"),
    ("camellia", "aes256gcm16"),
    ("cast128", "aes256gcm16"),
    ("serpent", "aes256gcm16"),
    ("twofish", "aes256gcm16"),
    ("prfcamellia", "prfsha256"),
    ("sha1_160", "sha256"),
    ("sha3_", "sha256"),
    ("ecp192", "ecp256"),
    ("ecp224", "ecp256"),
    ("ecp256bp", "ecp256"),
    ("ecp384bp", "ecp384"),
    ("ecp512bp", "ecp521"),
    ("modp1024s160", "x25519"),
    ("modp2048s224", "x25519"),
    ("modp2048s256", "x25519"),
    ("ntru", "x25519-ke1_mlkem768"),
    ("newhope", "x25519-ke1_mlkem768"),
    ("kyber", "x25519-ke1_mlkem768"),
    ("frodo", "x25519-ke1_mlkem768"),
];

fn instead_of(word: &str) -> Option<&'static str> {
    UNSUPPORTED.iter().find(|(start, _)| word.starts_with(start)).map(|(_, instead)| *instead)
}

/// The PRF implied by an integrity algorithm in a proposal without a PRF.
fn prf_of(integ: &IntegAlg) -> Prf {
    match integ.kind {
        IntegKind::HmacMd5 => Prf::HmacMd5,
        IntegKind::HmacSha1 => Prf::HmacSha1,
        IntegKind::HmacSha256 => Prf::HmacSha256,
        IntegKind::HmacSha384 => Prf::HmacSha384,
        IntegKind::HmacSha512 => Prf::HmacSha512,
        IntegKind::AesXcbc => Prf::AesXcbc,
        IntegKind::AesCmac => Prf::AesCmac,
    }
}

impl IkeProposal {
    /// One proposal of `proposals`, words joined by `-`. Where no PRF is written the integrity
    /// algorithms imply it.
    ///
    /// # Errors
    /// [`ProposalError`] names the word or what is missing.
    pub fn parse(words: &str) -> Result<Self, ProposalError> {
        let misplaced = |word| match word {
            Word::Enc(enc) if !enc.kind.is_confidential() || enc.implicit_iv => Some(WHY_IKE_CIPHER),
            Word::Ke(None) => Some(WHY_IKE_NONE),
            Word::Sn(_) | Word::Sskdf(_) => Some(WHY_IKE_SN),
            _ => None,
        };
        let refuse = |why| Err(ProposalError::Incomplete { proposal: words.to_owned(), protocol: "IKE", why });
        let mut sorted = Sorted::parse("IKE", words, misplaced)?;
        // Before `settle_ciphers`, which drops the integrity algorithms of an AEAD proposal: as in
        // strongSwan, they still imply the PRF.
        if sorted.prf.is_empty() {
            sorted.integ.iter().for_each(|integ| once(&mut sorted.prf, prf_of(integ)));
        }
        if let Some(why) = sorted.settle_ciphers() {
            return refuse(why);
        }
        let Sorted { enc, integ, prf, ke, additional, .. } = sorted;
        let proposal = Self { enc, integ, prf, ke: ke.into_iter().flatten().collect(), additional };
        debug_assert!(proposal.enc.iter().all(|enc| SkSuite::new(enc, proposal.integ.first().copied()).is_some()));
        if proposal.prf.is_empty() {
            refuse(WHY_NO_PRF)
        } else if proposal.ke.is_empty() {
            refuse(WHY_NO_KE)
        } else if !choice::is_possible_ike(&proposal) {
            refuse(WHY_KE)
        } else {
            Ok(proposal)
        }
    }
}

impl ChildProposal {
    /// One proposal of `esp_proposals` and its like, words joined by `-`. By default, ESP and AH
    /// offer both lengths of sequence numbers, 32 bits first, and EESP offers 64 bits.
    ///
    /// # Errors
    /// [`ProposalError`] names the word or what is missing.
    pub fn parse(protocol: ChildProtocol, words: &str) -> Result<Self, ProposalError> {
        let eesp = protocol == ChildProtocol::Eesp;
        let misplaced = |word| match word {
            Word::Prf(_) => Some(WHY_PRF),
            Word::Enc(_) if protocol == ChildProtocol::Ah => Some(WHY_AH_ENC),
            Word::Enc(enc) if eesp && !enc.kind.is_aead() => Some(WHY_EESP_AEAD),
            Word::Integ(_) if eesp => Some(WHY_EESP_AEAD),
            Word::Sn(SequenceNumbers::Bits32 | SequenceNumbers::Extended) if eesp => Some(WHY_ESP_WORD),
            Word::Sn(SequenceNumbers::Bits64 | SequenceNumbers::None) | Word::Sskdf(_) if !eesp => Some(WHY_EESP_WORD),
            _ => None,
        };
        let refuse =
            |why| Err(ProposalError::Incomplete { proposal: words.to_owned(), protocol: protocol.name(), why });
        let mut sorted = Sorted::parse(protocol.name(), words, misplaced)?;
        let wrong = match protocol {
            ChildProtocol::Ah => sorted.integ.is_empty().then_some(WHY_NO_INTEG),
            _ => sorted.settle_ciphers(),
        };
        if let Some(why) = wrong {
            return refuse(why);
        }
        if sorted.sn.is_empty() {
            // strongSwan treats a proposal without `esn` as `noesn`, and some peers select the
            // first transform that they read, so the one that every peer supports should come
            // first.
            sorted.sn = if eesp {
                vec![SequenceNumbers::Bits64]
            } else {
                vec![SequenceNumbers::Bits32, SequenceNumbers::Extended]
            };
        }
        let Sorted { enc, integ, ke, additional, sn, sskdf, .. } = sorted;
        let proposal = Self { protocol, enc, integ, ke, additional, sn, sskdf };
        let extra = proposal.additional.iter().flatten().any(Option::is_some);
        if extra && !proposal.ke.iter().any(Option::is_some) {
            refuse(WHY_KE_BASE)
        } else if proposal.is_implicit_iv_without_sn() {
            refuse(WHY_IIV)
        } else if !choice::is_possible_child(&proposal) {
            refuse(WHY_KE)
        } else {
            Ok(proposal)
        }
    }

    /// Returns whether every choice would have an implicit IV without a sequence number (RFC 8750).
    fn is_implicit_iv_without_sn(&self) -> bool {
        self.sn == [SequenceNumbers::None] && self.enc.iter().all(|enc| enc.implicit_iv)
    }
}

/// Writes words joined by `-`.
fn join(f: &mut fmt::Formatter<'_>, words: impl Iterator<Item = String>) -> fmt::Result {
    f.write_str(&words.collect::<Vec<_>>().join("-"))
}

fn additional_words(slots: &[Vec<Option<KeMethod>>; 7]) -> impl Iterator<Item = String> {
    let word = |slot, method: &Option<KeMethod>| format!("ke{slot}_{}", method.map_or("none", KeMethod::name));
    (1..).zip(slots).flat_map(move |(slot, methods)| methods.iter().map(move |method| word(slot, method)))
}

impl fmt::Display for IkeProposal {
    /// The words that make this proposal again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let enc = self.enc.iter().map(|enc| enc.name);
        let integ = self.integ.iter().map(|integ| integ.name);
        let rest = self.prf.iter().map(|prf| prf.name()).chain(self.ke.iter().map(|ke| ke.name()));
        join(f, enc.chain(integ).chain(rest).map(str::to_owned).chain(additional_words(&self.additional)))
    }
}

impl fmt::Display for ChildProposal {
    /// The words that make this proposal again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let enc = self.enc.iter().map(|enc| enc.name);
        let integ = self.integ.iter().map(|integ| integ.name);
        let ke = self.ke.iter().map(|ke| ke.map_or("none", KeMethod::name));
        let rest = self.sn.iter().map(|sn| sn.word()).chain(self.sskdf.iter().map(|kdf| sskdf_words(*kdf).0));
        let first = enc.chain(integ).chain(ke).map(str::to_owned);
        join(f, first.chain(additional_words(&self.additional)).chain(rest.map(str::to_owned)))
    }
}
