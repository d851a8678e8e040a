-- PSP, versions 0 to 3 (PSP Architecture Specification, November 2022), over UDP port 1000.
--
-- Everything but keys stands in the packet: what the crypt offset leaves in the clear is shown,
-- cookie and inner packet included.

local psp = Proto("psp", "PSP Security Protocol")

psp.prefs.port = Pref.uint("UDP port", 1000, "UDP destination port of PSP")

local FIXED, COOKIE, ICV = 16, 8, 16
local versions = { [0] = "AES-128-GCM", [1] = "AES-256-GCM", [2] = "AES-128-GMAC", [3] = "AES-256-GMAC" }

local f = {
    next_header = ProtoField.uint8("psp.next_header", "Next Header"),
    ext_len = ProtoField.uint8("psp.ext_len", "Header Extension Length (8-byte units less one)"),
    header_len = ProtoField.uint16("psp.header_len", "Header length in bytes"),
    reserved = ProtoField.uint8("psp.reserved", "Reserved", base.HEX, nil, 0xc0),
    crypt_offset = ProtoField.uint8("psp.crypt_offset", "Crypt Offset (4-byte words)", base.DEC, nil, 0x3f),
    sample = ProtoField.bool("psp.sample", "Sample", 8, nil, 0x80),
    drop = ProtoField.bool("psp.drop", "Drop after sampling", 8, nil, 0x40),
    version = ProtoField.uint8("psp.version", "Version", base.DEC, versions, 0x3c),
    has_vc = ProtoField.bool("psp.has_vc", "Virtualization Cookie present", 8, nil, 0x02),
    one = ProtoField.uint8("psp.one", "Always 1", base.DEC, nil, 0x01),
    spi = ProtoField.uint32("psp.spi", "SPI", base.HEX),
    master_key = ProtoField.uint32("psp.spi.master_key", "Master key", base.DEC, nil, 0x80000000),
    iv = ProtoField.uint64("psp.iv", "IV", base.HEX),
    vc = ProtoField.uint64("psp.vc", "Virtualization Cookie", base.HEX),
    vc_encrypted = ProtoField.bytes("psp.vc.encrypted", "Virtualization Cookie, encrypted in whole or in part"),
    extensions = ProtoField.bytes("psp.extensions", "Further header extensions"),
    clear = ProtoField.bytes("psp.clear", "Payload in the clear"),
    encrypted = ProtoField.bytes("psp.encrypted", "Encrypted data"),
    icv = ProtoField.bytes("psp.icv", "ICV"),
}
psp.fields = f

local function rule(name, text, group, severity)
    return ProtoExpert.new("psp." .. name, text, group, severity)
