//! Configuration text, from the grammar to checked SAs and the messages about what is wrong.

#![no_main]

use std::path::Path;

use gateway::config::problem::SourceFile;
use gateway::config::{Purpose, check, syntax};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // An include would read files of this machine.
    if text.contains("include") {
        return;
    }
    let file = SourceFile { name: "fuzz.conf".into(), text: text.to_owned().into() };
    let checked = syntax::parse(file, Path::new("/nonexistent"))
        .and_then(|root| check(&root, Purpose::Gateway).and(check(&root, Purpose::Offline)));
    if let Err(problems) = checked {
        assert!(!problems.render(false).is_empty());
    }
});
