//! Suites, and the keys that they need.

use crypto::{Suite, SuiteError};

use super::super::value::{Fields, Secret, octets};
use super::Shared;

pub(super) fn suite(
    fields: &Fields<'_>,
    shared: &Shared<'_>,
    parse: fn(&str) -> Result<Suite, SuiteError>,
) -> Option<Suite> {
    let suite = fields.need("suite", |text| parse(text).map_err(|why| why.to_string().into()))?;
    if let Some(weak) = suite.weak().filter(|_| !shared.gateway.allow_legacy) {
        let help = "choose another, for example aes128gcm16; if the peer supports nothing better: 'allow_legacy = yes' in the section 'gateway'";
        fields.fault_of("suite", format!("'{weak}' is too weak to be used by default"), help);
        return None;
    }
    Some(suite)
}

/// Cipher key with salt, and MAC key, from `key` or from `enc_key` and `integ_key`.
pub(super) fn keys(fields: &Fields<'_>, suite: &Suite) -> Option<(Secret, Secret)> {
    let (enc_len, integ_len) = (suite.enc_material_len(), suite.integ_material_len());
    let whole = fields.get_own("key", octets);
    let parts = (fields.get_own("enc_key", octets), fields.get_own("integ_key", octets));
    let written = |key: &str| fields.section().setting(key).is_some();
    if written("key") && (written("enc_key") || written("integ_key")) {
        fields.fault_of("key", "both 'key' and its parts are set", "write 'key', or 'enc_key' and 'integ_key'");
        return None;
    }
    if written("key") {
        let whole = whole?;
        check_length(fields, "key", &whole, enc_len + integ_len, &made_of(suite))?;
        let (enc, integ) = whole.octets().split_at(enc_len);
        return Some((Secret::new(enc.to_vec()), Secret::new(integ.to_vec())));
    }
    let part = |key: &'static str, value: Option<Secret>, need: usize, what: &str| {
        if need > 0 && !written(key) {
            let message = if written("enc_key") || written("integ_key") { key } else { "key" };
            fields.fault(
                format!("'{message}' is missing"),
                format!("add '{message} = 0x…'; {suite} needs {} bytes ({})", enc_len + integ_len, made_of(suite)),
            );
            return None;
        }
        let value = value.or_else(|| (need == 0 && !written(key)).then(|| Secret::new(Vec::new())))?;
        check_length(fields, key, &value, need, what)?;
        Some(value)
    };
    let enc = part("enc_key", parts.0, enc_len, "cipher key and salt")?;
    let integ = part("integ_key", parts.1, integ_len, "MAC key")?;
    Some((enc, integ))
}

pub(super) fn check_length(
    fields: &Fields<'_>,
    key: &'static str,
    value: &Secret,
    need: usize,
    what: &str,
) -> Option<()> {
    if value.len() == need {
        return Some(());
    }
    let help = if need == 0 { "remove it".into() } else { format!("write {need} bytes: {what}") };
    fields.fault_of(key, format!("wrong length: {} bytes instead of {need}", value.len()), help);
    None
}

pub(super) fn made_of(suite: &Suite) -> String {
    let mut parts = Vec::new();
    if let Some(enc) = suite.enc.filter(|enc| enc.key_len > 0) {
        parts.push(format!("{} for {}", enc.key_len, enc.name));
        if enc.salt_len > 0 {
            parts.push(format!("{} of salt", enc.salt_len));
        }
    }
    if let Some(integ) = suite.integ {
        parts.push(format!("{} for {}", integ.key_len, integ.name));
    }
    parts.join(", then ")
}

/// Marks the keys as known if their required length is unknown.
pub(super) fn ask_keys<T>(fields: &Fields<'_>) -> Option<T> {
    for key in ["key", "enc_key", "integ_key"] {
        let _ = fields.get_own(key, octets);
    }
    None
}
