//! Confinement of the running process: privileges, files, system calls.
//!
//! [`enter`] is called once, after the configuration is read and before the first thread starts:
//! capabilities and Landlock belong to a thread, and threads and children inherit them from the
//! thread that creates them. The restrictions are permanent. Features that the kernel lacks are
//! logged once, and the rest is applied. docs/decisions/0007-confined-before-the-first-thread.md
//! has the reasons, and docs/decisions/0018-a-user-of-its-own.md describes the unprivileged user
//! ([`become_user`]).

mod calls;
mod files;
mod memory;
mod privileges;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::account::User;
use crate::config::Config;
use crate::config::syntax::{self, Section};

pub(crate) use calls::available as calls_available;
pub(crate) use files::available as files_available;
pub(crate) use memory::lock as lock_memory;

/// Directories beside the configuration that a reload reads again.
const FOLDERS: [&str; 10] =
    ["x509", "x509ca", "x509aa", "x509crl", "pubkey", "private", "rsa", "ecdsa", "pkcs8", "pkcs12"];

/// Files and groups that are needed from now on.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Needs {
    /// Folders and files to read, those below included.
    pub(crate) read: BTreeSet<PathBuf>,
    /// Folders to make, change and remove files in.
    pub(crate) write: BTreeSet<PathBuf>,
    /// Folders to make and remove sockets in.
    pub(crate) sockets: BTreeSet<PathBuf>,
    /// Groups that socket files are given to.
    pub(crate) groups: BTreeSet<u32>,
    /// Files that a reload reads again, of which some may be readable by privilege only.
    again: BTreeSet<PathBuf>,
}

impl Needs {
    /// Files that a gateway with this configuration needs, now and on a reload: the directory of
    /// the file, those of included files, and those of certificates and keys with an explicit path.
    pub(crate) fn of(path: &Path, config: &Config) -> Self {
        let mut needs = Self::default();
        needs.file(path);
        if let Ok(root) = syntax::read(path) {
            needs.sources(&root);
        }
        let certificates = &config.keyed.certificates;
        for certificate in certificates.end_entities.iter().chain(&certificates.authorities) {
            needs.file(Path::new(&certificate.from));
        }
        for file in config.keyed.authorities.iter().flat_map(|authority| authority.crl_files()) {
            // It may be there only later, and is then replaced by a newer one.
            needs.read.insert(folder_of(&file));
        }
        for file in config.keyed.secrets.iter().filter_map(|secret| secret.file.as_deref()) {
            needs.file(Path::new(file));
        }
        if let Some(files) = &config.gateway.metrics_tls {
            needs.file(&files.certificate);
            needs.file(&files.key);
        }
        for folder in FOLDERS {
            needs.again.extend(config.keyed.cert_dirs.of(folder).iter().cloned());
        }
        needs.write.insert(config.gateway.state_dir.clone());
        needs.write.extend(config.gateway.log_secrets.clone());
        needs.sockets.insert(folder_of(&config.gateway.socket));
        needs
    }

    /// An existing file: its folder, because a new version of it may take its place.
    fn file(&mut self, path: &Path) {
        if path.is_file() {
            self.read.insert(folder_of(path));
            self.again.insert(path.to_owned());
        }
    }

    fn sources(&mut self, section: &Section) {
        let named = section.settings.iter().flat_map(|setting| [&setting.at, &setting.value_at]);
        let files: BTreeSet<PathBuf> =
            named.chain([&section.at]).map(|origin| PathBuf::from(&origin.file.name)).collect();
        files.iter().for_each(|file| self.file(file));
        section.sections.iter().for_each(|section| self.sources(section));
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// State of one kind of confinement.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    /// All of it; in words.
    Full(String),
    /// Partly supported by this kernel; the text names the missing part.
    Partial(String),
    /// None of it; why.
    Absent(String),
}

/// Confinement in force. Must live as long as the process: it holds the file descriptors that the
/// file rules refer to.
pub(crate) struct Confinement {
    pub(crate) privileges: Part,
    pub(crate) files: Part,
    pub(crate) calls: Part,
    _anchors: files::Anchors,
}

/// Makes this process one of `user`, with the capabilities that the daemon needs. To be called by
/// the only thread, before [`enter`].
///
/// # Errors
/// Those of the operating system; the process must not continue then.
pub(crate) fn become_user(user: &User) -> std::io::Result<()> {
    user.take_on()?;
    privileges::keep_needed()?;
    tracing::info!(target: "control", "runs as user {} ({}), group {}", user.name, user.uid, user.gid);
    Ok(())
}

/// Confines the helper process that resolves names: no capabilities, no exec, no write access, and
/// the user `nobody` if started by root. Must be called while the process has one thread.
pub(crate) fn enter_lookup() -> [Part; 3] {
    // In a user namespace there may be no such user.
    let changed = !rustix::process::geteuid().is_root() || privileges::fall_to(&User::nobody()).is_ok();
    let privileges = match privileges::drop_all() {
        Ok(()) if changed => Part::Full("none".into()),
        Ok(()) => Part::Partial("the user stays root without capabilities".into()),
        Err(error) => Part::Absent(format!("cannot drop capabilities: {error}")),
    };
    [privileges, files::restrict_lookup(), calls::restrict()]
}

/// Drops unneeded privileges permanently and logs the active restrictions.
///
/// To be called by the only thread. Parts that cannot be confined do not change.
pub(crate) fn enter(needs: &Needs) -> Confinement {
    if threads() > 1 {
        tracing::error!(
            target: "control",
            "confinement came after the start of {} threads, which keep their privileges; please report",
            threads() - 1
        );
    }
    // Create it before the rule refers to it; opening it later reports errors.
    for folder in &needs.write {
        let _ = make_folder(folder);
    }
    let privileges = privileges::drop_all_but_needed(&needs.groups);
    let (files, anchors) = files::restrict(needs);
    let calls = calls::restrict();
    let confinement = Confinement { privileges, files, calls, _anchors: anchors };
    confinement.tell();
    warn_about_unreadable(needs);
    confinement
}

impl Confinement {
    /// Denies operations that only the start needs: changes of owners and modes, and connections to
    /// the sockets of other services, which would take this process for root.
    pub(crate) fn started(&self) {
        match calls::restrict_after_start() {
            Part::Absent(why) => tracing::warn!(target: "control", "not confined after the start: system calls: {why}"),
            _ => tracing::debug!(target: "control", "confined after the start: system calls"),
        }
    }

    fn tell(&self) {
        for (name, part) in [("privileges", &self.privileges), ("files", &self.files), ("system calls", &self.calls)] {
            match part {
                Part::Full(what) => tracing::info!(target: "control", "confined: {name}: {what}"),
                Part::Partial(what) => tracing::info!(target: "control", "confined in part: {name}: {what}"),
                Part::Absent(why) => tracing::warn!(target: "control", "not confined: {name}: {why}"),
            }
        }
    }
}

/// Makes the folder of the control socket, which must exist before Landlock removes the right to
/// create it.
pub(crate) fn make_socket_folder(socket: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder_of(socket))
}

fn make_folder(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}

/// Files that were readable by privilege only are no longer readable. Warn now, because otherwise
/// the next reload fails.
fn warn_about_unreadable(needs: &Needs) {
    for path in &needs.again {
        if let Err(error) = std::fs::File::open(path) {
            tracing::warn!(
                target: "control",
                "{0}: {error}; a reload cannot read it: chown {1} {0}",
                path.display(),
                rustix::process::geteuid().as_raw()
            );
        }
    }
}
