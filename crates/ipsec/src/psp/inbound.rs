//! Receiving PSP.

use std::sync::Arc;

use crypto::{DerivedKeys, DerivedName, Engine, IcvOk, Key, KeyId, KeyMaterial, KeyTable, Span, Suite};
use wire::psp::{ICV_LEN, PspHeader, PspSpi, PspVersion};
use wire::{IpPacket, IpProto, SeqNo};

use super::outbound::op;
use super::{MasterKeys, ReceiveSpec, VERSIONS, check_mode, suites};
use crate::template::{Covered, InTemplate, InnerFormat, IvField, SeqField};
use crate::{Authentic, Delivered, DropReason, Frame, InLane, InPacket, InProto, InResult, InboundSa, Mode, PendingIn};
use crate::{SaCommon, SaError, encap, lane};

/// Most SPIs of one peer that can each have a replay window: a lane is named by 16 bits.
pub const MAX_WINDOWS: u64 = 1 << 16;

/// Inbound particulars.
#[derive(Clone)]
pub struct Inbound {
    masters: Arc<MasterKeys>,
    issued: Issued,
    engine: Engine,
    suites: [Suite; VERSIONS],
    versions: u8,
    max_crypt_offset: usize,
    honour_drop: bool,
    tunnel: bool,
}

/// Cores that count for themselves what comes through an association: any core may open its
/// packets. Further ones share, which costs them a cache line in flight (1 KiB for each
/// association).
pub(crate) const COUNTED_CORES: usize = 8;

/// Builds the receiving side.
///
/// # Errors
/// [`SaError`].
pub fn inbound(
    common: SaCommon,
    spec: &ReceiveSpec,
    engine: Engine,
    keys: &mut KeyTable,
) -> Result<InboundSa, SaError> {
    let _ = keys; // receive keys are derived when packets come
    check_mode(&common)?;
    if spec.versions == 0 || spec.versions >> VERSIONS != 0 {
        return Err(SaError::Conflict("a PSP receiver accepts one or more of the versions 0 to 3"));
    }
    let issued = Issued::new(&spec.issued)?;
    let lanes = match spec.window {
        0 => 1,
        _ if issued.count <= MAX_WINDOWS => issued.count as usize,
        _ => {
            return Err(SaError::Conflict("a replay window is kept for each SPI; give one peer at most 65536 of them"));
        }
    };
    lane::check_windows(lanes, spec.window)?;
    let psp = Inbound {
        masters: Arc::clone(&spec.masters),
        issued,
        engine,
        suites: suites()?,
        versions: spec.versions,
        max_crypt_offset: spec.max_crypt_offset.into(),
        honour_drop: spec.honour_drop,
        tunnel: common.mode == Mode::Tunnel,
    };
    // Fails at creation instead of on the first packet.
    psp.try_derivation()?;
    let seen = |lane: usize| spec.first_seq.get(lane).copied().unwrap_or(0);
    let lanes = (0..lanes).map(|lane| InLane::new(None, spec.window, seen(lane), lanes == 1)).collect();
    Ok(InboundSa::new(common, (0, spec.window), lanes, InProto::Psp(psp)))
}

/// The SPIs that were given to one peer.
#[derive(Clone)]
struct Issued {
    /// Inclusive, in ascending order, apart from each other; with the number of SPIs before each.
    ranges: Box<[(u32, u32, u64)]>,
    /// Number of SPIs.
    count: u64,
}

impl Issued {
    fn new(ranges: &[(PspSpi, PspSpi)]) -> Result<Self, SaError> {
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable();
        // Overlapping ranges would give one SPI two lanes, and thus two replay windows.
        let apart = sorted.windows(2).all(|pair| pair[0].1 < pair[1].0);
        if sorted.is_empty() || !apart || sorted.iter().any(|&(first, last)| first > last) {
            return Err(SaError::Conflict("the SPIs given to a PSP peer are one or more ranges that do not overlap"));
        }
        let mut count = 0;
        let ranges = sorted
            .into_iter()
            .map(|(first, last)| {
                let (first, last, before) = (first.get(), last.get(), count);
                count += u64::from(last - first) + 1;
                (first, last, before)
            })
            .collect();
        Ok(Self { ranges, count })
    }

