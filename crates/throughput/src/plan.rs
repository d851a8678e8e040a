//! Sizing a gateway: computes cores, throughput and the first bottleneck from the cost of a packet
//! and the demand.

use serde::Serialize;

use crate::{Basis, Curve, Fitted, Form, Interval, Layout, Mix, Service, TwoPoint, Work, mean_largest, used_queues};

/// A fitted model with its origin.
#[derive(Clone, Debug)]
pub struct Calibrated {
    /// The model.
    pub fitted: Fitted,
    /// Argument of its form.
    pub basis: Basis,
    /// Smallest and largest measured size in bytes: predictions outside are extrapolated.
    pub range: [f64; 2],
    /// Layout on the wire, if known.
    pub layout: Option<Layout>,
    /// Origin and quality of the measured times, for people.
    pub origin: Vec<String>,
}

/// Source of the time of a packet.
#[derive(Clone, Debug)]
pub enum Cost {
    /// A model that was fitted to measurements, per core.
    Model(Box<Calibrated>),
    /// Two numbers of a data sheet, for the appliance as a whole.
    DataSheet(TwoPoint),
}

/// Relative error of a line through two printed numbers between them: modern AEADs deviate by 6.8 %
/// at sizes off the grid, and a data sheet does not state its grid.
const DATASHEET_INSIDE: f64 = 0.07;

/// The same outside the two sizes.
const DATASHEET_OUTSIDE: f64 = 0.15;

/// Confidence of bands.
const CONFIDENCE: f64 = 0.9;

/// The parts of a packet's time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parts {
    /// Independent of size, ns.
    pub fixed_ns: f64,
    /// Growing with size, beside the cipher where that is known, ns.
    pub length_ns: f64,
    /// The cipher, ns; 0 if it is not separate.
    pub cipher_ns: f64,
}

impl Cost {
    /// Time of a packet of `size` bytes with its 90 % band, in nanoseconds.
    pub fn time_ns(&self, size: f64) -> Interval {
        match self {
            Self::Model(model) => model.fitted.prediction(&model.basis, size, CONFIDENCE),
            Self::DataSheet(sheet) => {
                let bytes = sheet.size_fn.bytes(size);
                let range = sheet.range(|line| line.time_ns(bytes));
                let inside = (sheet.inputs[0].size..=sheet.inputs[1].size).contains(&size);
                let miss = if inside { DATASHEET_INSIDE } else { DATASHEET_OUTSIDE };
                Interval { low: range.low * (1.0 - miss), high: range.high * (1.0 + miss), ..range }
            }
        }
    }

    /// Its parts at `size` bytes.
    pub fn parts(&self, size: f64) -> Parts {
        let whole = self.time_ns(size).value;
        let split = |fixed: f64, cipher: f64| Parts {
            fixed_ns: fixed.clamp(0.0, whole),
            cipher_ns: cipher,
            length_ns: (whole - fixed.clamp(0.0, whole) - cipher).max(0.0),
        };
        match self {
            Self::DataSheet(sheet) => split(sheet.line().fixed_ns, 0.0),
            Self::Model(model) => match &model.fitted.curve {
                Curve::Linear { form: form @ Form::Crypto, fit } => {
                    let row = form.row(&model.basis, size);
                    split(fit.coef[0], fit.coef[2] * row[2])
                }
                Curve::Linear { form: Form::Regimes { at, .. }, fit } if size >= *at => split(fit.coef[3], 0.0),
                Curve::Linear { fit, .. } => split(fit.coef[0], 0.0),
                // A spline has no parameters: its fixed part is where it meets no bytes at all.
                Curve::Spline(spline) => split(spline.at(0.0), 0.0),
            },
        }
    }

    fn extrapolates(&self, size: f64) -> bool {
        match self {
            Self::Model(model) => !(model.range[0]..=model.range[1]).contains(&size),
            Self::DataSheet(sheet) => !(sheet.inputs[0].size..=sheet.inputs[1].size).contains(&size),
        }
    }

    fn layout(&self) -> Option<&Layout> {
        match self {
            Self::Model(model) => model.layout.as_ref(),
            Self::DataSheet(_) => None,
        }
    }
}

