//! `weir pcap inspect`: cleartext fields of each packet.

use serde_json::{Map, Value, json};
use wire::ah::AhHeader;
use wire::eesp::{EespHeader, Options};
use wire::encap::NatT;
use wire::esp::EspHeader;
use wire::pcap::{self, Record};
use wire::psp::{PspCookie, PspHeader};
use wire::registry::CodePoints;
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto, ParseError};

/// Limit of nested headers: AH, then ESP, then opaque payload.
const MAX_LAYERS: usize = 4;

/// One layer of a packet: its name and its fields.
struct Layer {
    name: &'static str,
    fields: Map<String, Value>,
}

fn layer(name: &'static str, fields: Value) -> Layer {
    let Value::Object(fields) = fields else { return Layer { name, fields: Map::new() } };
    Layer { name, fields }
}

/// One line per packet: for people, or a JSON object.
pub(crate) fn inspect(number: usize, record: &Record<'_>, points: &CodePoints, as_json: bool) -> String {
    let mut layers = Vec::new();
    let fault = match pcap::ip_payload(record.link_type, record.data) {
        Ok((_, packet)) => ip(packet, points, &mut layers).err().map(|fault| fault.to_string()),
        Err(why) => Some(why.to_string()),
    };
    if as_json {
        let mut object = Map::new();
        object.insert("packet".into(), number.into());
        object.insert("time_ns".into(), record.ts_ns.into());
        object.insert("bytes".into(), record.orig_len.into());
        for layer in layers {
            object.insert(layer.name.to_lowercase(), Value::Object(layer.fields));
        }
        if let Some(fault) = fault {
            object.insert("fault".into(), fault.into());
        }
        return Value::Object(object).to_string();
    }
    let mut line = format!("{number}: {} bytes", record.orig_len);
    for layer in &layers {
        line.push_str(&format!(", {}", layer.name));
        for (name, value) in &layer.fields {
            match value {
                Value::String(text) => line.push_str(&format!(" {name} {text}")),
                other => line.push_str(&format!(" {name} {other}")),
            }
        }
    }
    if let Some(fault) = fault {
        line.push_str(&format!(", fault: {fault}"));
    }
    line
}

fn ip(packet: &[u8], points: &CodePoints, layers: &mut Vec<Layer>) -> Result<(), ParseError> {
    let ip = IpPacket::parse(packet)?;
    let mut fields = json!({
        "src": ip.src.to_string(),
        "dst": ip.dst.to_string(),
        "protocol": proto(ip.upper),
        "tos": ip.tos,
        "ttl": ip.hop_limit,
    });
    if let Some(fragment) = ip.fragment {
        fields["fragment"] = json!({ "id": fragment.id, "offset": fragment.offset, "more": fragment.more });
    }
    layers.push(layer(if ip.is_v6() { "IPv6" } else { "IPv4" }, fields));
    if ip.fragment.is_some_and(|fragment| fragment.offset > 0) {
        return Ok(());
    }
    upper(ip.upper, packet.get(ip.upper_at..ip.total_len.min(packet.len())).unwrap_or_default(), points, layers)
}

fn proto(proto: IpProto) -> String {
    proto.name().map_or_else(|| proto.to_string(), str::to_owned)
}

fn upper(proto_number: IpProto, bytes: &[u8], points: &CodePoints, layers: &mut Vec<Layer>) -> Result<(), ParseError> {
    if layers.len() > MAX_LAYERS {
        return Ok(());
    }
    match proto_number {
        IpProto::ESP => esp(bytes, layers),
        IpProto::AH => ah(bytes, points, layers),
        IpProto::UDP => udp(bytes, points, layers),
        other if other == points.eesp_protocol => eesp(bytes, layers),
        _ => Ok(()),
    }
}

fn esp(bytes: &[u8], layers: &mut Vec<Layer>) -> Result<(), ParseError> {
    let (header, rest) = EspHeader::parse(bytes)?;
    layers.push(layer(
        "ESP",
        json!({
            "spi": format!("{:#010x}", header.spi.get()),
            "seq": header.seq_lo.get(),
            "payload_bytes": rest.len(),
        }),
    ));
    Ok(())
}

