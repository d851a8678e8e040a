//! Child processes that never outlive their owner, and waiting that a signal can end.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::TestbedError;

/// Polling interval of waits.
const TICK: Duration = Duration::from_millis(20);
/// Timeout of a child's termination.
const PATIENCE: Duration = Duration::from_secs(5);

/// Flag that a stop was requested.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP. A second one ends the process at once; then the kernel
    /// does the clearing up.
    pub fn install() -> std::io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
            signal_hook::flag::register_conditional_shutdown(signal, crate::INTERRUPTED.into(), Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    /// Looks at a flag that others set.
    pub fn watching(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// The flag.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Checks that no stop was requested.
    ///
    /// # Errors
    /// [`TestbedError::Interrupted`].
    pub fn check(&self) -> Result<(), TestbedError> {
        if self.0.load(Ordering::Relaxed) { Err(TestbedError::Interrupted) } else { Ok(()) }
    }

    /// Sleeps for a tick, or less.
    pub fn tick(&self) -> Result<(), TestbedError> {
        self.check()?;
        std::thread::sleep(TICK);
        self.check()
    }

    /// Sleeps.
    pub fn sleep(&self, time: Duration) -> Result<(), TestbedError> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.tick()?;
        }
        Ok(())
    }
}

/// A running child with its output in files. Dropping it ends it.
pub struct Running {
    child: Child,
    /// The command, for people.
    pub text: String,
    output: PathBuf,
    errors: PathBuf,
    ended: Option<ExitStatus>,
}

impl Running {
    /// Starts `command`; its output goes to `output`, its error output to a file beside it.
    pub fn start(mut command: Command, output: &Path) -> Result<Self, TestbedError> {
        let errors = output.with_extension("err");
        let text = describe(&command);
        let failed = |error: std::io::Error| TestbedError::Failed(format!("cannot start '{text}': {error}"));
        command.stdout(File::create(output).map_err(failed)?).stderr(File::create(&errors).map_err(failed)?);
        // A separate process group, so that Ctrl-C reaches only this process, which then stops all
        // children in order.
        let child = command.process_group(0).spawn().map_err(failed)?;
        Ok(Self { child, text, output: output.to_owned(), errors, ended: None })
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its end, if it came.
    pub fn poll(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Waits for its end and calls `poll` periodically; an error of `poll` ends the wait.
    pub fn wait(
        &mut self,
        interrupt: &Interrupt,
        limit: Duration,
        mut poll: impl FnMut() -> Result<(), TestbedError>,
    ) -> Result<ExitStatus, TestbedError> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.poll() {
                return Ok(status);
            }
            if Instant::now() > end {
                return Err(TestbedError::Failed(format!("'{}' did not end within {} s", self.text, limit.as_secs())));
            }
            poll()?;
            interrupt.tick()?;
        }
    }

    /// Terminates it, first by SIGTERM, then by SIGKILL.
    pub fn stop(&mut self) {
        let Ok(raw) = i32::try_from(self.child.id()) else { return };
        if self.poll().is_some() {
            return;
        }
        if let Some(pid) = Pid::from_raw(raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let end = Instant::now() + PATIENCE;
        while self.poll().is_none() && Instant::now() < end {
            std::thread::sleep(TICK);
        }
        if self.poll().is_none() {
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
    }

    /// Output so far.
    pub fn output(&self) -> String {
        read(&self.output)
    }

    /// Error output so far.
    pub fn errors(&self) -> String {
        read(&self.errors)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn read(path: &Path) -> String {
    std::fs::read(path).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A command without what only puts it in its place.
pub fn describe(command: &Command) -> String {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    match words.iter().position(|word| word == "--") {
        Some(at) if command.get_program() == "setpriv" => words[at + 1..].join(" "),
        _ => format!("{} {}", command.get_program().to_string_lossy(), words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle() -> Interrupt {
        Interrupt(Arc::new(AtomicBool::new(false)))
    }

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("weir-demo-{name}-{}", std::process::id()))
    }

    fn shell(script: &str, output: &Path) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start(command, output).unwrap()
    }

    fn remove(output: &Path) {
        let _ = std::fs::remove_file(output);
        let _ = std::fs::remove_file(output.with_extension("err"));
    }

    #[test]
    fn output_and_status_come_back() {
        let path = file("output");
        let mut child = shell("echo out; echo err >&2; exit 3", &path);
        let status = child.wait(&idle(), Duration::from_secs(10), || Ok(())).unwrap();
        assert_eq!((status.code(), child.output().as_str(), child.errors().as_str()), (Some(3), "out\n", "err\n"));
        remove(&path);
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let path = file("dropped");
        let child = shell("exec sleep 100", &path);
        let proc = PathBuf::from(format!("/proc/{}", child.id()));
        assert!(proc.exists());
        drop(child);
        assert!(!proc.exists());
        remove(&path);
    }

    #[test]
    fn waiting_ends_with_the_limit_and_with_a_signal() {
        let path = file("waiting");
        let mut child = shell("exec sleep 100", &path);
        let late = child.wait(&idle(), Duration::from_millis(50), || Ok(()));
        assert!(matches!(late, Err(TestbedError::Failed(_))));
        let flag = Interrupt(Arc::new(AtomicBool::new(true)));
        assert!(matches!(child.wait(&flag, Duration::from_secs(100), || Ok(())), Err(TestbedError::Interrupted)));
        drop(child);
        remove(&path);
    }
}
