//! Help and documents: every command has an example, and each command line that is shown parses.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Command, CommandFactory, Parser};

use super::Cli;

/// Every command that is not hidden, with its path: `weir pki ca`.
fn commands() -> Vec<(String, Command)> {
    fn collect(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
        found.push((path.to_owned(), command.clone()));
        for of in command.get_subcommands().filter(|of| !of.is_hide_set()) {
            collect(of, &format!("{path} {}", of.get_name()), found);
        }
    }
    let mut found = Vec::new();
    collect(&Cli::command(), "weir", &mut found);
    found
}

/// Words of the simple commands of a script. Comments and redirections are left out.
fn simple_commands(script: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), String::new());
    let (mut quote, mut comment, mut quoted) = (None, false, false);
    let script = format!("{}\n", script.replace("\\\n", " "));
    for c in script.chars() {
        match (c, quote) {
            ('\n', _) | (';' | '|' | '&', None) if quote.is_none() => {
                if !comment || c == '\n' {
                    words.extend((!word.is_empty() || quoted).then(|| std::mem::take(&mut word)));
                    all.push(std::mem::take(&mut words));
                    (comment, quoted) = (false, false);
                }
            }
            _ if comment => {}
            ('#', None) if word.is_empty() => comment = true,
            ('\'' | '"', None) => (quote, quoted) = (Some(c), true),
            (_, Some(end)) if c == end => quote = None,
            (' ', None) => {
                words.extend((!word.is_empty() || quoted).then(|| std::mem::take(&mut word)));
                quoted = false;
            }
            _ => word.push(c),
        }
    }
    for words in &mut all {
        let end = words.iter().position(|word| word.trim_start_matches('2').starts_with('>'));
        words.truncate(end.unwrap_or(words.len()));
    }
    all.retain(|words| !words.is_empty());
    all
}

/// Arguments of a simple command that runs `weir`, also by `sudo`, in a loop or in a namespace.
fn of_weir(words: &[String]) -> Option<&[String]> {
    const BEFORE: [&str; 8] = ["sudo", "until", "while", "if", "do", "exec", "ip", "netns"];
    let at = words.iter().position(|word| word == "weir")?;
    let before = |word: &String| BEFORE.contains(&word.as_str()) || word.starts_with("weir$") || word.contains('=');
    words[..at].iter().all(before).then_some(&words[at..])
}

/// The reason why a command line does not parse.
fn fault(line: &[String]) -> Option<String> {
    let error = Cli::try_parse_from(line).err()?;
    let shown = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
    (!shown).then(|| format!("{}: {}", line.join(" "), error.to_string().lines().next().unwrap_or_default()))
}

#[test]
fn the_help_of_every_command_has_examples_that_parse() {
    let mut faults = Vec::new();
    for (path, command) in commands() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples: String = help.split("\n\n").next().unwrap_or_default().to_owned();
        let (heading, lines) = examples.split_once('\n').unwrap_or_default();
        let lines: Vec<Vec<String>> = simple_commands(lines);
        let lines: Vec<&[String]> = lines.iter().filter_map(|words| of_weir(words)).collect();
        if lines.is_empty() || !matches!(heading, "Example:" | "Examples:") {
            faults.push(format!("{path}: no example"));
        }
        faults.extend(lines.into_iter().filter(|line| line[1..] != ["COMMAND", "--help"]).filter_map(fault));
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Markdown files of the repository's root and of `docs/`.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![root.join("docs")];
    let mut found = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("docs/ is readable") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.extend(path.extension().is_some_and(|kind| kind == "md").then_some(path)),
            }
        }
    }
    found
}

#[test]
fn every_command_of_the_documents_parses() {
    let (mut faults, mut read) = (Vec::new(), 0);
    for path in documents() {
        let text = fs::read_to_string(&path).expect("a document");
        for block in text.split("\n```sh\n").skip(1) {
            let script = block.split("\n```").next().unwrap_or_default();
            for words in simple_commands(script) {
                if let Some(line) = of_weir(&words) {
                    read += 1;
                    faults.extend(fault(line).map(|why| format!("{}: {why}", path.display())));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(read > 60, "{read} commands were found");
}

#[test]
fn scripts_are_split_as_a_shell_does() {
    let script = "a 'b c' \"d\" # e; f\nuntil weir g 2>/dev/null; do h \\\n  i; done && weir j | k > l\n";
    let want: [&[&str]; 6] =
        [&["a", "b c", "d"], &["until", "weir", "g"], &["do", "h", "i"], &["done"], &["weir", "j"], &["k"]];
    assert_eq!(simple_commands(script), want);
    let of = |words: &[&str]| of_weir(&words.iter().map(ToString::to_string).collect::<Vec<_>>()).map(<[_]>::len);
    assert_eq!(of(&["until", "weir", "g"]), Some(2));
    assert_eq!((of(&["systemctl", "start", "weir"]), of(&["scp", "x"])), (None, None));
}
