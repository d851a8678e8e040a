//! Manual pages and completions, from the definitions of the command line and of the configuration
//! keys.
//!
//! `weir man DIR` and `weir complete SHELL` write them; packages and `make install` call both.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Roff, bold, italic, roman};

/// Names that belong to the lab: section 1, because they need no privilege to be useful.
const LAB: [&str; 2] = ["weir-lab", "weir-bench"];
/// Longest line of filled text.
const WIDTH: usize = 78;
/// Lines that every rendering begins with (a definition of the apostrophe); one copy per page is
/// enough.
const PREAMBLE: [&str; 2] = [".ie \\n(.g .ds Aq", ".el .ds Aq"];

/// The commands that packages and `make install` call.
#[derive(Debug, Subcommand)]
pub(crate) enum WritePages {
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Man {
        /// Folder, which is created
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Print a completion script
    #[command(hide = true)]
    Complete {
        /// Shell that the script is for
        #[arg(value_enum)]
        shell: Shell,
    },
}

impl WritePages {
    /// Runs the command for the command line `root`.
    pub(crate) fn run(self, root: Command) -> ExitCode {
        match self {
            Self::Man { folder } => {
                let edition = Edition { version: env!("CARGO_PKG_VERSION"), date: env!("WEIR_DATE") };
                if let Err(error) = write(root, edition, &folder) {
                    eprintln!("weir: cannot write to {}: {error}", folder.display());
                    return ExitCode::FAILURE;
                }
            }
            Self::Complete { shell } => complete(&root, shell, &mut std::io::stdout()),
        }
        ExitCode::SUCCESS
    }
}

/// One manual page.
#[derive(Debug)]
pub(crate) struct Page {
    /// File name, such as `weir-up.8`.
    pub(crate) file: String,
    pub(crate) text: String,
}

/// Version and date in the footers.
#[derive(Clone, Copy)]
pub(crate) struct Edition<'a> {
    pub(crate) version: &'a str,
    /// YYYY-MM-DD, or empty.
    pub(crate) date: &'a str,
}

/// Writes a completion script, without hidden commands and the commands `help`: their arguments are
/// all other commands once more, and would be two fifths of a script.
pub(crate) fn complete(program: &Command, shell: Shell, out: &mut dyn io::Write) {
    let root = Command::new("weir").version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true);
    clap_complete::generate(shell, &mut root.subcommands(shown(program).cloned()), "weir", out);
}

/// Writes all manual pages into a folder, which is created.
///
/// # Errors
/// Those of the file system.
pub(crate) fn write(root: Command, edition: Edition<'_>, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    pages(root, edition).iter().try_for_each(|page| std::fs::write(folder.join(&page.file), &page.text))
}

/// A page for every command that is not hidden, and weir.conf(5).
pub(crate) fn pages(root: Command, edition: Edition<'_>) -> Vec<Page> {
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let mut pages = vec![Page {
        file: "weir.conf.5".to_owned(),
        text: gateway::config::schema::to_man(edition.version, edition.date),
    }];
    add(&root, None, edition, &mut pages);
    for page in &mut pages {
        page.text = tidy(&page.text);
    }
    pages
}

fn add(command: &Command, parent: Option<&str>, edition: Edition<'_>, pages: &mut Vec<Page>) {
    pages.push(page(command, parent, edition));
    let name = name_of(command);
    for sub in shown(command) {
        add(sub, Some(name), edition, pages);
    }
}

fn name_of(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

/// Section of the manual that a page belongs to.
fn section(name: &str) -> &'static str {
    let of_lab =
        LAB.iter().any(|lab| name.strip_prefix(lab).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')));
    if of_lab { "1" } else { "8" }
}

fn page(command: &Command, parent: Option<&str>, edition: Edition<'_>) -> Page {
    let (name, section_of) = (name_of(command), section(name_of(command)));
    let source = format!("weir {}", edition.version);
    let man = Man::new(command.clone()).title(name.to_uppercase()).section(section_of);
    let man = man.date(edition.date).source(source).manual("Weir");
    let mut text = String::new();
    render(&mut text, |out| man.render_title(out));
    render(&mut text, |out| man.render_name_section(out));
    render(&mut text, |out| man.render_synopsis_section(out));
    render(&mut text, |out| man.render_description_section(out));
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        render(&mut text, |out| man.render_options_section(out));
    }
    let mut rest = Roff::new();
    commands(&mut rest, command);
    notes(&mut rest, &command.get_after_help().map(ToString::to_string).unwrap_or_default());
    if parent.is_none() {
        files(&mut rest);
    }
    see_also(&mut rest, command, parent);
    render(&mut text, |out| rest.to_writer(out));
    Page { file: format!("{name}.{section_of}"), text }
}

/// Appends what `write` writes.
fn render(text: &mut String, write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) {
    let mut bytes = Vec::new();
    write(&mut bytes).expect("memory takes what is written");
    text.push_str(&String::from_utf8_lossy(&bytes));
}

