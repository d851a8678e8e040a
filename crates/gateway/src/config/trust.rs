//! Owners and modes of the files that a configuration consists of: write access to one of them
//! controls which peers this host trusts and, with `updown`, which commands run as root; read
//! access to a secret permits impersonation of this host.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::cert::{CertDirs, Certificates};
use super::problem::{Problem, Problems};
use super::syntax::Section;
use super::value::is_secret;
use crate::account::{self, User};
use crate::http::tls::TlsFiles;

/// Folders of private keys.
const PRIVATE: [&str; 5] = ["private", "rsa", "ecdsa", "pkcs8", "pkcs12"];
/// Folders of certificates, revocation lists and public keys.
const PUBLIC: [&str; 7] = ["x509", "x509ca", "x509aa", "x509ocsp", "x509crl", "x509ac", "pubkey"];
/// The part of a key file in which its encryption is announced.
const HEAD_BYTES: u64 = 512;
/// Findings after which the others are not listed.
const FINDINGS_MAX: usize = 20;

/// Sensitivity of a file.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Holds {
    /// Settings, certificates.
    Public,
    /// A secret or a private key that needs no passphrase.
    Secret,
}

/// User and group that the files may belong to, besides root's.
#[derive(Clone, Copy)]
struct Reader {
    uid: u32,
    gid: u32,
}

impl Reader {
    /// The user that the daemon becomes, or that of this process.
    fn of(user: Option<&User>) -> Self {
        match user {
            Some(user) => Self { uid: user.uid, gid: user.gid },
            None => Self { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() },
        }
    }
}

/// Refuses files that users other than root and the daemon's user may change, world-readable
/// secrets, and files that the daemon cannot read. `user` is the user that the daemon switches to,
/// if any.
///
/// # Errors
/// One problem for each such file, with the command that removes it.
pub(super) fn check(
    path: &Path,
    root: &Section,
    dirs: &CertDirs,
    named: &Certificates,
    metrics: Option<&TlsFiles>,
    user: Option<&User>,
) -> Result<(), Problems> {
    let mut files: BTreeMap<PathBuf, Holds> = BTreeMap::new();
    files.insert(path.to_owned(), Holds::Public);
    sources(root, &mut files);
    let beside = path.parent().unwrap_or(Path::new("."));
    let mut folders: Vec<PathBuf> = PUBLIC.iter().chain(&PRIVATE).map(|name| beside.join(name)).collect();
    // Wildcards of includes.
    folders.extend(files.keys().filter(|file| file.is_file()).filter_map(|file| Some(file.parent()?.to_owned())));
    folders.iter_mut().filter(|folder| folder.as_os_str().is_empty()).for_each(|folder| *folder = ".".into());
    folders.retain(|folder| folder.is_dir());
    folders.sort_unstable();
    folders.dedup();
    for folder in PUBLIC {
        files.extend(dirs.of(folder).iter().map(|file| (file.clone(), Holds::Public)));
    }
    for file in PRIVATE.iter().flat_map(|folder| dirs.of(folder)) {
        files.insert(file.clone(), if is_encrypted(file) { Holds::Public } else { Holds::Secret });
    }
    for certificate in named.end_entities.iter().chain(&named.authorities) {
        files.entry(PathBuf::from(&certificate.from)).or_insert(Holds::Public);
    }
    if let Some(metrics) = metrics {
        files.insert(metrics.certificate.clone(), Holds::Public);
        files.insert(metrics.key.clone(), Holds::Secret);
    }
    let reader = Reader::of(user);
    let faults = files.iter().filter_map(|(file, holds)| fault(file, *holds, reader));
    // What is not a file is the name of a message, or was reported by its reader.
    let names: Vec<PathBuf> = files.keys().filter(|file| file.is_file()).cloned().collect();
    let unreadable = match user {
        Some(user) => user.unreadable(&names, &folders).map_err(|error| {
            Problem::whole(format!("gateway.user: cannot become '{}': {error}", user.name))
                .help("start weir as root or as that user")
        })?,
        None => account::unreadable(&names, &folders),
    };
    let unreadable = unreadable.iter().map(|(path, error)| forbidden(path, error, reader));
    let problems: Vec<Problem> = faults.chain(unreadable).take(FINDINGS_MAX).collect();
    if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
}

/// Refuses the files of one section that users other than root and the daemon's user may change.
///
/// # Errors
/// One problem for each such file, with the command that removes it.
pub(super) fn check_sources(section: &Section, user: Option<&User>) -> Result<(), Problems> {
    let mut files = BTreeMap::new();
    sources(section, &mut files);
    let reader = Reader::of(user);
    let problems: Vec<Problem> = files.iter().filter_map(|(file, holds)| fault(file, *holds, reader)).collect();
    if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
}