end
local e = {
    version = rule("bad_version", "Unknown version", expert.group.PROTOCOL, expert.severity.ERROR),
    one = rule("bad_one", "This bit is always 1", expert.group.PROTOCOL, expert.severity.ERROR),
    reserved = rule("bad_reserved", "Reserved bits are not zero", expert.group.PROTOCOL, expert.severity.NOTE),
    spi = rule("zero_spi", "The low 31 bits of an SPI are never all zero", expert.group.PROTOCOL,
        expert.severity.ERROR),
    ext_len = rule("bad_ext_len", "Header length cuts into the header or beyond the packet", expert.group.MALFORMED,
        expert.severity.ERROR),
    beyond = rule("crypt_offset_beyond", "Crypt Offset reaches beyond the payload", expert.group.PROTOCOL,
        expert.severity.ERROR),
    drop = rule("drop_without_sample", "Drop without Sample", expert.group.PROTOCOL, expert.severity.NOTE),
    short = rule("truncated", "Too short for header and ICV", expert.group.MALFORMED, expert.severity.ERROR),
}
do
    local all = {}
    for _, info in pairs(e) do all[#all + 1] = info end
    psp.experts = all
end

-- Shows the sixteen bytes that every packet has. False when the rest cannot be read by this
-- version's rules.
local function show_fixed(tvb, tree)
    tree:add(f.next_header, tvb(0, 1))
    local ext_len = tree:add(f.ext_len, tvb(1, 1))
    local header_len = (tvb(1, 1):uint() + 1) * 8
    tree:add(f.header_len, tvb(1, 1), header_len):set_generated()
    local reserved = tree:add(f.reserved, tvb(2, 1))
    if tvb(2, 1):bitfield(0, 2) ~= 0 then reserved:add_proto_expert_info(e.reserved) end
    tree:add(f.crypt_offset, tvb(2, 1))

    local flags = tvb(3, 1)
    tree:add(f.sample, flags)
    local drop = tree:add(f.drop, flags)
    if flags:bitfield(1, 1) == 1 and flags:bitfield(0, 1) == 0 then drop:add_proto_expert_info(e.drop) end
    local version = tree:add(f.version, flags)
    tree:add(f.has_vc, flags)
    local one = tree:add(f.one, flags)
    if flags:bitfield(7, 1) == 0 then one:add_proto_expert_info(e.one) end

    local spi = tree:add(f.spi, tvb(4, 4))
    spi:add(f.master_key, tvb(4, 4))
    if tvb(4, 4):bitfield(1, 31) == 0 then spi:add_proto_expert_info(e.spi) end
    tree:add(f.iv, tvb(8, 8))

    local known = versions[flags:bitfield(2, 4)] ~= nil
    if not known then version:add_proto_expert_info(e.version) end
    local smallest = flags:bitfield(6, 1) == 1 and FIXED + COOKIE or FIXED
    local fits = header_len >= smallest and header_len + ICV <= tvb:len()
    if not fits then ext_len:add_proto_expert_info(e.ext_len) end
    return known and fits
end

-- Gives the readable bytes of an inner packet to the dissector of their protocol.
local function show_inner(tvb, pinfo, root, at, len, protocol)
    local columns = tostring(pinfo.cols.info)
    local inner = tvb(at, len):tvb()
    -- Its complaint that the packet is cut off is expected: the rest is encrypted.
    pcall(function() DissectorTable.get("ip.proto"):try(protocol, inner, pinfo, root) end)
    pinfo.cols.protocol = "PSP"
    pinfo.cols.info = columns
end

function psp.dissector(tvb, pinfo, root)
    -- Ports are registered without a direction, but port 1000 as a source means nothing here.
    if pinfo.dst_port ~= psp.prefs.port then return 0 end
    local len = tvb:len()
    pinfo.cols.protocol = "PSP"
    if len < FIXED + ICV then
        root:add(psp, tvb()):add_proto_expert_info(e.short)
        return len
    end
    local spi, version = tvb(4, 4):uint(), tvb(3, 1):bitfield(2, 4)
    pinfo.cols.info = string.format("PSP v%d SPI=0x%08x IV=0x%s", version, spi, tvb(8, 8):bytes():tohex(true))
    local tree = root:add(psp, tvb(), string.format("PSP, version %d, SPI 0x%08x", version, spi))
    if not show_fixed(tvb, tree) then return len end

    -- The crypt offset counts from the end of the IV: cookie and extensions first, then the inner
    -- packet. GMAC (versions 2 and 3) encrypts nothing, whatever the field says.
    local header_len, body_end = (tvb(1, 1):uint() + 1) * 8, len - ICV
    local clear_end = FIXED + tvb(2, 1):bitfield(2, 6) * 4
    if version >= 2 then clear_end = body_end end
    if clear_end > body_end then
        tree:add_proto_expert_info(e.beyond)
        clear_end = body_end
    end

    local at = FIXED
    if tvb(3, 1):bitfield(6, 1) == 1 then
        tree:add(clear_end >= at + COOKIE and f.vc or f.vc_encrypted, tvb(at, COOKIE))
        at = at + COOKIE
    end
    if at < header_len then tree:add(f.extensions, tvb(at, header_len - at)) end
    local clear_len = math.max(clear_end - header_len, 0)
    local encrypted_at = header_len + clear_len
    if clear_len > 0 then tree:add(f.clear, tvb(header_len, clear_len)) end
    if encrypted_at < body_end then tree:add(f.encrypted, tvb(encrypted_at, body_end - encrypted_at)) end
    tree:add(f.icv, tvb(body_end, ICV))
    if clear_len > 0 then show_inner(tvb, pinfo, root, header_len, clear_len, tvb(0, 1):uint()) end
    return len
end

local port = psp.prefs.port
DissectorTable.get("udp.port"):add(port, psp)
function psp.prefs_changed()
    if port == psp.prefs.port then return end
    DissectorTable.get("udp.port"):remove(port, psp)
    port = psp.prefs.port
    DissectorTable.get("udp.port"):add(port, psp)
end