/// Distribution of SAs to cores.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// By a hash, as receive-side scaling does: some cores get several, some none.
    Hashed,
    /// Evenly, by explicit placement.
    Even,
}

/// Demand.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Sizes.
    pub mix: Mix,
    /// Packets per second on average; `None` computes the capacity only.
    pub pps: Option<f64>,
    /// Peak over mean, at least 1.
    pub peak: f64,
    /// Cores that process packets; `None` computes the number.
    pub cores: Option<u32>,
    /// SAs with traffic, all equal; one SA stays on one core.
    pub sas: u32,
    /// Distribution.
    pub spread: Spread,
    /// Link in 10⁶ bit/s, on the wire.
    pub link_mbps: Option<f64>,
    /// Load of a core that is never exceeded, 0 to 1.
    pub max_load: f64,
    /// Set-ups and rekeyings per second, and CPU time of one in ns.
    pub setups: (f64, f64),
    /// Bytes of memory for SAs, and bytes of one.
    pub memory: Option<(f64, f64)>,
    /// Speed of the target's clock over the profile's.
    pub clock: f64,
    /// Power of a busy core in watts.
    pub watts: Option<f64>,
    /// Layout on the wire, if the cost does not contain it.
    pub layout: Option<Layout>,
}

impl Demand {
    /// A demand for the capacity of one core, with defaults.
    pub fn new(mix: Mix) -> Self {
        Self {
            mix,
            pps: None,
            peak: 1.0,
            cores: None,
            sas: 1,
            spread: Spread::Hashed,
            link_mbps: None,
            max_load: 0.9,
            setups: (0.0, 0.0),
            memory: None,
            clock: 1.0,
            watts: None,
            layout: None,
        }
    }
}

/// Bottleneck of the throughput.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Binding {
    /// Processors, by cost of a packet of any size.
    FixedCost,
    /// Processors, by copying and other cost per byte.
    LengthCost,
    /// Processors, by the cipher.
    Cipher,
    /// The link.
    Link,
    /// The fullest queue, while other cores have time.
    Spread,
    /// Set-ups and rekeyings.
    SetUp,
    /// Memory for SAs.
    Memory,
}

impl Binding {
    /// Words for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedCost => "CPU: the fixed cost of a packet",
            Self::LengthCost => "CPU: the cost per byte",
            Self::Cipher => "CPU: the cipher",
            Self::Link => "the link",
            Self::Spread => "queues: only the fullest core is saturated",
            Self::SetUp => "set-ups and rekeyings",
            Self::Memory => "memory for SAs",
        }
    }
}

/// Capacity of a number of cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Capacity {
    /// Cores that carry packets or set-ups.
    pub cores: u32,
    /// Packets per second within all objectives, 90 %.
    pub pps: Interval,
    /// 10⁶ bit/s of inner packets.
    pub mbps: Interval,
    /// 10⁶ bit/s on the wire.
    pub wire_mbps: f64,
    /// Bottleneck.
    pub binding: Binding,
}

/// A line of the what-if table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// Change.
    pub change: &'static str,
    /// Resulting capacity.
    pub capacity: Capacity,
}

/// A point of the curve over sizes, for one core or appliance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Inner packet in bytes.
    pub size: f64,
    /// 10⁶ bit/s, 90 %.
    pub mbps: Interval,
    /// Packets per second.
    pub pps: f64,
    /// True if the size is outside the measured range.
    pub extrapolated: bool,
}

/// A plan.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Cores that the demand needs, 90 %; `None` without a rate. The upper end is the one to buy.
    pub cores_needed: Option<[u32; 3]>,
    /// Packets per second at the peak, where a rate was given.
    pub peak_pps: Option<f64>,
    /// True if the demand is met by the cores given, or by those needed.
    pub met: bool,
    /// Capacity of the given cores, of the needed ones, or of one core.
    pub capacity: Capacity,
    /// Highest load of a core that the objectives allow.
    pub max_load: f64,
    /// Load of the fullest core at the peak.
    pub load: Option<f64>,
    /// Mean time of a packet, ns, and its parts.
    pub mean_ns: f64,
    /// Parts of it.
    pub parts: Parts,
    /// Squared coefficient of variation of the time.
    pub scv: f64,
    /// Cores that receive anything, of those counted.
    pub used_cores: f64,
    /// Joules per packet, where power is known.
    pub joules_per_packet: Option<f64>,
    /// Effects of changes.
    pub what_if: Vec<WhatIf>,
    /// Throughput by size.
    pub curve: Vec<CurvePoint>,
    /// Assumptions.
    pub assumptions: Vec<String>,
}

