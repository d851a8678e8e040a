//! `.mobileconfig` of iOS and macOS: a property list with the CA, the identity and an IKEv2
//! connection (Apple's payloads `com.apple.security.root`, `com.apple.security.pkcs12` and
//! `com.apple.vpn.managed`).

use anyhow::bail;
use credentials::pem::base64;
use crypto::ike::{Curve, PublicKeyKind};
use zeroize::Zeroizing;

use super::{Cipher, Client, Gateway};

/// A value of a property list.
enum Plist<'a> {
    Text(String),
    Number(i64),
    Data(&'a [u8]),
    Array(Vec<Plist<'a>>),
    Dict(Vec<(&'static str, Plist<'a>)>),
}

impl Plist<'_> {
    fn write(&self, indent: usize, out: &mut String) {
        let space = "  ".repeat(indent);
        match self {
            Self::Text(text) => out.push_str(&format!("{space}<string>{}</string>\n", escaped(text))),
            Self::Number(number) => out.push_str(&format!("{space}<integer>{number}</integer>\n")),
            Self::Data(bytes) => {
                out.push_str(&space);
                out.push_str("<data>");
                out.push_str(&base64(bytes));
                out.push_str("</data>\n");
            }
            Self::Array(values) => {
                out.push_str(&format!("{space}<array>\n"));
                values.iter().for_each(|value| value.write(indent + 1, out));
                out.push_str(&format!("{space}</array>\n"));
            }
            Self::Dict(entries) => {
                out.push_str(&format!("{space}<dict>\n"));
                for (key, value) in entries {
                    out.push_str(&format!("{space}  <key>{key}</key>\n"));
                    value.write(indent + 1, out);
                }
                out.push_str(&format!("{space}</dict>\n"));
            }
        }
    }
}

/// Text of XML; control characters are not allowed there.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars().filter(|c| !c.is_control()) {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            other => out.push(other),
        }
    }
    out
}

/// The entries that every payload has.
struct Head<'a> {
    client: &'a Client<'a>,
    gateway: &'a Gateway,
}

impl Head<'_> {
    fn payload<'p>(&self, kind: &str, purpose: &str, name: &str, rest: Vec<(&'static str, Plist<'p>)>) -> Plist<'p> {
        let profile = self.client.uuid(self.gateway, "profile");
        let mut entries = vec![
            ("PayloadType", text(kind)),
            ("PayloadVersion", Plist::Number(1)),
            ("PayloadIdentifier", text(format!("org.weir.{profile}.{purpose}"))),
            ("PayloadUUID", text(self.client.uuid(self.gateway, purpose))),
            ("PayloadDisplayName", text(name)),
        ];
        entries.extend(rest);
        Plist::Dict(entries)
    }
}

fn text<'a>(value: impl Into<String>) -> Plist<'a> {
    Plist::Text(value.into())
}

fn algorithms<'a>(encryption: &str, lifetime_min: i64) -> Plist<'a> {
    Plist::Dict(vec![
        ("EncryptionAlgorithm", text(encryption)),
        ("IntegrityAlgorithm", text("SHA2-256")),
        ("DiffieHellmanGroup", Plist::Number(19)),
        ("LifeTimeInMinutes", Plist::Number(lifetime_min)),
    ])
}

/// The profile. The identity is encrypted with the password, which the device requests.
///
/// # Errors
/// The kind of key is not supported.
pub(crate) fn profile(
    client: &Client<'_>,
    gateway: &Gateway,
    password: &str,
    cipher: Cipher,
) -> anyhow::Result<Zeroizing<String>> {
    let certificate_type = match client.key.kind()? {
        PublicKeyKind::Rsa { .. } => "RSA",
        PublicKeyKind::Ecdsa(Curve::P256) => "ECDSA256",
        PublicKeyKind::Ecdsa(Curve::P384) => "ECDSA384",
        _ => bail!("profiles of Apple's systems have no such kind of key; issue the certificate with --key ecdsa-p256"),
    };
    let identity = client.pkcs12(password, cipher)?;
    let ikev2 = Plist::Dict(vec![
        ("RemoteAddress", text(&gateway.address)),
        ("RemoteIdentifier", text(&gateway.id)),
        ("LocalIdentifier", text(client.id())),
        ("AuthenticationMethod", text("Certificate")),
        ("CertificateType", text(certificate_type)),
        ("PayloadCertificateUUID", text(client.uuid(gateway, "identity"))),
        ("ServerCertificateIssuerCommonName", text(client.authority_name)),
        ("ExtendedAuthEnabled", Plist::Number(0)),
        ("DeadPeerDetectionRate", text("Medium")),
        ("IKESecurityAssociationParameters", algorithms("AES-256", 1440)),
        ("ChildSecurityAssociationParameters", algorithms("AES-256-GCM", 480)),
    ]);
    let head = Head { client, gateway };
    let root = vec![("PayloadContent", Plist::Data(client.authority.der()))];
    let key = vec![("PayloadContent", Plist::Data(&identity))];
    let vpn = vec![("UserDefinedName", text(&gateway.address)), ("VPNType", text("IKEv2")), ("IKEv2", ikev2)];
    let content = Plist::Array(vec![
        head.payload("com.apple.security.root", "root", client.authority_name, root),
        head.payload("com.apple.security.pkcs12", "identity", client.name, key),
        head.payload("com.apple.vpn.managed", "vpn", &gateway.address, vpn),
    ]);
    let name = format!("{} at {}", client.name, gateway.address);
    let root = head.payload("Configuration", "profile", &name, vec![("PayloadContent", content)]);
    let mut out = Zeroizing::new(String::with_capacity(16 << 10));
    out.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" ");
    out.push_str("\"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n<plist version=\"1.0\">\n");
    root.write(0, &mut out);
    out.push_str("</plist>\n");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{gateway, with_client};
    use super::*;
    use crate::key::KeyKind;

    #[test]
    fn a_profile_has_the_authority_the_identity_and_the_connection() {
        with_client(KeyKind::EcdsaP384, |client| {
            let profile = profile(client, &gateway(), "a pass", Cipher::TripleDes).expect("a profile");
            let value = |key: &str| {
                let (_, after) = profile.split_once(&format!("<key>{key}</key>")).expect(key);
                after.split(['<', '>']).nth(2).expect("a value").to_owned()
            };
            assert_eq!(value("CertificateType"), "ECDSA384");
            assert_eq!(value("LocalIdentifier"), "alice@example.org");
            assert_eq!(value("RemoteIdentifier"), "vpn.example.org");
            assert_eq!(value("ServerCertificateIssuerCommonName"), "Müller &amp; &lt;Söhne&gt;");
            assert_eq!(value("PayloadCertificateUUID"), client.uuid(&gateway(), "identity"));
            assert_eq!(profile.matches("<key>PayloadUUID</key>").count(), 4);
            assert!(!profile.contains("a pass"), "the password is not in the file");
        });
        with_client(KeyKind::Ed25519, |client| {
            assert!(profile(client, &gateway(), "a pass", Cipher::TripleDes).is_err());
        });
    }

    #[test]
    fn text_cannot_end_its_element() {
        assert_eq!(escaped("a</string>&\u{0}b"), "a&lt;/string&gt;&amp;b");
    }
}
