//! Negotiation of AGGFRAG mode: the notify USE_AGGFRAG (RFC 9347 §5.1, §6.1.4).

use wire::ike::{Chain, NotifyType, ProtocolId};

use super::Parts;
use crate::config::{ChildConfig, ChildMode};
use crate::proposal::{ChildProtocol, ChildSuite, SequenceNumbers};

/// D: the sender does not receive fragments.
const DONT_FRAGMENT: u8 = 1;
/// C: the sender requires congestion control information.
const CONGESTION_CONTROL: u8 = 2;

/// Reason why a response makes no Child SA of the mode that was requested.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum AggfragFault {
    /// A malformed notify.
    #[error("USE_AGGFRAG of the peer has {data_len} bytes of data instead of 1, or an SPI")]
    Malformed {
        /// Length of its data.
        data_len: usize,
    },
    /// The peer requires what this host does not have.
    #[error("the peer requires congestion control for IP-TFS, which is not supported")]
    CongestionControl,
    /// AGGFRAG mode is one of ESP, and of EESP with sequence numbers.
    #[error("the peer uses IP-TFS with AH or without sequence numbers, where the mode does not exist")]
    Protocol,
    /// The mode is required, and not agreed upon.
    #[error("the peer does not answer with IP-TFS, which 'iptfs_required = yes' requires")]
    Required,
}

/// USE_AGGFRAG of a peer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct UseAggfrag {
    /// D.
    pub(super) dont_fragment: bool,
    /// C.
    pub(super) congestion_control: bool,
}

impl UseAggfrag {
    /// Reads the notify; `None` without one.
    ///
    /// # Errors
    /// It is malformed. In a request it has no effect; in a response it shows that the peer uses
    /// AGGFRAG mode, with settings that are not known.
    pub(super) fn read(parts: &Parts<'_>) -> Result<Option<Self>, AggfragFault> {
        let Some(notify) = parts.notifies.iter().find(|notify| notify.kind == NotifyType::USE_AGGFRAG) else {
            return Ok(None);
        };
        match *notify.data {
            [flags] if notify.protocol == ProtocolId::NONE && notify.spi.is_empty() => {
                // Unknown bits are ignored.
                let bit = |bit| flags & bit != 0;
                Ok(Some(Self { dont_fragment: bit(DONT_FRAGMENT), congestion_control: bit(CONGESTION_CONTROL) }))
            }
            _ => Err(AggfragFault::Malformed { data_len: notify.data.len() }),
        }
    }

    /// Writes the notify of this host.
    pub(super) fn emit(chain: &mut Chain<'_>, config: &ChildConfig) {
        let flags = if config.iptfs.accept_fragments { 0 } else { DONT_FRAGMENT };
        chain.notify(ProtocolId::NONE, &[], NotifyType::USE_AGGFRAG, &[flags]);
    }
}

/// Mode of this host's response. AGGFRAG mode is one of ESP (RFC 9347 §2.3) and EESP
/// (draft-ietf-ipsecme-eesp §2.7) with sequence numbers; otherwise the SA is a tunnel.
pub(super) fn mode_for(mode: ChildMode, suite: &ChildSuite) -> ChildMode {
    if mode == ChildMode::Iptfs && !is_possible(suite) { ChildMode::Tunnel } else { mode }
}

/// Returns whether an SA with `suite` may be in AGGFRAG mode.
fn is_possible(suite: &ChildSuite) -> bool {
    match suite.protocol {
        ChildProtocol::Esp => true,
        // They order the outer packets.
        ChildProtocol::Eesp => suite.sn == SequenceNumbers::Bits64,
        ChildProtocol::Ah => false,
    }
}

/// Mode that a request asks for: of its notifies for transport and BEET mode and USE_AGGFRAG.
pub(super) fn requested(transport: bool, beet: bool, aggfrag: Option<UseAggfrag>) -> ChildMode {
    match (transport, beet, aggfrag) {
        // Two modes exclude each other. Without information about congestion the response must not
        // agree to AGGFRAG mode.
        (false, false, Some(UseAggfrag { congestion_control: false, .. })) => ChildMode::Iptfs,
        (_, _, Some(_)) => ChildMode::Tunnel,
        (true, ..) => ChildMode::Transport,
        (_, true, _) => ChildMode::Beet,
        (false, false, None) => ChildMode::Tunnel,
    }
}

/// Mode of an SA with `suite` for which this host requested AGGFRAG mode and received `answer`.
///
/// # Errors
/// The peer uses the mode by now in a way that this host cannot, so that there is no other mode to
/// fall back to.
pub(super) fn agreed(
    answer: Result<Option<UseAggfrag>, AggfragFault>,
    suite: &ChildSuite,
) -> Result<ChildMode, AggfragFault> {
    match answer? {
        Some(UseAggfrag { congestion_control: true, .. }) => Err(AggfragFault::CongestionControl),
        Some(_) if !is_possible(suite) => Err(AggfragFault::Protocol),
        Some(_) => Ok(ChildMode::Iptfs),
        None => Ok(ChildMode::Tunnel),
    }
}

