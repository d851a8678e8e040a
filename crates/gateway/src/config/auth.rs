//! The rounds of authentication of a connection: its sections `local…` and `remote…`.

use ike::config::{Auth, AuthMethod, EapType, Revocation, Version};
use ike::identity::IdPattern;

use super::cert::Context;
use super::problem::nearest;
use super::proposal::refuse_weak;
use super::schema::AUTH;
use super::value::{Fields, ValueError, number, suggestion, word};

/// Side that authenticates.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Side {
    Local,
    Remote,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        if self == Self::Local { "local" } else { "remote" }
    }
}

/// Kinds of keys that a constraint begins with.
const KEYS: &[&str] = &["pubkey", "rsa", "rsa/pss", "ecdsa", "ed25519", "ed448"];
/// Hashes that a constraint may name.
const HASHES: &[&str] = &["sha256", "sha384", "sha512", "sha224", "identity", "sha1", "md5"];

/// All rounds of one side, in their order; one that does not say how is by certificate.
pub(crate) fn rounds(
    fields: &Fields<'_>,
    (side, version): (Side, Version),
    legacy: bool,
    context: &Context<'_>,
) -> Vec<Auth> {
    let sections = fields.section().sections.iter().filter(|section| section.name.starts_with(side.name()));
    let mut rounds: Vec<(u64, Auth)> = sections
        .map(|section| {
            let path = format!("{}.{}", fields.path(), section.name);
            read(&Fields::of(section, path, AUTH, fields.sink()), (side, version), legacy, context)
        })
        .collect();
    rounds.sort_by_key(|(round, _)| *round);
    if rounds.is_empty() {
        return vec![certificate_of_anybody()];
    }
    rounds.into_iter().map(|(_, auth)| auth).collect()
}

fn certificate_of_anybody() -> Auth {
    Auth::new(AuthMethod::PublicKey(Vec::new()), IdPattern::Any)
}

fn read(fields: &Fields<'_>, (side, version): (Side, Version), legacy: bool, context: &Context<'_>) -> (u64, Auth) {
    let default = certificate_of_anybody();
    let round = fields.get("round", number(0..=u64::from(u32::MAX))).unwrap_or(0);
    let method = fields.get("auth", |text| method(text, (side, version), legacy)).unwrap_or(default.method);
    let text = |text: &str| Ok(text.to_owned());
    let xauth_id = fields.get("xauth_id", eap_identity);
    if xauth_id.is_some() && method != AuthMethod::XAuth {
        let help = "write 'auth = xauth' in a connection with 'version = 1', or use EAP with IKEv2: 'auth = eap-mschapv2' \
                    and 'eap_id'";
        fields.fault_of("xauth_id", "this round is not XAuth", help);
    }
    let mut auth = Auth {
        id: fields.get("id", pattern).unwrap_or(IdPattern::Any),
        eap_id: fields.get("eap_id", eap_identity).or(xauth_id),
        certs: context.certificates(fields, false),
        cacerts: context.certificates(fields, true),
        pubkeys: context.files(fields, "pubkeys", "pubkey").into_iter().map(|key| key.der).collect(),
        groups: fields.list("groups", text).unwrap_or_default(),
        cert_policy: fields.list("cert_policy", oid).unwrap_or_default(),
        revocation: fields
            .get(
                "revocation",
                word(&[("relaxed", Revocation::Relaxed), ("ifuri", Revocation::IfUri), ("strict", Revocation::Strict)]),
            )
            .unwrap_or(default.revocation),
        method,
    };
    let sections: Vec<&str> = fields.section().sections.iter().map(|section| section.name.as_str()).collect();
    let known: Vec<&str> =
        sections.into_iter().filter(|name| name.starts_with("cert") || name.starts_with("cacert")).collect();
    fields.finish(&known, |_| None);
    if side == Side::Local {
        for (key, there) in [("groups", !auth.groups.is_empty()), ("cert_policy", !auth.cert_policy.is_empty())] {
            if there {
                fields.fault_of(key, "only a peer can be asked for this", "move it to 'remote', or remove it");
            }
        }
    }
    // As strongSwan: a client of EAP is the subject of the certificate that it names. Its IDi is
    // sent before a method runs.
    if side == Side::Local
        && matches!(auth.method, AuthMethod::Eap(_))
        && auth.id == IdPattern::Any
        && let Some(subject) = auth.certs.first().and_then(|first| context.subject_of(first))
    {
        auth.id = IdPattern::Like(subject);
    }
    (round, auth)
}

