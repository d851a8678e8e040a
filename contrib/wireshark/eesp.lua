-- Enhanced ESP, version 0 (draft-ietf-ipsecme-eesp-03), over IP and over UDP port 4500.
--
-- A packet does not contain whether it has a sequence number, how long its IV and ICV are, or
-- whether its payload is encrypted at all: the SA defines these. The preferences set them for the
-- whole capture.

local eesp = Proto("eesp", "Enhanced Encapsulating Security Payload")

-- The draft leaves the number "to be assigned"; 253 is for experiments (RFC 3692).
local DEFAULT_IP_PROTOCOL = 253
local NAT_T_PORT = 4500

local UDP_OFF, UDP_GUESS, UDP_ALL = 0, 1, 2
eesp.prefs.ip_proto = Pref.uint("IP protocol", DEFAULT_IP_PROTOCOL, "IP protocol number of EESP")
eesp.prefs.udp = Pref.enum("On UDP port 4500", UDP_GUESS,
    "Which datagrams whose first bit is 1 are EESP. ESP SPIs may have that bit set, too.", {
        { 1, "No datagram", UDP_OFF },
        { 2, "Those that look like version 0", UDP_GUESS },
        { 3, "All of them", UDP_ALL },
    }, false)
eesp.prefs.seq = Pref.bool("64-bit sequence number", true, "Packets carry a sequence number")
eesp.prefs.iv_len = Pref.uint("IV length", 8, "Bytes of explicit IV: 8, or 0 with an implicit IV")
eesp.prefs.icv_len = Pref.uint("ICV length", 16, "Bytes of ICV: 8, 12 or 16")
eesp.prefs.clear = Pref.bool("Payload is not encrypted", false, "The suite authenticates only (AES-GMAC)")

local option_names = { [0] = "Pad1", [1] = "PadN", [2] = "Crypt Offset" }

local f = {
    marker = ProtoField.uint8("eesp.marker", "Marker", base.DEC, nil, 0x80),
    version = ProtoField.uint8("eesp.version", "Version", base.DEC, nil, 0x78),
    reserved = ProtoField.uint8("eesp.reserved", "Reserved", base.HEX, nil, 0x07),
    opt_len = ProtoField.uint8("eesp.opt_len", "Options Length"),
    session = ProtoField.uint16("eesp.session", "Session ID"),
    spi = ProtoField.uint32("eesp.spi", "SPI", base.HEX),
    options = ProtoField.none("eesp.options", "Options"),
    option = ProtoField.none("eesp.option", "Option"),
    option_type = ProtoField.uint8("eesp.option.type", "Type", base.DEC, option_names),
    option_len = ProtoField.uint8("eesp.option.len", "Length"),
    option_data = ProtoField.bytes("eesp.option.data", "Data"),
    payload_offset = ProtoField.uint16("eesp.crypt_offset.payload_offset", "Payload Offset (4-byte words)", base.DEC,
        nil, 0xfc00),
    crypt_offset = ProtoField.uint16("eesp.crypt_offset.words", "Crypt Offset (4-byte words)", base.DEC, nil, 0x03f0),
    offset_reserved = ProtoField.uint16("eesp.crypt_offset.reserved", "Reserved", base.HEX, nil, 0x000f),
    clear_len = ProtoField.uint16("eesp.crypt_offset.clear_len", "Bytes of payload in the clear"),
    seq = ProtoField.uint64("eesp.seq", "Sequence Number"),
    iv = ProtoField.bytes("eesp.iv", "IV"),
    info = ProtoField.none("eesp.payload_info", "Payload Info Header"),
    info_reserved = ProtoField.uint16("eesp.payload_info.reserved", "Reserved", base.HEX),
    next_header = ProtoField.uint8("eesp.next_header", "Next Header"),
    pad_len = ProtoField.uint8("eesp.pad_len", "Pad Length"),
    clear = ProtoField.bytes("eesp.clear", "Payload in the clear"),
    encrypted = ProtoField.bytes("eesp.encrypted", "Encrypted data"),
    icv = ProtoField.bytes("eesp.icv", "ICV"),
}
eesp.fields = f

local function rule(name, text, group, severity)
    return ProtoExpert.new("eesp." .. name, text, group, severity)
