//! Numbers that outlive the daemon: high-water marks of sent and highest received sequence numbers
//! (RFC 4303 §3.3.3).
//!
//! One small file per SA and direction, named by a hash of its key: numbers under one key are never
//! used twice, even if the rest of the SA changes. A file is written completely under a temporary
//! name, synced, and renamed, so that a crash leaves the old or the new one. Outbound it states "no
//! number from here on was used", and is raised by a block before the block is used.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use ipsec::{InboundSa, OutboundSa};

/// Largest state file: 65,536 Sub SAs of at most 28 bytes, and the header.
const MAX_FILE_BYTES: u64 = 4 << 20;
const MAGIC: &str = "weir state 1";

/// Names a key without telling it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Identity([u8; 32]);

impl Identity {
    /// The identity of the numbers under `key`, sent or received.
    pub(crate) fn of(outbound: bool, key: &[u8]) -> Self {
        let mut text = zeroize::Zeroizing::new(Vec::with_capacity(64 + key.len()));
        text.extend_from_slice(if outbound { b"weir numbers sent under " } else { b"weir numbers received under " });
        text.extend_from_slice(key);
        let mut name = [0; 32];
        name.copy_from_slice(digest(&SHA256, &text).as_ref());
        Self(name)
    }

    fn file_name(self) -> String {
        let hex: String = self.0[..16].iter().map(|b| format!("{b:02x}")).collect();
        format!("{hex}.state")
    }
}

/// Contents of a state file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Record {
    /// True if the numbers are exact, because the daemon stopped in order.
    pub(crate) clean: bool,
    /// Name of the SA, for people.
    pub(crate) name: String,
    /// Offset of explicit IVs to the numbers. It must stay constant under one key, otherwise an IV
    /// repeats.
    pub(crate) iv_ahead: u64,
    /// By lane (Session ID of a Sub SA): first number never used, or highest number seen.
    pub(crate) numbers: BTreeMap<u32, u64>,
}

impl Record {
    fn emit(&self) -> String {
        let mut text = format!("{MAGIC}\nsa {}\n{}\n", self.name, if self.clean { "stopped" } else { "running" });
        if self.iv_ahead > 0 {
            text.push_str(&format!("iv_ahead {}\n", self.iv_ahead));
        }
        for (lane, number) in &self.numbers {
            text.push_str(&format!("{lane} {number}\n"));
        }
        let sum = checksum(&text);
        text.push_str(&sum);
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let at = text.rfind("sum ")?;
        let (body, sum) = text.split_at(at);
        if checksum(body) != sum {
            return None;
        }
        // Not `lines`, which would take a carriage return from the end of a name.
        let mut lines = body.strip_suffix('\n')?.split('\n');
        if lines.next()? != MAGIC {
            return None;
        }
        let name = lines.next()?.strip_prefix("sa ")?.to_owned();
        let clean = match lines.next()? {
            "stopped" => true,
            "running" => false,
            _ => return None,
        };
        let (mut iv_ahead, mut numbers) = (0, BTreeMap::new());
        for line in lines {
            match line.split_once(' ')? {
                ("iv_ahead", ahead) => iv_ahead = ahead.parse().ok()?,
                (lane, number) => drop(numbers.insert(lane.parse().ok()?, number.parse().ok()?)),
            }
        }
        Some(Self { clean, name, iv_ahead, numbers })
    }
}

/// Reads the text of a state file. For fuzzing; a missing checksum is added, since no fuzzer would
/// find it.
///
/// # Panics
/// If an emitted record does not parse to the same record.
#[doc(hidden)]
pub fn check_record(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for text in [text.to_owned(), format!("{text}{}", checksum(text))] {
        if let Some(record) = Record::parse(&text) {
            assert_eq!(Record::parse(&record.emit()).as_ref(), Some(&record));
        }
    }
}

/// Last line of a file; guards against cut and flipped bytes, not against people.
fn checksum(body: &str) -> String {
    let sum: String = digest(&SHA256, body.as_bytes()).as_ref()[..8].iter().map(|b| format!("{b:02x}")).collect();
    format!("sum {sum}\n")
}