#[cfg(test)]
mod tests {
    use wire::ike::{PayloadType, Payloads};

    use super::*;

    fn notify(protocol: ProtocolId, spi: &[u8], data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Chain::new(&mut out).notify(protocol, spi, NotifyType::USE_AGGFRAG, data);
        out
    }

    fn read(bytes: &[u8]) -> Result<Option<UseAggfrag>, AggfragFault> {
        UseAggfrag::read(&Parts::read(Payloads::new(PayloadType::NOTIFY, bytes)).unwrap())
    }

    fn suite(protocol: ChildProtocol, sn: SequenceNumbers) -> ChildSuite {
        ChildSuite { protocol, enc: None, integ: None, ke: None, additional: vec![], slots: vec![], sn, sskdf: None }
    }

    #[test]
    fn the_notify_has_one_octet_of_data() {
        let mut out = Vec::new();
        let mut config = ChildConfig::new("net");
        UseAggfrag::emit(&mut Chain::new(&mut out), &config);
        // As strongSwan 6.1.0 sends it.
        assert_eq!(out, [0, 0, 0, 9, 0, 0, 0x40, 0x3a, 0]);
        config.iptfs.accept_fragments = false;
        let mut out = Vec::new();
        UseAggfrag::emit(&mut Chain::new(&mut out), &config);
        assert_eq!(out[8], 1);
    }

    #[test]
    fn congestion_control_and_second_modes_make_no_iptfs() {
        let of = |congestion_control| Some(UseAggfrag { congestion_control, ..UseAggfrag::default() });
        for (transport, beet, aggfrag, expected) in [
            (false, false, None, ChildMode::Tunnel),
            (false, false, of(false), ChildMode::Iptfs),
            (false, false, of(true), ChildMode::Tunnel),
            (true, false, of(false), ChildMode::Tunnel),
            (false, true, of(false), ChildMode::Tunnel),
            (true, false, None, ChildMode::Transport),
            (false, true, None, ChildMode::Beet),
        ] {
            assert_eq!(requested(transport, beet, aggfrag), expected, "{transport} {beet} {aggfrag:?}");
        }
        let esp = suite(ChildProtocol::Esp, SequenceNumbers::Bits32);
        assert_eq!(agreed(Ok(of(false)), &esp), Ok(ChildMode::Iptfs));
        assert_eq!(agreed(Ok(None), &esp), Ok(ChildMode::Tunnel));
        assert_eq!(agreed(Ok(of(true)), &esp), Err(AggfragFault::CongestionControl));
        let malformed = AggfragFault::Malformed { data_len: 2 };
        assert_eq!(agreed(Err(malformed), &esp), Err(malformed));
    }

    #[test]
    fn esp_has_the_mode_and_eesp_with_sequence_numbers() {
        for (protocol, sn, possible) in [
            (ChildProtocol::Esp, SequenceNumbers::Bits32, true),
            (ChildProtocol::Esp, SequenceNumbers::Extended, true),
            (ChildProtocol::Eesp, SequenceNumbers::Bits64, true),
            (ChildProtocol::Eesp, SequenceNumbers::None, false),
            (ChildProtocol::Ah, SequenceNumbers::Bits32, false),
        ] {
            let suite = suite(protocol, sn);
            let answer = agreed(Ok(Some(UseAggfrag::default())), &suite);
            assert_eq!(answer, if possible { Ok(ChildMode::Iptfs) } else { Err(AggfragFault::Protocol) }, "{suite:?}");
            let mode = mode_for(ChildMode::Iptfs, &suite);
            assert_eq!(mode, if possible { ChildMode::Iptfs } else { ChildMode::Tunnel }, "{suite:?}");
            assert_eq!(mode_for(ChildMode::Beet, &suite), ChildMode::Beet);
        }
    }

    #[test]
    fn unknown_bits_are_ignored_and_malformed_notifies_are_errors() {
        for (flags, dont_fragment, congestion_control) in
            [(0, false, false), (1, true, false), (2, false, true), (3, true, true), (0xfc, false, false)]
        {
            let expected = UseAggfrag { dont_fragment, congestion_control };
            assert_eq!(read(&notify(ProtocolId::NONE, &[], &[flags])), Ok(Some(expected)));
        }
        for (protocol, spi, data) in [
            (ProtocolId::NONE, &[][..], &[][..]),
            (ProtocolId::NONE, &[], &[0, 0]),
            (ProtocolId::ESP, &[1, 2, 3, 4], &[0]),
        ] {
            let reason = read(&notify(protocol, spi, data)).unwrap_err().to_string();
            assert!(reason.starts_with(&format!("USE_AGGFRAG of the peer has {} bytes", data.len())), "{reason}");
        }
    }
}
