//! The user that the daemon becomes (`user` in the section `gateway`), and what that user has to
//! reach.
//!
//! Started by root, the daemon reads its configuration as root, gives `state_dir` and the folder of
//! its control socket to the user, and becomes that user before it opens anything else. A reload
//! then reads the configuration as the user. So every file of the configuration must be readable by
//! the user, which is checked before the start, and by `weir check`, with the permissions of the
//! user.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, lchown};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Uid};
use rustix::thread;

use crate::config::problem::Problem;

/// Groups of a user that are taken over; the kernel allows 65,536.
const GROUPS_MAX: usize = 1024;
/// Bits of the mode that let others than the owner write.
const SHARED: u32 = 0o022;

/// A user of this host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct User {
    /// Name or number, as configured.
    pub(crate) name: String,
    pub(crate) uid: u32,
    /// Primary group.
    pub(crate) gid: u32,
    /// Further groups.
    pub(crate) groups: Vec<u32>,
}

impl User {
    /// The user that owns nothing.
    pub(crate) fn nobody() -> Self {
        Self { name: "nobody".into(), uid: 65_534, gid: 65_534, groups: Vec::new() }
    }

    /// Finds a user of /etc/passwd and /etc/group by name or number. A number that is in neither is
    /// a group as well.
    ///
    /// # Errors
    /// No such user; root.
    pub(crate) fn find(name: &str) -> Result<Self, Problem> {
        let read = |path: &str| fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
        let (users, groups) = (read("/etc/passwd").unwrap_or_default(), read("/etc/group").unwrap_or_default());
        Self::among(name, &users, &groups)
    }

