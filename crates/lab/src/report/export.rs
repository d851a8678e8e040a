//! The trials as one tidy table, for other programs: CSV and Parquet with the same columns.

use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::Value;

use crate::metric::Figures;
use crate::trial::{Direction, Place, Trial};

/// Type of a column.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Type {
    Text,
    Whole,
    Number,
}

/// A field of a row, absent where it was not measured.
#[derive(Clone, Debug, PartialEq)]
enum Cell {
    None,
    Text(String),
    Whole(i64),
    Number(f64),
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Text(text) => text.clone(),
            Self::Whole(number) => number.to_string(),
            Self::Number(number) => Value::from(*number).to_string(),
        }
    }
}

fn whole(number: u64) -> Cell {
    i64::try_from(number).map_or(Cell::None, Cell::Whole)
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Out => "out",
        Direction::In => "in",
        Direction::Both => "both",
    }
}

fn place(place: Place) -> &'static str {
    match place {
        Place::Memory => "memory",
        Place::Namespaces => "namespaces",
        Place::Interfaces => "interfaces",
    }
}

type Column = (&'static str, Type, fn(&Trial) -> Cell);

/// The columns; `values` of studies follow as JSON in the last one.
const COLUMNS: [Column; 45] = [
    ("schema", Type::Whole, |t| whole(t.schema.into())),
    ("run", Type::Text, |t| Cell::Text(t.run.clone())),
    ("session", Type::Whole, |t| whole(t.session.into())),
    ("round", Type::Whole, |t| whole(t.round.into())),
    ("order", Type::Whole, |t| whole(t.order.into())),
    // All 64 bits: as text, since tables have signed numbers only.
    ("seed", Type::Text, |t| Cell::Text(t.seed.to_string())),
    ("at_ms", Type::Whole, |t| whole(t.at_ms)),
    ("study", Type::Text, |t| Cell::Text(t.study.clone())),
    ("subject", Type::Text, |t| Cell::Text(t.subject.clone())),
    ("protocol", Type::Text, |t| Cell::Text(t.protocol.clone())),
    ("mode", Type::Text, |t| Cell::Text(t.mode.clone())),
    ("suite", Type::Text, |t| Cell::Text(t.suite.clone())),
    ("place", Type::Text, |t| Cell::Text(place(t.place).into())),
    ("direction", Type::Text, |t| Cell::Text(direction(t.direction).into())),
    ("traffic", Type::Text, |t| Cell::Text(t.traffic.clone())),
    ("size", Type::Whole, |t| t.size.map_or(Cell::None, |size| whole(size.into()))),
    ("cores", Type::Whole, |t| whole(t.cores.into())),
    ("sas", Type::Whole, |t| whole(t.sas.into())),
    ("replay", Type::Whole, |t| whole(t.replay.into())),
    ("batch", Type::Whole, |t| whole(t.batch.into())),
    ("offered_pps", Type::Number, |t| t.offered_pps.map_or(Cell::None, Cell::Number)),
    ("goal", Type::Text, |t| t.goal.clone().map_or(Cell::None, Cell::Text)),
    ("sent", Type::Whole, |t| whole(t.measured.sent)),
    ("received", Type::Whole, |t| whole(t.measured.received)),
    ("received_bytes", Type::Whole, |t| whole(t.measured.received_bytes)),
    ("verified", Type::Whole, |t| whole(t.measured.verified)),
    ("lost_ring", Type::Whole, |t| whole(t.measured.lost.ring)),
    ("lost_replay", Type::Whole, |t| whole(t.measured.lost.replay)),
    ("lost_auth", Type::Whole, |t| whole(t.measured.lost.auth)),
    ("lost_other", Type::Whole, |t| whole(t.measured.lost.other)),
    ("dur_ns", Type::Whole, |t| whole(t.measured.dur_ns)),
    ("tsc", Type::Whole, |t| t.measured.tsc.map_or(Cell::None, whole)),
    ("cpu_ns", Type::Whole, |t| t.measured.cpu_ns.map_or(Cell::None, whole)),
    ("steal_ns", Type::Whole, |t| t.measured.steal_ns.map_or(Cell::None, whole)),
    ("softirq_ns", Type::Whole, |t| t.measured.softirq_ns.map_or(Cell::None, whole)),
    ("cycles", Type::Whole, |t| t.measured.cycles.map_or(Cell::None, whole)),
    ("instructions", Type::Whole, |t| t.measured.instructions.map_or(Cell::None, whole)),
    ("joules", Type::Number, |t| t.measured.joules.map_or(Cell::None, Cell::Number)),
    ("latency_hdr", Type::Text, |t| t.measured.latency.clone().map_or(Cell::None, Cell::Text)),
    ("scheduler", Type::Text, |t| t.way.map_or(Cell::None, |way| Cell::Text(way.scheduler.name().into()))),
    ("set", Type::Text, |t| t.way.map_or(Cell::None, |way| Cell::Text(way.set.name().into()))),
    ("spread", Type::Text, |t| t.way.map_or(Cell::None, |way| Cell::Text(way.spread.name().into()))),
    ("flows", Type::Whole, |t| t.way.map_or(Cell::None, |way| whole(way.flows.into()))),
    ("env", Type::Text, |t| Cell::Text(t.env.clone())),
    ("values", Type::Text, |t| values(&t.measured.values)),
];

fn values(values: &Figures) -> Cell {
    if values.is_empty() { Cell::None } else { Cell::Text(serde_json::to_string(values).expect("keys are strings")) }
}

/// Comma-separated values with a head line (RFC 4180).
pub(super) fn csv(trials: &[Trial]) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS.map(|(name, ..)| name)).expect("memory takes everything");
    for trial in trials {
        writer.write_record(COLUMNS.map(|(_, _, read)| read(trial).text())).expect("memory takes everything");
    }
    writer.into_inner().expect("memory takes everything")
}

