//! `weir lab plan`: sizes a gateway.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::model::{Protection, REFUSED, digits, table};
use crate::model::Profile;
use throughput::{Capacity, Cost, Demand, MAX_CORES, Mix, Plan, Printed, Rounding, SizeFn, Spread, TwoPoint, plan};

/// Answer to an objective for latency or loss. The M/G/1 theory of earlier versions predicted
/// medians of 11 to 50 % and 99th percentiles of 2 to 4 % of what was measured: a batch that waits,
/// and a packet in cold caches, are not part of it.
const UNPREDICTED: &str = "latency and loss are not predicted: measured 99th percentiles were 20 to 50 times the prediction; \
                           measure them with 'weir lab run --study loss', and set --max-load";

/// Options of `weir lab plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Profile of weir lab model fit
    #[arg(required_unless_present = "datasheet", conflicts_with = "datasheet")]
    profile: Option<PathBuf>,
    /// Two throughputs of an appliance instead: SIZE:RATE,SIZE:RATE, e.g. 64:1.2Gbps,1400:9.5Gbps
    #[arg(long, value_name = "POINTS")]
    datasheet: Option<String>,
    /// Size function of the data sheet's line (weir lab model sizes)
    #[arg(long, value_name = "NAME", default_value = "s2-len", requires = "datasheet")]
    sizes: String,
    /// Inner packets: 64:28,570:16,1518:4 (sizes with shares), 1400, imix, or an IMIX specification
    /// (imix:aaaaaaaddddg)
    #[arg(long, default_value = "64:28,570:16,1518:4")]
    mix: String,
    /// Traffic on average: a rate of inner packets as 10Gbps, 800Mbps, or 1.5Mpps, 200kpps
    #[arg(long)]
    rate: Option<String>,
    /// Peak over mean
    #[arg(long, default_value_t = 1.0)]
    peak: f64,
    /// Cores that there are; without it, those that the rate needs
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=512))]
    cores: Option<u32>,
    /// SAs with traffic; each stays on one core [default: as many as make the spread even]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    sas: Option<u32>,
    /// Distribution of SAs to cores
    #[arg(long, value_enum, default_value_t = SpreadName::Hashed)]
    spread: SpreadName,
    /// Link, on the wire, e.g. 10Gbps
    #[arg(long)]
    link: Option<String>,
    /// Refused: latency cannot be predicted yet
    #[arg(long, value_name = "US", hide = true)]
    p99_us: Option<f64>,
    /// Refused: loss cannot be predicted yet
    #[arg(long, hide = true)]
    loss: Option<f64>,
    /// Load that no core exceeds
    #[arg(long, default_value_t = 0.9)]
    max_load: f64,
    /// New SAs per second
    #[arg(long, default_value_t = 0.0)]
    setups_per_s: f64,
    /// Seconds between rekeyings of an SA
    #[arg(long, value_name = "S")]
    rekey_s: Option<f64>,
    /// CPU time of one set-up or rekeying in milliseconds (weir bench ike measures it)
    #[arg(long, value_name = "MS")]
    setup_ms: Option<f64>,
    /// Memory for SAs in MiB
    #[arg(long, value_name = "MIB", requires = "sa_kib")]
    memory_mib: Option<f64>,
    /// Memory of one SA in KiB (weir bench ike measures it)
    #[arg(long, value_name = "KIB")]
    sa_kib: Option<f64>,
    /// Clock of the target over that of the profile
    #[arg(long, default_value_t = 1.0)]
    clock: f64,
    /// Power of a busy core in watts, for energy per packet
    #[arg(long)]
    watts: Option<f64>,
    #[command(flatten)]
    protection: Protection,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Spreads on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs)]
pub(super) enum SpreadName {
    Hashed,
    Even,
}

/// A rate on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rate {
    /// 10⁶ bit/s.
    Mbps(f64),
    /// Packets per second.
    Pps(f64),
}

