//! Answers from options, or from a person at a terminal.

use std::io::{BufRead, IsTerminal as _, Write};

use anyhow::bail;

/// An address that is not known in advance.
pub(super) const ANY: &str = "any";

/// Collects answers; what is missing is reported in one message.
pub(super) struct Questions<R, W> {
    terminal: Option<(R, W)>,
    missing: Vec<&'static str>,
}

/// One question.
pub(super) struct Question<'a> {
    /// The option that answers it.
    pub(super) option: &'static str,
    pub(super) given: Option<&'a str>,
    pub(super) text: &'a str,
    pub(super) default: Option<&'a str>,
    pub(super) check: &'a dyn Fn(&str) -> anyhow::Result<()>,
}

/// Questions to standard error, answers from standard input if it is a terminal.
pub(super) fn questions() -> Questions<std::io::StdinLock<'static>, std::io::Stderr> {
    let stdin = std::io::stdin();
    let terminal = stdin.is_terminal().then(|| (stdin.lock(), std::io::stderr()));
    Questions { terminal, missing: Vec::new() }
}

impl<R: BufRead, W: Write> Questions<R, W> {
    /// The answer to a question. An invalid option is an error; an invalid line is asked for again.
    ///
    /// # Errors
    /// The option is invalid, or the terminal was closed.
    pub(super) fn ask(&mut self, question: &Question<'_>) -> anyhow::Result<String> {
        if let Some(given) = question.given {
            (question.check)(given).map_err(|fault| fault.context(question.option))?;
            return Ok(given.to_owned());
        }
        let Some((input, output)) = &mut self.terminal else {
            if question.default.is_none() {
                self.missing.push(question.option);
            }
            return Ok(question.default.unwrap_or_default().to_owned());
        };
        loop {
            let default = question.default.filter(|default| !default.is_empty());
            write!(output, "{}{}: ", question.text, default.map(|text| format!(" [{text}]")).unwrap_or_default())?;
            output.flush()?;
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                bail!("no answer: '{}'", question.text);
            }
            let answer = match (line.trim(), question.default) {
                ("", Some(default)) => return Ok(default.to_owned()),
                (answer, _) => answer,
            };
            match (question.check)(answer) {
                Ok(()) => return Ok(answer.to_owned()),
                Err(fault) => writeln!(output, "{fault:#}")?,
            }
        }
    }

    /// # Errors
    /// Options are missing, and there is no terminal.
    pub(super) fn end(self) -> anyhow::Result<()> {
        if !self.missing.is_empty() {
            bail!(
                "missing: {}; add them, or run the command on a terminal, which prompts for them",
                self.missing.join(", ")
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question<'a>(given: Option<&'a str>, default: Option<&'a str>) -> Question<'a> {
        let check: &dyn Fn(&str) -> anyhow::Result<()> = &|text| {
            anyhow::ensure!(text.starts_with('x'), "'{text}' does not begin with x");
            Ok(())
        };
        Question { option: "--letter", given, text: "letter", default, check }
    }

    #[test]
    fn a_terminal_is_asked_again_after_an_invalid_line() {
        let mut output = Vec::new();
        let mut questions = Questions { terminal: Some((&b"\nabc\nxyz\n\n"[..], &mut output)), missing: Vec::new() };
        assert_eq!(questions.ask(&question(None, None)).expect("an answer"), "xyz");
        assert_eq!(questions.ask(&question(None, Some("x1"))).expect("the default"), "x1");
        assert_eq!(questions.ask(&question(Some("x2"), None)).expect("the option"), "x2");
        assert!(questions.ask(&question(None, None)).is_err(), "closed");
        questions.end().expect("complete");
        let output = String::from_utf8(output).expect("text");
        assert!(output.contains("letter: '' does not") && output.contains("'abc' does not"), "{output}");
        assert!(output.contains("letter [x1]: "), "{output}");
    }

    #[test]
    fn without_a_terminal_everything_that_is_missing_is_named() {
        let mut questions = Questions::<&[u8], Vec<u8>> { terminal: None, missing: Vec::new() };
        questions.ask(&question(None, None)).expect("noted");
        assert_eq!(questions.ask(&question(None, Some(""))).expect("optional"), "");
        let refusal = questions.ask(&question(Some("abc"), None)).expect_err("invalid");
        assert_eq!(format!("{refusal:#}"), "--letter: 'abc' does not begin with x");
        assert!(questions.end().expect_err("missing").to_string().contains("missing: --letter;"));
    }
}
