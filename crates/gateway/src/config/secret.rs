//! The sections of `secrets`, and what `load-shared` of vici carries.

use std::fmt;

use super::problem::{Problem, Problems};
use super::schema::SECRET;
use super::syntax::{Section, Setting};
use super::value::{Fields, Secret, Sink, ValueError, from_base64, from_hex, items, suggestion};

/// Kind of a secret.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)] // each is named as its section
pub enum SecretKind {
    Ike,
    Eap,
    Ntlm,
    Ppk,
    Private,
    Rsa,
    Ecdsa,
    Pkcs8,
    Pkcs12,
}

impl SecretKind {
    /// In the order in which prefixes are looked at: pkcs12 and pkcs8 differ, so do private and
    /// ppk.
    const ALL: &[(&str, Self)] = &[
        ("ike", Self::Ike),
        ("eap", Self::Eap),
        ("xauth", Self::Eap),
        ("ntlm", Self::Ntlm),
        ("ppk", Self::Ppk),
        ("private", Self::Private),
        ("rsa", Self::Rsa),
        ("ecdsa", Self::Ecdsa),
        ("pkcs8", Self::Pkcs8),
        ("pkcs12", Self::Pkcs12),
    ];

    /// As the section begins; of key files also the folder.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Returns whether the secret decrypts a key file.
    pub fn is_passphrase(self) -> bool {
        matches!(self, Self::Private | Self::Rsa | Self::Ecdsa | Self::Pkcs8 | Self::Pkcs12)
    }
}

/// One secret. A key file with several passphrases has an entry for each.
#[derive(Clone, Eq, PartialEq)]
pub struct SecretEntry {
    /// Name of its section, or the identifier that vici gave it.
    pub name: String,
    /// Kind.
    pub kind: SecretKind,
    /// Identities of the owners; empty: any.
    pub ids: Vec<String>,
    /// Name of the key file in the folder of that kind; case does not matter.
    pub file: Option<String>,
    pub(crate) secret: Secret,
}

impl SecretEntry {
    /// The octets, zeroed on drop.
    pub fn octets(&self) -> &[u8] {
        self.secret.octets()
    }
}

impl fmt::Debug for SecretEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} secret {} of {:?}]", self.kind.name(), self.name, self.ids)
    }
}

/// Reads one section of `secrets`.
pub(crate) fn read(section: &Section, path: &str, sink: &Sink) -> Vec<SecretEntry> {
    let fields = Fields::secret(section, path.to_owned(), SECRET, sink);
    let Some(kind) = kind(section, &fields) else { return Vec::new() };
    let mut entries = Vec::new();
    let values = |prefix: &'static str| section.settings.iter().filter(move |s| s.name.starts_with(prefix));
    let ids: Vec<String> = values("id").map(|setting| setting.value.to_string()).collect();
    let file = fields.setting("file").map(|setting| setting.value.to_string());
    let help = match (kind.is_passphrase(), &file, ids.is_empty()) {
        (true, None, _) => {
            Some(("'file' is missing", format!("add 'file = NAME', a file in the folder {}", kind.name())))
        }
        (true, _, false) => Some(("'id' does not apply to a passphrase", "remove 'id'".to_owned())),
        (false, Some(_), _) => Some(("'file' applies to passphrases only", "remove 'file'".to_owned())),
        _ => None,
    };
    if let Some((message, help)) = help {
        fields.fault(message, help);
    }
    for setting in values("secret") {
        match decode(setting, kind) {
            Ok(secret) => entries.push(SecretEntry {
                name: section.name.clone(),
                kind,
                ids: ids.clone(),
                file: file.clone(),
                secret,
            }),
            Err(expected) => {
                let message = format!("{path}.{}: invalid value", setting.name);
                sink.push(Problem::at(&setting.value_at, message).help(expected.to_string()).secret());
            }
        }
    }
    match values("secret").count() {
        0 => fields.fault("'secret' is missing", "add 'secret = …' to this section"),
        1 => {}
        _ if kind.is_passphrase() => {}
        _ => fields.fault("more than one secret", "write one section for each"),
    }
    let mut others = section.clone();
    others.settings.retain(|s| !s.name.starts_with("id") && !s.name.starts_with("secret") && s.name != "file");
    Fields::secret(&others, path.to_owned(), SECRET, sink).finish(&[], |_| None);
    entries
}