/// Reason why saved numbers cannot be used. Starting without them could repeat a number.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// The folder.
    #[error(
        "state_dir {dir}: {source}; it must be a directory that this user can write, or set 'state_dir' in the section 'gateway'"
    )]
    Folder { dir: PathBuf, source: io::Error },
    /// Another process holds the lock.
    #[error("state_dir {dir} is in use by another weir; stop it, or set another 'state_dir' in the section 'gateway'")]
    InUse { dir: PathBuf },
    /// A file.
    #[error(
        "sa {name}: the saved sequence numbers in {path} cannot be used: {why}; a sequence number could repeat: \
         set new keys for this SA, then remove the file"
    )]
    Damaged { name: String, path: PathBuf, why: String },
    /// A first write.
    #[error("sa {name}: cannot save sequence numbers in {path}: {source}; make room, or set another 'state_dir'")]
    Write { name: String, path: PathBuf, source: io::Error },
}

/// Timeout for the lock of the directory. A daemon that was killed during a fork leaves a child
/// that holds the lock until exec.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Interval of the attempts.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// The folder with the files; one daemon at a time.
pub(crate) struct Store {
    dir: PathBuf,
    _lock: Option<File>,
}

impl Store {
    /// Opens the folder, makes it when it is missing, and locks it.
    pub(crate) fn open(dir: &Path) -> Result<Self, StateError> {
        let folder = |source| StateError::Folder { dir: dir.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(folder)?;
        let lock = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join("lock"))
            .map_err(folder)?;
        let patience = Instant::now() + LOCK_PATIENCE;
        loop {
            match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { dir: dir.to_owned(), _lock: Some(lock) }),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < patience => thread::sleep(LOCK_RETRY),
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(StateError::InUse { dir: dir.to_owned() }),
                Err(error) => return Err(folder(error.into())),
            }
        }
    }

    /// For a configuration without manual SAs: nothing is saved.
    #[cfg(feature = "simulation")]
    pub(crate) fn unused() -> Self {
        Self { dir: PathBuf::from("/nonexistent"), _lock: None }
    }

    fn path(&self, identity: Identity) -> PathBuf {
        self.dir.join(identity.file_name())
    }

    /// Saved record; `None` if the key was never used on this host.
    pub(crate) fn read(&self, name: &str, identity: Identity) -> Result<Option<Record>, StateError> {
        let path = self.path(identity);
        let damaged = |why: String| StateError::Damaged { name: name.into(), path: path.clone(), why };
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(damaged(error.to_string())),
            Ok(meta) if meta.len() > MAX_FILE_BYTES => return Err(damaged("it is too large".into())),
            Ok(_) => {}
        }
        let text = fs::read_to_string(&path).map_err(|error| damaged(error.to_string()))?;
        Record::parse(&text).map(Some).ok_or_else(|| damaged("it is damaged".into()))
    }

    /// Saves; afterwards it is on the disk, whatever happens.
    pub(crate) fn write(&self, identity: Identity, record: &Record) -> io::Result<()> {
        let path = self.path(identity);
        let part = path.with_extension("part");
        let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(record.emit().as_bytes())?;
        file.sync_all()?;
        fs::rename(&part, &path)?;
        File::open(&self.dir)?.sync_all()
    }
}

/// An outbound SA with saved numbers.
pub(crate) struct Sender {
    /// Names the file.
    pub(crate) identity: Identity,
    /// The SA.
    pub(crate) sa: Arc<OutboundSa>,
    /// Name of each lane in the file.
    pub(crate) lanes: Vec<u32>,
    /// See [`Record::iv_ahead`].
    pub(crate) iv_ahead: u64,
}

impl Sender {
    /// Record to save: `numbers` of the lanes, in order, and the saved numbers of lanes that the SA
    /// does not have now. A later configuration may use them again under the same key.
    fn record(&self, clean: bool, numbers: impl Iterator<Item = u64>, others: &BTreeMap<u32, u64>) -> Record {
        let mut all = others.clone();
        all.extend(self.lanes.iter().copied().zip(numbers));
        Record { clean, name: self.sa.common.name.to_string(), iv_ahead: self.iv_ahead, numbers: all }
    }
}

/// An inbound SA with a saved window.
pub(crate) struct Receiver {
    /// Names the file.
    pub(crate) identity: Identity,
    /// The SA.
    pub(crate) sa: Arc<InboundSa>,
}