impl Rate {
    /// Reads a number with its unit.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = text.split_at(at);
        let value = number.trim().parse::<f64>().ok().filter(|v| *v > 0.0 && v.is_finite());
        let value = value.ok_or_else(|| format!("'{text}' is not a rate; write e.g. 10Gbps or 1.5Mpps"))?;
        let bits = |factor: f64| Ok(Self::Mbps(value * factor));
        match unit {
            "bps" | "bit/s" => bits(1e-6),
            "kbps" | "kbit/s" => bits(1e-3),
            "Mbps" | "Mbit/s" => bits(1.0),
            "Gbps" | "Gbit/s" => bits(1e3),
            "Tbps" | "Tbit/s" => bits(1e6),
            "pps" => Ok(Self::Pps(value)),
            "kpps" => Ok(Self::Pps(value * 1e3)),
            "Mpps" => Ok(Self::Pps(value * 1e6)),
            "" => Err(format!("'{text}' has no unit; write e.g. {text}Mbps or {text}pps")),
            "B/s" | "KB/s" | "kB/s" | "MB/s" | "GB/s" | "Bps" | "MBps" | "GBps" => Err(format!(
                "'{text}' is in bytes; rates are in bits: write {}{} for that, or {number}{} if bits were meant",
                8.0 * value,
                unit.replace("B/s", "bit/s").replace("Bps", "bps"),
                unit.replace("B/s", "bit/s").replace("Bps", "bps")
            )),
            _ => Err(format!("'{unit}' is not a unit of a rate; use bps, kbps, Mbps, Gbps, Tbps, pps, kpps or Mpps")),
        }
    }

    /// 10⁶ bit/s, or an error for packets.
    pub(super) fn mbps(text: &str) -> Result<f64, String> {
        match Self::parse(text)? {
            Self::Mbps(mbps) => Ok(mbps),
            Self::Pps(_) => Err(format!("'{text}' is in packets; this rate must be in bits")),
        }
    }
}

impl PlanArgs {
    /// Runs the command and returns the exit status.
    pub fn run(self) -> ExitCode {
        match self.plan() {
            Ok(met) => ExitCode::from(u8::from(!met)),
            Err(error) => {
                eprintln!("weir: plan: {error}");
                ExitCode::from(REFUSED)
            }
        }
    }

    fn plan(&self) -> Result<bool, String> {
        let cost = self.cost()?;
        let demand = self.demand()?;
        let plan = plan(&cost, &demand);
        if self.json {
            println!("{}", serde_json::to_string_pretty(&plan).map_err(|e| e.to_string())?);
        } else {
            print!("{}", text(&plan, &demand));
        }
        Ok(plan.met)
    }

    fn cost(&self) -> Result<Cost, String> {
        let Some(points) = &self.datasheet else {
            let path = self.profile.as_ref().ok_or("give a profile, or two numbers with --datasheet")?;
            return Ok(Profile::load(path).map_err(|e| e.to_string())?.cost());
        };
        let size_fn = Rounding::by_name(&self.sizes)
            .ok_or_else(|| format!("unknown size function '{}'; weir lab model sizes lists them", self.sizes))?;
        let points: Vec<Printed> = points.split(',').map(printed).collect::<Result<_, _>>()?;
        let [a, b] = points[..] else { return Err("--datasheet takes two points: 64:1.2Gbps,1400:9.5Gbps".into()) };
        if a.size == b.size {
            return Err("--datasheet needs two different sizes".into());
        }
        Ok(Cost::DataSheet(TwoPoint::new(a, b, SizeFn::Rounding(size_fn.id()))))
    }

