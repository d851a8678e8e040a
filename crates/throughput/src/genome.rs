//! IMIX genomes (RFC 6985): a mix of packet sizes as a word.

use std::fmt;
use std::str::FromStr;

/// Genome of `imix`: seven of 64, four of 512, one of 1518 bytes.
pub const IMIX: &str = "imix:aaaaaaaddddg";

/// Smallest inner packet in bytes: headers of IPv4 and UDP and a sequence number. Over IPv6 20
/// more.
pub const MIN_SIZE: u16 = 36;

/// Sizes of the lower-case letters in bytes (RFC 6985 §4).
const LETTERS: [(char, u16); 10] = [
    ('a', 64),
    ('b', 128),
    ('c', 256),
    ('d', 512),
    ('e', 1024),
    ('f', 1280),
    ('g', 1518),
    ('h', 2112),
    ('i', 9000),
    ('j', 16000),
];

/// Size of `z`, "MTU", where a genome does not say another, in bytes.
pub const Z_DEFAULT: u16 = 1500;

/// Most packets of a genome: 64 KiB of sizes.
const MAX_PACKETS: usize = 32_768;

/// A sequence of packet sizes, repeated for as long as traffic lasts. Sizes are taken as those of
/// inner IP packets.
///
/// Letters `a` to `j` and `z` are the sizes of RFC 6985, a number before a letter repeats it, and
/// capital letters are defined by the sizes that follow: `7a4dg`, `AAAB:A=40:B=1420`, `aaz:z=9000`.
#[derive(Clone, Debug, PartialEq)]
pub struct Genome {
    text: String,
    sizes: Vec<u16>,
}

impl Genome {
    /// Sizes in bytes, in order; at least one.
    pub fn sizes(&self) -> &[u16] {
        &self.sizes
    }

    /// Mean size in bytes.
    pub fn mean(&self) -> f64 {
        self.sizes.iter().map(|size| f64::from(*size)).sum::<f64>() / self.sizes.len() as f64
    }
}

/// Reason why a word is not a genome.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum GenomeError {
    #[error("a genome needs letters, e.g. imix:aaaaaaaddddg")]
    Empty,
    #[error(
        "'{0}' is not a letter of a genome; use a to j and z (RFC 6985), or capital letters with their size: AAB:A=40:B=1420"
    )]
    Letter(char),
    #[error("capital letter '{0}' has no size; add :{0}=BYTES")]
    NoSize(char),
    #[error("'{0}' is not a size of a letter; write e.g. A=40, with a capital letter or z and {min} to 65535 bytes", min = MIN_SIZE)]
    Size(String),
    #[error("a genome has at most {MAX_PACKETS} packets")]
    TooLong,
}

impl FromStr for Genome {
    type Err = GenomeError;

    fn from_str(text: &str) -> Result<Self, GenomeError> {
        let mut parts = text.split(':');
        let word = parts.next().unwrap_or_default();
        let custom = parts.map(custom_size).collect::<Result<Vec<_>, _>>()?;
        let size_of = |letter: char| {
            let own = custom.iter().rev().find(|(of, _)| *of == letter).map(|(_, size)| *size);
            let known = LETTERS.iter().find(|(of, _)| *of == letter).map(|(_, size)| *size);
            match own.or(known) {
                Some(size) => Ok(size),
                None if letter == 'z' => Ok(Z_DEFAULT),
                None if letter.is_ascii_uppercase() => Err(GenomeError::NoSize(letter)),
                None => Err(GenomeError::Letter(letter)),
            }
        };
        let (mut sizes, mut times): (Vec<u16>, Option<usize>) = (Vec::new(), None);
        for letter in word.chars() {
            if let Some(digit) = letter.to_digit(10) {
                let so_far = times.unwrap_or(0) * 10 + digit as usize;
                times = Some(so_far);
                if so_far > MAX_PACKETS {
                    return Err(GenomeError::TooLong);
                }
                continue;
            }
            let size = size_of(letter)?;
            sizes.extend(std::iter::repeat_n(size, times.take().unwrap_or(1)));
            if sizes.len() > MAX_PACKETS {
                return Err(GenomeError::TooLong);
            }
        }
        if sizes.is_empty() || times.is_some() {
            return Err(GenomeError::Empty);
        }
        Ok(Self { text: text.to_owned(), sizes })
    }
}

/// `A=40`.
fn custom_size(text: &str) -> Result<(char, u16), GenomeError> {
    let wrong = || GenomeError::Size(text.to_owned());
    let (letter, size) = text.split_once('=').ok_or_else(wrong)?;
    let mut letters = letter.chars();
    let (Some(letter), None) = (letters.next(), letters.next()) else { return Err(wrong()) };
    let size = size.parse().ok().filter(|size| *size >= MIN_SIZE).ok_or_else(wrong)?;
    if letter.is_ascii_uppercase() || letter == 'z' { Ok((letter, size)) } else { Err(wrong()) }
}

impl fmt::Display for Genome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn genome(text: &str) -> Genome {
        text.parse().unwrap()
    }

    #[test]
    fn the_usual_mix_has_the_mean_that_is_published_for_it() {
        assert_eq!(genome("aaaaaaaddddg").mean(), 334.5);
        assert_eq!(genome("7a4dg").sizes(), genome("aaaaaaaddddg").sizes());
        assert_eq!(genome("hijz").sizes(), [2112, 9000, 16000, 1500]);
    }

    /// The mix of FD.io CSIT, 28 x 64, 16 x 570, 4 x 1518: mean 353.8 bytes.
    #[test]
    fn sizes_of_ones_own() {
        let csit = genome("28a16A4g:A=570");
        assert_eq!(csit.sizes().len(), 48);
        assert!((csit.mean() - 353.833).abs() < 0.001, "{}", csit.mean());
        assert_eq!(genome("Az:A=40:z=9000").sizes(), [40, 9000]);
        assert_eq!(csit.to_string(), "28a16A4g:A=570");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |text: &str| text.parse::<Genome>().unwrap_err().to_string();
        assert!(wrong("").contains("needs letters"));
        assert!(wrong("aa3").contains("needs letters"));
        assert!(wrong("aak").starts_with("'k' is not a letter"), "{}", wrong("aak"));
        assert!(wrong("aA").contains("add :A=BYTES"));
        for bad in ["A:A=20", "A:A=70000", "A:a=64", "A:=64", "A:AB=64", "A:A64"] {
            assert!(wrong(bad).contains("not a size of a letter"), "{bad}: {}", wrong(bad));
        }
        assert_eq!("99999a".parse::<Genome>().unwrap_err(), GenomeError::TooLong);
        assert_eq!("99999999999999999999999a".parse::<Genome>().unwrap_err(), GenomeError::TooLong);
        assert_eq!("32768aa".parse::<Genome>().unwrap_err(), GenomeError::TooLong);
    }
}
