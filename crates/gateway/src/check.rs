//! `weir check`: whether a configuration is right, what is in it, and what may be in one.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::problem::{Problem, Problems};
use crate::config::{self, Config, Purpose};

/// Reads a configuration as `weir up` would.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn read(path: &Path) -> Result<Config, Problems> {
    config::load(path, Purpose::Gateway)
}

/// What is in a configuration, for people.
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
    for named in keyed.named.iter().filter(|named| keyed.connections.iter().all(|c| c.name != named.connection.name)) {
        text.push_str(&format!("connection {}: waits for the address of a name\n", named.connection.name));
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
    let (secrets, authorities) = (keyed.secrets.len(), keyed.authorities.len());
    text.push_str(&format!(
        "ok: {}, {secrets} secrets, {authorities} authorities, {} SAs with manual keys, {} policies\n",
        match keyed.connections.len() + keyed.psp.len() {
            1 => "1 connection".into(),
            n => format!("{n} connections"),
        },
        config.sas.len(),
        config.policies.len()
    ));
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
                "unresolved": keyed.named.iter().map(|named| &named.connection.name)
                    .filter(|name| keyed.connections.iter().all(|c| c.name != **name)).collect::<Vec<_>>(),
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
            ["connection a: children b, c", "pool p: 10.3.0.1-10.3.0.254", "ok: 1 connection, 1 secrets", "hostaccess"]
        {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        assert!(shown.contains("secrets.rsa-a: there is no file 'a.pem'"), "{shown}");
        let json = to_json(&Ok(config));
        assert_eq!((&json["valid"], &json["connections"][0]["children"][1]), (&json!(true), &json!("c")));
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
