//! weir.conf(5), from the table of keys.

use roff::{Inline, Roff, bold, italic, roman};

use super::{Fate, Key, Kind, sections};

/// The manual page weir.conf(5): the format, and every key with its values, default and meaning.
pub fn to_man(version: &str, date: &str) -> String {
    let mut roff = Roff::new();
    let source = format!("weir {version}");
    roff.control("TH", ["WEIR.CONF", "5", date, &source, "Weir"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("weir.conf - configuration of the gateway weir(8)")]);
    format(&mut roff);
    roff.control("SH", ["KEYS"]);
    roff.text([roman("NAME stands for a name of your own, KIND for ike, eap, private and the like.")]);
    for (path, keys) in sections() {
        roff.control("SS", [path]);
        for key in keys {
            describe(&mut roff, key);
        }
    }
    example(&mut roff);
    roff.control("SH", ["FILES"]);
    for (path, what) in [
        ("/etc/weir/weir.conf", "The configuration that commands use unless another one is named."),
        (
            "/etc/weir/x509, x509ca, x509crl, private and others",
            "Certificates, CRLs and keys, as in the folders of swanctl(8); beside the file that is used.",
        ),
    ] {
        roff.control("TP", []);
        roff.text([italic(path)]);
        roff.text([roman(what)]);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("weir(8), weir-check(8), weir-up(8)")]);
    roff.render()
}

fn format(roff: &mut Roff) {
    roff.control("SH", ["DESCRIPTION"]);
    for (number, paragraph) in [
        "The format is that of swanctl.conf(5) of strongSwan. A section is a name and braces with settings and sections \
         in them, a setting is a name, an equals sign and a value up to the end of the line. A number sign begins a comment. \
         A value in double quotes may hold braces, number signs and line breaks. \
         The line 'include PATTERN' inserts files.",
        "The file, what it includes, certificates and keys must be owned by root or by the user that runs Weir, and must not \
         be writable by others. A file with secrets must not be readable by everybody.",
        "A time is a number of seconds, or a number and s, m, h or d. A number of bytes may end with k, m or g.",
        "'weir check' reports mistakes with file, line and correction; 'weir check --schema' prints the keys below as JSON.",
    ]
    .into_iter()
    .enumerate()
    {
        if number > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(paragraph)]);
    }
}

fn describe(roff: &mut Roff, key: &Key) {
    roff.control("TP", []);
    let mut head = vec![bold(if key.prefix { format!("{}...", key.name) } else { key.name.to_owned() })];
    if let Some(values) = values(key.kind) {
        head.extend([roman(" = "), values]);
    }
    roff.text(head);
    let default = match key.default {
        "" => String::new(),
        "required" => " Required.".to_owned(),
        default => format!(" Default: {default}."),
    };
    let about = key.about.replace('`', "'");
    roff.text([roman(match key.fate {
        Fate::Honoured => format!("{about}.{default}"),
        Fate::NoEffect(why) => format!("No effect: {why}. {about}.{default}"),
        Fate::Refused(fine, instead) => {
            let but = if fine.is_empty() { String::new() } else { format!(" (except {})", fine.join(", ")) };
            format!("Refused{but}: {instead}. {about}.{default}")
        }
    })]);
}

fn values(kind: Kind) -> Option<Inline> {
    Some(match kind {
        Kind::Words(words) => roman(words.join(" | ")),
        Kind::Switch => roman("yes | no"),
        Kind::Number(low, high) => italic(format!("{low} to {high}")),
        Kind::Dscp => italic("six binary digits"),
        Kind::List(of) => italic(format!("{of}, ...")),
        Kind::Files => italic("file, ..."),
        Kind::Octets => italic("0x..., 0s..."),
        Kind::Secret => italic("text, 0x..., 0s..."),
        Kind::Time => italic("time"),
        Kind::Bytes => italic("bytes"),
        Kind::Text => return None,
    })
}

fn example(roff: &mut Roff) {
    roff.control("SH", ["EXAMPLES"]);
    roff.text([roman("A tunnel between two networks, authenticated by a preshared key:")]);
    roff.control("PP", []);
    roff.control("nf", []);
    for line in EXAMPLE.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

const EXAMPLE: &str = "connections {
    b {
        local_addrs = 192.0.2.1
        remote_addrs = 192.0.2.2
        local { auth = psk }
        remote { auth = psk }
        children {
            net {
                local_ts = 10.1.0.0/24
                remote_ts = 10.2.0.0/24
                start_action = trap
            }
        }
    }
}
secrets {
    ike-b { secret = \"at least 16 random characters\" }
}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_default_and_meaning() {
        let page = to_man("0.0.0", "2026-01-02");
        // As roff writes text, to compare with.
        let written = |text: &str| Roff::from(roman(text)).to_roff().trim_end().replace("\\&", "");
        for (path, keys) in sections() {
            let heading = format!(".SS {}", if path.contains(' ') { format!("\"{path}\"") } else { path.to_owned() });
            let (_, rest) = page.split_once(&heading).unwrap_or_else(|| panic!("{heading} is missing"));
            let section = rest.split("\n.S").next().unwrap();
            for key in keys {
                let name = if key.prefix { format!("{}...", key.name) } else { key.name.to_owned() };
                let name = Roff::from(bold(name)).to_roff().trim_end().to_owned();
                let (_, entry) = section
                    .split_once(&format!(".TP\n{name}"))
                    .unwrap_or_else(|| panic!("{path}: {} is missing", key.name));
                let entry = entry.split(".TP").next().unwrap().replace("\\*(Aq", "'");
                for text in [key.about.replace('`', "'"), key.default.to_owned()] {
                    let text = if text == "required" { "Required".to_owned() } else { text };
                    assert!(entry.contains(&written(&text)), "{path}: {}: {text}\n{entry}", key.name);
                }
            }
        }
    }

    #[test]
    fn the_example_is_a_configuration() {
        let folder = std::env::temp_dir().join(format!("weir-example-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("weir.conf");
        std::fs::write(&file, EXAMPLE).unwrap();
        rustix::fs::chmod(&file, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let config = crate::config::load(&file, crate::config::Purpose::Gateway);
        std::fs::remove_dir_all(folder).unwrap();
        assert!(config.is_ok_and(|config| config.keyed.connections.len() == 1));
    }
}