/// The same page in the form that mandoc -T lint accepts: one preamble, no blanks at the end of a
/// line, no empty lines and repeated breaks, lines of filled text of at most [`WIDTH`] characters.
fn tidy(text: &str) -> String {
    let (mut tidy, mut filled, mut last) = (String::new(), true, "");
    for (number, line) in text.lines().enumerate() {
        let line = if filled { line.trim_end() } else { line };
        let repeated = number > 1 && PREAMBLE.iter().any(|begin| line.starts_with(begin));
        if repeated || (filled && line.is_empty()) || (line == ".br" && last == ".br") {
            continue;
        }
        last = line;
        filled = if filled { line != ".nf" } else { line == ".fi" };
        if filled && !line.starts_with('.') && !line.starts_with('\'') {
            wrap(line, &mut tidy);
        } else {
            tidy.push_str(&ascii(line));
            tidy.push('\n');
        }
        if line.starts_with(".TH ") {
            // Ragged right: groff reports long words that it cannot adjust.
            tidy.push_str(".ad l\n");
        }
    }
    tidy
}

/// Appends filled text in lines of at most [`WIDTH`] characters, in ASCII.
fn wrap(line: &str, out: &mut String) {
    let mut column = 0;
    for word in ascii(line).split(' ') {
        if column > 0 && column + word.len() > WIDTH {
            out.push('\n');
            column = 0;
            if word.starts_with(['.', '\'']) {
                // At the beginning of a line it would be a request.
                out.push_str("\\&");
            }
        } else if column > 0 {
            out.push(' ');
        }
        out.push_str(word);
        column += word.len() + 1;
    }
    out.push('\n');
}

/// Other characters as groff and mandoc both read them, whatever the locale is.
fn ascii(line: &str) -> String {
    let escaped = line.replace('…', "...");
    escaped.chars().fold(String::with_capacity(escaped.len()), |mut text, character| {
        if character.is_ascii() {
            text.push(character);
        } else {
            text.push_str(&format!("\\[u{:04X}]", u32::from(character)));
        }
        text
    })
}

fn commands(roff: &mut Roff, command: &Command) {
    if shown(command).next().is_none() {
        return;
    }
    roff.control("SH", ["COMMANDS"]);
    for sub in shown(command) {
        let name = name_of(sub);
        roff.control("TP", []);
        roff.text([bold(name), roman(format!("({})", section(name)))]);
        roff.text([roman(sub.get_about().map(ToString::to_string).unwrap_or_default())]);
    }
}

/// The text after the options: examples are not changed, sentences about the exit status get a
/// section.
fn notes(roff: &mut Roff, text: &str) {
    let mut heading = "";
    let mut begin = |roff: &mut Roff, wanted: &'static str| {
        if heading == wanted {
            roff.control("PP", []);
        } else {
            roff.control("SH", [wanted]);
            heading = wanted;
        }
    };
    for block in text.split("\n\n") {
        let (examples, sentences): (Vec<&str>, Vec<&str>) = block.lines().partition(|line| line.starts_with("  "));
        let sentences: Vec<&str> =
            sentences.into_iter().filter(|line| !matches!(line.trim(), "Example:" | "Examples:" | "")).collect();
        if !examples.is_empty() {
            begin(roff, "EXAMPLES");
            roff.control("nf", []);
            for example in examples {
                roff.text([roman(example.trim())]);
            }
            roff.control("fi", []);
        }
        for sentence in sentences {
            begin(roff, if sentence.starts_with("Exit status") { "EXIT STATUS" } else { "NOTES" });
            roff.text([roman(sentence)]);
        }
    }
}

fn files(roff: &mut Roff) {
    roff.control("SH", ["FILES"]);
    for (path, what) in [
        ("/etc/weir/weir.conf", "Configuration, see weir.conf(5)."),
        ("/run/weir/weir.vici", "Control socket, which speaks the vici protocol."),
        (
            "/var/lib/weir",
            "Sequence numbers that are in use. Without this folder a manual key may protect two packets with one number.",
        ),
    ] {
        roff.control("TP", []);
        roff.text([italic(path)]);
        roff.text([roman(what)]);
    }
}

