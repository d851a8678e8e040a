//! `weir check`: validation of a configuration, its content, and the schema.

pub(crate) mod plausibility;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::config::problem::{Problem, Problems};
use crate::config::{self, Config, Purpose};
use crate::control::Loaded;
use crate::ready::counted;
use credentials::{Store, rehearsal};

/// All faults of a configuration, with their remedies.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.render(false))]
pub struct InvalidConfig(Problems);

/// Checks a file as `weir check` does.
///
/// # Errors
/// All faults of the file.
pub fn file(path: &Path) -> Result<(), InvalidConfig> {
    read(path).map(drop).map_err(InvalidConfig)
}

/// Reads a configuration as `weir up` would.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn read(path: &Path) -> Result<Config, Problems> {
    let mut config = config::load(path, Purpose::Gateway)?;
    let warnings = config.keyed.resolve(config::resolve_name);
    config.warnings.extend(warnings);
    let folder = path.parent().unwrap_or(Path::new("."));
    let found = [
        credentials(&config, folder),
        plausibility::addresses(&config),
        plausibility::selectors(&config),
        plausibility::forwarding(&config),
    ];
    config.warnings.extend(found.into_iter().flatten());
    Ok(config)
}

/// Warnings that the daemon would log about keys, certificates and secrets.
fn credentials(config: &Config, folder: &Path) -> Vec<String> {
    let mut store = Store::default();
    let mut faults = Loaded::new(config.keyed.clone(), folder.to_owned()).fill(&mut store);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for connection in &config.keyed.connections {
        faults.extend(rehearsal::faults(&store, connection, now));
    }
    faults.extend(rehearsal::weak_secrets(&store));
    faults
}

/// Renders a configuration as text for an operator.
pub(crate) fn render(config: &Config) -> String {
    let keyed = &config.keyed;
    let mut text = String::new();
    for warning in &config.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    for connection in &keyed.connections {
        let children: Vec<&str> = connection.children.iter().map(|child| child.name.as_str()).collect();
        text.push_str(&format!("connection {}: {}\n", connection.name, named("child", "children", &children)));
    }
    for name in &keyed.unresolved {
        text.push_str(&format!("connection {name}: waits for name resolution\n"));
    }
    for psp in &keyed.psp {
        let children: Vec<&str> = psp.children.iter().map(|child| child.name.as_str()).collect();
        text.push_str(&format!("connection {}: PSP, {}\n", psp.name, named("child", "children", &children)));
    }
    for pool in &keyed.pools {
        text.push_str(&format!("pool {}: {}\n", pool.name, pool.addrs));
    }
    for sa in &config.sas {
        text.push_str(&format!(
            "sa {}: {} between {} and {}\n",
            sa.name,
            sa.protocol.name(),
            sa.peer.local,
            sa.peer.remote
        ));
    }
    let counts = [
        (keyed.connections.len() + keyed.psp.len(), "connection", "connections"),
        (keyed.secrets.len(), "secret", "secrets"),
        (keyed.authorities.len(), "authority", "authorities"),
        (config.sas.len(), "SA with manual keys", "SAs with manual keys"),
        (config.policies.len(), "policy", "policies"),
    ];
    let present: Vec<String> =
        counts.iter().filter(|(count, ..)| *count > 0).map(|(count, one, many)| counted(*count, one, many)).collect();
    match present.is_empty() {
        true => text.push_str("ok: no connections\n"),
        false => text.push_str(&format!("ok: {}\n", present.join(", "))),
    }
    text
}

fn named(one: &str, many: &str, names: &[&str]) -> String {
    match names {
        [] => format!("no {many}"),
        [name] => format!("{one} {name}"),
        _ => format!("{many} {}", names.join(", ")),
    }
}

