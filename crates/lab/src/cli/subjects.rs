//! `weir lab subjects`: systems under test between two hosts, and their availability here.

use std::process::ExitCode;

use clap::Args;
use comfy_table::{Table, presets};

use crate::subject::{Availability, list};

/// Options of `weir lab subjects`.
#[derive(Debug, Args)]
pub struct SubjectsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl SubjectsArgs {
    /// Prints the list.
    pub(super) fn run(self) -> ExitCode {
        let listed = list();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&listed).expect("a list has string keys"));
            return ExitCode::SUCCESS;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["subject", "protocol", "mode", "suite", "MTU", "here"]);
        for subject in &listed {
            let here = match &subject.availability {
                Availability::Available { version } => format!("available: {version}"),
                Availability::Missing { why, remedy } => format!("missing: {why}; {remedy}"),
            };
            let mtu = subject.mtu_bytes.map_or("per packet".to_owned(), |mtu| mtu.to_string());
            table.add_row([&subject.name, subject.protocol, subject.mode, &subject.suite, &mtu, &here]);
        }
        println!("{table}");
        ExitCode::SUCCESS
    }
}
