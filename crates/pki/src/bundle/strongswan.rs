//! `.sswan`: a profile of strongSwan's client for Android, JSON.

use credentials::pem::base64;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{Cipher, Client, Gateway};

/// The profile. The identity is encrypted with the password, which the import requests.
///
/// # Errors
/// Android does not import the kind of key.
pub(crate) fn profile(
    client: &Client<'_>,
    gateway: &Gateway,
    password: &str,
    cipher: Cipher,
) -> anyhow::Result<Zeroizing<String>> {
    client.require_common_key("Android")?;
    let identity = client.pkcs12(password, cipher)?;
    let mut profile = json!({
        "uuid": client.uuid(gateway, "sswan"),
        "name": gateway.address,
        "type": "ikev2-cert",
        "remote": {
            "addr": gateway.address,
            "id": gateway.id,
            "cert": *base64(client.authority.der()),
        },
        "local": {
            "id": client.id(),
            "p12": *base64(&identity),
        },
    });
    if !gateway.networks.is_empty() {
        let networks: Vec<Value> = gateway.networks.iter().map(|network| json!(network)).collect();
        profile["split-tunneling"] = json!({ "subnets": networks });
    }
    Ok(Zeroizing::new(format!("{profile:#}\n")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{gateway, with_client};
    use super::*;
    use crate::key::KeyKind;

    #[test]
    fn a_profile_has_the_fields_of_the_client() {
        with_client(KeyKind::EcdsaP256, |client| {
            let text = profile(client, &gateway(), "a pass", Cipher::TripleDes).expect("a profile");
            let profile: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(profile["type"], "ikev2-cert");
            assert_eq!(profile["remote"]["addr"], "vpn.example.org");
            assert_eq!(profile["local"]["id"], "alice@example.org");
            assert_eq!(profile["split-tunneling"]["subnets"][1], "2001:db8:2::/48");
            assert!(!text.contains("a pass"), "the password is not in the file");
            let all = Gateway { networks: Vec::new(), ..gateway() };
            let text = super::profile(client, &all, "a pass", Cipher::TripleDes).expect("a profile");
            assert!(!text.contains("split-tunneling"));
        });
        with_client(KeyKind::Ed25519, |client| {
            assert!(profile(client, &gateway(), "a pass", Cipher::TripleDes).is_err());
        });
    }
}