/// A value of `auth`.
fn method(text: &str, (side, version): (Side, Version), legacy: bool) -> Result<AuthMethod, ValueError> {
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "any" if side == Side::Remote => return Ok(AuthMethod::Any),
        "any" => return Err("this host must choose: pubkey, psk, eap-METHOD".into()),
        "psk" => return Ok(AuthMethod::Psk),
        "eap" => return Ok(AuthMethod::Eap(None)),
        // As in strongSwan: the server accepts the method that the client requests.
        "eap-dynamic" if side == Side::Remote => return Ok(AuthMethod::Eap(None)),
        "eap-dynamic" => return Err("the peer chooses the method: write eap".into()),
        _ => {}
    }
    if let Some(method) = lower.strip_prefix("eap-") {
        return match method {
            "md5" => Ok(AuthMethod::Eap(Some(EapType::Md5))),
            "mschapv2" => Ok(AuthMethod::Eap(Some(EapType::MsChapV2))),
            "tls" => Ok(AuthMethod::Eap(Some(EapType::Tls))),
            _ if method.starts_with("tls:") => {
                Err("write eap-tls without constraints, and name the CA in 'cacerts'".into())
            }
            "radius" | "ttls" | "peap" | "gtc" | "sim" | "aka" | "identity" => {
                Err(format!("eap-{method} is not supported; write eap-mschapv2, eap-md5 or eap-tls").into())
            }
            _ => Err(match nearest(method, ["md5", "mschapv2", "tls"]) {
                Some(name) => format!("did you mean 'eap-{name}'?").into(),
                None => "write eap-mschapv2, eap-md5 or eap-tls".into(),
            }),
        };
    }
    if lower.starts_with("xauth") {
        return match &*lower {
            _ if version == Version::V2 => {
                Err("XAuth is part of IKEv1; write 'version = 1', or use eap-mschapv2 with IKEv2".into())
            }
            "xauth" | "xauth-generic" => Ok(AuthMethod::XAuth),
            _ => Err("write xauth: passwords are in 'secrets', and there are no other backends".into()),
        };
    }
    constraints(&lower, legacy).map(AuthMethod::PublicKey)
}

/// Constraints, each from the word that names its kind of key: `rsa-2048-sha256`,
/// `ike:ecdsa-sha384`.
fn constraints(text: &str, legacy: bool) -> Result<Vec<String>, ValueError> {
    let mut groups: Vec<String> = Vec::new();
    let mut after_key = false;
    for token in text.split('-') {
        let kind = token.strip_prefix("ike:").unwrap_or(token);
        if KEYS.contains(&kind) {
            groups.push(token.to_owned());
            after_key = matches!(kind, "rsa" | "rsa/pss" | "ecdsa");
            continue;
        }
        let Some(group) = groups.last_mut() else {
            let known = ["psk", "eap-mschapv2", "eap-md5", "eap-tls"].into_iter().chain(KEYS.iter().copied());
            return Err(match nearest(text, known.clone()) {
                Some(name) => format!("did you mean '{name}'?").into(),
                None => format!("write one of: {}", known.collect::<Vec<_>>().join(", ")).into(),
            });
        };
        let bits = std::mem::take(&mut after_key) && number(1..=65_536)(token).is_ok();
        if !bits && !HASHES.contains(&token) {
            return Err(format!(
                "'{token}' is neither a hash nor a key type; {}",
                suggestion(token, HASHES.iter().copied())
            )
            .into());
        }
        refuse_weak(matches!(token, "md5" | "sha1").then_some(token), legacy)?;
        group.push('-');
        group.push_str(token);
    }
    Ok(if groups == ["pubkey"] { Vec::new() } else { groups })
}