/// A file or folder that the daemon's user cannot read.
fn forbidden(path: &Path, error: &std::io::Error, Reader { uid, gid }: Reader) -> Problem {
    let shown = path.display();
    let access = if path.is_dir() { "rx" } else { "r" };
    Problem::whole(format!("{shown}: not readable by user {uid}, which weir runs as: {error}"))
        .help(format!("chgrp {gid} {shown} && chmod g+{access} {shown}, and the same for each parent folder"))
}

/// Files of a tree, and whether there is a secret in them.
fn sources(section: &Section, files: &mut BTreeMap<PathBuf, Holds>) {
    for setting in &section.settings {
        let holds = if is_secret(&setting.name) { Holds::Secret } else { Holds::Public };
        for origin in [&setting.at, &setting.value_at] {
            let known = files.entry(PathBuf::from(&origin.file.name)).or_insert(holds);
            *known = (*known).max(holds);
        }
    }
    files.entry(PathBuf::from(&section.at.file.name)).or_insert(Holds::Public);
    section.sections.iter().for_each(|section| sources(section, files));
}

/// Returns whether the header of a key file announces encryption. PKCS #12 always does.
fn is_encrypted(file: &Path) -> bool {
    let mut head = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    let text = String::from_utf8_lossy(&head);
    let folder = file.parent().and_then(Path::file_name);
    read.is_ok() && (text.contains("ENCRYPTED") || folder.is_some_and(|folder| folder == "pkcs12"))
}