/// Keeps the numbers of all SAs. Owned by the control thread.
pub(crate) struct SequenceSaver {
    store: Store,
    /// Numbers that one write makes usable. Half of them should last from one
    /// [`SequenceSaver::tick`] to the next: of the default, 2^20, for 50 ms at 10 million packets a
    /// second.
    block: u64,
    /// Keeps earlier records of lanes that do not exist now.
    senders: Vec<(Sender, BTreeMap<u32, u64>)>,
    receivers: Vec<(Receiver, Record)>,
    received_saved: Instant,
    complained: Option<Instant>,
}

/// Interval at which tops of windows are saved.
const RECEIVED_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a failure to save is logged.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

impl SequenceSaver {
    pub(crate) fn new(now: Instant, store: Store, block: u64) -> Self {
        Self { store, block, senders: Vec::new(), receivers: Vec::new(), received_saved: now, complained: None }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Replaces the SAs that are looked after and gives each its first block of numbers.
    ///
    /// # Errors
    /// The first SA for which saving failed.
    pub(crate) fn keep(
        &mut self,
        now: Instant,
        senders: Vec<Sender>,
        receivers: Vec<Receiver>,
    ) -> Result<(), StateError> {
        self.save_received(now);
        let before = |name: &str, identity| {
            Ok::<_, StateError>(self.store.read(name, identity)?.map(|record| record.numbers).unwrap_or_default())
        };
        let mut kept = Vec::with_capacity(senders.len());
        for sender in senders {
            let others = before(&sender.sa.common.name, sender.identity)?;
            if let Err(source) = raise(&self.store, self.block, &sender, &others) {
                let path = self.store.path(sender.identity);
                return Err(StateError::Write { name: sender.sa.common.name.to_string(), path, source });
            }
            kept.push((sender, others));
        }
        let mut watched = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            let name = receiver.sa.common.name.to_string();
            let numbers = before(&name, receiver.identity)?;
            watched.push((receiver, Record { clean: false, name, iv_ahead: 0, numbers }));
        }
        (self.senders, self.receivers) = (kept, watched);
        Ok(())
    }

    /// Raises marks that are about to be reached, and saves tops periodically. Failures are logged
    /// and retried: packets continue until the mark.
    pub(crate) fn tick(&mut self, now: Instant) {
        let mut failed = None;
        for (sender, others) in &self.senders {
            if let Err(error) = raise(&self.store, self.block, sender, others) {
                failed = Some((sender.sa.common.name.to_string(), error));
            }
        }
        if let Some((name, error)) = failed {
            self.complain(now, &name, &error);
        }
        if now.saturating_duration_since(self.received_saved) >= RECEIVED_EVERY {
            self.save_received(now);
        }
    }

    fn complain(&mut self, now: Instant, name: &str, error: &io::Error) {
        if self.complained.is_none_or(|at| now.saturating_duration_since(at) >= COMPLAIN_EVERY) {
            self.complained = Some(now);
            tracing::error!(
                target: "state",
                "sa {name}: cannot save sequence numbers in {}: {error}; packets will be dropped as seq_unsaved when the \
                 saved ones are used up: make room",
                self.store.dir.display()
            );
        }
    }

    /// Saves tops of windows that moved.
    pub(crate) fn save_received(&mut self, now: Instant) {
        self.received_saved = now;
        let mut failed = None;
        for (receiver, last) in &mut self.receivers {
            let mut numbers = last.numbers.clone();
            numbers.extend(tops(&receiver.sa));
            if numbers == last.numbers {
                continue;
            }
            let record = Record { numbers, ..last.clone() };
            match self.store.write(receiver.identity, &record) {
                Ok(()) => *last = record,
                Err(error) => failed = Some((record.name, error)),
            }
        }
        if let Some((name, error)) = failed {
            self.complain(now, &name, &error);
        }
    }

    /// Saves exact numbers, after the last packet.
    pub(crate) fn close(mut self, now: Instant) {
        self.save_received(now);
        for (sender, others) in &self.senders {
            let record = sender.record(true, sender.sa.lanes.iter().map(|lane| lane.seq.next()), others);
            if let Err(error) = self.store.write(sender.identity, &record) {
                tracing::error!(target: "state", "sa {}: {error}; the next start skips some numbers", record.name);
            }
        }
    }
}

