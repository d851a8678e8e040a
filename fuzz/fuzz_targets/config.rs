//! Configuration text, from the grammar to checked SAs, connections, secrets and pools, and the
//! error messages.

#![no_main]

use std::path::Path;

use gateway::config::problem::SourceFile;
use gateway::config::{Outside, Purpose, ReadFile, check, syntax};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // An include would read files of this machine.
    if text.contains("include") {
        return;
    }
    let file = SourceFile { name: "fuzz.conf".into(), text: text.to_owned().into() };
    // Every file holds a certificate, as far as a configuration looks into one.
    let read: ReadFile<'_> = &|_: &Path| Ok(vec![0x30, 3, 2, 1, 5]);
    let outside = Outside { folder: "/nonexistent".into(), read };
    let checked = syntax::parse(file, Path::new("/nonexistent")).and_then(|root| {
        check(&root, Purpose::Gateway, &outside).and(check(&root, Purpose::Offline, &Outside::nothing()))
    });
    if let Err(problems) = checked {
        assert!(!problems.render(false).is_empty());
    }
});
