//! The folder of a run. `trials.jsonl` only ever grows, one whole line at a time.
//!
//! Every trial is on disk before the next one starts. A line truncated by a crash is detected on
//! the next start, reported and removed. A file next to the trials reserves free space, so that a
//! full disk stops the run only after the trial that filled it is stored.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::trial::{SCHEMA, Trial};

/// Space that is kept free for the last trial on a full disk, in bytes.
const RESERVE_BYTES: usize = 256 * 1024;

/// Names of the files of a run.
pub const TRIALS: &str = "trials.jsonl";
/// Measurements that failed, with the reason.
pub const PROBLEMS: &str = "problems.jsonl";
/// Environments.
pub const ENV: &str = "env.json";
/// Copy of the campaign file.
pub const CAMPAIGN: &str = "campaign.toml";
const RESERVE: &str = ".reserve";
const LOCK: &str = ".lock";

/// A requested measurement without trials.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Deserialize, Serialize)]
pub struct Problem {
    /// Study.
    pub study: String,
    /// Subject.
    pub subject: String,
    /// Reason.
    pub why: String,
    /// It went wrong while being measured, rather than not being there.
    pub failed: bool,
}

/// Error while reading or writing a results directory.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Error of the operating system.
    #[error("{path}: {source}")]
    Io {
        /// File.
        path: String,
        /// Its answer.
        source: std::io::Error,
    },
    /// No room is left; all measurements are stored.
    #[error(
        "{path}: the disk is full; all {kept} trials so far are in the file: make room and run the same command again"
    )]
    Full {
        /// File.
        path: String,
        /// Trials in it.
        kept: u64,
    },
    /// A line has an unknown format.
    #[error("{path}:{line}: {why}")]
    Line {
        /// File.
        path: String,
        /// Line, from 1.
        line: usize,
        /// Description.
        why: String,
    },
    /// Another run is writing there.
    #[error("{0}: in use by another 'weir lab run'; wait for it, or use another directory with --out")]
    Busy(String),
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> StoreError + '_ {
    move |source| StoreError::Io { path: path.display().to_string(), source }
}

/// Keeps a second run out of a folder while it lives.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "the lock ends with the file")] File);

impl Lock {
    /// Takes the folder, which is made when it is missing.
    ///
    /// # Errors
    /// [`StoreError::Busy`]; or the folder cannot be made.
    pub fn take(dir: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(dir).map_err(io(dir))?;
        let path = dir.join(LOCK);
        let file = File::create(&path).map_err(io(&path))?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(_) => Err(StoreError::Busy(dir.display().to_string())),
        }
    }
}

/// `trials.jsonl`, open for more.
#[derive(Debug)]
pub struct Trials {
    path: PathBuf,
    reserve: PathBuf,
    file: File,
    /// Bytes of whole lines.
    end: u64,
    kept: u64,
}

impl Trials {
    /// Opens the file for appending, and lays the reserve aside.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn open(dir: &Path, kept: u64) -> Result<Self, StoreError> {
        let path = dir.join(TRIALS);
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path).map_err(io(&path))?;
        let end = file.seek(SeekFrom::End(0)).map_err(io(&path))?;
        let reserve = dir.join(RESERVE);
        if let Err(error) = std::fs::write(&reserve, vec![0x5a; RESERVE_BYTES]) {
            let _ = std::fs::remove_file(&reserve);
            return Err(match error.kind() {
                std::io::ErrorKind::StorageFull => StoreError::Full { path: path.display().to_string(), kept },
                _ => StoreError::Io { path: reserve.display().to_string(), source: error },
            });
        }
        Ok(Self { path, reserve, file, end, kept })
    }

    /// Appends a trial; it is on disk when this returns, or nothing of it is in the file.
    ///
    /// # Errors
    /// [`StoreError::Full`] when there was room for this trial only in the reserve: it is kept, the
    /// run must end.
    pub fn append(&mut self, trial: &Trial) -> Result<(), StoreError> {
        let mut line = serde_json::to_vec(trial).expect("a trial has string keys");
        line.push(b'\n');
        let first = self.write(&line);
        match first {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                let _ = std::fs::remove_file(&self.reserve);
                let again = self.write(&line);
                self.kept += u64::from(again.is_ok());
                Err(StoreError::Full { path: self.path.display().to_string(), kept: self.kept })
            }
            Err(error) => Err(io(&self.path)(error)),
            Ok(()) => {
                self.kept += 1;
                Ok(())
            }
        }
    }

    fn write(&mut self, line: &[u8]) -> std::io::Result<()> {
        let written = self.file.write_all(line).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.end += line.len() as u64,
            // Half a line must not stay: it would join the next one.
            Err(_) => self.file.set_len(self.end)?,
        }
        written
    }
}

impl Drop for Trials {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.reserve);
    }
}