/// Apache Parquet, one row group, not compressed.
///
/// # Errors
/// The library refuses a column: a bug.
pub(super) fn parquet(trials: &[Trial]) -> Result<Vec<u8>, ParquetError> {
    let field = |(name, kind, _): &Column| {
        let kind = match kind {
            Type::Text => format!("byte_array {name} (string)"),
            Type::Whole => format!("int64 {name}"),
            Type::Number => format!("double {name}"),
        };
        format!("optional {kind};")
    };
    let schema = format!("message trial {{ {} }}", COLUMNS.iter().map(field).collect::<String>());
    let schema = Arc::new(parse_message_type(&schema)?);
    let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(WriterProperties::builder().build()))?;
    let mut group = file.next_row_group()?;
    for (_, kind, read) in COLUMNS {
        let cells: Vec<Cell> = trials.iter().map(read).collect();
        let levels: Vec<i16> = cells.iter().map(|cell| i16::from(*cell != Cell::None)).collect();
        let Some(mut column) = group.next_column()? else { break };
        match kind {
            Type::Text => {
                let texts = cells.iter().filter_map(|cell| match cell {
                    Cell::Text(text) => Some(ByteArray::from(text.as_str())),
                    _ => None,
                });
                column.typed::<ByteArrayType>().write_batch(&texts.collect::<Vec<_>>(), Some(&levels), None)?;
            }
            Type::Whole => {
                let numbers = cells.iter().filter_map(|cell| match cell {
                    Cell::Whole(number) => Some(*number),
                    _ => None,
                });
                column.typed::<Int64Type>().write_batch(&numbers.collect::<Vec<_>>(), Some(&levels), None)?;
            }
            Type::Number => {
                let numbers = cells.iter().filter_map(|cell| match cell {
                    Cell::Number(number) => Some(*number),
                    _ => None,
                });
                column.typed::<DoubleType>().write_batch(&numbers.collect::<Vec<_>>(), Some(&levels), None)?;
            }
        }
        column.close()?;
    }
    group.close()?;
    file.into_inner()
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    use super::super::synthetic;
    use super::*;

    #[test]
    fn csv_has_a_line_per_trial() {
        let trials = synthetic::trials();
        let text = csv(&trials);
        let mut reader = csv::Reader::from_reader(text.as_slice());
        assert_eq!(reader.headers().unwrap().len(), COLUMNS.len());
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        assert_eq!(rows.len(), trials.len());
        assert_eq!(rows[0][8], trials[0].subject);
        assert_eq!(rows[0][37], *"", "joules were not measured");
    }

    #[test]
    fn parquet_reads_back() {
        let trials = synthetic::trials();
        let bytes = parquet(&trials).unwrap();
        assert_eq!(bytes, parquet(&trials).unwrap(), "the same trials give the same bytes");
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        assert_eq!(reader.metadata().file_metadata().num_rows(), trials.len() as i64);
        let row = reader.get_row_iter(None).unwrap().next().unwrap().unwrap();
        assert_eq!(row.get_string(8).unwrap(), &trials[0].subject);
        assert_eq!(row.get_long(22).unwrap(), trials[0].measured.sent as i64);
    }

    #[test]
    fn no_trials_are_a_table_as_well() {
        assert_eq!(csv(&[]).iter().filter(|byte| **byte == b'\n').count(), 1);
        assert!(parquet(&[]).is_ok());
    }
}