/// Returns the fault in owner or mode of a file. Symbolic links are followed, because the target is
/// read.
fn fault(file: &Path, holds: Holds, reader: Reader) -> Option<Problem> {
    // What is not a file is the name of a message, or was reported by its reader.
    let meta = std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file)?;
    let shown = file.display();
    let problem = |message: String, help: String| Some(Problem::whole(format!("{shown}: {message}")).help(help));
    let (uid, gid, mode) = (meta.uid(), meta.gid(), meta.mode());
    if uid != 0 && uid != reader.uid {
        let user = if reader.uid == 0 { String::new() } else { format!(" or user {}", reader.uid) };
        return problem(
            format!("owned by user {uid}, who may change it at any time; the owner must be root{user}"),
            format!("chown root {shown}"),
        );
    }
    if mode & 0o002 != 0 {
        return problem("writable by every user".into(), format!("chmod o-w {shown}"));
    }
    if mode & 0o020 != 0 && gid != 0 && gid != reader.gid {
        return problem(format!("writable by group {gid}"), format!("chmod g-w {shown}"));
    }
    if holds == Holds::Secret && mode & 0o004 != 0 {
        return problem("contains a secret and is readable by every user".into(), format!("chmod o-rwx {shown}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::{Purpose, load};
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weir-trust-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("private")).unwrap();
            fs::create_dir_all(path.join("x509ca")).unwrap();
            let folder = Self(path);
            folder.write("weir.conf", CONFIG, 0o600);
            folder
        }

        fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        /// Report of `weir check` and `weir up` about the file.
        fn reported(&self) -> String {
            match load(&self.0.join("weir.conf"), Purpose::Gateway) {
                Ok(_) => String::new(),
                Err(problems) => problems.to_string(),
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const CONFIG: &str = "include more.conf\npools {\n p {\n addrs = 10.3.0.0/24\n }\n}\n";
    const SECRETS: &str = "secrets {\n ike-a {\n secret = abcdefghijklmnopq\n }\n}\n";

    #[test]
    fn the_mode_of_every_kind_of_file_is_looked_at() {
        let folder = Folder::new("modes");
        folder.write("more.conf", "pools {\n q {\n addrs = 10.4.0.0/24\n }\n}\n", 0o644);
        folder.write("private/gw.pem", "-----BEGIN PRIVATE KEY-----\n", 0o600);
        folder.write("x509ca/ca.pem", "-----BEGIN CERTIFICATE-----\n", 0o644);
        assert_eq!(folder.reported(), "", "what others may read but not write is fine without a secret");
        for (name, text, mode, remedy) in [
            ("weir.conf", CONFIG, 0o606, "chmod o-w"),
            ("more.conf", "", 0o622, "chmod o-w"),
            ("more.conf", SECRETS, 0o604, "chmod o-rwx"),
            ("private/gw.pem", "-----BEGIN PRIVATE KEY-----\n", 0o644, "chmod o-rwx"),
            ("private/gw.pem", "-----BEGIN PRIVATE KEY-----\n", 0o602, "chmod o-w"),
            ("x509ca/ca.pem", "-----BEGIN CERTIFICATE-----\n", 0o646, "chmod o-w"),
        ] {
            let path = folder.0.join(name);
            let good = (fs::read_to_string(&path).unwrap(), fs::metadata(&path).unwrap().mode());
            folder.write(name, text, mode);
            // An include without a setting leaves no trace in the tree: there is nothing in it.
            if !text.is_empty() {
                let reported = folder.reported();
                assert!(
                    reported.contains(&path.display().to_string()) && reported.contains(remedy),
                    "{name} {mode:o}: {reported}"
                );
            }
            folder.write(name, &good.0, good.1);
        }
        folder.write("more.conf", SECRETS, 0o640);
        folder.write("private/gw.pem", "-----BEGIN ENCRYPTED PRIVATE KEY-----\n", 0o644);
        assert_eq!(folder.reported(), "");
    }

    #[test]
    fn a_link_is_judged_by_the_file_it_leads_to() {
        let folder = Folder::new("links");
        let real = folder.write("real.conf", SECRETS, 0o644);
        symlink(&real, folder.0.join("more.conf")).unwrap();
        assert!(folder.reported().contains("contains a secret"), "{}", folder.reported());
        folder.write("real.conf", SECRETS, 0o600);
        assert_eq!(folder.reported(), "");
    }

    #[test]
    fn others_may_neither_own_nor_share_a_file() {
        let folder = Folder::new("owners");
        let path = folder.write("more.conf", SECRETS, 0o660);
        let meta = fs::metadata(&path).unwrap();
        let by = |uid, gid| {
            let found = fault(&path, Holds::Secret, Reader { uid, gid });
            found.map(|problem| format!("{} {}", problem.message(), problem.remedy().unwrap_or_default()))
        };
        assert_eq!(by(meta.uid(), meta.gid()), None);
        if meta.uid() != 0 || meta.gid() != 0 {
            println!("SKIPPED: not run by root");
            return;
        }
        std::os::unix::fs::chown(&path, Some(4242), Some(0)).unwrap();
        assert!(
            by(0, 0).is_some_and(|reported| reported.contains("owned by user 4242") && reported.contains("chown root"))
        );
        assert_eq!(by(4242, 0), None, "the daemon's own user");
        std::os::unix::fs::chown(&path, Some(0), Some(4242)).unwrap();
        assert!(by(0, 0).is_some_and(|reported| reported.contains("writable by group 4242")));
        assert_eq!(by(4242, 4242), None, "the daemon's own group");
        assert!(folder.reported().contains("chmod g-w"), "{}", folder.reported());
    }

    #[test]
    fn a_key_that_the_daemon_cannot_read_is_named() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: not run by root");
            return;
        }
        let folder = Folder::new("unreadable");
        for open in ["", "private", "x509ca"] {
            fs::set_permissions(folder.0.join(open), fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder.write("more.conf", "pools {\n q {\n addrs = 10.4.0.0/24\n }\n}\n", 0o644);
        let config = format!("gateway {{\n user = 4242\n}}\n{CONFIG}");
        let group = |name: &str| std::os::unix::fs::chown(folder.0.join(name), Some(0), Some(4242)).unwrap();
        folder.write("weir.conf", &config, 0o640);
        let key = folder.write("private/gw.pem", "-----BEGIN PRIVATE KEY-----\n", 0o600);
        group("weir.conf");
        let reported = folder.reported();
        assert!(
            reported.contains(&format!("{}: not readable by user 4242", key.display()))
                && reported.contains("chgrp 4242"),
            "{reported}"
        );
        assert!(!reported.contains("weir.conf: not readable"), "{reported}");
        folder.write("private/gw.pem", "-----BEGIN PRIVATE KEY-----\n", 0o640);
        group("private/gw.pem");
        assert_eq!(folder.reported(), "");
        // A folder that cannot be listed would lose its keys at a reload, without a word.
        fs::set_permissions(folder.0.join("private"), fs::Permissions::from_mode(0o711)).unwrap();
        let reported = folder.reported();
        assert!(
            reported.contains("private: not readable by user 4242") && reported.contains("chmod g+rx"),
            "{reported}"
        );
        fs::set_permissions(folder.0.join("private"), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(folder.0.join("weir.conf"), Some(4242), None).unwrap();
        assert_eq!(folder.reported(), "", "the user may own its configuration");
        folder.write("weir.conf", &config.replace("4242", "no-such-user"), 0o640);
        assert!(folder.reported().contains("has no user 'no-such-user'"), "{}", folder.reported());
    }
}