/// The same as JSON.
pub(crate) fn to_json(result: &Result<Config, Problems>) -> Value {
    match result {
        Err(problems) => json!({ "valid": false, "problems": problems.0.iter().map(problem).collect::<Vec<_>>() }),
        Ok(config) => {
            let keyed = &config.keyed;
            let connections: Vec<Value> = keyed
                .connections
                .iter()
                .map(|connection| {
                    let children: Vec<&str> = connection.children.iter().map(|child| child.name.as_str()).collect();
                    json!({ "name": connection.name, "protocol": "ike", "children": children })
                })
                .chain(keyed.psp.iter().map(|psp| {
                    let children: Vec<&str> = psp.children.iter().map(|child| child.name.as_str()).collect();
                    json!({ "name": psp.name, "protocol": "psp", "children": children })
                }))
                .collect();
            json!({
                "valid": true,
                "warnings": config.warnings,
                "connections": connections,
                "unresolved": keyed.unresolved,
                "pools": keyed.pools.iter().map(|pool| &pool.name).collect::<Vec<_>>(),
                "authorities": keyed.authorities.iter().map(|authority| &authority.name).collect::<Vec<_>>(),
                "secrets": keyed.secrets.len(),
                "sas": config.sas.iter().map(|sa| &sa.name).collect::<Vec<_>>(),
                "policies": config.policies.iter().map(|policy| &policy.name).collect::<Vec<_>>(),
            })
        }
    }
}

