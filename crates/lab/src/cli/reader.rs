//! Standard output closed before a command has printed everything, as in `weir bench path | head`.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

/// Exit status after a broken pipe: 128 and SIGPIPE.
const BROKEN_PIPE: u8 = 128 + 13;

/// Runs a command. A closed standard output ends it silently, with the usual clean-up.
pub fn while_read(command: impl FnOnce() -> ExitCode) -> ExitCode {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        if !is_broken_pipe(what.payload()) {
            usual(what);
        }
    }));
    // Unwind safe: no state of the command is used afterwards.
    match panic::catch_unwind(AssertUnwindSafe(command)) {
        Ok(code) => code,
        Err(what) if is_broken_pipe(&*what) => ExitCode::from(BROKEN_PIPE),
        Err(what) => panic::resume_unwind(what),
    }
}

/// Returns whether a panic is that of `print!` on a closed pipe.
fn is_broken_pipe(what: &(dyn Any + Send)) -> bool {
    let message = what.downcast_ref::<String>().map_or("", String::as_str);
    message.starts_with("failed printing to stdout") && message.contains("Broken pipe")
}