    /// Position of `spi` among the issued ones.
    #[inline]
    fn position(&self, spi: u32) -> Option<u64> {
        let after = self.ranges.partition_point(|&(first, _, _)| first <= spi);
        let &(first, last, before) = self.ranges.get(after.checked_sub(1)?)?;
        (spi <= last).then(|| before + u64::from(spi - first))
    }
}

impl Inbound {
    /// Accepted versions: bit n is version n.
    pub fn versions(&self) -> u8 {
        self.versions
    }

    /// The association of a packet: the peer of the SPI, and the lane with its window.
    #[inline]
    fn lane(&self, sa: &InboundSa, spi: u32, outer: &IpPacket) -> Result<u16, DropReason> {
        // A key belongs to one sender: a packet from another address must not use it, even with a
        // valid ICV.
        if outer.src != sa.common.outer.peer.remote {
            return Err(DropReason::WrongPeer);
        }
        let position = self.position(spi).ok_or(DropReason::NotIssued)?;
        Ok(if sa.window == 0 { 0 } else { position as u16 })
    }

    /// The SPIs that were given to this peer: ranges, both ends included, in ascending order.
    pub fn issued(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.issued.ranges.iter().map(|&(first, last, _)| (first, last))
    }

    /// Position of an SPI among those that were given to this peer.
    #[inline]
    pub(super) fn position(&self, spi: u32) -> Option<u64> {
        self.issued.position(spi)
    }

    /// The key of (SPI, version), from the cache or made now.
    #[inline]
    fn key(
        &self,
        version: PspVersion,
        spi: PspSpi,
        owner: u64,
        derived: &mut DerivedKeys,
    ) -> Result<KeyId, DropReason> {
        // One SPI has a different key for each version.
        let label = u64::from(version.get()) << 32 | u64::from(spi.get());
        derived.get_or_derive(DerivedName { owner, label }, || self.derive(version, spi)).ok_or(DropReason::NoKey)
    }

    #[cold]
    fn derive(&self, version: PspVersion, spi: PspSpi) -> Option<Key> {
        let suite = self.suites.get(usize::from(version.get()))?;
        let key = self.masters.traffic_key(spi, version)?;
        self.engine.expand(suite, KeyMaterial { enc: key.material(), integ: &[] }).ok()
    }

    /// Reports an unsupported version when the SA is created, not on a packet.
    fn try_derivation(&self) -> Result<(), SaError> {
        for (version, suite) in self.suites.iter().enumerate() {
            if self.versions >> version & 1 == 1 {
                let enc = &[0; 36][..suite.enc_material_len()];
                self.engine.expand(suite, KeyMaterial { enc, integ: &[] })?;
            }
        }
        Ok(())
    }

