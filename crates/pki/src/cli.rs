//! The command line of `weir pki`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::authority::{Authority, NewAuthority, Reason, Request, short};
use crate::bundle::{self, Cipher, Client, Gateway};
use crate::date;
use crate::file::{self, Existing, Mode};
use crate::inspect;
use crate::key::KeyKind;
use crate::passphrase;
use crate::profile::{self, Name, Usage};
use crate::text;

/// Usage, input or privilege; nothing was changed.
const UNUSABLE: u8 = 2;

/// The commands of `weir pki`.
#[derive(Debug, Subcommand)]
pub enum Pki {
    /// Create a CA in a folder
    #[command(after_help = "Example:\n  weir pki ca --name 'Example CA'\n  \
        weir pki ca --name 'Example CA' --permit example.org --permit 10.0.0.0/8 --encrypt\n\n\
        The folder should stay off the gateways: its ca.key signs new certificates.\n\
        An existing CA is never replaced.")]
    Ca(CaArgs),
    /// Issue a certificate with a new private key
    #[command(after_help = "Examples:\n  weir pki issue --server --id vpn.example.org,192.0.2.1\n  \
        weir pki issue --client --id alice@example.org --name alice\n  weir pki issue --peer --id a.example.org\n\n\
        Writes DIR/certs/NAME.crt and DIR/private/NAME.key. 'weir pki bundle' prepares both for a host.")]
    Issue(IssueArgs),
    /// Revoke a certificate
    #[command(after_help = "Example:\n  weir pki revoke alice --reason key-compromise && weir pki crl\n\n\
        Gateways refuse the certificate when they have the next CRL ('weir pki crl').")]
    Revoke(RevokeArgs),
    /// Write the list of revoked certificates (CRL)
    #[command(after_help = "Example:\n  weir pki crl && scp ca/ca.crl root@vpn.example.org:/etc/weir/x509crl/\n\n\
        A gateway reads the folder x509crl at 'weir reload'. A new CRL is due before its next update.")]
    Crl(CrlArgs),
    /// List the certificates of a CA, or show what files contain
    #[command(after_help = "Examples:\n  weir pki show\n  weir pki show ca/certs/alice.crt\n  \
        weir pki show --json | jq -r '.certificates[] | select(.state == \"valid\") | .name'")]
    Show(ShowArgs),
    /// Write certificate and key in the format of another system
    #[command(after_help = "Examples:\n  weir pki bundle alice --p12\n  \
        weir pki bundle alice --mobileconfig --server vpn.example.org --networks 10.2.0.0/16\n  \
        weir pki bundle a.example.org --folders host-a\n\n\
        Without --password-file the password of the file is random and printed.")]
    Bundle(BundleArgs),
}

/// The folder of a CA.
#[derive(Debug, Args)]
struct Place {
    /// Folder of the CA
    #[arg(long = "ca", value_name = "DIR", default_value = "ca")]
    folder: PathBuf,
}

