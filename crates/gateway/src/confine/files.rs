//! Files, by Landlock: where something may be read, written, executed.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::{Needs, Part};

/// The newest version that the rules below were written for and tested with. What an older kernel does not
/// know of it is left out.
const KNOWN: ABI = ABI::V6;

/// Read by the resolver, by `ip`, by the loader of programs; and what the kernel says about itself.
const READ: &[&str] = &[
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/iproute2",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/usr/share/iproute2",
    "/usr/share/zoneinfo",
    "/dev/random",
    "/dev/urandom",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/nix/store",
    "/gnu/store",
    "/proc",
    "/sys",
];
/// Settings of the device.
const SETTINGS: &[&str] = &["/proc/sys/net/ipv4/conf", "/proc/sys/net/ipv6/conf"];
/// Devices.
const DEVICES: &[&str] = &["/dev/null", "/dev/net/tun"];
/// What starts a program that is linked dynamically, where the program does not say.
const LOADERS: &[&str] = &["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
/// Where `ip` is looked for when there is no PATH.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Files of the kernel's own file system for settings. It forgets them when nobody uses them, and a rule about one
/// that was forgotten holds for nothing.
#[derive(Default)]
pub(super) struct Anchors {
    _held: Vec<PathFd>,
}

/// Confines this thread, and all that come from it, to the files of `needs` and of the tables above.
pub(super) fn restrict(needs: &Needs) -> (Part, Anchors) {
    match try_restrict(needs) {
        Ok(status) => {
            let held = SETTINGS.iter().filter_map(|path| PathFd::new(path).ok()).collect();
            (part(&status), Anchors { _held: held })
        }
        Err(error) => (Part::Absent(format!("Landlock: {error}")), Anchors::default()),
    }
}

fn try_restrict(needs: &Needs) -> Result<RestrictionStatus, RulesetError> {
    let all = AccessFs::from_all(KNOWN);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let change = AccessFs::WriteFile | AccessFs::Truncate;
    let devices = change | AccessFs::ReadFile | AccessFs::IoctlDev;
    let files = read | change | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::MakeDir | AccessFs::RemoveDir;
    let sockets = AccessFs::ReadDir | AccessFs::MakeSock | AccessFs::RemoveFile;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(KNOWN))?
        .create()?
        .add_rules(rules(READ, read))?
        .add_rules(rules(SETTINGS, read | AccessFs::WriteFile))?
        .add_rules(rules(DEVICES, devices))?
        .add_rules(rules(&programs(), AccessFs::ReadFile | AccessFs::Execute))?
        .add_rules(rules(&needs.read, read))?
        .add_rules(rules(&needs.write, files))?
        .add_rules(rules(&needs.sockets, sockets))?;
    ruleset.restrict_self()
}

/// One rule for each path that is there.
fn rules<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
    access: BitFlags<AccessFs>,
) -> impl Iterator<Item = Result<PathBeneath<PathFd>, RulesetError>> {
    landlock::path_beneath_rules(paths, access)
}

fn part(status: &RestrictionStatus) -> Part {
    match (&status.ruleset, version(status)) {
        (RulesetStatus::FullyEnforced, _) => Part::Full("Landlock".into()),
        (RulesetStatus::PartiallyEnforced, Some(version)) => {
            Part::Partial(format!("Landlock, version {version} of the kernel's interface instead of {}", KNOWN as i32))
        }
        _ => Part::Absent("this kernel has no Landlock, or it is switched off (boot with lsm=landlock,...)".into()),
    }
}

fn version(status: &RestrictionStatus) -> Option<i32> {
    match status.landlock {
        LandlockStatus::Available { effective_abi, kernel_abi } => Some(kernel_abi.unwrap_or(effective_abi as i32)),
        _ => None,
    }
}

/// The version of Landlock that this kernel has, and whether that is all that Weir makes use of.
pub(crate) fn available() -> Option<(i32, bool)> {
    // The kernel tells when it confines something: a thread that ends at once.
    let probe = || {
        let ruleset = Ruleset::default().handle_access(AccessFs::MakeBlock).ok()?.create().ok()?;
        version(&ruleset.restrict_self().ok()?)
    };
    let found = std::thread::Builder::new().spawn(probe).ok()?.join().ok()??;
    Some((found, found >= KNOWN as i32))
}

/// `ip` and what loads it. One that is installed later is not found before the next start.
fn programs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    let Some(ip) = std::env::split_paths(&path).map(|folder| folder.join("ip")).find(|file| file.is_file()) else {
        return Vec::new();
    };
    let mut programs: Vec<PathBuf> = LOADERS.iter().map(PathBuf::from).collect();
    programs.extend(std::fs::read(&ip).ok().and_then(|elf| loader(&elf)));
    programs.push(ip);
    programs
}

/// The program that an ELF file of 64 bits, little-endian, asks to be loaded with (PT_INTERP).
fn loader(elf: &[u8]) -> Option<PathBuf> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, len: usize| {
        let bytes = elf.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0_u64, |n, byte| n << 8 | u64::from(*byte)))
    };
    let place = |at: usize| usize::try_from(number(at, 8)?).ok();
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (place(32)?, number(54, 2)? as usize, number(56, 2)? as usize);
    let header = (0..count).filter_map(|i| table.checked_add(i * size)).find(|at| number(*at, 4) == Some(PT_INTERP))?;
    let start = place(header.checked_add(8)?)?;
    let name = elf.get(start..start.checked_add(place(header.checked_add(32)?)?)?)?;
    Some(PathBuf::from(std::str::from_utf8(name.strip_suffix(&[0])?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_of_a_program_is_found() {
        let elf = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let found = loader(&elf).expect("tests are linked dynamically");
        assert!(found.is_absolute() && found.exists(), "{}", found.display());
        for len in [0, 5, 6, 32, 60, 64, 100] {
            let _ = loader(&elf[..len]);
        }
        let mut wild = elf[..4096].to_vec();
        wild[32..40].fill(0xff);
        assert_eq!(loader(&wild), None);
    }
}
