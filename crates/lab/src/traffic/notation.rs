//! How traffic is written.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::{GenomeError, MAX_FLOWS, MIN_SIZE, Rate, Sizes, Traffic};

/// Reason why a text is not a traffic specification.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum NotationError {
    #[error("'{0}' is not a size; use bytes (1400), a range (64..1500), imix:SPEC or pcap:FILE")]
    Sizes(String),
    #[error("packets of {0} bytes cannot be sent; use {MIN_SIZE} to 65535")]
    TooSmall(u16),
    #[error("the range {0}..{1} is empty; write the smaller size first")]
    Range(u16, u16),
    #[error(transparent)]
    Genome(#[from] GenomeError),
    #[error("'{0}' is not a number of flows; use 1 to {MAX_FLOWS}")]
    Flows(String),
    #[error("'{0}' is not a rate; use packets per second, e.g. 200k or 1.5M")]
    Rate(String),
    #[error("only a capture (pcap:FILE) has recorded times")]
    NotRecorded,
    #[error("duplicate '{0}'")]
    Twice(&'static str),
}

impl FromStr for Traffic {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let (mut sizes, mut flows, mut rate) = (text.trim(), None, None);
        // From the end, so that the name of a file may have commas.
        while let Some((before, setting)) = sizes.rsplit_once(',') {
            let known = if let Some(value) = setting.strip_prefix("flows=") {
                flows.replace(parse_flows(value)?).map(|_| "flows")
            } else if let Some(value) = setting.strip_prefix("rate=") {
                let parsed = if value == "recorded" { Rate::Recorded } else { Rate::Constant(parse_pps(value)?) };
                rate.replace(parsed).map(|_| "rate")
            } else if let Some(value) = setting.strip_prefix("poisson=") {
                rate.replace(Rate::Poisson(parse_pps(value)?)).map(|_| "rate")
            } else {
                break;
            };
            if let Some(twice) = known {
                return Err(NotationError::Twice(twice));
            }
            sizes = before;
        }
        let traffic = Self { sizes: sizes.parse()?, flows: flows.unwrap_or(1), rate: rate.unwrap_or(Rate::Saturate) };
        if traffic.rate == Rate::Recorded && !matches!(traffic.sizes, Sizes::Pcap(_)) {
            return Err(NotationError::NotRecorded);
        }
        Ok(traffic)
    }
}

impl FromStr for Sizes {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let wrong = || NotationError::Sizes(text.to_owned());
        let size = |text: &str| {
            let size = text.trim().parse().map_err(|_| wrong())?;
            if size < MIN_SIZE { Err(NotationError::TooSmall(size)) } else { Ok(size) }
        };
        if let Some(genome) = text.strip_prefix("imix:") {
            Ok(Self::Genome(genome.parse()?))
        } else if let Some(file) = text.strip_prefix("pcap:").filter(|file| !file.is_empty()) {
            Ok(Self::Pcap(PathBuf::from(file)))
        } else if let Some((min, max)) = text.split_once("..") {
            let (min, max) = (size(min)?, size(max)?);
            if min <= max { Ok(Self::Random { min, max }) } else { Err(NotationError::Range(min, max)) }
        } else {
            Ok(Self::Fixed(size(text)?))
        }
    }
}

fn parse_flows(text: &str) -> Result<u32, NotationError> {
    let flows = text.parse().ok().filter(|flows| (1..=MAX_FLOWS).contains(flows));
    flows.ok_or_else(|| NotationError::Flows(text.to_owned()))
}

fn parse_pps(text: &str) -> Result<f64, NotationError> {
    let (number, times) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1e3),
        None => text.strip_suffix('M').map_or((text, 1.0), |number| (number, 1e6)),
    };
    let pps = number.parse::<f64>().ok().map(|pps| pps * times).filter(|pps| pps.is_finite() && *pps > 0.0);
    pps.ok_or_else(|| NotationError::Rate(text.to_owned()))
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Random { min, max } => write!(f, "{min}..{max}"),
            Self::Genome(genome) => write!(f, "imix:{genome}"),
            Self::Pcap(file) => write!(f, "pcap:{}", file.display()),
        }
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sizes.fmt(f)?;
        if self.flows != 1 {
            write!(f, ",flows={}", self.flows)?;
        }
        match self.rate {
            Rate::Saturate => Ok(()),
            Rate::Constant(pps) => write!(f, ",rate={pps}"),
            Rate::Poisson(pps) => write!(f, ",poisson={pps}"),
            Rate::Recorded => write!(f, ",rate=recorded"),
        }
    }
}

impl TryFrom<String> for Traffic {
    type Error = NotationError;

    fn try_from(text: String) -> Result<Self, NotationError> {
        text.parse()
    }
}

impl From<Traffic> for String {
    fn from(traffic: Traffic) -> Self {
        traffic.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_reads_back_as_it_was() {
        for text in [
            "1400",
            "64..1500",
            "imix:aaaaaaaddddg",
            "imix:28a16A4g:A=570",
            "pcap:a,b.pcap,flows=2,rate=recorded",
            "1400,flows=8,rate=200000",
            "36,poisson=1500000.5",
        ] {
            assert_eq!(text.parse::<Traffic>().unwrap().to_string(), text);
        }
        let traffic: Traffic = "1400,rate=1.5M".parse().unwrap();
        assert_eq!(traffic.rate.pps(), Some(1.5e6));
        assert_eq!(serde_json::to_string(&traffic).unwrap(), r#""1400,rate=1500000""#);
        assert_eq!(serde_json::from_str::<Traffic>(r#""1400,rate=1500k""#).unwrap(), traffic);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |text: &str| text.parse::<Traffic>().unwrap_err();
        assert_eq!(wrong("20"), NotationError::TooSmall(20));
        assert_eq!(wrong("1400..64"), NotationError::Range(1400, 64));
        assert_eq!(wrong("1400,flows=0"), NotationError::Flows("0".into()));
        assert_eq!(wrong("1400,flows=50001"), NotationError::Flows("50001".into()));
        assert_eq!(wrong("1400,rate=fast"), NotationError::Rate("fast".into()));
        assert_eq!(wrong("1400,rate=-1"), NotationError::Rate("-1".into()));
        assert_eq!(wrong("1400,rate=infk"), NotationError::Rate("infk".into()));
        assert_eq!(wrong("1400,rate=1,poisson=1"), NotationError::Twice("rate"));
        assert_eq!(wrong("1400,rate=recorded"), NotationError::NotRecorded);
        for text in ["", "big", "1400,speed=1", "pcap:", "64..", "70000"] {
            assert!(matches!(wrong(text), NotationError::Sizes(_)), "{text}: {:?}", wrong(text));
        }
        assert!(matches!(wrong("imix:?"), NotationError::Genome(_)));
    }

    proptest! {
        #[test]
        fn any_traffic_survives_being_written(
            min in MIN_SIZE..2000, more in 0_u16..9000, flows in 1..=MAX_FLOWS, pps in 1e-3_f64..1e9, kind in 0..3,
        ) {
            let rate = match kind { 0 => Rate::Saturate, 1 => Rate::Constant(pps), _ => Rate::Poisson(pps) };
            let traffic = Traffic { sizes: Sizes::Random { min, max: min + more }, flows, rate };
            prop_assert_eq!(traffic.to_string().parse::<Traffic>().unwrap(), traffic);
        }

        #[test]
        fn no_text_panics(text in "[0-9a-z:.,=]{0,24}") {
            let _ = text.parse::<Traffic>();
        }
    }
}