/// Largest number of cores that is looked for.
pub const MAX_CORES: u32 = 512;

/// Sizes of the curve.
const CURVE: [f64; 8] = [64.0, 128.0, 256.0, 512.0, 1024.0, 1280.0, 1420.0, 1500.0];

/// Makes a plan.
pub fn plan(cost: &Cost, demand: &Demand) -> Plan {
    let planner = Planner::new(cost, demand);
    let peak_pps = demand.pps.map(|pps| pps * demand.peak);
    let cores_needed = peak_pps.map(|pps| [1, 0, 2].map(|bound| planner.cores_for(pps, bound)));
    let cores_needed = cores_needed.map(|[low, point, high]| [point, low, high]);
    let needed = cores_needed.map(|[point, ..]| point.min(MAX_CORES));
    let cores = demand.cores.or(needed).unwrap_or(1);
    let capacity = planner.capacity(cores);
    let load = peak_pps.map(|pps| pps * planner.fullest_share(cores) * planner.mean.value / 1e9);
    Plan {
        cores_needed,
        peak_pps,
        met: peak_pps.is_none_or(|pps| pps <= capacity.pps.value * (1.0 + 1e-9)),
        capacity,
        max_load: demand.max_load,
        load,
        mean_ns: planner.mean.value,
        parts: planner.parts,
        scv: planner.service.scv(),
        used_cores: planner.used_cores(cores),
        joules_per_packet: demand.watts.map(|watts| watts * planner.mean.value / 1e9),
        what_if: what_if(cost, demand, cores),
        curve: CURVE.map(|size| curve_point(cost, demand.clock, size)).to_vec(),
        assumptions: assumptions(cost, demand),
    }
}

fn curve_point(cost: &Cost, clock: f64, size: f64) -> CurvePoint {
    let time = cost.time_ns(size);
    let mbps = |ns: f64| crate::rate_mbps(size, ns / clock);
    CurvePoint {
        size,
        mbps: Interval { value: mbps(time.value), low: mbps(time.high), high: mbps(time.low.max(1e-3)) },
        pps: 1e9 * clock / time.value,
        extrapolated: cost.extrapolates(size),
    }
}

/// Parts of a demand that do not depend on the number of cores.
struct Planner<'a> {
    demand: &'a Demand,
    mean: Interval,
    parts: Parts,
    service: Service,
    wire_bytes: f64,
}

impl<'a> Planner<'a> {
    fn new(cost: &Cost, demand: &'a Demand) -> Self {
        let mix = &demand.mix;
        let mean_of = |f: &dyn Fn(f64) -> f64| mix.mean(f) / demand.clock;
        let mean = Interval {
            value: mean_of(&|s| cost.time_ns(s).value),
            low: mean_of(&|s| cost.time_ns(s).low).max(1e-3),
            high: mean_of(&|s| cost.time_ns(s).high),
        };
        let parts = Parts {
            fixed_ns: mean_of(&|s| cost.parts(s).fixed_ns),
            length_ns: mean_of(&|s| cost.parts(s).length_ns),
            cipher_ns: mean_of(&|s| cost.parts(s).cipher_ns),
        };
        let service = Service::of(mix, |s| cost.time_ns(s).value / demand.clock);
        let layout = cost.layout().or(demand.layout.as_ref());
        let wire_bytes = mix.mean(|s| layout.map_or(s, |layout| layout.bytes(Work::Wire, s)));
        Self { demand, mean, parts, service, wire_bytes }
    }

    /// Share of all packets that the fullest of `cores` gets.
    fn fullest_share(&self, cores: u32) -> f64 {
        let sas = self.demand.sas.max(1);
        match self.demand.spread {
            Spread::Hashed => mean_largest(cores, sas) / f64::from(sas),
            Spread::Even => f64::from(sas.div_ceil(cores)) / f64::from(sas),
        }
    }

