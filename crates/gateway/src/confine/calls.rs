//! System calls, by seccomp: a list of those that no part of Weir has a use for.
//!
//! Other system calls remain allowed: the C library and the resolver's plug-ins belong to the host,
//! and the calls they make change with its updates. The list takes away what turns a fault in this
//! process into one of the host: other processes, mounts, namespaces, modules, the wide and young
//! interfaces of the kernel.

use std::collections::BTreeMap;

use libc::{
    SYS_acct, SYS_add_key, SYS_adjtimex, SYS_bpf, SYS_chroot, SYS_clock_adjtime, SYS_clock_settime, SYS_clone,
    SYS_clone3, SYS_delete_module, SYS_execve, SYS_execveat, SYS_fanotify_init, SYS_fchmod, SYS_fchmodat, SYS_fchown,
    SYS_fchownat, SYS_finit_module, SYS_fremovexattr, SYS_fsconfig, SYS_fsetxattr, SYS_fsmount, SYS_fsopen, SYS_fspick,
    SYS_init_module, SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup, SYS_ioctl, SYS_kcmp,
    SYS_kexec_file_load, SYS_kexec_load, SYS_keyctl, SYS_linkat, SYS_lremovexattr, SYS_lsetxattr, SYS_memfd_create,
    SYS_mknodat, SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_move_pages, SYS_open_by_handle_at, SYS_open_tree,
    SYS_perf_event_open, SYS_personality, SYS_pidfd_getfd, SYS_pidfd_open, SYS_pidfd_send_signal, SYS_pivot_root,
    SYS_process_madvise, SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace, SYS_quotactl, SYS_reboot,
    SYS_removexattr, SYS_request_key, SYS_setdomainname, SYS_sethostname, SYS_setns, SYS_settimeofday, SYS_setxattr,
    SYS_socket, SYS_swapoff, SYS_swapon, SYS_symlinkat, SYS_syslog, SYS_umount2, SYS_unshare, SYS_userfaultfd,
    SYS_utimensat, SYS_vhangup,
};
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::Part;

/// fchmodat2: the same number on every architecture. libc lacks the name on some.
const SYS_FCHMODAT2: i64 = 452;

/// Refused whatever their arguments.
const DENIED: &[i64] = &[
    // Other processes.
    SYS_kcmp,
    SYS_move_pages,
    SYS_pidfd_getfd,
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
    SYS_process_madvise,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_ptrace,
    // Code outside of files, which the rules for files do not cover.
    SYS_memfd_create,
    // Mounts, roots, namespaces, device files, and files by number past the rules about files.
    SYS_chroot,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fsopen,
    SYS_fspick,
    SYS_mknodat,
    SYS_mount,
    SYS_mount_setattr,
    SYS_move_mount,
    SYS_open_by_handle_at,
    SYS_open_tree,
    SYS_pivot_root,
    SYS_setns,
    SYS_umount2,
    SYS_unshare,
    // The kernel itself, and the clock.
    SYS_acct,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_clock_settime,
    SYS_delete_module,
    SYS_finit_module,
    SYS_init_module,
    SYS_kexec_file_load,
    SYS_kexec_load,
    SYS_quotactl,
    SYS_reboot,
    SYS_setdomainname,
    SYS_sethostname,
    SYS_settimeofday,
    SYS_swapoff,
    SYS_swapon,
    SYS_syslog,
    SYS_vhangup,
    // Large interfaces that Weir does not use; io_uring would also bypass this list.
    SYS_add_key,
    SYS_bpf,
    SYS_fanotify_init,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_io_uring_setup,
    SYS_keyctl,
    SYS_perf_event_open,
    SYS_personality,
    SYS_request_key,
    SYS_userfaultfd,
];
/// Older forms of some of them.
#[cfg(target_arch = "x86_64")]
const DENIED_HERE: &[i64] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_mknod, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE: &[i64] = &[];

/// Refused when the gateway has started: owners, modes and times of files, further names of files.
/// None of them is covered by Landlock, and with user 0 they reach files of every service.
const DENIED_AFTER_START: &[i64] = &[
    SYS_fchmod,
    SYS_fchmodat,
    SYS_FCHMODAT2,
    SYS_fchown,
    SYS_fchownat,
    SYS_fremovexattr,
    SYS_fsetxattr,
    SYS_linkat,
    SYS_lremovexattr,
    SYS_lsetxattr,
    SYS_removexattr,
    SYS_setxattr,
    SYS_symlinkat,
    SYS_utimensat,
];
/// Older forms of them.
#[cfg(target_arch = "x86_64")]
const DENIED_HERE_AFTER_START: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_futimesat,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_utime,
    libc::SYS_utimes,
];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE_AFTER_START: &[i64] = &[];

/// Refused as well: this process starts no program. What runs programs for it are helper processes
/// from before.
const PROGRAMS: &[i64] = &[SYS_execve, SYS_execveat];

/// Kinds of sockets that are opened: everything else is a part of the kernel that few look after.
const FAMILIES: [i32; 6] =
    [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_XDP];
