//! ECN between inner and outer header of a tunnel (RFC 6040).
//!
//! Values are the two ECN bits alone; see [`Ecn`]. The DSCP above them is none of this module's
//! business.

use crate::DropReason;

/// The ECN field of an IP header (RFC 3168 §5), the low two bits of TOS or traffic class.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ecn(u8);

impl Ecn {
    /// Transport does not support ECN.
    pub const NOT_ECT: Self = Self(0);
    /// ECN-capable transport (1).
    pub const ECT_1: Self = Self(1);
    /// ECN-capable transport (0).
    pub const ECT_0: Self = Self(2);
    /// Congestion experienced.
    pub const CE: Self = Self(3);

    /// The field within a TOS or traffic class byte.
    #[inline]
    pub const fn of(tos: u8) -> Self {
        Self(tos & 3)
    }

    /// The two bits, 0 to 3.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// The outer field at tunnel ingress: the inner one in normal mode, Not-ECT in compatibility mode
/// (RFC 6040 §4.1).
#[inline]
pub const fn ingress(inner: Ecn, normal: bool) -> Ecn {
    if normal { inner } else { Ecn::NOT_ECT }
}

/// The field to forward at tunnel egress (RFC 6040 §4.2, figure 4).
///
/// # Errors
/// [`DropReason::EcnCe`] for CE around a packet whose sender would not understand it: dropping is
/// the only way left to report the congestion.
#[inline]
pub const fn egress(inner: Ecn, outer: Ecn) -> Result<Ecn, DropReason> {
    match EGRESS[inner.0 as usize][outer.0 as usize] {
        DROP => Err(DropReason::EcnCe),
        bits => Ok(Ecn(bits)),
    }
}

const DROP: u8 = 4;

/// Rows are the inner field, columns the outer one, both in the order of their values.
#[rustfmt::skip]
const EGRESS: [[u8; 4]; 4] = [
    //          Not-ECT  ECT(1)  ECT(0)  CE
    /* Not-ECT */ [0,      0,      0,      DROP],
    /* ECT(1)  */ [1,      1,      1,      3],
    /* ECT(0)  */ [2,      1,      2,      3],
    /* CE      */ [3,      3,      3,      3],
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 4 of RFC 6040 as printed: columns Not-ECT, ECT(0), ECT(1), CE.
    #[test]
    fn egress_is_figure_4_of_rfc_6040() {
        const COLUMNS: [Ecn; 4] = [Ecn::NOT_ECT, Ecn::ECT_0, Ecn::ECT_1, Ecn::CE];
        let rows = [
            (Ecn::NOT_ECT, [Ok(Ecn::NOT_ECT), Ok(Ecn::NOT_ECT), Ok(Ecn::NOT_ECT), Err(DropReason::EcnCe)]),
            (Ecn::ECT_0, [Ok(Ecn::ECT_0), Ok(Ecn::ECT_0), Ok(Ecn::ECT_1), Ok(Ecn::CE)]),
            (Ecn::ECT_1, [Ok(Ecn::ECT_1), Ok(Ecn::ECT_1), Ok(Ecn::ECT_1), Ok(Ecn::CE)]),
            (Ecn::CE, [Ok(Ecn::CE), Ok(Ecn::CE), Ok(Ecn::CE), Ok(Ecn::CE)]),
        ];
        for (inner, expected) in rows {
            for (outer, forwarded) in COLUMNS.into_iter().zip(expected) {
                assert_eq!(egress(inner, outer), forwarded, "inner {inner:?}, outer {outer:?}");
            }
        }
    }

    #[test]
    fn ingress_copies_or_clears() {
        for bits in 0..4 {
            let inner = Ecn::of(0xfc | bits);
            assert_eq!(inner.bits(), bits);
            assert_eq!(ingress(inner, true), inner);
            assert_eq!(ingress(inner, false), Ecn::NOT_ECT);
        }
    }
}
