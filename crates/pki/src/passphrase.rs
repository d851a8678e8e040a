//! Passphrases and passwords: from a file, from the terminal without echo, or random.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::file;

/// Digits without 0, 1, I, O, which are mistaken for one another.
const DIGITS: &[u8; 32] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZ";
/// Groups of four digits of a random password: 100 bits.
const GROUPS: usize = 5;

/// The first line of a file.
///
/// # Errors
/// The file cannot be read, or its first line is empty or not UTF-8.
pub(crate) fn from_file(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    let bytes = file::read(path)?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let text = std::str::from_utf8(line).ok().map(|text| text.trim_end_matches('\r')).filter(|text| !text.is_empty());
    text.map(|text| Zeroizing::new(text.to_owned()))
        .with_context(|| format!("{}: its first line is not a passphrase in UTF-8", path.display()))
}

/// A line from the terminal, which does not show it.
///
/// # Errors
/// Standard input is not a terminal; `remedy` is what to write instead.
pub(crate) fn ask(prompt: &str, remedy: &str) -> anyhow::Result<Zeroizing<String>> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        bail!("{prompt} is missing, and standard input is not a terminal; {remedy}");
    }
    let before = tcgetattr(&stdin)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    let mut stderr = std::io::stderr();
    write!(stderr, "{prompt}: ")?;
    stderr.flush()?;
    tcsetattr(&stdin, OptionalActions::Flush, &silent)?;
    let mut line = Zeroizing::new(String::with_capacity(256));
    let read = stdin.lock().read_line(&mut line);
    let restored = tcsetattr(&stdin, OptionalActions::Flush, &before);
    writeln!(stderr)?;
    read?;
    restored?;
    let text = Zeroizing::new(line.trim_end_matches(['\n', '\r']).to_owned());
    if text.is_empty() {
        bail!("{prompt} is empty");
    }
    Ok(text)
}

/// A new passphrase from the terminal, entered twice.
///
/// # Errors
/// As [`ask`], or both differ.
pub(crate) fn ask_new(prompt: &str, remedy: &str) -> anyhow::Result<Zeroizing<String>> {
    let first = ask(prompt, remedy)?;
    let second = ask("the same again", remedy)?;
    if *first != *second {
        bail!("both entries differ");
    }
    Ok(first)
}

/// A random password that can be typed: `ABCD-EFGH-…`.
pub(crate) fn random() -> Zeroizing<String> {
    let mut bytes = Zeroizing::new([0; 4 * GROUPS]);
    crypto::random(&mut bytes[..]);
    let mut text = Zeroizing::new(String::with_capacity(5 * GROUPS));
    for (at, byte) in bytes.iter().enumerate() {
        if at > 0 && at % 4 == 0 {
            text.push('-');
        }
        // 256 is a multiple of 32: every digit is as likely as the others.
        text.push(char::from(DIGITS[usize::from(byte % 32)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_passwords_have_five_groups_and_differ() {
        let (one, other) = (random(), random());
        assert_ne!(*one, *other);
        assert_eq!(one.split('-').map(str::len).collect::<Vec<_>>(), [4; 5]);
        assert!(one.bytes().all(|byte| byte == b'-' || DIGITS.contains(&byte)), "{}", *one);
    }

    #[test]
    fn the_first_line_of_a_file_is_the_passphrase() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pass");
        std::fs::write(&path, "one two \r\nthree\n").expect("written");
        assert_eq!(*from_file(&path).expect("a line"), "one two ");
        std::fs::write(&path, "\nx").expect("written");
        assert!(from_file(&path).expect_err("empty").to_string().contains("first line"));
    }
}