    fn used_cores(&self, cores: u32) -> f64 {
        match self.demand.spread {
            Spread::Hashed => used_queues(cores, self.demand.sas),
            Spread::Even => f64::from(cores.min(self.demand.sas)),
        }
    }

    /// Time per second that set-ups take, in cores.
    fn set_up_cores(&self) -> f64 {
        let (per_s, ns) = self.demand.setups;
        per_s * ns / 1e9 / self.demand.clock
    }

    /// Packets per second of `cores` for a mean time of `ns`, with what binds.
    fn limit(&self, cores: u32, ns: f64) -> (f64, Binding) {
        if self.demand.memory.is_some_and(|(have, each)| f64::from(self.demand.sas) * each > have) {
            return (0.0, Binding::Memory);
        }
        let left = f64::from(cores) - self.set_up_cores();
        if left <= 0.0 {
            return (0.0, Binding::SetUp);
        }
        let usable = left / f64::from(cores);
        let one = self.demand.max_load * usable * 1e9 / ns;
        let Parts { fixed_ns, length_ns, cipher_ns } = self.parts;
        let costly = if cipher_ns >= fixed_ns && cipher_ns >= length_ns {
            Binding::Cipher
        } else if fixed_ns >= length_ns {
            Binding::FixedCost
        } else {
            Binding::LengthCost
        };
        let all = (one * f64::from(cores), if usable < 0.5 { Binding::SetUp } else { costly });
        let fullest = one / self.fullest_share(cores);
        let spread = (fullest, Binding::Spread);
        let link = self.demand.link_mbps.map_or(f64::INFINITY, |mbps| mbps * 1e6 / (8.0 * self.wire_bytes));
        let mut least = all;
        // An uneven spread binds only if it has a cost.
        if spread.0 < least.0 * (1.0 - 1e-9) {
            least = spread;
        }
        if link < least.0 {
            least = (link, Binding::Link);
        }
        least
    }

    fn capacity(&self, cores: u32) -> Capacity {
        let (value, binding) = self.limit(cores, self.mean.value);
        let pps =
            Interval { value, low: self.limit(cores, self.mean.high).0, high: self.limit(cores, self.mean.low).0 };
        let mbps = |pps: f64, bytes: f64| pps * bytes * 8.0 / 1e6;
        let inner = self.demand.mix.mean_size();
        Capacity {
            cores,
            pps,
            mbps: Interval { value: mbps(pps.value, inner), low: mbps(pps.low, inner), high: mbps(pps.high, inner) },
            wire_mbps: mbps(pps.value, self.wire_bytes),
            binding,
        }
    }

    /// Cores for `pps` with the lower (1), middle (0) or upper (2) end of the time; [`MAX_CORES`] +
    /// 1 when no number is enough.
    fn cores_for(&self, pps: f64, bound: usize) -> u32 {
        let ns = [self.mean.value, self.mean.low, self.mean.high][bound];
        (1..=MAX_CORES).find(|cores| self.limit(*cores, ns).0 >= pps).unwrap_or(MAX_CORES + 1)
    }
}

fn what_if(cost: &Cost, demand: &Demand, cores: u32) -> Vec<WhatIf> {
    let planner = Planner::new(cost, demand);
    let less = |change, ns: f64| {
        // The same planner with another mean.
        let share = ns / planner.mean.value;
        let scaled = Demand { clock: demand.clock / share.max(1e-6), ..demand.clone() };
        WhatIf { change, capacity: Planner::new(cost, &scaled).capacity(cores) }
    };
    let with = |change, demand: Demand, cores| WhatIf { change, capacity: Planner::new(cost, &demand).capacity(cores) };
    let Parts { fixed_ns, length_ns, cipher_ns } = planner.parts;
    let mut all = vec![
        with("twice the cores", demand.clone(), cores * 2),
        less("half the fixed cost", planner.mean.value - fixed_ns / 2.0),
        less("half the cost per byte", planner.mean.value - (length_ns + cipher_ns) / 2.0),
        with("clock 20 % faster", Demand { clock: demand.clock * 1.2, ..demand.clone() }, cores),
        with("SAs spread evenly", Demand { spread: Spread::Even, ..demand.clone() }, cores),
        with("eight times the SAs", Demand { sas: demand.sas.saturating_mul(8), ..demand.clone() }, cores),
    ];
    if cipher_ns > 0.0 {
        all.push(less("a cipher without cost", planner.mean.value - cipher_ns));
    }
    if let Some(link) = demand.link_mbps {
        all.push(with("ten times the link", Demand { link_mbps: Some(link * 10.0), ..demand.clone() }, cores));
    }
    all
}