fn ah(bytes: &[u8], points: &CodePoints, layers: &mut Vec<Layer>) -> Result<(), ParseError> {
    let (header, _) = AhHeader::parse(bytes)?;
    let len = header.total_len();
    let next = IpProto(header.next_header);
    let behind =
        bytes.get(len..).ok_or(ParseError::Truncated { what: "AH with its ICV", need: len, have: bytes.len() })?;
    layers.push(layer(
        "AH",
        json!({
            "spi": format!("{:#010x}", header.spi.get()),
            "seq": header.seq_lo.get(),
            "icv_bytes": len.saturating_sub(AhHeader::LEN),
            "next": proto(next),
        }),
    ));
    upper(next, behind, points, layers)
}

fn udp(bytes: &[u8], points: &CodePoints, layers: &mut Vec<Layer>) -> Result<(), ParseError> {
    let (header, payload) = UdpHeader::parse(bytes)?;
    let (src, dst) = (header.src_port.get(), header.dst_port.get());
    layers.push(layer(
        "UDP",
        json!({ "sport": src, "dport": dst, "checksum": format!("{:#06x}", header.checksum.get()) }),
    ));
    if dst == points.psp_port {
        return psp(payload, layers);
    }
    if src != points.nat_t_port && dst != points.nat_t_port {
        return Ok(());
    }
    match wire::encap::classify(payload, true) {
        NatT::Esp => esp(payload, layers),
        NatT::Eesp => eesp(payload, layers),
        NatT::Ike => {
            layers.push(layer("IKE", json!({ "payload_bytes": payload.len() })));
            Ok(())
        }
        NatT::Keepalive => {
            layers.push(layer("keepalive", json!({})));
            Ok(())
        }
        NatT::Unknown => Ok(()),
    }
}

fn eesp(bytes: &[u8], layers: &mut Vec<Layer>) -> Result<(), ParseError> {
    let (header, options, rest) = EespHeader::parse_v0(bytes)?;
    let mut fields = json!({
        "spi": format!("{:#010x}", header.spi.get()),
        "session": header.session.get(),
        "options_bytes": options.len(),
    });
    // Which of sequence number and IV follow is known to the SA alone.
    if let Some(first) = rest.first_chunk::<8>() {
        fields["seq_or_iv"] = format!("{:#x}", u64::from_be_bytes(*first)).into();
    }
    let parsed = Options::parse(options);
    if let Ok(options) = &parsed {
        if let Some(offset) = options.crypt_offset {
            fields["payload_offset"] = offset.payload_bytes().into();
            fields["crypt_offset"] = offset.crypt_bytes().into();
        }
        if options.unknown > 0 {
            fields["unknown_options"] = options.unknown.into();
        }
    }
    layers.push(layer("EESP", fields));
    parsed.map(drop)
}

fn psp(bytes: &[u8], layers: &mut Vec<Layer>) -> Result<(), ParseError> {
    let (header, extensions, rest) = PspHeader::parse_full(bytes)?;
    let spi = header.spi.get();
    let mut flags = String::new();
    for (set, flag) in [(header.sample(), 'S'), (header.drop_after_sampling(), 'D'), (header.has_cookie(), 'V')] {
        if set {
            flags.push(flag);
        }
    }
    let mut fields = json!({
        "version": header.version().get(),
        "spi": format!("{spi:#010x}"),
        "master_key": spi >> 31,
        "iv": format!("{:#x}", header.iv.get()),
        "next": proto(IpProto(header.next_header)),
        "crypt_offset": header.crypt_offset_bytes(),
        "flags": if flags.is_empty() { "-".to_owned() } else { flags },
        "payload_bytes": rest.len(),
    });
    // Within the crypt offset, or encrypted.
    if header.has_cookie()
        && header.crypt_offset_bytes() >= PspHeader::COOKIE_LEN
        && let Ok((cookie, _)) = PspCookie::parse(extensions)
    {
        fields["cookie"] = format!("{:#018x}", cookie.0.get()).into();
    }
    layers.push(layer("PSP", fields));
    Ok(())
}