fn see_also(roff: &mut Roff, command: &Command, parent: Option<&str>) {
    let mut pages: Vec<String> = parent.iter().map(|name| format!("{name}({})", section(name))).collect();
    pages.extend(shown(command).map(|sub| format!("{}({})", name_of(sub), section(name_of(sub)))));
    pages.push("weir.conf(5)".to_owned());
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages.join(", "))]);
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    const EDITION: Edition<'_> = Edition { version: "0.0.0", date: "2026-01-02" };

    fn all() -> Vec<Page> {
        pages(Cli::command(), EDITION)
    }

    fn named(pages: &[Page], file: &str) -> String {
        pages.iter().find(|page| page.file == file).unwrap_or_else(|| panic!("no page {file}")).text.clone()
    }

    #[test]
    fn every_command_has_a_page_that_its_parent_lists() {
        fn names(command: &Command, parent: &str, found: &mut Vec<(String, String)>) {
            for sub in shown(command).filter(|sub| sub.get_name() != "help") {
                let name = format!("{parent}-{}", sub.get_name());
                found.push((parent.to_owned(), name.clone()));
                names(sub, &name, found);
            }
        }
        let mut wanted = Vec::new();
        names(&Cli::command(), "weir", &mut wanted);
        assert!(wanted.len() > 20, "{wanted:?}");
        let pages = all();
        for (parent, name) in &wanted {
            let own = named(&pages, &format!("{name}.{}", section(name)));
            assert!(own.contains(".SH SYNOPSIS") && own.contains(".SH NAME"), "{name}");
            let listed = format!("\\fB{}\\fR({})", name.replace('-', "\\-"), section(name));
            assert!(named(&pages, &format!("{parent}.{}", section(parent))).contains(&listed), "{parent}: {listed}");
        }
        assert_eq!(pages.len(), wanted.len() + 2, "a page without a command");
        assert!(
            !pages.iter().any(|page| page.file.starts_with("weir-keep") || page.file.starts_with("weir-man")),
            "hidden commands"
        );
    }

    #[test]
    fn examples_and_exit_status_have_sections_of_their_own() {
        let up = named(&all(), "weir-status.8");
        let (_, rest) = up.split_once(".SH EXAMPLES\n.nf\nweir status\nweir status \\-\\-json | jq").unwrap();
        let (_, rest) = rest.split_once(".fi\n.SH \"EXIT STATUS\"\nExit status 0: healthy.").unwrap();
        assert!(rest.contains(".SH \"SEE ALSO\"\nweir(8), weir.conf(5)\n"), "{rest}");
    }

    #[test]
    fn long_lines_are_wrapped_and_no_text_becomes_a_request() {
        let words = ["word"; 40].join(" ");
        let dots = [".conf"; 40].join(" ");
        let text = tidy(&format!("{words} {dots}\n.nf\n{words}\n\n.fi\n\n.br\n.br\n{words}"));
        let (filled, rest) = text.split_once(".nf\n").unwrap();
        assert!(filled.lines().count() > 4 && filled.contains("\n\\&.conf"), "{filled}");
        assert!(filled.lines().all(|line| line.len() <= WIDTH + 2 && line.starts_with(['w', '\\'])), "{filled}");
        assert!(rest.starts_with(&format!("{words}\n\n.fi\n.br\nword")), "{rest}");
        assert_eq!(tidy("§ 2 …"), "\\[u00A7] 2 ...\n");
    }

    #[test]
    fn pages_of_the_lab_are_in_section_1() {
        assert_eq!(section("weir-lab-run"), "1");
        assert_eq!(section("weir-bench"), "1");
        assert_eq!(section("weir-labour"), "8");
        assert_eq!(section("weir-pcap-seal"), "8");
    }

    #[test]
    fn mandoc_finds_nothing_to_report() {
        let folder = std::env::temp_dir().join(format!("weir-pages-{}", std::process::id()));
        write(Cli::command(), EDITION, &folder).unwrap();
        let files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        let lint = |files: &[std::path::PathBuf]| {
            Process::new("mandoc").args(["-T", "lint", "-W", "style"]).args(files).output()
        };
        let Ok(output) = lint(&files) else {
            eprintln!("mandoc is not installed: the pages are not checked by it");
            return std::fs::remove_dir_all(folder).unwrap();
        };
        let faults = |output: std::process::Output| {
            let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
            // Links to pages that are not installed here are not errors of the page.
            let real =
                |line: &&str| !line.contains("referenced manual not found") && !line.contains("outdated mandoc.db");
            text.lines().filter(real).collect::<Vec<_>>().join("\n")
        };
        let found = faults(output);
        let broken = folder.join("broken.8");
        std::fs::write(&broken, ".TH BROKEN\n.SH NAME\nbroken\n.foo\n").unwrap();
        assert_ne!(faults(lint(&[broken]).unwrap()), "", "mandoc finds nothing in a broken page");
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(found.lines().take(5).collect::<Vec<_>>(), Vec::<&str>::new());
    }

    #[test]
    fn completions_know_commands_and_options_and_are_accepted_by_their_shells() {
        for (shell, program) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
            let mut script = Vec::new();
            complete(&Cli::command(), shell, &mut script);
            let text = String::from_utf8(script).unwrap();
            for word in ["initiate", "log-json", "pcap", "mirror"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
            for word in ["look-up-names", "subcmd__help", "subcommand help", "_weir__subcmd__help"] {
                assert!(!text.contains(word), "{shell}: {word}");
            }
            let file = std::env::temp_dir().join(format!("weir-complete-{}-{program}", std::process::id()));
            std::fs::write(&file, text).unwrap();
            // Without that shell on this machine its syntax stays unchecked.
            if let Ok(output) = Process::new(program).arg("-n").arg(&file).output() {
                assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
            }
            std::fs::remove_file(file).unwrap();
        }
    }
}