fn assumptions(cost: &Cost, demand: &Demand) -> Vec<String> {
    let mut all = vec![];
    match cost {
        Cost::Model(model) => {
            all.extend(model.origin.iter().cloned());
            all.push("each core does what one core did when it was measured: no contention for memory or locks".into());
        }
        Cost::DataSheet(sheet) => {
            let [a, b] = &sheet.inputs;
            all.push(format!(
                "a line over {} through {} Mbps at {} B and {} Mbps at {} B, read to their last digit",
                sheet.size_fn.id(),
                a.mbps,
                a.size,
                b.mbps,
                b.size
            ));
            all.push(format!(
                "band: rounding of both numbers, and {:.0} % between their sizes, {:.0} % outside; ciphers that are slow with partial \
                 blocks (ChaCha20) can miss by more",
                DATASHEET_INSIDE * 100.0,
                DATASHEET_OUTSIDE * 100.0
            ));
            all.push("the processor was the limit in both numbers, not a port or a licence; one 'core' is the whole appliance".into());
        }
    }
    let outside: Vec<String> =
        demand.mix.parts().iter().filter(|p| cost.extrapolates(p.0)).map(|p| p.0.to_string()).collect();
    if !outside.is_empty() {
        all.push(format!("extrapolated to {} bytes, outside the measured range", outside.join(", ")));
    }
    if demand.clock != 1.0 {
        all.push(format!("all times divided by {}: cycles stay the same at another clock", demand.clock));
    }
    let spread = match demand.spread {
        Spread::Hashed => "SAs of equal rate, hashed onto cores; the mean of the fullest core decides",
        Spread::Even => "SAs of equal rate, spread evenly over cores",
    };
    all.push(format!("{spread}; {} SAs, each on one core", demand.sas));
    all.push(format!(
        "no core beyond {:.0} % load, so that queues stay short; latency and loss are not predicted",
        demand.max_load * 100.0
    ));
    if cost.layout().or(demand.layout.as_ref()).is_none() {
        all.push("overhead on the wire not counted: the protocol is not known (--protocol, --suite)".into());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Printed, Sample, SizeFn, choose};
    use stats::Rng;

    fn close(a: f64, b: f64, relative: f64) {
        assert!((a / b - 1.0).abs() <= relative, "{a} is not {b}");
    }

    /// 100 ns + 0.4 ns per byte, with 0.2 % of noise.
    fn cost() -> Cost {
        let sizes = [64.0, 128.0, 256.0, 512.0, 768.0, 1024.0, 1280.0, 1500.0];
        let mut rng = Rng::new(11);
        let mut sample = |size: f64| Sample::new(size, (100.0 + 0.4 * size) * (1.0 + 0.004 * (rng.unit() - 0.5)));
        let samples: Vec<Sample> = (0..20).flat_map(|_| sizes).map(&mut sample).collect();
        let basis = Basis { size_fn: SizeFn::len(), cost: None };
        let (candidates, chosen) = choose(&basis, &samples).expect("a line");
        let fitted = candidates[chosen].fitted.clone();
        Cost::Model(Box::new(Calibrated { fitted, basis, range: [64.0, 1500.0], layout: None, origin: vec![] }))
    }

    fn at(size: f64) -> Demand {
        Demand { sas: 1000, spread: Spread::Even, ..Demand::new(Mix::one(size).unwrap()) }
    }

    #[test]
    fn one_core_at_its_load_limit() {
        let plan = plan(&cost(), &at(500.0));
        close(plan.capacity.pps.value, 0.9e9 / 300.0, 0.005);
        assert!(plan.capacity.pps.low < plan.capacity.pps.value && plan.capacity.pps.value < plan.capacity.pps.high);
        assert_eq!(plan.capacity.binding, Binding::LengthCost);
        assert_eq!(self::plan(&cost(), &at(64.0)).capacity.binding, Binding::FixedCost);
        assert!(plan.cores_needed.is_none() && plan.met);
    }

    #[test]
    fn cores_for_a_rate_with_its_peak() {
        let demand = Demand { pps: Some(10e6), peak: 1.5, ..at(500.0) };
        let plan = plan(&cost(), &demand);
        // 15 Mpps of 300 ns are 4.5 cores, 5.0 at 90 %.
        let [point, low, high] = plan.cores_needed.unwrap();
        assert!((5..=6).contains(&point) && low <= point && point <= high, "{:?}", plan.cores_needed);
        assert!(plan.met && plan.load.unwrap() <= 0.9 + 1e-6);
    }

    #[test]
    fn each_constraint_can_bind_and_is_named() {
        let binding = |demand: Demand| plan(&cost(), &demand).capacity.binding;
        assert_eq!(binding(Demand { cores: Some(8), link_mbps: Some(1000.0), ..at(1500.0) }), Binding::Link);
        assert_eq!(binding(Demand { cores: Some(8), sas: 8, spread: Spread::Hashed, ..at(500.0) }), Binding::Spread);
        assert_eq!(binding(Demand { cores: Some(1), setups: (2000.0, 1e6), ..at(500.0) }), Binding::SetUp);
        assert_eq!(binding(Demand { memory: Some((1e6, 1e4)), ..at(500.0) }), Binding::Memory);
    }

    /// 8 SAs hashed onto 8 cores reach 3.1 cores' worth, whatever the cores.
    #[test]
    fn hashing_few_sas_wastes_cores() {
        let demand = Demand { cores: Some(8), sas: 8, spread: Spread::Hashed, ..at(500.0) };
        let plan = plan(&cost(), &demand);
        close(plan.capacity.pps.value / (0.9e9 / 300.0), 3.1, 0.02);
        close(plan.used_cores, 5.25, 0.001);
        let even = plan.what_if.iter().find(|w| w.change == "SAs spread evenly").unwrap();
        close(even.capacity.pps.value / (0.9e9 / 300.0), 8.0, 0.01);
    }

    #[test]
    fn a_demand_that_no_core_count_meets_says_so() {
        let plan = plan(&cost(), &Demand { pps: Some(100e6), sas: 1, ..at(500.0) });
        assert!(!plan.met);
        assert!(plan.cores_needed.unwrap()[0] > MAX_CORES);
    }

    #[test]
    fn a_lower_load_limit_leaves_less_capacity() {
        let free = plan(&cost(), &at(500.0));
        let tight = plan(&cost(), &Demand { max_load: 0.45, ..at(500.0) });
        close(tight.capacity.pps.value, free.capacity.pps.value / 2.0, 1e-9);
    }

    #[test]
    fn what_ifs_move_what_they_say() {
        let plan = plan(&cost(), &Demand { cores: Some(2), ..at(500.0) });
        let of = |change: &str| {
            let hit = plan.what_if.iter().find(|w| w.change == change).unwrap();
            hit.capacity.pps.value / plan.capacity.pps.value
        };
        close(of("twice the cores"), 2.0, 1e-6);
        close(of("half the fixed cost"), 300.0 / 250.0, 0.005);
        close(of("half the cost per byte"), 300.0 / 200.0, 0.005);
        close(of("clock 20 % faster"), 1.2, 1e-6);
    }

    #[test]
    fn a_data_sheet_becomes_a_curve_with_a_wide_band() {
        let [a, b] = [(64.0, "500"), (1400.0, "5000")].map(|(s, t)| Printed::parse(s, t, 1.0).unwrap());
        let cost = Cost::DataSheet(TwoPoint::new(a, b, SizeFn::len()));
        let plan = plan(&cost, &Demand::new(Mix::parse("64:28,570:16,1518:4").unwrap()));
        let point = plan.curve.iter().find(|p| p.size == 64.0).unwrap();
        close(point.mbps.value, 500.0, 1e-9);
        for point in &plan.curve {
            let width = (point.mbps.high - point.mbps.low) / point.mbps.value;
            assert!(width > 0.13, "{point:?}");
            assert_eq!(point.extrapolated, point.size > 1400.0);
        }
        assert!(plan.assumptions.iter().any(|a| a.contains("extrapolated to 1518 bytes")));
    }
}