/// Removes a truncated last line, and returns it.
///
/// # Errors
/// The file cannot be read or cut.
pub fn repair(dir: &Path) -> Result<Option<String>, StoreError> {
    let path = dir.join(TRIALS);
    let Ok(mut file) = OpenOptions::new().read(true).write(true).open(&path) else { return Ok(None) };
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(io(&path))?;
    if text.last().is_none_or(|last| *last == b'\n') {
        return Ok(None);
    }
    let start = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    // Only the newline is missing: the trial is whole.
    if serde_json::from_slice::<Trial>(&text[start..]).is_ok() {
        file.write_all(b"\n").map_err(io(&path))?;
        return Ok(None);
    }
    file.set_len(start as u64).and_then(|()| file.sync_data()).map_err(io(&path))?;
    let line = text[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
    let shown = String::from_utf8_lossy(&text[start..]);
    let shown: String = shown.chars().take(40).collect();
    Ok(Some(format!("{}:{line}: an incomplete line was removed: {shown}…", path.display())))
}

/// All trials of a folder, in the order in which they were measured.
///
/// # Errors
/// A line is not a trial, or was written by a newer Weir.
pub fn read_trials(dir: &Path) -> Result<Vec<Trial>, StoreError> {
    read_lines(&dir.join(TRIALS), |trial: &Trial| match trial.schema {
        schema if schema > SCHEMA => {
            Some(format!("schema {schema} is newer than {SCHEMA} of this version: use a newer Weir"))
        }
        _ => None,
    })
}

/// All problems of a folder, sorted and each once.
///
/// # Errors
/// A line is not a problem record.
pub fn read_problems(dir: &Path) -> Result<Vec<Problem>, StoreError> {
    let mut problems: Vec<Problem> = read_lines(&dir.join(PROBLEMS), |_| None)?;
    problems.sort();
    problems.dedup();
    Ok(problems)
}

/// Notes a problem.
///
/// # Errors
/// The folder cannot be written.
pub fn note_problem(dir: &Path, problem: &Problem) -> Result<(), StoreError> {
    let path = dir.join(PROBLEMS);
    let mut line = serde_json::to_vec(problem).expect("a problem has string keys");
    line.push(b'\n');
    let file = OpenOptions::new().append(true).create(true).open(&path);
    file.and_then(|mut file| file.write_all(&line)).map_err(io(&path))
}

fn read_lines<T: for<'de> Deserialize<'de>>(
    path: &Path,
    wrong_in: impl Fn(&T) -> Option<String>,
) -> Result<Vec<T>, StoreError> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(io(path))?,
    };
    let wrong = |line: usize, why: String| StoreError::Line { path: path.display().to_string(), line: line + 1, why };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty());
    lines
        .map(|(number, line)| {
            let value =
                serde_json::from_str(line).map_err(|error| wrong(number, format!("no trial of a run: {error}")))?;
            wrong_in(&value).map_or(Ok(value), |why| Err(wrong(number, why)))
        })
        .collect()
}

/// Writes a file whole or not at all.
///
/// # Errors
/// The folder cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let partial = path.with_extension("partial");
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(|source| {
        let _ = std::fs::remove_file(&partial);
        StoreError::Io { path: path.display().to_string(), source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::synthetic;

    #[test]
    fn a_half_written_line_is_named_and_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let mut trials = Trials::open(dir.path(), 0).unwrap();
        let all: Vec<Trial> = synthetic::trials().into_iter().take(3).collect();
        all.iter().for_each(|trial| trials.append(trial).unwrap());
        drop(trials);
        let path = dir.path().join(TRIALS);
        assert_eq!(repair(dir.path()).unwrap(), None);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], br#"{"schema":1,"run":"#].concat()).unwrap();
        let message = repair(dir.path()).unwrap().unwrap();
        assert!(message.contains("trials.jsonl:4: an incomplete line was removed"), "{message}");
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        assert_eq!(read_trials(dir.path()).unwrap(), all);
    }

    #[test]
    fn a_whole_line_without_its_end_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut trials = Trials::open(dir.path(), 0).unwrap();
        synthetic::trials().iter().take(2).for_each(|trial| trials.append(trial).unwrap());
        drop(trials);
        let path = dir.path().join(TRIALS);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(repair(dir.path()).unwrap(), None);
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn a_newer_schema_and_a_strange_line_are_refused_by_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut trial = synthetic::trials().remove(0);
        let good = serde_json::to_string(&trial).unwrap();
        trial.schema = SCHEMA + 1;
        let newer = serde_json::to_string(&trial).unwrap();
        std::fs::write(dir.path().join(TRIALS), format!("{good}\n{newer}\n")).unwrap();
        let error = read_trials(dir.path()).unwrap_err().to_string();
        assert!(error.contains("trials.jsonl:2: schema 2 is newer"), "{error}");
        std::fs::write(dir.path().join(TRIALS), format!("{good}\n{{}}\n")).unwrap();
        assert!(read_trials(dir.path()).unwrap_err().to_string().contains("trials.jsonl:2: "));
    }

    #[test]
    fn a_folder_has_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        assert!(matches!(Lock::take(dir.path()), Err(StoreError::Busy(_))));
        drop(lock);
        Lock::take(dir.path()).unwrap();
    }
}
