//! The socket file: its permissions, and the replacement of a stale one.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{Gid, Mode};

/// Listens at `path`, for its owner only, or also for a group. A socket without a listener is
/// replaced.
///
/// # Errors
/// When another process answers there, or the file cannot be made; the text names the path.
pub(super) fn listen(path: &Path, group: Option<u32>) -> io::Result<UnixListener> {
    let explained = |error: io::Error| {
        let text = format!("control socket {}: {error}", path.display());
        io::Error::new(error.kind(), text)
    };
    remove_stale(path).map_err(explained)?;
    // No other user may connect between bind and chmod.
    let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(mask);
    let listener = listener.map_err(explained)?;
    let set_up = || {
        if let Some(group) = group {
            rustix::fs::chown(path, None, Some(Gid::from_raw(group)))?;
        }
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        listener.set_nonblocking(true)
    };
    if let Err(error) = set_up() {
        let _ = std::fs::remove_file(path);
        return Err(explained(error));
    }
    Ok(listener)
}

/// Identity of a file: device and inode.
pub(super) type Mark = (u64, u64);

/// Returns the identity of the file at `path`.
pub(super) fn mark(path: &Path) -> Option<Mark> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(meta) if !meta.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "path exists and is not a socket"))
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another daemon answers there"))
        }
        Ok(_) => std::fs::remove_file(path),
    }
}

/// The number of a group of this machine, from `/etc/group` or as a number.
///
/// # Errors
/// If the group does not exist.
pub fn group_id(name: &str) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let groups = std::fs::read_to_string("/etc/group")?;
    let number = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    number.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("/etc/group has no group '{name}'")))
}