end
local e = {
    marker = rule("bad_marker", "First bit is not 1", expert.group.PROTOCOL, expert.severity.ERROR),
    version = rule("bad_version", "Unknown version", expert.group.PROTOCOL, expert.severity.ERROR),
    reserved = rule("bad_reserved", "Reserved bits are not zero", expert.group.PROTOCOL, expert.severity.ERROR),
    spi = rule("reserved_spi", "SPIs up to 255 are reserved", expert.group.PROTOCOL, expert.severity.ERROR),
    seq = rule("zero_seq", "Sequence number 0 is never valid", expert.group.SEQUENCE, expert.severity.ERROR),
    option = rule("bad_option", "Malformed option", expert.group.MALFORMED, expert.severity.ERROR),
    unknown = rule("unknown_option", "Unknown option", expert.group.UNDECODED, expert.severity.NOTE),
    offset = rule("bad_payload_offset", "Payload Offset is not where the payload starts; check the preferences",
        expert.group.PROTOCOL, expert.severity.WARN),
    beyond = rule("crypt_offset_beyond", "Crypt Offset reaches beyond the payload", expert.group.PROTOCOL,
        expert.severity.ERROR),
    short = rule("truncated", "Too short for its headers and ICV; check the preferences", expert.group.MALFORMED,
        expert.severity.ERROR),
}
do
    local all = {}
    for _, info in pairs(e) do all[#all + 1] = info end
    eesp.experts = all
end

local BASE = 8

-- Walks the options in tvb, `len` bytes from BASE on. Calls `each(at, type, size)` for every
-- option; the size includes type and length. Returns false if an option exceeds `len`.
local function walk_options(tvb, len, each)
    local at, last = BASE, BASE + len
    while at < last do
        local kind = tvb(at, 1):uint()
        local size = 1
        if kind ~= 0 then
            if at + 2 > last then return false end
            size = 2 + tvb(at + 1, 1):uint()
            if at + size > last then return false end
        end
        each(at, kind, size)
        at = at + size
    end
    return true
end

-- Shows one option. For a Crypt Offset returns the bytes in the clear, the payload offset in bytes
-- and the tree item.
local function show_option(tvb, tree, at, kind, size)
    local item = tree:add(f.option, tvb(at, size))
    item:append_text(": " .. (option_names[kind] or "unknown"))
    item:add(f.option_type, tvb(at, 1))
    if kind == 0 then return end
    item:add(f.option_len, tvb(at + 1, 1))
    if kind == 2 and size == 4 then
        local value = tvb(at + 2, 2)
        local start, clear = value:bitfield(0, 6) * 4, value:bitfield(6, 6) * 4
        item:add(f.payload_offset, value)
        item:add(f.crypt_offset, value)
        item:add(f.offset_reserved, value)
        item:add(f.clear_len, value, clear):set_generated()
        return clear, start, item
    end
    if size > 2 then item:add(f.option_data, tvb(at + 2, size - 2)) end
    if kind == 2 then item:add_proto_expert_info(e.option) end
    if kind > 2 then item:add_proto_expert_info(e.unknown) end
end

-- Passes the readable bytes of an inner packet to the dissector of their protocol.
local function show_inner(tvb, pinfo, root, at, len, protocol)
    local columns = tostring(pinfo.cols.info)
    local inner = tvb(at, len):tvb()
    -- An error of that dissector is expected: the packet is truncated where encryption begins.
    pcall(function() DissectorTable.get("ip.proto"):try(protocol, inner, pinfo, root) end)
    pinfo.cols.protocol = "EESP"
    pinfo.cols.info = columns
end

-- Shows the part of the payload in the clear, `len` bytes from `at` on; `rest` encrypted bytes
-- follow. Returns offset, readable length and protocol of the inner packet.
local function show_clear(tvb, tree, at, len, rest)
    tree:add(f.clear, tvb(at, len))
    local nibble = tvb(at, 1):bitfield(0, 4)
    if nibble == 4 or nibble == 6 then
        return at, len, nibble == 4 and 4 or 41
    elseif len >= 4 then
        local info = tree:add(f.info, tvb(at, 4))
        local reserved = info:add(f.info_reserved, tvb(at, 2))
        if tvb(at, 2):uint() ~= 0 then reserved:add_proto_expert_info(e.reserved) end
        info:add(f.next_header, tvb(at + 2, 1))
        info:add(f.pad_len, tvb(at + 3, 1))
        local padding = rest == 0 and tvb(at + 3, 1):uint() or 0
        return at + 4, len - 4 - padding, tvb(at + 2, 1):uint()
    end
    return at, 0, 0
end

function eesp.dissector(tvb, pinfo, root)
    local len = tvb:len()
    pinfo.cols.protocol = "EESP"
    if len < BASE then
        root:add(eesp, tvb()):add_proto_expert_info(e.short)
        return len
    end
    local spi, session, opt_len = tvb(4, 4):uint(), tvb(2, 2):uint(), tvb(1, 1):uint()
    pinfo.cols.info = string.format("EESP SPI=0x%08x Session=%d", spi, session)
    local tree = root:add(eesp, tvb(), string.format("Enhanced ESP, SPI 0x%08x, Session %d", spi, session))

    local marker = tree:add(f.marker, tvb(0, 1))
    if tvb(0, 1):bitfield(0, 1) == 0 then marker:add_proto_expert_info(e.marker) end
    local version = tree:add(f.version, tvb(0, 1))
    local reserved = tree:add(f.reserved, tvb(0, 1))
    if tvb(0, 1):bitfield(5, 3) ~= 0 then reserved:add_proto_expert_info(e.reserved) end
    tree:add(f.opt_len, tvb(1, 1))
    tree:add(f.session, tvb(2, 2))
    local spi_item = tree:add(f.spi, tvb(4, 4))
    if spi <= 255 then spi_item:add_proto_expert_info(e.spi) end
    if tvb(0, 1):bitfield(1, 4) ~= 0 then
        version:add_proto_expert_info(e.version)
        return len -- another version may have another layout after these eight bytes
    end
    if BASE + opt_len > len then
        tree:add_proto_expert_info(e.short)
        return len
    end

    local clear_len, start, offset_item
    if opt_len > 0 then
        local options = tree:add(f.options, tvb(BASE, opt_len))
        local whole = walk_options(tvb, opt_len, function(at, kind, size)
            local clear, from, item = show_option(tvb, options, at, kind, size)
            if clear and clear_len then item:add_proto_expert_info(e.option) end
            if clear then clear_len, start, offset_item = clear, from, item end
        end)
        if not whole then
            options:add_proto_expert_info(e.option)
            return len
        end
    end

    local at, icv_len = BASE + opt_len, eesp.prefs.icv_len
    local seq_len, iv_len = eesp.prefs.seq and 8 or 0, eesp.prefs.iv_len
    if at + seq_len + iv_len + icv_len > len then
        tree:add_proto_expert_info(e.short)
        return len
    end
    if seq_len > 0 then
        local seq = tree:add(f.seq, tvb(at, 8))
        if tvb(at, 8):uint64() == UInt64(0) then seq:add_proto_expert_info(e.seq) end
        pinfo.cols.info:append(" Seq=" .. tostring(tvb(at, 8):uint64()))
        at = at + 8
    end
    if iv_len > 0 then
        tree:add(f.iv, tvb(at, iv_len))
        at = at + iv_len
    end

    local payload_len = len - icv_len - at
    if offset_item and start ~= at then offset_item:add_proto_expert_info(e.offset) end
    clear_len = clear_len or 0
    if clear_len > payload_len then
        offset_item:add_proto_expert_info(e.beyond)
        clear_len = payload_len
    end
    if eesp.prefs.clear then clear_len = payload_len end
    local inner_at, inner_len, protocol = at, 0, 0
    if clear_len > 0 then
        inner_at, inner_len, protocol = show_clear(tvb, tree, at, clear_len, payload_len - clear_len)
    end
    if clear_len < payload_len then tree:add(f.encrypted, tvb(at + clear_len, payload_len - clear_len)) end
    if icv_len > 0 then tree:add(f.icv, tvb(len - icv_len, icv_len)) end
    if inner_len > 0 then show_inner(tvb, pinfo, root, inner_at, inner_len, protocol) end
    return len
end

-- ESP, IKE and keepalives on port 4500 go to the dissector that was registered before.
local nat_t = Proto("eesp_nat_t", "EESP in UDP (on the port of ESP and IKE)")
local registered = DissectorTable.get("udp.port"):get_dissector(NAT_T_PORT)

-- Returns whether a datagram has version 0, well-formed options, room for all fields and a payload
-- of 4-byte words. An ESP packet passes only if its SPI starts with 0x80 and the rest matches, too.
local function looks_like_v0(tvb)
    if tvb(0, 1):uint() ~= 0x80 or tvb(4, 4):uint() <= 255 then return false end
    local opt_len, rest = tvb(1, 1):uint(), 0
    rest = tvb:len() - BASE - opt_len - (eesp.prefs.seq and 8 or 0) - eesp.prefs.iv_len - eesp.prefs.icv_len
    return rest > 0 and rest % 4 == 0 and walk_options(tvb, opt_len, function() end)
end

function nat_t.dissector(tvb, pinfo, root)
    local marked = tvb:len() >= BASE and tvb(0, 1):bitfield(0, 1) == 1
    if marked and (eesp.prefs.udp == UDP_ALL or eesp.prefs.udp == UDP_GUESS and looks_like_v0(tvb)) then
        return eesp.dissector(tvb, pinfo, root)
    end
    if registered then return registered:call(tvb, pinfo, root) end
    return 0
end
DissectorTable.get("udp.port"):add(NAT_T_PORT, nat_t)

local ip_proto = eesp.prefs.ip_proto
DissectorTable.get("ip.proto"):add(ip_proto, eesp)
function eesp.prefs_changed()
    if ip_proto == eesp.prefs.ip_proto then return end
    DissectorTable.get("ip.proto"):remove(ip_proto, eesp)
    ip_proto = eesp.prefs.ip_proto
    DissectorTable.get("ip.proto"):add(ip_proto, eesp)
end
