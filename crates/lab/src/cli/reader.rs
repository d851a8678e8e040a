//! Readers that go before a command has printed all: `weir bench path | head`.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

/// Exit status of a program that ends so: 128 and SIGPIPE.
const NOBODY_READS: u8 = 128 + 13;

/// Runs a command. A closed standard output ends it silently, with the usual clean-up.
pub fn while_read(command: impl FnOnce() -> ExitCode) -> ExitCode {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        if !nobody_reads(what.payload()) {
            usual(what);
        }
    }));
    // Nothing of the command is looked at afterwards.
    match panic::catch_unwind(AssertUnwindSafe(command)) {
        Ok(code) => code,
        Err(what) if nobody_reads(&*what) => ExitCode::from(NOBODY_READS),
        Err(what) => panic::resume_unwind(what),
    }
}

/// Returns whether a panic is that of `print!` without a reader.
fn nobody_reads(what: &(dyn Any + Send)) -> bool {
    let said = what.downcast_ref::<String>().map_or("", String::as_str);
    said.starts_with("failed printing to stdout") && said.contains("Broken pipe")
}
