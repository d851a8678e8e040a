//! References of a configuration to its host: certificate files and names of hosts.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

/// Largest certificate or key file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Contents of a file.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// Directories in which files are looked up.
#[derive(Clone)]
pub struct Outside<'a> {
    /// Folder of the configuration, below which are x509, x509ca, pubkey and the others.
    pub folder: PathBuf,
    /// Reads a file of at most 1 MiB.
    pub read: ReadFile<'a>,
}

impl Outside<'static> {
    /// The files of this host.
    pub fn host(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), read: &read_file }
    }

    /// Nothing: files are absent.
    pub fn nothing() -> Self {
        let read: ReadFile<'static> = &|_: &Path| Err(io::ErrorKind::NotFound.into());
        Self { folder: PathBuf::from("."), read }
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than 1 MiB"));
    }
    Ok(bytes)
}

/// Addresses of `name`, in the order of the host's resolver. Waits for it.
///
/// # Errors
/// Those of the resolver.
pub fn resolve_name(name: &str) -> io::Result<Vec<IpAddr>> {
    let mut addrs: Vec<IpAddr> = Vec::new();
    for addr in (name, 0).to_socket_addrs()? {
        if !addrs.contains(&addr.ip()) {
            addrs.push(addr.ip());
        }
    }
    Ok(addrs)
}