    /// Reads the header, in the order of the specification; with the owner of the keys under its
    /// master key. `packet` ends with the ICV.
    #[inline]
    fn read<'p>(&self, packet: &'p [u8]) -> Result<(&'p PspHeader, PspSpi, u64), DropReason> {
        let body = packet.len().checked_sub(ICV_LEN).ok_or(DropReason::Truncated)?;
        let (header, _) = PspHeader::parse(&packet[..body])?;
        // The specification reserves this bit: it must be 1.
        if !header.always_one() {
            return Err(DropReason::Malformed);
        }
        if u16::from(self.versions) >> header.version().get() & 1 == 0 {
            return Err(DropReason::BadVersion);
        }
        // Now that the version is known, the optional fields can be parsed.
        let (header, _, _) = PspHeader::parse_full(&packet[..body])?;
        let spi = PspSpi::try_from(header.spi.get()).map_err(|_| DropReason::Malformed)?;
        if !header.version().is_gmac() && header.crypt_offset_bytes() > body - PspHeader::LEN {
            return Err(DropReason::CryptOffset);
        }
        // The generation is part of the cache key, so that a rotated master key invalidates its
        // derived keys.
        let owner = self.masters.generation(spi).ok_or(DropReason::NoKey)?;
        Ok((header, spi, owner))
    }

    /// The template for packets that start as `head` does, and have this key: those with a header
    /// of 16 bytes that is all there is in the clear, and that request nothing of the receiver.
    pub(crate) fn flow_template(&self, head: u64, key: KeyId) -> Option<InTemplate> {
        let bytes = [head.to_be_bytes(), [0; 8]];
        let (header, _, _) = PspHeader::parse_full(bytes.as_flattened()).ok()?;
        let plain = header.total_len() == PspHeader::LEN && header.crypt_offset_bytes() == 0;
        let usual = plain && !header.version().is_gmac() && !header.sample() && !header.drop_after_sampling();
        usual.then_some(InTemplate {
            first: head,
            mask: u64::MAX,
            number: SeqField::Full,
            iv: IvField::Sequence,
            key,
            covered: Covered::Header,
            aad_len: PspHeader::LEN as u16,
            payload_at: PspHeader::LEN as u16,
            block_len: 1,
            payload_min: 0,
            icv_len: ICV_LEN as u16,
            inside: match IpProto(header.next_header) {
                IpProto::IPV4 | IpProto::IPV6 => self.tunnel,
                _ => !self.tunnel,
            }
            .then_some(InnerFormat::IpPacketPadded),
            tunnel: self.tunnel,
        })
    }

    /// Checks after the packet was authenticated.
    fn verdict(&self, header: &PspHeader) -> u16 {
        let too_large = !header.version().is_gmac() && header.crypt_offset_bytes() > self.max_crypt_offset;
        [(OFFSET_TOO_LARGE, too_large), (SAMPLE, header.sample()), (DROP, header.drop_after_sampling())]
            .into_iter()
            .filter(|&(_, set)| set)
            .fold(0, |bits, (bit, _)| bits | bit)
    }
}

/// [`PendingIn::extra`].
const OFFSET_TOO_LARGE: u16 = 1;
const SAMPLE: u16 = 2;
const DROP: u16 = 4;

pub(crate) fn prepare_in(
    sa: &InboundSa,
    psp: &Inbound,
    InPacket { outer, at, frame }: InPacket<'_, '_>,
    derived: &mut DerivedKeys,
    InResult { op: out, pending }: InResult<'_>,
) -> Result<(), DropReason> {
    if outer.fragment.is_some() {
        return Err(DropReason::Fragment);
    }
    frame.truncate(outer.total_len)?;
    let packet = frame.bytes().get(at..).ok_or(DropReason::Truncated)?;
    let (header, spi, owner) = psp.read(packet)?;
    let lane = psp.lane(sa, spi.get(), outer)?;
    let seq = SeqNo(header.iv.get());
    sa.lanes.get(usize::from(lane)).ok_or(DropReason::Inconsistent)?.check(sa.window, seq)?;
    let key = psp.key(header.version(), spi, owner, derived)?;

    *out = op(key, header.version(), seq.0, at, header.crypt_offset_bytes(), frame.len());
    *pending = PendingIn {
        seq,
        lane,
        ip_end: outer.upper_at as u16,
        proto_at: outer.proto_at as u16,
        payload: Span::new(at + header.total_len(), frame.len() - ICV_LEN),
        next: IpProto(header.next_header),
        outer_tos: outer.tos,
        extra: psp.verdict(header),
    };
    Ok(())
}

pub(crate) fn finish_in(
    sa: &InboundSa,
    psp: &Inbound,
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    ok: IcvOk,
) -> Result<Delivered, DropReason> {
    if pending.extra & OFFSET_TOO_LARGE != 0 {
        return Err(DropReason::CryptOffset);
    }
    // Next Header alone distinguishes the modes.
    if matches!(pending.next, IpProto::IPV4 | IpProto::IPV6) != psp.tunnel {
        return Err(DropReason::BadInner);
    }
    let payload = pending.payload.range();
    encap::decapsulate(&sa.common, frame, pending, payload.start, payload.end, pending.next)?;
    let lane = sa.lanes.get(usize::from(pending.lane)).ok_or(DropReason::Inconsistent)?;
    lane.commit(sa.window, Authentic::new(pending.seq, ok))?;

    let sample = pending.extra & SAMPLE != 0;
    if sample && psp.honour_drop && pending.extra & DROP != 0 {
        return Err(DropReason::SampleDrop);
    }
    Ok(Delivered { sample })
}