    fn among(name: &str, users: &str, groups: &str) -> Result<Self, Problem> {
        let number: Option<u32> = name.parse().ok();
        let of_line = |line: &str| {
            let mut fields = line.split(':');
            let (login, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            Some((login.to_owned(), uid.parse().ok()?, gid.parse().ok()?))
        };
        let mut listed = users.lines().filter_map(of_line);
        let found = listed.find(|(login, uid, _): &(String, u32, u32)| login == name || Some(*uid) == number);
        let (login, uid, gid) = match (found, number) {
            (Some(user), _) => user,
            (None, Some(uid)) => (String::new(), uid, uid),
            (None, None) => {
                let help = format!("useradd --system --no-create-home --shell /usr/sbin/nologin {name}");
                return Err(Problem::whole(format!("gateway.user: /etc/passwd has no user '{name}'")).help(help));
            }
        };
        // The last number means "unchanged" to the kernel.
        if uid == 0 || uid == u32::MAX || gid == u32::MAX {
            let message = format!("gateway.user: '{name}' is user {uid}, which cannot be used");
            return Err(Problem::whole(message).help("name a user other than root, or remove 'user' to stay root"));
        }
        let member = |line: &str| {
            let fields: Vec<&str> = line.split(':').collect();
            let [_, _, gid, members, ..] = fields[..] else { return None };
            members.split(',').any(|of| !login.is_empty() && of.trim() == login).then(|| gid.parse().ok())?
        };
        let groups = groups.lines().filter_map(member).filter(|group| *group != gid).take(GROUPS_MAX).collect();
        Ok(Self { name: name.to_owned(), uid, gid, groups })
    }

    /// Returns whether this process runs as the user already.
    pub(crate) fn is_current(&self) -> bool {
        rustix::process::geteuid().as_raw() == self.uid
    }

    /// Makes the calling thread one of the user, for good. Capabilities stay permitted and
    /// effective.
    ///
    /// # Errors
    /// Those of the operating system: the privilege is missing, or the user is unknown in this user
    /// namespace.
    pub(crate) fn take_on(&self) -> io::Result<()> {
        thread::set_keep_capabilities(true)?;
        self.change()?;
        let mut sets = thread::capabilities(None)?;
        sets.effective = sets.permitted;
        Ok(thread::set_capabilities(None, sets)?)
    }

    /// Makes the calling thread one of the user, for good and without capabilities.
    ///
    /// # Errors
    /// As for [`Self::take_on`].
    pub(crate) fn fall_to(&self) -> io::Result<()> {
        thread::set_keep_capabilities(false)?;
        self.change()
    }

    fn change(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().chain([&self.gid]).map(|group| Gid::from_raw(*group)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        thread::set_thread_groups(&groups)?;
        thread::set_thread_res_gid(gid, gid, gid)?;
        Ok(thread::set_thread_res_uid(uid, uid, uid)?)
    }

    /// Gives the user the folder of saved sequence numbers: one that is missing is made, one of
    /// root with nothing else in it changes its owner.
    ///
    /// # Errors
    /// The path of what cannot be changed, and why.
    pub(crate) fn own_state(&self, folder: &Path) -> Result<(), (PathBuf, io::Error)> {
        let kind = |name: &str| {
            ["lock", "crls", crate::web::access::FILE, crate::metrics::TOKEN_FILE].contains(&name)
                || name.ends_with(".state")
                || name.ends_with(".part")
        };
        self.own(folder, 0o700, &kind)
    }

    /// As [`Self::own_state`], for the folder of a socket.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn own_socket_folder(&self, socket: &Path) -> Result<(), (PathBuf, io::Error)> {
        let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = socket.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.own(folder, 0o755, &|other| other == name)
    }

    fn own(&self, folder: &Path, mode: u32, ours: &dyn Fn(&str) -> bool) -> Result<(), (PathBuf, io::Error)> {
        let failed = |error| (folder.to_owned(), error);
        let there = folder.is_dir();
        fs::DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(failed)?;
        // Owner of the links on the path; the target is checked separately.
        let folder = folder.canonicalize().map_err(failed)?;
        let failed = |error| (folder.clone(), error);
        let meta = fs::metadata(&folder).map_err(failed)?;
        // So far only root can have created files in it: no file there is a hard link to a file of
        // another user.
        if there && (meta.uid() != 0 || meta.mode() & SHARED != 0) {
            return Ok(());
        }
        let entries: Vec<PathBuf> =
            fs::read_dir(&folder).map_err(failed)?.flatten().map(|entry| entry.path()).collect();
        let known = |path: &PathBuf| path.file_name().is_some_and(|name| ours(&name.to_string_lossy()));
        if !entries.iter().all(known) {
            // It belongs to others as well. Opening a file in it reports missing permissions.
            return Ok(());
        }
        for entry in entries {
            self.own_tree(&entry, 1)?;
        }
        // Last, so that an interrupted change is begun again.
        lchown(&folder, Some(self.uid), Some(self.gid)).map_err(failed)
    }

    /// Changes the owner of `path` and of the files below it, down to `depth` levels.
    fn own_tree(&self, path: &Path, depth: u32) -> Result<(), (PathBuf, io::Error)> {
        let failed = |error| (path.to_owned(), error);
        if depth > 0 && fs::symlink_metadata(path).map_err(failed)?.is_dir() {
            for entry in fs::read_dir(path).map_err(failed)?.flatten() {
                self.own_tree(&entry.path(), depth - 1)?;
            }
        }
        lchown(path, Some(self.uid), Some(self.gid)).map_err(failed)
    }

    /// Returns the `files` that the user cannot read and the `folders` that the user cannot list,
    /// with the reason. The thread that checks them switches to the user, so that groups and access
    /// control lists apply as they will later.
    ///
    /// # Errors
    /// This process cannot become the user.
    pub(crate) fn unreadable(&self, files: &[PathBuf], folders: &[PathBuf]) -> io::Result<Vec<(PathBuf, io::Error)>> {
        std::thread::scope(|scope| {
            let attempt = scope.spawn(|| {
                // Without the capabilities that bypass file permissions.
                self.fall_to()?;
                Ok(unreadable(files, folders))
            });
            attempt.join().unwrap_or_else(|_| Err(io::Error::other("the thread that checks files ended")))
        })
    }
}

/// Returns the `files` that this thread cannot read and the `folders` that it cannot list.
pub(crate) fn unreadable(files: &[PathBuf], folders: &[PathBuf]) -> Vec<(PathBuf, io::Error)> {
    let files = files.iter().map(|file| (file, File::open(file).map(drop)));
    let folders = folders.iter().map(|folder| (folder, fs::read_dir(folder).map(drop)));
    files.chain(folders).filter_map(|(path, tried)| Some((path.clone(), tried.err()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const USERS: &str =
        "root:x:0:0:root:/root:/bin/bash\nbroken\nweir:x:990:980::/:/usr/sbin/nologin\nbad:x:no:1::/:\n";
    const GROUPS: &str = "root:x:0:\nweir:x:980:\nkeys:x:44:ann,weir\nothers:x:45:ann\nshort:x:46\n";

    #[test]
    fn users_are_found_by_name_and_number() {
        let weir = User::among("weir", USERS, GROUPS).unwrap();
        assert_eq!((weir.uid, weir.gid, &weir.groups[..]), (990, 980, &[44][..]));
        let by_number = User::among("990", USERS, GROUPS).unwrap();
        assert_eq!((by_number.uid, by_number.gid, &by_number.groups[..]), (990, 980, &[44][..]));
        let unknown = User::among("4711", USERS, GROUPS).unwrap();
        assert_eq!((unknown.uid, unknown.gid, unknown.groups.len()), (4711, 4711, 0));
        for (name, message) in
            [("none", "has no user 'none'"), ("root", "cannot be used"), ("0", "user 0"), ("bad", "has no")]
        {
            let problem = User::among(name, USERS, GROUPS).unwrap_err();
            assert!(problem.message().contains(message), "{name}: {}", problem.message());
        }
        assert!(User::among("4294967295", USERS, GROUPS).is_err(), "the kernel takes it as no change");
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weir-account-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            Self(path)
        }

        fn at(&self, below: &str) -> PathBuf {
            self.0.join(below)
        }

        fn owner(&self, below: &str) -> u32 {
            fs::symlink_metadata(self.at(below)).unwrap().uid()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            println!("SKIPPED: not run by root");
        }
        root
    }

    fn user() -> User {
        User { name: "4711".into(), uid: 4711, gid: 4711, groups: vec![4712] }
    }

    #[test]
    fn folders_of_root_with_nothing_else_in_them_change_their_owner() {
        if !root() {
            return;
        }
        let folder = Folder::new("own");
        user().own_state(&folder.at("new/state")).unwrap();
        assert_eq!((folder.owner("new/state"), folder.owner("new")), (4711, 0));

        fs::create_dir_all(folder.at("old/crls")).unwrap();
        for file in ["old/lock", "old/a.state", "old/crls/b"] {
            fs::write(folder.at(file), "").unwrap();
        }
        let secret = folder.at("secret");
        fs::write(&secret, "").unwrap();
        symlink(&secret, folder.at("old/crls/link")).unwrap();
        user().own_state(&folder.at("old")).unwrap();
        for path in ["old", "old/lock", "old/a.state", "old/crls", "old/crls/b", "old/crls/link"] {
            assert_eq!(folder.owner(path), 4711, "{path}");
        }
        assert_eq!(folder.owner("secret"), 0, "links are not followed");

        // Directories that others can write to, or that do not belong to root, must not be changed:
        // otherwise another user could gain files through a link.
        for (name, mode, file) in [("mixed", 0o755, "weir.sock.other"), ("shared", 0o777, "weir.sock")] {
            fs::create_dir(folder.at(name)).unwrap();
            fs::set_permissions(folder.at(name), fs::Permissions::from_mode(mode)).unwrap();
            fs::write(folder.at(name).join(file), "").unwrap();
            user().own_socket_folder(&folder.at(name).join("weir.sock")).unwrap();
            assert_eq!((folder.owner(name), fs::metadata(folder.at(name).join(file)).unwrap().uid()), (0, 0), "{name}");
        }
        fs::create_dir(folder.at("foreign")).unwrap();
        lchown(folder.at("foreign"), Some(4712), None).unwrap();
        fs::hard_link(&secret, folder.at("foreign/a.state")).unwrap();
        user().own_state(&folder.at("foreign")).unwrap();
        assert_eq!((folder.owner("foreign"), folder.owner("secret")), (4712, 0), "a second name of a file of root");
    }

    #[test]
    fn what_the_user_cannot_read_is_named() {
        if !root() {
            return;
        }
        let folder = Folder::new("read");
        let file = |name: &str, mode, group| {
            fs::write(folder.at(name), "").unwrap();
            lchown(folder.at(name), Some(0), Some(group)).unwrap();
            fs::set_permissions(folder.at(name), fs::Permissions::from_mode(mode)).unwrap();
            folder.at(name)
        };
        let files = [
            file("all", 0o644, 0),
            file("group", 0o640, 4711),
            file("further", 0o640, 4712),
            file("private", 0o600, 4711),
            file("other", 0o640, 4713),
        ];
        for (name, mode) in [("open", 0o755), ("closed", 0o711)] {
            fs::create_dir(folder.at(name)).unwrap();
            fs::set_permissions(folder.at(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let folders = [folder.at("open"), folder.at("closed")];
        let found = user().unreadable(&files, &folders).unwrap();
        let names: Vec<PathBuf> = found.iter().map(|(path, _)| path.clone()).collect();
        assert_eq!(names, [folder.at("private"), folder.at("other"), folder.at("closed")]);
        assert!(found.iter().all(|(_, error)| error.kind() == io::ErrorKind::PermissionDenied));
        assert!(rustix::process::geteuid().is_root(), "this process is still root");
        assert!(unreadable(&files, &folders).is_empty());
    }
}
