//! `weir lab doctor`: checks of this machine for measurements.

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};

/// Options of `weir lab doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl DoctorArgs {
    /// Looks, and prints. Missing features reduce the precision of trials but must not make them
    /// wrong: it always succeeds.
    pub(super) fn run(self) -> std::process::ExitCode {
        let findings = crate::host::examine();
        if self.json {
            println!("{:#}", serde_json::json!(findings));
            return std::process::ExitCode::SUCCESS;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(["", "what", "found", "what it is for"]);
        for finding in findings {
            let mark = if finding.there { "yes" } else { "no" };
            table.add_row([mark, finding.what, &finding.found, finding.meaning]);
        }
        println!("{table}");
        std::process::ExitCode::SUCCESS
    }
}