    fn demand(&self) -> Result<Demand, String> {
        let mix = Mix::parse(&self.mix).map_err(|e| e.to_string())?;
        let within = |name: &str, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) { Ok(()) } else { Err(format!("{name} is {low} to {high}, not {value}")) }
        };
        within("--peak", self.peak, 1.0, 1e6)?;
        within("--max-load", self.max_load, 0.01, 0.99)?;
        within("--clock", self.clock, 0.01, 100.0)?;
        within("--setups-per-s", self.setups_per_s, 0.0, 1e9)?;
        if self.p99_us.is_some() || self.loss.is_some() {
            return Err(UNPREDICTED.into());
        }
        for (name, value) in [
            ("--rekey-s", self.rekey_s),
            ("--setup-ms", self.setup_ms),
            ("--memory-mib", self.memory_mib),
            ("--sa-kib", self.sa_kib),
            ("--watts", self.watts),
        ] {
            if value.is_some_and(|v| !(v > 0.0 && v.is_finite())) {
                return Err(format!("{name} must be above zero"));
            }
        }
        let pps = match self.rate.as_deref().map(Rate::parse).transpose()? {
            Some(Rate::Mbps(mbps)) => Some(mbps * 1e6 / (8.0 * mix.mean_size())),
            Some(Rate::Pps(pps)) => Some(pps),
            None => None,
        };
        // Without a number of SAs, nothing is known of their spread: many small ones spread evenly.
        let (sas, spread) = match (self.sas, self.spread) {
            (None, _) => (1_000_000, Spread::Even),
            (Some(sas), SpreadName::Hashed) => (sas, Spread::Hashed),
            (Some(sas), SpreadName::Even) => (sas, Spread::Even),
        };
        if self.rekey_s.is_some() && self.sas.is_none() {
            return Err("--rekey-s needs --sas: how many SAs are rekeyed".into());
        }
        let setups = self.setups_per_s + self.rekey_s.map_or(0.0, |every| f64::from(sas) / every);
        if setups > 0.0 && self.setup_ms.is_none() {
            return Err("set-ups and rekeys need --setup-ms, the cost of one (weir bench ike measures it)".into());
        }
        Ok(Demand {
            pps,
            peak: self.peak,
            cores: self.cores,
            sas,
            spread,
            link_mbps: self.link.as_deref().map(Rate::mbps).transpose()?,
            max_load: self.max_load,
            setups: (setups, self.setup_ms.unwrap_or_default() * 1e6),
            memory: self.memory_mib.zip(self.sa_kib).map(|(mib, kib)| (mib * 1024.0, kib)),
            clock: self.clock,
            watts: self.watts,
            layout: self.protection.layout()?,
            mix,
        })
    }
}

/// `SIZE:RATE` of a data sheet.
fn printed(text: &str) -> Result<Printed, String> {
    let refuse = || format!("'{text}' is not a point of a data sheet; write SIZE:RATE, e.g. 1400:9.5Gbps");
    let (size, rate) = text.split_once(':').ok_or_else(refuse)?;
    let size = size.trim().parse::<f64>().ok().filter(|s| (20.0..=65535.0).contains(s)).ok_or_else(refuse)?;
    let at = rate.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(refuse)?;
    // Unit of a number, and the precision of its digits.
    match Rate::parse(rate.trim())? {
        Rate::Mbps(mbps) => {
            let number = rate[..at].trim();
            let value: f64 = number.parse().map_err(|_| refuse())?;
            Printed::parse(size, number, mbps / value).ok_or_else(refuse)
        }
        Rate::Pps(pps) => {
            let number = rate[..at].trim();
            let value: f64 = number.parse().map_err(|_| refuse())?;
            Printed::parse(size, number, pps / value * 8.0 * size / 1e6).ok_or_else(refuse)
        }
    }
}

fn capacity_cells(capacity: &Capacity) -> [String; 5] {
    let range = |low: f64, high: f64| format!("{} to {}", digits(low), digits(high));
    [
        digits(capacity.pps.value),
        digits(capacity.mbps.value),
        range(capacity.mbps.low, capacity.mbps.high),
        digits(capacity.wire_mbps),
        capacity.binding.name().to_owned(),
    ]
}

