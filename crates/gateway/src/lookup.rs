//! Host names, resolved by a helper process.
//!
//! The resolver of the host reads files that other programs replace by a rename (/etc/resolv.conf,
//! /etc/hosts), and Landlock rules hold the files that were there at the start. It also parses
//! responses of name servers, and loads plug-ins that connect to sockets of the host. So the
//! confined daemon does not call it. A helper process, started before the confinement, does: it
//! holds no keys and no capabilities, runs as user `nobody` if root started it, may read the
//! directories of the resolver, and may write nothing. `docs/decisions/0019-names-by-a-helper.md`
//! has the reasons.
//!
//! Requests and answers are lines on two pipes: `ID NAME`, and `ID ADDRESS…` or `ID ! REASON`. The
//! helper ends with its input, and so with the daemon.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use ike::hosts::ResolveError;

use crate::config;

/// Names that the helper resolves at the same time: one that times out does not hold up the others.
const THREADS: usize = 8;
/// Limit of pending requests, of at most [`NAME_MAX`] bytes each; beyond it a request fails at
/// once.
const REQUESTS_MAX: usize = 1024;
/// Bytes of a name (RFC 1035 §2.3.4).
const NAME_MAX: usize = 253;
/// Addresses of an answer.
const ADDRESSES_MAX: usize = 64;
/// Bytes of a line of the helper: longer ones are cut, and so not understood.
const LINE_MAX: u64 = 8192;
/// Longest wait for an answer. Resolvers give up earlier.
const PATIENCE: Duration = Duration::from_secs(120);
/// Reason that nothing is resolved any more.
const ENDED: &str = "the helper process that resolves names has ended: restart weir";
/// First line of the helper.
const READY: &str = "ready";

/// Handle of the resolver helper; clones share it.
#[derive(Clone)]
pub(crate) struct Lookup(Option<Arc<Helper>>);

struct Helper {
    link: Mutex<Link>,
    /// Answers, until a thread reads them.
    answers: Mutex<Option<BufReader<ChildStdout>>>,
    /// Kept, so that it is not waited for and not killed.
    _process: Child,
}

struct Link {
    /// `None`: the helper has ended.
    requests: Option<ChildStdin>,
    waiting: HashMap<u64, SyncSender<Result<Vec<IpAddr>, ResolveError>>>,
    last: u64,
}

impl Lookup {
    /// Look-ups by this process, which is not confined.
    pub(crate) const fn direct() -> Self {
        Self(None)
    }

    /// Starts the helper. To be called before the confinement, and by the only thread.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut process = Command::new("/proc/self/exe")
            .arg("look-up-names")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the helper process that resolves names")?;
        let (requests, answers) = (process.stdin.take(), process.stdout.take());
        let mut answers = BufReader::new(answers.context("the helper process that resolves names has no output")?);
        let first = line(&mut answers);
        if first.as_deref() != Some(READY) {
            anyhow::bail!("cannot start the helper process that resolves names: {}", first.unwrap_or_default());
        }
        let link = Mutex::new(Link { requests, waiting: HashMap::new(), last: 0 });
        Ok(Self(Some(Arc::new(Helper { link, answers: Mutex::new(Some(answers)), _process: process }))))
    }

    /// Starts the thread that reads answers.
    ///
    /// # Errors
    /// The operating system has no thread left.
    pub(crate) fn listen(&self) -> io::Result<()> {
        let Some(helper) = &self.0 else { return Ok(()) };
        let Some(answers) = lock(&helper.answers).take() else { return Ok(()) };
        let helper = Arc::clone(helper);
        std::thread::Builder::new().name("weir-lookup".into()).spawn(move || helper.read(answers)).map(drop)
    }

    /// Addresses of `name`, in the order of the host's resolver. Waits for it.
    ///
    /// # Errors
    /// Those of the resolver; the helper has ended.
    pub(crate) fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let Some(helper) = &self.0 else { return config::resolve_name(name) };
        match name.parse() {
            Ok(addr) => Ok(vec![addr]),
            Err(_) => helper.ask(name).map_err(io::Error::other),
        }
    }
}

