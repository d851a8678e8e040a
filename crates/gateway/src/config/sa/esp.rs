//! ESP and AH with manual keys.

use crypto::Suite;
use ipsec::Mode;

use super::super::value::{Fields, octets, switch};
use super::half::spi;
use super::keys::{ask_keys, check_length, keys, suite};
use super::{Direction, HalfProto, Shared};

pub(super) fn esp(fields: &Fields<'_>, direction: Direction, shared: &Shared<'_>) -> Option<HalfProto> {
    let (spi, suite) = (spi(fields), suite(fields, shared, Suite::parse_esp));
    let esn = fields.get("esn", switch).unwrap_or(false);
    let tfc_padding = direction == Direction::Out && fields.get_own("tfc_padding", switch).unwrap_or(false);
    if tfc_padding && shared.mode != Mode::Tunnel {
        fields.fault_of(
            "tfc_padding",
            "only tunnel mode can find the end of TFC padding",
            "remove it, or use 'mode = tunnel'",
        );
    }
    let iv = if direction == Direction::Out { fields.get_own("iv", octets) } else { None };
    let keys = match &suite {
        Some(suite) => keys(fields, suite),
        None => ask_keys(fields),
    };
    let (suite, (enc, integ)) = (suite?, keys?);
    let block = suite.enc.filter(|enc| enc.iv_len == enc.block_len).map_or(0, |enc| enc.iv_len);
    let iv = match iv {
        None => None,
        Some(_) if block == 0 => {
            fields.fault_of(
                "iv",
                format!("{suite} makes its IV from the sequence number"),
                "use first_seq, or remove it",
            );
            return None;
        }
        Some(iv) => {
            check_length(fields, "iv", &iv, block, "the IV of every packet")?;
            let mut whole = [0; 16];
            whole[..block].copy_from_slice(iv.octets());
            Some(whole)
        }
    };
    Some(HalfProto::Esp { spi: spi?, suite, enc, integ, esn, tfc_padding, iv })
}

pub(super) fn ah(fields: &Fields<'_>, direction: Direction, shared: &Shared<'_>) -> Option<HalfProto> {
    let (spi, suite) = (spi(fields), suite(fields, shared, Suite::parse_ah));
    let esn = fields.get("esn", switch).unwrap_or(false);
    let align8 = direction == Direction::Out && fields.get_own("align8", switch).unwrap_or(false);
    let keys = match &suite {
        Some(suite) => keys(fields, suite),
        None => ask_keys(fields),
    };
    let (suite, (_, integ)) = (suite?, keys?);
    Some(HalfProto::Ah { spi: spi?, suite, integ, esn, align8 })
}
