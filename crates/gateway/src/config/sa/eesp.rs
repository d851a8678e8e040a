//! EESP with manual keys.

use crypto::Suite;
use crypto::kdf::SubSaKdf;

use super::super::value::{Fields, number, octets, offset, switch, word};
use super::half::spi;
use super::keys::{check_length, made_of, suite};
use super::{Direction, HalfProto, Shared};

pub(super) fn eesp(fields: &Fields<'_>, direction: Direction, shared: &Shared<'_>) -> Option<HalfProto> {
    let out = direction == Direction::Out;
    let (spi, suite) = (spi(fields), suite(fields, shared, Suite::parse_eesp));
    let seq = fields.get("seq", switch).unwrap_or(true);
    let count = fields.get("sub_sas", number(0..=65_536)).unwrap_or(0) as u32;
    let kdf = fields.get(
        "sskdf",
        word(&[("sha256", SubSaKdf::HkdfSha256), ("sha384", SubSaKdf::HkdfSha384), ("sha512", SubSaKdf::HkdfSha512)]),
    );
    let session = fields.get("session", number(0..=65_535)).unwrap_or(0) as u16;
    let crypt_offset = fields.get_own(if out { "crypt_offset" } else { "max_crypt_offset" }, offset);
    let options = if out { fields.get_own("options", octets) } else { None };
    let strict_options = !out && fields.get_own("strict_options", switch).unwrap_or(false);
    let first_iv = if out { fields.get_own("first_iv", number(0..=u64::MAX)) } else { None };
    let key = fields.need_own("key", octets);

    if kdf.is_some() && count == 0 {
        fields.fault_of("sskdf", "no Sub SAs to derive keys for", "add 'sub_sas = NUMBER', or remove it");
    }
    if count > 0 && u32::from(session) >= count {
        fields.fault_of(
            "session",
            format!("Session IDs of {count} Sub SAs end at {}", count - 1),
            "write a smaller one",
        );
        return None;
    }
    let options = options.map(|o| o.octets().to_vec()).unwrap_or_default();
    if options.len() % 4 != 0 || options.len() > 252 {
        fields.fault_of(
            "options",
            format!("{} bytes do not fit", options.len()),
            "pad the options with PadN to a multiple of 4 bytes, at most 252",
        );
        return None;
    }
    let (suite, key) = (suite?, key?);
    let sub_sas = (count > 0).then(|| (kdf.unwrap_or(SubSaKdf::HkdfSha256), count));
    match sub_sas {
        Some((kdf, _)) => check_length(fields, "key", &key, kdf.root_len(), "the root key, as long as the hash")?,
        None => check_length(fields, "key", &key, suite.enc_material_len(), &made_of(&suite))?,
    }
    if !seq && suite.iv_len() == 0 {
        let help = format!("use '{}', or 'seq = yes'", suite.to_string().trim_end_matches("iiv"));
        fields.fault_of("seq", format!("{suite} makes its IV from sequence numbers that are not sent"), help);
        return None;
    }
    if first_iv.is_some() && suite.iv_len() == 0 {
        fields.fault_of("first_iv", format!("{suite} sends no IV"), "use first_seq, or remove it");
        return None;
    }
    let spi = spi?;
    Some(HalfProto::Eesp { spi, suite, key, sub_sas, session, seq, crypt_offset, options, strict_options, first_iv })
}
