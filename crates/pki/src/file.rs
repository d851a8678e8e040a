//! Files of an authority: written completely or not at all, private keys readable by their owner
//! only, and nothing replaced without a request.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use zeroize::Zeroizing;

/// Bytes of a file beyond which it is not read.
const MAX_BYTES: u64 = 64 << 20;

/// Mode of a new file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// 0600: contains a private key.
    Secret,
    /// 0644.
    Public,
}

/// Handling of a file that exists.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Existing {
    /// An error.
    Refuse,
    Replace,
}

impl Existing {
    /// `--force` replaces.
    pub(crate) fn by(force: bool) -> Self {
        if force { Self::Replace } else { Self::Refuse }
    }
}

/// Writes a file with all its bytes on disk before it gets its name.
///
/// # Errors
/// The file exists and must not be replaced, or the file system's error; then there is no new file.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: Mode, existing: Existing) -> anyhow::Result<()> {
    let folder = parent(path);
    let temporary = temporary(path);
    let written = store(&temporary, bytes, mode).and_then(|()| match existing {
        Existing::Replace => fs::rename(&temporary, path),
        // Unlike rename, a link fails if the name exists, in one step.
        Existing::Refuse => fs::hard_link(&temporary, path).and_then(|()| fs::remove_file(&temporary)),
    });
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        if error.kind() == io::ErrorKind::AlreadyExists {
            bail!("{} exists; --force replaces it", path.display());
        }
        return Err(error).with_context(|| format!("cannot write {}", path.display()));
    }
    // The name itself; a file system without this call keeps it anyway.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

fn store(path: &Path, bytes: &[u8], mode: Mode) -> io::Result<()> {
    let mode = match mode {
        Mode::Secret => 0o600,
        Mode::Public => 0o644,
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A name beside `path` that no other process uses.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut number = [0; 8];
    crypto::random(&mut number);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    parent(path).join(format!(".{name}.{:016x}", u64::from_be_bytes(number)))
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a folder of mode 0700, and those above it, if there is none.
///
/// # Errors
/// The file system's error.
pub(crate) fn folder(path: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot create the folder {}", path.display()))
}

/// Reads a file that may be a key.
///
/// # Errors
/// The file system's error with the path, or the file is too large.
pub(crate) fn read(path: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let fault = || format!("cannot read {}", path.display());
    let size = fs::metadata(path).with_context(fault)?.len();
    if size > MAX_BYTES {
        bail!("{}: {size} bytes exceed the limit of {MAX_BYTES}", path.display());
    }
    fs::read(path).map(Zeroizing::new).with_context(fault)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_have_their_mode_and_are_not_replaced_without_a_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.key");
        write(&path, b"one", Mode::Secret, Existing::Refuse).expect("written");
        let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        let refusal = write(&path, b"two", Mode::Secret, Existing::Refuse).expect_err("refused").to_string();
        assert!(refusal.ends_with("a.key exists; --force replaces it"), "{refusal}");
        assert_eq!(fs::read(&path).expect("a file"), b"one");
        write(&path, b"two", Mode::Secret, Existing::Replace).expect("replaced");
        assert_eq!(fs::read(&path).expect("a file"), b"two");
        assert!(write(&folder.path().join("none/a"), b"", Mode::Public, Existing::Refuse).is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "temporary files are left");
    }
}