fn problem(problem: &Problem) -> Value {
    let place = problem.place();
    json!({
        "file": place.map(|(file, ..)| file),
        "line": place.map(|(_, line, _)| line),
        "column": place.map(|(.., column)| column),
        "message": problem.message(),
        "help": problem.remedy(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(name: &str, text: &str) -> Result<Config, Problems> {
        let folder = std::env::temp_dir().join(format!("weir-check-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("weir.conf"), text).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(folder.join("weir.conf"), private).unwrap();
        let read = read(&folder.join("weir.conf"));
        std::fs::remove_dir_all(&folder).unwrap();
        read
    }

    #[test]
    fn a_right_file_is_summed_up() {
        let text = "connections {\n a {\n remote_addrs = 192.0.2.1\n local {\n auth = psk\n }\n remote {\n auth = psk\n }\n \
                    children {\n b {\n hostaccess = yes\n }\n c {\n }\n }\n }\n}\npools {\n p {\n addrs = 10.3.0.0/24\n }\n}\n\
                    secrets {\n rsa-a {\n file = a.pem\n secret = x\n }\n}";
        let config = read_text("right", text).unwrap_or_else(|problems| panic!("{problems}"));
        let shown = render(&config);
        for line in
            ["connection a: children b, c", "pool p: 10.3.0.1-10.3.0.254", "ok: 1 connection, 1 secret\n", "hostaccess"]
        {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        assert!(shown.contains("secrets.rsa-a: no file 'a.pem'"), "{shown}");
        let json = to_json(&Ok(config));
        assert_eq!((&json["valid"], &json["connections"][0]["children"][1]), (&json!(true), &json!("c")));
    }

    /// `weir check` of a connection with these rounds and secrets, in a folder that `fill` fills.
    fn warnings(name: &str, local: &str, remote: &str, secrets: &str, fill: impl Fn(&Path)) -> String {
        let folder = std::env::temp_dir().join(format!("weir-check-{name}-{}", std::process::id()));
        for below in ["private", "x509", "x509ca", "pkcs12"] {
            std::fs::create_dir_all(folder.join(below)).unwrap();
        }
        let text = format!(
            "connections {{\n a {{\n remote_addrs = 192.0.2.1\n local {{\n {local}\n }}\n remote {{\n {remote}\n }}\n }}\n}}\n\
             secrets {{\n{secrets}\n}}\n"
        );
        fill(&folder);
        let private = |path: &Path| {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        };
        std::fs::write(folder.join("weir.conf"), text).unwrap();
        private(&folder.join("weir.conf"));
        for file in ["private", "pkcs12"].iter().flat_map(|below| std::fs::read_dir(folder.join(below)).unwrap()) {
            private(&file.unwrap().path());
        }
        let config = read(&folder.join("weir.conf")).unwrap_or_else(|problems| panic!("{problems}"));
        std::fs::remove_dir_all(&folder).unwrap();
        config.warnings.join("\n")
    }

    #[test]
    fn shared_keys_are_looked_for_as_the_daemon_does() {
        const LONG: &str = "secret = 0sdGhpcyBpcyBvbmUgZ29vZCBzZWNyZXQgb2YgbGVuZ3Ro";
        let faults = |name: &str, secrets: &str| {
            warnings(name, "auth = psk\n id = sun", "auth = psk\n id = moon", secrets, |_| {})
        };
        assert_eq!(faults("good", &format!("ike-a {{\n id = moon\n {LONG}\n }}")), "");
        assert!(faults("none", "").contains("connections.a.local: no shared key for 'sun' and 'moon'"));
        assert!(faults("other", &format!("ike-a {{\n id = mars\n {LONG}\n }}")).contains("no shared key for"));
        let short = faults("short", "ike-a {\n id = moon\n secret = x\n }");
        assert!(short.contains("secrets.ike-a: this shared key is short enough"), "{short}");
        let anybody =
            |name: &str, secrets: &str| warnings(name, "auth = psk", "auth = psk\n id = *.example", secrets, |_| {});
        assert!(anybody("unnamed", "").contains("no shared key"), "an address stands for the peer");
        let eap = |name: &str, secrets: &str| {
            warnings(name, "auth = eap-mschapv2\n id = bob", "auth = psk\n id = moon", secrets, |_| {})
        };
        assert!(eap("eap", &format!("ike {{\n {LONG}\n }}")).contains("no password for 'bob'"));
        assert_eq!(eap("eap-good", &format!("ike {{\n {LONG}\n }}\n eap {{\n id = bob\n secret = x\n }}")), "");
    }

    #[test]
    fn keys_and_certificates_are_looked_at_as_the_daemon_does() {
        let faults = |name: &str, fill: &dyn Fn(&Path)| {
            warnings(name, "auth = pubkey\n id = sun", "auth = pubkey\n id = moon", "", fill)
        };
        let nothing = faults("nothing", &|_| {});
        assert!(nothing.contains("connections.a.local: no certificate with a private key"), "{nothing}");
        assert!(nothing.contains("connections.a.remote: no CA certificate"), "{nothing}");
        let garbage = faults("garbage", &|folder| std::fs::write(folder.join("private/a.pem"), "garbage").unwrap());
        assert!(garbage.contains("private/a.pem: "), "{garbage}");
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nMAMC\nAQU=\n\
                   -----END RSA PRIVATE KEY-----\n";
        let old = faults("old", &|folder| std::fs::write(folder.join("private/a.pem"), old).unwrap());
        assert!(old.contains("encrypted with a weak legacy scheme"), "{old}");
        // PFX: version 3 and a ContentInfo.
        let pfx = [0x30, 8, 2, 1, 3, 0x30, 3, 6, 1, 1];
        let pfx = faults("pfx", &|folder| std::fs::write(folder.join("pkcs12/a.p12"), pfx).unwrap());
        assert!(pfx.contains("pkcs12/a.p12: encrypted, or not a PKCS #12 file"), "{pfx}");
    }

    #[test]
    fn what_is_wrong_has_its_place_in_json() {
        let json = to_json(&read_text("wrong", "connections {\n a {\n  verson = 2\n }\n}"));
        let problem = &json["problems"][0];
        assert_eq!((&json["valid"], &problem["line"], &problem["column"]), (&json!(false), &json!(3), &json!(3)));
        assert_eq!(problem["help"], json!("did you mean 'version'?"));
    }

    #[test]
    fn the_schema_lists_keys_with_their_types() {
        let schema = crate::config::schema::to_json();
        let sections = schema["sections"].as_array().unwrap();
        let keys = |path: &str| {
            let section = sections.iter().find(|section| section["path"] == path).unwrap();
            section["keys"].as_array().unwrap().clone()
        };
        let mode = keys("connections.NAME.children.NAME").into_iter().find(|key| key["name"] == "mode").unwrap();
        assert_eq!(
            (&mode["type"], &mode["default"], &mode["choices"][1]),
            (&json!("word"), &json!("tunnel"), &json!("transport"))
        );
        let ipcomp = keys("connections.NAME.children.NAME").into_iter().find(|key| key["name"] == "ipcomp").unwrap();
        assert_eq!((&ipcomp["fate"], &ipcomp["accepted"]), (&json!("refused"), &json!(["no"])));
    }
}