impl Helper {
    fn ask(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if !is_name(name) {
            return Err(ResolveError::NotAName);
        }
        let (id, answer) = {
            let mut link = lock(&self.link);
            if link.waiting.len() >= REQUESTS_MAX {
                return Err(ResolveError::Busy);
            }
            link.last += 1;
            let id = link.last;
            let sent = link.requests.as_mut().map(|requests| requests.write_all(format!("{id} {name}\n").as_bytes()));
            if !matches!(sent, Some(Ok(()))) {
                return Err(ResolveError::Resolver(ENDED.to_owned()));
            }
            let (sender, answer) = sync_channel(1);
            link.waiting.insert(id, sender);
            (id, answer)
        };
        answer.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            lock(&self.link).waiting.remove(&id);
            Err(ResolveError::TimedOut)
        })
    }

    fn read(&self, mut answers: BufReader<ChildStdout>) {
        while let Some(line) = line(&mut answers) {
            let Some((id, outcome)) = parse_answer(&line) else { continue };
            if let Some(sender) = lock(&self.link).waiting.remove(&id) {
                let _ = sender.try_send(outcome);
            }
        }
        tracing::error!(target: "control", "{ENDED}");
        let mut link = lock(&self.link);
        link.requests = None;
        // Release all waiting callers.
        link.waiting.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a line can hold the name and a resolver may be given it.
fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The next line without its end.
fn line(input: &mut impl BufRead) -> Option<String> {
    let mut bytes = Vec::new();
    let read = io::Read::take(&mut *input, LINE_MAX).read_until(b'\n', &mut bytes).ok()?;
    (read > 0).then(|| String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned())
}

fn parse_answer(line: &str) -> Option<(u64, Result<Vec<IpAddr>, ResolveError>)> {
    let (id, rest) = line.split_once(' ')?;
    let id = id.parse().ok()?;
    if let Some(why) = rest.strip_prefix('!') {
        let why = why.trim().chars().filter(|c| !c.is_control()).take(256).collect();
        return Some((id, Err(ResolveError::Resolver(why))));
    }
    let addresses: Result<Vec<IpAddr>, _> = rest.split_whitespace().take(ADDRESSES_MAX).map(str::parse).collect();
    Some((id, addresses.map_err(|_| ResolveError::Resolver("malformed response of the helper process".to_owned()))))
}

/// Main loop of the helper: responds to each input line until end of file.
///
/// # Errors
/// Those of the operating system at its start.
pub(crate) fn run(
    input: impl BufRead,
    output: impl Write + Send + 'static,
    resolve: fn(&str) -> io::Result<Vec<IpAddr>>,
) -> io::Result<()> {
    let output = Arc::new(Mutex::new(output));
    let (requests, waiting) = sync_channel::<(u64, String)>(REQUESTS_MAX);
    let waiting = Arc::new(Mutex::new(waiting));
    for _ in 0..THREADS {
        let (waiting, output) = (Arc::clone(&waiting), Arc::clone(&output));
        std::thread::Builder::new().name("weir-names".into()).spawn(move || {
            while let Some((id, name)) = next(&waiting) {
                say(&output, &answer(id, resolve(&name)));
            }
        })?;
    }
    say(&output, &format!("{READY}\n"));
    let mut input = input;
    while let Some(line) = line(&mut input) {
        let Some((id, name)) = line.split_once(' ') else { continue };
        let Ok(id) = id.parse() else { continue };
        let refused = if is_name(name) {
            match requests.try_send((id, name.to_owned())) {
                Ok(()) => continue,
                Err(TrySendError::Full(_)) => ResolveError::Busy,
                Err(TrySendError::Disconnected(_)) => return Ok(()),
            }
        } else {
            ResolveError::NotAName
        };
        say(&output, &answer(id, Err(io::Error::other(refused))));
    }
    Ok(())
}

fn say(output: &Mutex<impl Write>, text: &str) {
    let mut output = lock(output);
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// The lock is held while a thread waits for a request, and not while it resolves.
fn next(waiting: &Mutex<Receiver<(u64, String)>>) -> Option<(u64, String)> {
    lock(waiting).recv().ok()
}

fn answer(id: u64, outcome: io::Result<Vec<IpAddr>>) -> String {
    match outcome {
        Ok(addresses) => {
            let list: Vec<String> = addresses.iter().take(ADDRESSES_MAX).map(IpAddr::to_string).collect();
            format!("{id} {}\n", list.join(" "))
        }
        Err(error) => format!("{id} ! {}\n", error.to_string().replace(['\n', '\r'], " ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> io::Result<Vec<IpAddr>> {
        match name {
            "gw.example" => Ok(vec![[192, 0, 2, 2].into(), "2001:db8::2".parse().unwrap()]),
            _ => Err(io::Error::other("no such\nhost")),
        }
    }

    /// Output of the helper, sorted by request number.
    fn written(input: &str) -> Vec<String> {
        let (mut from, to) = io::pipe().unwrap();
        run(input.as_bytes(), to, names).unwrap();
        let mut text = String::new();
        // Ends when the threads have, which hold the other end of the pipe.
        io::Read::read_to_string(&mut from, &mut text).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        assert_eq!(lines.remove(0), READY);
        lines.sort();
        lines
    }

    #[test]
    fn the_helper_answers_what_is_a_name() {
        let long = "x".repeat(NAME_MAX + 1);
        let input = format!("1 gw.example\n2 other\nrubbish\nx y\n3 a b\n4 {long}\n5 \n6 {}\n", "y".repeat(20_000));
        let written = written(&input);
        let wanted = ["1 192.0.2.2 2001:db8::2", "2 ! no such host", "3 ! not a host name", "4 ! not a host name"];
        assert_eq!(written[..4], wanted);
        assert_eq!(written[4..], ["5 ! not a host name", "6 ! not a host name"]);
    }

    #[test]
    fn answers_are_read_strictly() {
        let parsed = |line: &str| parse_answer(line);
        assert_eq!(parsed("7 192.0.2.1 ::1"), Some((7, Ok(vec![[192, 0, 2, 1].into(), "::1".parse().unwrap()]))));
        assert_eq!(parsed("7 "), Some((7, Ok(Vec::new()))));
        assert_eq!(parsed("7 ! gone\u{1b}[2J"), Some((7, Err(ResolveError::Resolver("gone[2J".into())))));
        assert!(matches!(parsed("7 192.0.2.1 x"), Some((7, Err(_)))));
        for malformed in ["", "7", "x 192.0.2.1", "-1 192.0.2.1"] {
            assert_eq!(parsed(malformed), None, "{malformed}");
        }
        let many = format!("1 {}", "::1 ".repeat(1000));
        assert_eq!(parsed(&many).unwrap().1.unwrap().len(), ADDRESSES_MAX);
    }

    #[test]
    fn a_name_cannot_become_a_second_request() {
        for bad in ["", "a\n2 b", "a b", "a\0b", "ä"] {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(is_name("vpn-1.example.org") && is_name("fe80::1%eth0"));
    }
}