/// Typing for the terminal that Weir was started from.
const IOCTLS: [u64; 2] = [libc::TIOCSTI, 0x541c /* TIOCLINUX */];
/// New namespaces.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Puts the list in force for all threads, and all that come from them. Calls on it fail with
/// EPERM.
pub(super) fn restrict() -> Part {
    let filters = filters().and_then(|filters| Ok(filters.into_iter().chain([no_programs()?]).collect::<Vec<_>>()));
    apply(filters)
}

/// The list without [`PROGRAMS`], for tests that make calls by programs.
#[cfg(test)]
pub(super) fn restrict_all_but_programs() -> Part {
    apply(filters().map(Vec::from))
}

/// [`PROGRAMS`] alone.
#[cfg(test)]
pub(super) fn restrict_programs() -> Part {
    apply(no_programs().map(|filter| vec![filter]))
}

fn apply(filters: Result<Vec<BpfProgram>, Error>) -> Part {
    let apply = |filter: &BpfProgram| seccompiler::apply_filter_all_threads(filter);
    match filters.and_then(|filters| filters.iter().try_for_each(apply)) {
        Ok(()) => Part::Full("seccomp".into()),
        Err(error) => Part::Absent(format!("seccomp: {error}")),
    }
}

/// Filter of the system calls that only the start needs, for all threads. A filter cannot read the
/// path of a socket address, so new sockets of that family are denied: the control socket listens
/// already, and a helper process looks up names.
pub(super) fn restrict_after_start() -> Part {
    apply(after_start().map(|filter| vec![filter]))
}

fn after_start() -> Result<BpfProgram, Error> {
    let unix = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::AF_UNIX as u64)?;
    let always = DENIED_AFTER_START.iter().chain(DENIED_HERE_AFTER_START).map(|call| (*call, Vec::new()));
    compile(both_abis(always.chain([(SYS_socket, vec![SeccompRule::new(vec![unix])?])])), libc::EPERM)
}

/// Returns whether this kernel can filter system calls.
pub(crate) fn available() -> bool {
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    actions.split_whitespace().any(|action| action == "errno")
}

fn no_programs() -> Result<BpfProgram, Error> {
    compile(both_abis(PROGRAMS.iter().map(|call| (*call, Vec::new()))), libc::EPERM)
}

fn filters() -> Result<[BpfProgram; 2], Error> {
    // The flags of clone3 are in memory, where a filter cannot read them. The C library falls back
    // to clone.
    let clone3 = both_abis([(SYS_clone3, Vec::new())]);
    Ok([compile(clone3, libc::ENOSYS)?, compile(denied()?, libc::EPERM)?])
}

fn compile(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<BpfProgram, Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(Error::from)?;
    let refuse = SeccompAction::Errno(errno as u32);
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()?)
}

fn denied() -> Result<BTreeMap<i64, Vec<SeccompRule>>, Error> {
    use SeccompCmpArgLen::Dword;
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let rule = |conditions: Vec<SeccompCondition>| SeccompRule::new(conditions).map_err(Error::from);
    let one = |arg, op, value| Ok::<_, Error>(SeccompCondition::new(arg, Dword, op, value)?);
    let family = FAMILIES.iter().map(|family| one(0, Ne, *family as u64)).collect::<Result<_, _>>()?;
    let ioctls = IOCTLS.iter().map(|request| rule(vec![one(1, Eq, *request)?])).collect::<Result<_, _>>()?;
    let flag = |flag: &i32| {
        let flag = u64::from(*flag as u32);
        rule(vec![one(0, MaskedEq(flag), flag)?])
    };
    let namespaces = NAMESPACES.iter().map(flag).collect::<Result<_, _>>()?;
    let always = DENIED.iter().chain(DENIED_HERE).map(|call| (*call, Vec::new()));
    let depends = [(SYS_socket, vec![rule(family)?]), (SYS_ioctl, ioctls), (SYS_clone, namespaces)];
    Ok(both_abis(always.chain(depends)))
}

/// On x86-64, the same calls by their numbers in the x32 ABI too, which kernels may still have.
fn both_abis(rules: impl IntoIterator<Item = (i64, Vec<SeccompRule>)>) -> BTreeMap<i64, Vec<SeccompRule>> {
    const X32: i64 = 0x4000_0000;
    let other = cfg!(target_arch = "x86_64");
    let mut all = BTreeMap::new();
    for (call, rules) in rules {
        if other {
            all.insert(call | X32, rules.clone());
        }
        all.insert(call, rules);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_compile_and_name_no_call_twice() {
        let mut sorted = DENIED.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), DENIED.len());
        assert!((2..4096).contains(&after_start().unwrap().len()));
        assert!((2..4096).contains(&no_programs().unwrap().len()));
        let sizes = filters().unwrap().map(|program| program.len());
        assert!(sizes.iter().all(|size| (2..4096).contains(size)), "{sizes:?}");
    }
}
