//! Files, by Landlock: paths that may be read and written. Nothing may be executed.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::{Needs, Part};

/// The newest version that the rules below were written for and tested with. Rights that an older
/// kernel does not support are omitted.
const KNOWN: ABI = ABI::V6;

/// Read for local times and by the allocator; and kernel information.
const READ: &[&str] = &[
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/etc/passwd",
    "/etc/group",
    "/dev/random",
    "/dev/urandom",
    "/proc",
    "/sys",
];
/// Folders that the resolver of a host reads, its plug-ins and their files. Rules hold files and
/// folders, not names: a file that replaces another one in these folders can be read as well.
const LOOKUP: &[&str] = &[
    "/etc",
    "/run",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/nix/store",
    "/gnu/store",
    "/dev/random",
    "/dev/urandom",
    "/dev/null",
    "/proc",
    "/sys",
];
/// Settings of the device.
const SETTINGS: &[&str] = &["/proc/sys/net/ipv4/conf", "/proc/sys/net/ipv6/conf"];
/// Devices.
const DEVICES: &[&str] = &["/dev/null", "/dev/net/tun"];

/// Files of sysctl. The kernel evicts unused inodes there, and a rule for an evicted inode has no
/// effect, so they must stay open.
#[derive(Default)]
pub(super) struct Anchors {
    _held: Vec<PathFd>,
}

/// Confines this thread, and all that come from it, to the files of `needs` and of the tables
/// above.
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
        .add_rules(rules(SETTINGS, read | change))?
        .add_rules(rules(DEVICES, devices))?
        .add_rules(rules(&needs.read, read))?
        .add_rules(rules(&needs.write, files))?
        .add_rules(rules(&needs.sockets, sockets))?;
    ruleset.restrict_self()
}

/// Confines this thread, and all that come from it, to reading [`LOOKUP`].
pub(super) fn restrict_lookup() -> Part {
    let restrict = || {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(KNOWN))?
            .scope(Scope::from_all(KNOWN))?
            .create()?
            .add_rules(rules(LOOKUP, AccessFs::ReadFile | AccessFs::ReadDir))?;
        ruleset.restrict_self()
    };
    match restrict() {
        Ok(status) => part(&status),
        Err(error) => Part::Absent(format!("Landlock: {error}")),
    }
}

/// One rule for each existing path.
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
        _ => Part::Absent("this kernel has no Landlock, or it is disabled (boot with lsm=landlock,...)".into()),
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
    // Probe on a thread that exits at once, because Landlock applies to the calling thread.
    let probe = || {
        let ruleset = Ruleset::default().handle_access(AccessFs::MakeBlock).ok()?.create().ok()?;
        version(&ruleset.restrict_self().ok()?)
    };
    let found = std::thread::Builder::new().spawn(probe).ok()?.join().ok()??;
    Some((found, found >= KNOWN as i32))
}