fn text(plan: &Plan, demand: &Demand) -> String {
    let mut out = String::new();
    if let (Some([point, low, high]), Some(pps)) = (plan.cores_needed, plan.peak_pps) {
        let enough = |n: u32| if n > MAX_CORES { "more than possible".to_owned() } else { n.to_string() };
        out += &format!("cores for {} packets/s at the peak: {}", digits(pps), enough(point));
        out += &format!(" (90 %: {} to {})\n", enough(low), enough(high));
        if let Some(cores) = demand.cores {
            let verdict = if plan.met { "enough" } else { "not enough" };
            out += &format!("given: {cores}, {verdict}\n");
        }
    }
    let capacity = &plan.capacity;
    out += &format!(
        "capacity of {} core(s): {} packets/s, {} Mbps (90 %: {} to {}), {} Mbps on the wire\nbinding: {}\n",
        capacity.cores,
        digits(capacity.pps.value),
        digits(capacity.mbps.value),
        digits(capacity.mbps.low),
        digits(capacity.mbps.high),
        digits(capacity.wire_mbps),
        capacity.binding.name()
    );
    out += &format!(
        "a mean packet of {:.0} bytes takes {} ns: {} fixed, {} per byte, {} cipher; times vary by {:.2} (squared coefficient)\n",
        demand.mix.mean_size(),
        digits(plan.mean_ns),
        digits(plan.parts.fixed_ns),
        digits(plan.parts.length_ns),
        digits(plan.parts.cipher_ns),
        plan.scv
    );
    out +=
        &format!("load limit of a core {:.0} %, {:.1} cores receive packets\n", plan.max_load * 100.0, plan.used_cores);
    if let Some(load) = plan.load {
        out += &format!("at the peak: fullest core {:.0} % busy\n", load * 100.0);
    }
    if let Some(joules) = plan.joules_per_packet {
        out += &format!("{} uJ per packet\n", digits(joules * 1e6));
    }
    let mut rows = table(&["what if", "packets/s", "Mbps", "90 %", "wire Mbps", "binding"]);
    for row in &plan.what_if {
        let mut cells = vec![row.change.to_owned()];
        cells.extend(capacity_cells(&row.capacity));
        rows.add_row(cells);
    }
    out += &format!("\n{rows}\n\n");
    let mut rows = table(&["size", "one core: Mbps", "90 %", "packets/s", ""]);
    for p in &plan.curve {
        let mark = if p.extrapolated { "extrapolated" } else { "" };
        let range = format!("{} to {}", digits(p.mbps.low), digits(p.mbps.high));
        rows.add_row([p.size.to_string(), digits(p.mbps.value), range, digits(p.pps), mark.to_owned()]);
    }
    out += &format!("{rows}\n\nassumptions\n");
    for assumption in &plan.assumptions {
        out += &format!("- {assumption}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_their_unit_and_bytes_are_named() {
        assert_eq!(Rate::parse("10Gbps"), Ok(Rate::Mbps(10_000.0)));
        assert_eq!(Rate::parse("1.5Mpps"), Ok(Rate::Pps(1.5e6)));
        assert_eq!(Rate::parse("800 Mbit/s"), Ok(Rate::Mbps(800.0)));
        for (text, says) in [
            ("10", "has no unit"),
            ("10GB/s", "write 80Gbit/s"),
            ("x", "is not a rate"),
            ("-1Gbps", "is not a rate"),
            ("1furlong", "is not a unit"),
        ] {
            let error = Rate::parse(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(Rate::mbps("1Mpps").unwrap_err().contains("is in packets"));
    }

    #[test]
    fn objectives_that_no_model_predicts_are_refused() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            plan: PlanArgs,
        }
        for (option, refused) in [("--p99-us=50", true), ("--loss=1e-6", true), ("--max-load=0.5", false)] {
            let line = Line::try_parse_from(["plan", "--datasheet", "64:1Gbps,1400:9Gbps", option]).unwrap();
            let message = line.plan.demand().map_or_else(|why| why, |_| String::new());
            assert_eq!(message.contains("--study loss"), refused, "{option}: {message}");
        }
    }

    #[test]
    fn points_of_a_data_sheet_keep_their_digits() {
        let point = printed("1400:9.5Gbps").unwrap();
        assert!((point.mbps - 9500.0).abs() < 1e-9 && (point.half - 50.0).abs() < 1e-9);
        let packets = printed("64:2Mpps").unwrap();
        assert!((packets.mbps - 1024.0).abs() < 1e-9 && (packets.half - 256.0).abs() < 1e-9);
        for text in ["1400", "9:1Gbps", "1400:9.5", "1400:9.5GB/s"] {
            assert!(printed(text).is_err(), "{text}");
        }
    }
}