/// An identity that may be a pattern.
pub(crate) fn pattern(text: &str) -> Result<IdPattern, ValueError> {
    IdPattern::parse(text).map_err(|why| why.to_string().into())
}

/// A value of `eap_id`.
fn eap_identity(text: &str) -> Result<IdPattern, ValueError> {
    pattern(if text == "%identity" { "%any" } else { text })
}

fn oid(text: &str) -> Result<String, ValueError> {
    let arcs: Vec<&str> = text.split('.').collect();
    let number = |arc: &&str| !arc.is_empty() && arc.bytes().all(|b| b.is_ascii_digit());
    let fits = arcs.len() >= 2 && arcs.iter().all(number) && matches!(arcs[0], "0" | "1" | "2");
    fits.then(|| text.to_owned()).ok_or_else(|| "write an OID in numbers, for example 1.3.6.1.4.1.36906".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_are_cut_at_their_keys() {
        let remote = (Side::Remote, Version::V2);
        let read = |text: &str| match method(text, remote, false) {
            Ok(AuthMethod::PublicKey(groups)) => Ok(groups.join(" ")),
            Ok(other) => Err(format!("{other:?}")),
            Err(why) => Err(why.to_string()),
        };
        assert_eq!(read("pubkey"), Ok(String::new()));
        assert_eq!(read("rsa-2048-sha256-ecdsa-256-sha384"), Ok("rsa-2048-sha256 ecdsa-256-sha384".into()));
        assert_eq!(read("pubkey-sha256-ike:rsa/pss-sha384"), Ok("pubkey-sha256 ike:rsa/pss-sha384".into()));
        assert_eq!(read("ed25519"), Ok("ed25519".into()));
        assert_eq!(read("ike:pubkey-sha384-sha256"), Ok("ike:pubkey-sha384-sha256".into()));
        for (bad, words) in [
            ("pubkye", "did you mean 'pubkey'?"),
            ("rsa-2048-sha265", "did you mean 'sha256'?"),
            ("rsa-sha1", "too weak"),
            ("eap-peap", "eap-mschapv2"),
            ("eap-mschap", "did you mean 'eap-mschapv2'?"),
            ("xauth-pam", "IKEv1"),
            ("xauth", "IKEv1"),
            ("XAuth-EAP", "IKEv1"),
            ("secret", "write one of"),
            ("rsa-2048-4096", "'4096' is neither"),
        ] {
            let why = method(bad, remote, false).unwrap_err().to_string();
            assert!(why.contains(words), "{bad}: {why}");
        }
        let local = (Side::Local, Version::V2);
        assert!(method("rsa-sha1", remote, true).is_ok());
        assert_eq!(method("EAP-TLS", local, false), Ok(AuthMethod::Eap(Some(EapType::Tls))));
        assert!(method("any", local, false).is_err());
        for side in [Side::Local, Side::Remote] {
            assert_eq!(method("xauth", (side, Version::V1), false), Ok(AuthMethod::XAuth));
            assert!(method("xauth-pam", (side, Version::V1), false).is_err());
        }
        for (side, text) in [(Side::Local, "eap"), (Side::Remote, "eap"), (Side::Remote, "eap-dynamic")] {
            assert_eq!(method(text, (side, Version::V2), false), Ok(AuthMethod::Eap(None)));
        }
        assert!(method("eap-dynamic", local, false).unwrap_err().to_string().contains("write eap"));
        assert_eq!(eap_identity("%identity"), Ok(IdPattern::Any));
        assert_eq!(eap_identity("*@weir.test"), pattern("*@weir.test"));
    }
}