fn kind(section: &Section, fields: &Fields<'_>) -> Option<SecretKind> {
    if section.name.starts_with("token") {
        let help = "put the key into a file in the folder 'private', and its passphrase into a section 'private'";
        fields.fault("tokens and smartcards are not supported", help);
        return None;
    }
    let found = SecretKind::ALL.iter().find(|(name, _)| section.name.starts_with(name));
    if found.is_none() {
        let message = format!("unknown kind of secret '{}'", section.name);
        let names = SecretKind::ALL.iter().map(|(name, _)| *name);
        let listed: Vec<&str> = names.clone().collect();
        let help = super::problem::nearest(&section.name, names)
            .map(|name| format!("did you mean '{name}'?"))
            .unwrap_or_else(|| format!("begin the name with one of: {}", listed.join(", ")));
        fields.fault(message, help);
    }
    found.map(|(_, kind)| *kind)
}

/// Text, or octets after `0x` or `0s`. A passphrase is always text.
fn decode(setting: &Setting, kind: SecretKind) -> Result<Secret, ValueError> {
    let text = setting.value.as_str();
    let octets = match (text.get(..2), text.get(2..)) {
        (Some("0x" | "0X"), Some(hex)) if !kind.is_passphrase() => {
            from_hex(hex).ok_or("write an even number of hexadecimal digits after 0x, or the text in another form")?
        }
        (Some("0s" | "0S"), Some(base64)) if !kind.is_passphrase() => {
            from_base64(base64).ok_or("write base64 with its padding after 0s, or the text in another form")?
        }
        _ => text.as_bytes().to_vec(),
    };
    let octets = Secret::new(octets);
    if kind == SecretKind::Ntlm && octets.len() != 16 {
        return Err("write the NT hash, 16 bytes as 0x… or 0s…; for the password itself use 'eap'".into());
    }
    Ok(octets)
}

/// Reads the message of `load-shared`: `id`, `type`, `data`, `owners`.
///
/// # Errors
/// Missing or unknown names; never the secret.
pub fn load_shared(message: &Section) -> Result<SecretEntry, Problems> {
    let wrong = |text: String, help: String| Problems::from(Problem::at(&message.at, text).help(help).secret());
    let text = |key: &str| message.setting(key).map(|setting| setting.value.to_string());
    let kind = text("type").unwrap_or_default();
    let shared = || SecretKind::ALL.iter().filter(|(_, kind)| !kind.is_passphrase());
    let Some((_, kind)) = shared().find(|(name, _)| name.eq_ignore_ascii_case(&kind)) else {
        let help = suggestion(&kind.to_ascii_lowercase(), shared().map(|(name, _)| *name));
        return Err(wrong(format!("type: unknown kind of shared key '{kind}'"), help));
    };
    let octets = message.setting("data").and_then(|setting| items(setting).into_iter().next());
    let Some(octets) = octets.filter(|octets| !octets.is_empty()) else {
        return Err(wrong("data: the secret is missing".into(), "add its octets".into()));
    };
    if *kind == SecretKind::Ntlm && octets.len() != 16 {
        return Err(wrong(
            format!("data: an NT hash has 16 bytes, not {}", octets.len()),
            "use type EAP for a password".into(),
        ));
    }
    let owners = message.setting("owners").map(items).unwrap_or_default();
    let ids = owners.iter().map(|owner| String::from_utf8_lossy(owner).into_owned()).collect();
    let secret = Secret::new(octets.to_vec());
    Ok(SecretEntry { name: text("id").unwrap_or_default(), kind: *kind, ids, file: None, secret })
}