/// What signs needs the key.
#[derive(Debug, Args)]
struct Unlock {
    /// First line of FILE is the passphrase of ca.key [default: prompt]
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

/// Options of `weir pki ca`.
#[derive(Debug, Args)]
pub struct CaArgs {
    /// Name of the CA
    #[arg(long)]
    name: String,
    #[command(flatten)]
    place: Place,
    /// Days of validity
    #[arg(long, default_value_t = profile::CA_DAYS)]
    days: u32,
    /// Kind of the private key
    #[arg(long, value_enum, default_value_t = KeyKind::EcdsaP256)]
    key: KeyKind,
    /// Issue for names below this domain, @DOMAIN for e-mail, or network only; may be repeated
    ///
    /// Kinds of names that no --permit mentions are not restricted.
    #[arg(long, value_name = "NAME")]
    permit: Vec<String>,
    /// Address of the CRL, written into each certificate; may be repeated
    #[arg(long, value_name = "URL")]
    crl_uri: Vec<String>,
    /// Encrypt the private key with a passphrase
    #[arg(long)]
    encrypt: bool,
    /// Encrypt the private key with the first line of FILE
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `weir pki issue`.
#[derive(Debug, Args)]
pub struct IssueArgs {
    /// Names of the subject: DNS name, IP address or e-mail address; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',', required = true)]
    id: Vec<String>,
    #[command(flatten)]
    usage: UsageArgs,
    #[command(flatten)]
    place: Place,
    /// Name of the files [default: the first --id]
    #[arg(long)]
    name: Option<String>,
    /// Days of validity, at most until the CA expires
    #[arg(long, default_value_t = profile::DAYS)]
    days: u32,
    /// Kind of the private key
    #[arg(long, value_enum, default_value_t = KeyKind::EcdsaP256)]
    key: KeyKind,
    /// Replace the files of an earlier certificate
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    unlock: Unlock,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Role of the subject.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct UsageArgs {
    /// For a gateway that clients connect to
    #[arg(long)]
    server: bool,
    /// For a client
    #[arg(long)]
    client: bool,
    /// For both roles: gateways of sites, hosts of PSP
    #[arg(long)]
    peer: bool,
}

impl UsageArgs {
    fn usage(&self) -> Usage {
        match (self.server, self.client) {
            (true, _) => Usage::Server,
            (_, true) => Usage::Client,
            _ => Usage::Peer,
        }
    }
}

/// Options of `weir pki revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// Name of a valid certificate, or the beginning of a serial number
    #[arg(value_name = "NAME|SERIAL")]
    which: String,
    #[command(flatten)]
    place: Place,
    /// Reason in the CRL
    #[arg(long, value_enum, default_value_t = Reason::Unspecified)]
    reason: Reason,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `weir pki crl`.
#[derive(Debug, Args)]
pub struct CrlArgs {
    #[command(flatten)]
    place: Place,
    /// Days until the next update
    #[arg(long, default_value_t = profile::CRL_DAYS)]
    days: u32,
    #[command(flatten)]
    unlock: Unlock,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `weir pki show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Certificates, CRLs, keys or PKCS#12 files to show instead of the list
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// First line of FILE is the password of the files
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `weir pki bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// Name of a certificate, or the beginning of its serial number
    #[arg(value_name = "NAME")]
    which: String,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    place: Place,
    /// DNS name or address of the gateway
    #[arg(long, value_name = "HOST")]
    server: Option<String>,
    /// Identity of the gateway [default: that of --server]
    #[arg(long, value_name = "NAME")]
    server_id: Option<String>,
    /// Networks behind the gateway [default: all traffic]
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    networks: Vec<String>,
    /// File to write [default: NAME with the suffix of the format]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// First line of FILE is the password of the new file
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Encryption of the PKCS#12 part [default: aes256, for Apple and Android 3des]
    #[arg(long, value_enum)]
    cipher: Option<Cipher>,
    /// Replace existing files
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Format of a bundle.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct FormatArgs {
    /// PKCS#12 file
    #[arg(long)]
    p12: bool,
    /// Profile of iOS and macOS
    #[arg(long)]
    mobileconfig: bool,
    /// Profile of strongSwan's client for Android
    #[arg(long)]
    sswan: bool,
    /// Script for Windows PowerShell
    #[arg(long)]
    windows: bool,
    /// Folders x509, x509ca and private, as beside weir.conf
    #[arg(long, value_name = "DIR")]
    folders: Option<PathBuf>,
}

/// What a command did.
struct Report {
    text: String,
    json: Value,
}

impl Pki {
    /// Runs the command, prints errors, and returns the exit status.
    pub fn run(self) -> ExitCode {
        let (json, result) = match self {
            Self::Ca(args) => (args.json, ca(&args)),
            Self::Issue(args) => (args.json, issue(&args)),
            Self::Revoke(args) => (args.json, revoke(&args)),
            Self::Crl(args) => (args.json, crl(&args)),
            Self::Show(args) => (args.json, show(&args)),
            Self::Bundle(args) => (args.json, bundle(&args)),
        };
        finish(json, result.map(|report| (report.text, report.json)))
    }
}

/// Prints a report as text or JSON, or the error.
pub(crate) fn finish(json: bool, result: anyhow::Result<(String, Value)>) -> ExitCode {
    use std::io::Write as _;
    match result {
        Ok((text, value)) => {
            let text = if json { format!("{value:#}\n") } else { text };
            // A reader that went away is no error.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "weir: {error:#}");
            ExitCode::from(UNUSABLE)
        }
    }
}

fn ca(args: &CaArgs) -> anyhow::Result<Report> {
    let passphrase = match &args.passphrase_file {
        Some(file) => Some(passphrase::from_file(file)?),
        None if args.encrypt => Some(passphrase::ask_new("passphrase of the new key", "use --passphrase-file FILE")?),
        None => None,
    };
    let new = NewAuthority {
        name: &args.name,
        days: args.days,
        key: args.key,
        permit: &args.permit,
        crl_uris: &args.crl_uri,
        passphrase: passphrase.as_ref().map(|text| text.as_str()),
    };
    let ca = Authority::create(&args.place.folder, &new)?;
    let (certificate, key) = (ca.certificate_path(), ca.key_path());
    let next = match args.place.folder == Path::new("ca") {
        true => String::new(),
        false => format!(" --ca {}", args.place.folder.display()),
    };
    Ok(Report {
        text: format!(
            "{}: {}, valid until {}\n{}: private key; keep it off the gateways, with a copy\n\
             next: weir pki issue{next} --server --id vpn.example.org\n",
            certificate.display(),
            credentials::show_name(ca.certificate().subject()),
            date::day(ca.until()),
            key.display(),
        ),
        json: json!({ "name": args.name, "certificate": certificate, "key": key, "not_after": date::text(ca.until()) }),
    })
}

fn issue(args: &IssueArgs) -> anyhow::Result<Report> {
    let names = args.id.iter().map(|text| Name::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let mut ca = Authority::open(&args.place.folder)?;
    let signer = ca.unlock(args.unlock.passphrase_file.as_deref())?;
    let request = Request {
        usage: args.usage.usage(),
        names: &names,
        file: args.name.as_deref(),
        days: args.days,
        key: args.key,
        force: args.force,
    };
    let issued = ca.issue(&signer, &request)?;
    let short_life = if issued.cut_short { ", as the CA" } else { "" };
    let mut text = format!(
        "{}: {}, serial {}, valid until {}{short_life}\n{}: private key\n",
        issued.certificate.display(),
        request.usage.name(),
        short(&issued.serial),
        date::day(issued.not_after),
        issued.key.display(),
    );
    for serial in &issued.replaced {
        text.push_str(&format!("the earlier certificate {} stays valid until it is revoked\n", short(serial)));
    }
    Ok(Report {
        text,
        json: json!({
            "name": issued.name,
            "serial": issued.serial,
            "usage": request.usage.name(),
            "names": names.iter().map(Name::as_str).collect::<Vec<_>>(),
            "not_after": date::text(issued.not_after),
            "certificate": issued.certificate,
            "key": issued.key,
            "replaced": issued.replaced,
        }),
    })
}

fn revoke(args: &RevokeArgs) -> anyhow::Result<Report> {
    let mut ca = Authority::open(&args.place.folder)?;
    let (serial, name) = ca.revoke(&args.which, args.reason)?;
    Ok(Report {
        text: format!("revoked {name}, serial {}\nnext: weir pki crl, and copy it to the gateways\n", short(&serial)),
        json: json!({ "name": name, "serial": serial }),
    })
}

fn crl(args: &CrlArgs) -> anyhow::Result<Report> {
    let mut ca = Authority::open(&args.place.folder)?;
    let signer = ca.unlock(args.unlock.passphrase_file.as_deref())?;
    let crl = ca.publish(&signer, args.days)?;
    let revoked = match crl.revoked {
        1 => "1 certificate".to_owned(),
        n => format!("{n} certificates"),
    };
    Ok(Report {
        text: format!(
            "{}: number {}, {revoked}, next update {}\n\
             next: copy it to /etc/weir/x509crl of each gateway, then 'weir reload' there\n",
            crl.path.display(),
            crl.number,
            date::day(crl.next_update),
        ),
        json: json!({
            "crl": crl.path,
            "number": crl.number,
            "revoked": crl.revoked,
            "next_update": date::text(crl.next_update),
        }),
    })
}

fn show(args: &ShowArgs) -> anyhow::Result<Report> {
    if args.files.is_empty() {
        return list(&Authority::open(&args.place.folder)?);
    }
    let password = args.password_file.as_deref().map(passphrase::from_file).transpose()?;
    let passwords: Vec<&[u8]> = password.iter().map(|text| text.as_bytes()).collect();
    let (mut text, mut objects) = (String::new(), Vec::new());
    for path in &args.files {
        let fault = || path.display().to_string();
        for described in inspect::describe(&file::read(path)?, &passwords).with_context(fault)? {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&described.text());
            let mut object = described.json();
            object["file"] = json!(path);
            objects.push(object);
        }
    }
    Ok(Report { text, json: Value::Array(objects) })
}

fn list(ca: &Authority) -> anyhow::Result<Report> {
    let now = date::now();
    let rows: Vec<Vec<String>> = ca
        .entries()
        .iter()
        .map(|entry| {
            let names = match entry.names[..] == [entry.name.clone()] {
                true => entry.name.clone(),
                false => format!("{} ({})", entry.name, entry.names.join(", ")),
            };
            let until = match entry.revoked {
                Some(revoked) => date::day(revoked.at),
                None => date::day(entry.not_after),
            };
            vec![
                short(&entry.serial).to_owned(),
                entry.usage.name().to_owned(),
                entry.state(now).to_owned(),
                until,
                names,
            ]
        })
        .collect();
    let head =
        format!("{}, valid until {}\n", credentials::show_name(ca.certificate().subject()), date::day(ca.until()));
    let table = match rows.is_empty() {
        true => "no certificates\n".to_owned(),
        false => text::table(&["serial", "usage", "state", "until", "name"], &rows),
    };
    let entries: Vec<Value> = ca
        .entries()
        .iter()
        .map(|entry| {
            json!({
                "serial": entry.serial,
                "name": entry.name,
                "usage": entry.usage.name(),
                "names": entry.names,
                "state": entry.state(now),
                "not_before": date::text(entry.not_before),
                "not_after": date::text(entry.not_after),
                "revoked": entry.revoked.map(|revoked| date::text(revoked.at)),
                "reason": entry.revoked.map(|revoked| revoked.reason),
            })
        })
        .collect();
    Ok(Report {
        text: head + &table,
        json: json!({ "name": ca.name(), "not_after": date::text(ca.until()), "certificates": entries }),
    })
}

fn bundle(args: &BundleArgs) -> anyhow::Result<Report> {
    let mut ca = Authority::open(&args.place.folder)?;
    if let Some(folder) = &args.format.folders {
        let written = write_folders(&mut ca, &args.which, folder, Existing::by(args.force))?;
        let lines: String = written.iter().map(|path| format!("{}\n", path.display())).collect();
        let next = format!("next: copy {} to /etc/weir of the host\n", folder.join(".").display());
        return Ok(Report { text: lines + &next, json: json!({ "files": written }) });
    }
    let (entry, certificate, key) = ca.issued(&args.which)?;
    let authority_name = ca.name();
    let client = Client {
        name: &entry.name,
        names: &entry.names,
        key: &key,
        certificate: &certificate,
        authority: ca.certificate(),
        authority_name: &authority_name,
    };
    let password = match &args.password_file {
        Some(file) => passphrase::from_file(file)?,
        None => passphrase::random(),
    };
    let format = &args.format;
    let (suffix, default) = match () {
        () if format.p12 => ("p12", Cipher::Aes256),
        () if format.mobileconfig => ("mobileconfig", Cipher::TripleDes),
        () if format.sswan => ("sswan", Cipher::TripleDes),
        () => ("ps1", Cipher::Aes256),
    };
    let cipher = args.cipher.unwrap_or(default);
    let bytes: Zeroizing<Vec<u8>> = match suffix {
        "p12" => client.pkcs12(&password, cipher)?,
        _ => {
            let gateway = gateway(args)?;
            let mut text = match suffix {
                "mobileconfig" => bundle::apple::profile(&client, &gateway, &password, cipher)?,
                "sswan" => bundle::strongswan::profile(&client, &gateway, &password, cipher)?,
                _ => bundle::windows::script(&client, &gateway, &password, cipher)?,
            };
            Zeroizing::new(std::mem::take(&mut *text).into_bytes())
        }
    };
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{}.{suffix}", entry.name)));
    file::write(&out, &bytes, Mode::Secret, Existing::by(args.force))?;
    let random = args.password_file.is_none();
    let shown = if random { format!("password: {}\n", *password) } else { String::new() };
    Ok(Report {
        text: format!("{}: key and certificate of {}, and the CA\n{shown}", out.display(), entry.name),
        json: json!({ "file": out, "name": entry.name, "password": random.then(|| password.to_string()) }),
    })
}

fn gateway(args: &BundleArgs) -> anyhow::Result<Gateway> {
    let address = args.server.clone().context("--server is missing: DNS name or address of the gateway")?;
    Name::parse(&address).context("--server")?;
    let id = args.server_id.clone().unwrap_or_else(|| address.clone());
    Name::parse(&id).context("--server-id")?;
    for network in &args.networks {
        check_network(network).context("--networks")?;
    }
    Ok(Gateway { address, id, networks: args.networks.clone() })
}

/// `10.2.0.0/16` or `2001:db8::/32`.
pub(crate) fn check_network(text: &str) -> anyhow::Result<()> {
    let fault = || format!("'{text}' is not a network such as 10.2.0.0/16");
    let (addr, prefix) = text.split_once('/').with_context(fault)?;
    let addr: std::net::IpAddr = addr.parse().ok().with_context(fault)?;
    let prefix: u8 = prefix.parse().ok().with_context(fault)?;
    let bits = if addr.is_ipv4() { 32 } else { 128 };
    ensure!(prefix <= bits, fault());
    let value = match addr {
        std::net::IpAddr::V4(addr) => u128::from(u32::from(addr)) << 96,
        std::net::IpAddr::V6(addr) => u128::from(addr),
    };
    let host = value.checked_shl(u32::from(prefix)).unwrap_or(0);
    if host != 0 {
        bail!("'{text}' has bits beyond its prefix; write the address of the network");
    }
    Ok(())
}

/// Writes certificate, key and CA into the folders that a configuration has beside it. Returns the
/// files.
///
/// # Errors
/// There is no such certificate, or a file exists.
pub(crate) fn write_folders(
    ca: &mut Authority,
    which: &str,
    folder: &Path,
    existing: Existing,
) -> anyhow::Result<Vec<PathBuf>> {
    let (entry, certificate, key) = ca.issued(which)?;
    let own = credentials::pem::encode("CERTIFICATE", certificate.der());
    let authority = credentials::pem::encode("CERTIFICATE", ca.certificate().der());
    let name = format!("{}.crt", entry.name);
    // The same for every host of the CA: an equal file is no conflict.
    let authority_path = folder.join("x509ca").join("ca.crt");
    let equal = file::read(&authority_path).is_ok_and(|there| *there == authority.as_bytes());
    let files = [
        (folder.join("private").join(format!("{}.key", entry.name)), key.pem(), Mode::Secret, existing),
        (folder.join("x509").join(name), own, Mode::Public, existing),
        (authority_path, authority, Mode::Public, if equal { Existing::Replace } else { existing }),
    ];
    let mut written = Vec::new();
    for (path, text, mode, existing) in files {
        file::folder(path.parent().unwrap_or(folder))?;
        file::write(&path, text.as_bytes(), mode, existing)?;
        written.push(path);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_end_with_their_prefix() {
        for good in ["10.2.0.0/16", "0.0.0.0/0", "192.0.2.1/32", "2001:db8::/32", "::/0", "2001:db8::1/128"] {
            check_network(good).expect(good);
        }
        for bad in ["10.2.0.0", "10.2.0.0/33", "x/8", "10.2.0.1/16", "2001:db8::1/64", "10.0.0.0/"] {
            assert!(check_network(bad).is_err(), "{bad}");
        }
    }
}
