//! PSP with manual keys.

use wire::psp::PspSpi;

use super::super::value::{Fields, Secret, ValueError, list, number, octets, offset, psp_version, switch};
use super::keys::check_length;
use super::{HalfProto, Shared};

fn spi(text: &str) -> Result<PspSpi, ValueError> {
    let raw = number(0..=u64::from(u32::MAX))(text)? as u32;
    PspSpi::try_from(raw).map_err(|_| "the low 31 bits of a PSP SPI must not all be 0".into())
}

fn masters(fields: &Fields<'_>) -> [Option<Secret>; 2] {
    ["master_key_0", "master_key_1"].map(|key| {
        let master = fields.get_own(key, octets)?;
        check_length(fields, key, &master, 32, "a master key")?;
        Some(master)
    })
}

pub(super) fn outbound(fields: &Fields<'_>, shared: &Shared<'_>) -> Option<HalfProto> {
    let spi = fields.need_own("spi", spi);
    let version_written = fields.setting("version").is_some();
    let version = fields.get("version", psp_version(shared.gateway.allow_psp_gmac)).or((!version_written).then_some(0));
    let key = fields.get_own("key", octets);
    let masters = masters(fields);
    let crypt_offset = fields.get_own("crypt_offset", offset).unwrap_or(0);
    let cookie = fields.get_own("cookie", number(0..=u64::MAX));
    let sample = fields.get_own("sample", switch).unwrap_or(false);
    let drop = fields.get_own("drop", switch).unwrap_or(false);
    let source_port = fields.get_own("source_port", number(1..=65_535)).map(|n| n as u16);
    let (spi, version) = (spi?, version?);
    let slot = spi.master_key();
    let names = ["master_key_0", "master_key_1"];
    let written = |key: &str| fields.section().setting(key).is_some();
    if written("key") {
        check_length(
            fields,
            "key",
            key.as_ref()?,
            if version % 2 == 0 { 16 } else { 32 },
            "the traffic key of this version",
        )?;
    } else if !written(names[slot]) {
        let help = format!(
            "write the traffic key that the receiver derived for SPI {:#x}, or its '{}'",
            spi.get(),
            names[slot]
        );
        fields.fault("'key' is missing", help);
        return None;
    } else if masters[slot].is_none() {
        return None;
    }
    Some(HalfProto::PspOut { spi, version, key, masters, crypt_offset, cookie, sample, drop, source_port })
}

fn spi_range(text: &str) -> Result<(PspSpi, PspSpi), ValueError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (spi(first.trim())?, spi(last.trim())?);
    if first > last || first.master_key() != last.master_key() {
        return Err("write FIRST-LAST, both with the same bit 31".into());
    }
    Ok((first, last))
}

pub(super) fn inbound(fields: &Fields<'_>, shared: &Shared<'_>) -> Option<HalfProto> {
    let written = fields.setting("version").is_some();
    let version_of = fields.get("version", psp_version(shared.gateway.allow_psp_gmac)).or((!written).then_some(0));
    let masters = masters(fields);
    let issued = fields.need_own("issued", list(spi_range));
    let versions = fields.get_own("versions", list(psp_version(shared.gateway.allow_psp_gmac)));
    let max_crypt_offset = fields.get_own("max_crypt_offset", offset).unwrap_or(0);
    let honour_drop = fields.get_own("honour_drop", switch).unwrap_or(false);
    let issued = issued?;
    for (first, last) in &issued {
        let name = ["master_key_0", "master_key_1"][first.master_key()];
        if fields.section().setting(name).is_none() {
            let message = format!("SPIs {:#x} to {:#x} need '{name}', which is missing", first.get(), last.get());
            fields.fault_of("issued", message, format!("add '{name} = 0x…' (32 bytes)"));
            return None;
        }
    }
    let versions = match versions {
        Some(list) => list.iter().fold(0, |bits, version| bits | 1 << version),
        None => 1 << version_of?,
    };
    Some(HalfProto::PspIn { masters, issued, versions, max_crypt_offset, honour_drop })
}