/// Raises the mark of an SA when less than half a block is left in any of its lanes.
fn raise(store: &Store, block: u64, sender: &Sender, others: &BTreeMap<u32, u64>) -> io::Result<()> {
    let low = |lane: &ipsec::OutLane| {
        let seq = &lane.seq;
        seq.saved() <= seq.last() && seq.next().saturating_add(block / 2) > seq.saved()
    };
    if !sender.sa.lanes.iter().any(low) {
        return Ok(());
    }
    let marks: Vec<u64> = sender
        .sa
        .lanes
        .iter()
        .map(|lane| lane.seq.next().saturating_add(block).min(lane.seq.last() + 1).max(lane.seq.saved()))
        .collect();
    store.write(sender.identity, &sender.record(false, marks.iter().copied(), others))?;
    for (lane, mark) in sender.sa.lanes.iter().zip(marks) {
        lane.seq.allow_below(mark);
    }
    Ok(())
}

/// Highest numbers seen, by lane.
fn tops(sa: &InboundSa) -> BTreeMap<u32, u64> {
    let seen = sa.lanes.iter().enumerate().filter_map(|(lane, state)| Some((lane as u32, state.window.get()?.top().0)));
    seen.filter(|(_, top)| *top > 0).collect()
}

/// Highest numbers that an inbound SA has seen, for reports.
pub(crate) fn window_tops(sa: &InboundSa) -> BTreeMap<u32, u64> {
    tops(sa)
}

/// Returns whether anything was counted on an SA, for reports.
pub(crate) fn packets(counters: &ipsec::SaCounters) -> (u64, u64) {
    (counters.packets(), counters.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("weir-state-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    fn record(clean: bool, number: u64) -> Record {
        let iv_ahead = u64::from(clean) * 99;
        Record { clean, name: "moon".into(), iv_ahead, numbers: BTreeMap::from([(0, number), (7, u64::MAX - 1)]) }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let dir = folder("round");
        let store = Store::open(&dir).unwrap();
        let id = Identity::of(true, b"key");
        assert_eq!(store.read("moon", id).unwrap(), None);
        for clean in [true, false] {
            store.write(id, &record(clean, 42)).unwrap();
            assert_eq!(store.read("moon", id).unwrap(), Some(record(clean, 42)));
        }
        assert_ne!(id, Identity::of(false, b"key"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let record = Record { name: "moon\r\r".into(), ..record(true, 5) };
        assert_eq!(Record::parse(&record.emit()), Some(record));
        check_record(b"weir state 1\nsa moon\r\r\nstopped\n0 8\n");
    }

    #[test]
    fn a_crash_while_writing_leaves_the_old_file() {
        let dir = folder("torn");
        let store = Store::open(&dir).unwrap();
        let id = Identity::of(true, b"key");
        store.write(id, &record(false, 1 << 20)).unwrap();
        // The crash: the new file was begun, and never renamed.
        let part = store.path(id).with_extension("part");
        fs::write(&part, &record(false, 2 << 20).emit()[..30]).unwrap();
        drop(store);
        let store = Store::open(&dir).unwrap();
        assert_eq!(store.read("moon", id).unwrap(), Some(record(false, 1 << 20)));
        // The next write takes the name of the torn one.
        store.write(id, &record(true, 5)).unwrap();
        assert!(!part.exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_damaged_file_is_refused_wherever_it_is_damaged() {
        let dir = folder("damaged");
        let store = Store::open(&dir).unwrap();
        let id = Identity::of(true, b"key");
        let whole = record(false, 77).emit();
        for cut in 0..whole.len() {
            fs::write(store.path(id), &whole[..cut]).unwrap();
            let error = store.read("moon", id).unwrap_err().to_string();
            assert!(error.contains("sa moon") && error.contains("new keys"), "cut at {cut}: {error}");
            let mut flipped = whole.clone().into_bytes();
            flipped[cut] ^= 1;
            fs::write(store.path(id), flipped).unwrap();
            assert!(store.read("moon", id).is_err(), "flipped at {cut}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn two_daemons_never_share_a_folder() {
        let dir = folder("lock");
        let store = Store::open(&dir).unwrap();
        assert!(matches!(Store::open(&dir), Err(StateError::InUse { .. })));
        drop(store);
        drop(Store::open(&dir).unwrap());
        fs::remove_dir_all(&dir).unwrap();
        fs::write(&dir, "").unwrap();
        assert!(matches!(Store::open(&dir), Err(StateError::Folder { .. })));
        fs::remove_file(&dir).unwrap();
    }
}
