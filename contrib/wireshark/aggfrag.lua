-- AGGFRAG payloads of IP-TFS (RFC 9347): next header 144 in ESP that Wireshark has decrypted, or
-- that is not encrypted (NULL).

local aggfrag = Proto("aggfrag", "AGGFRAG payload (IP-TFS)")

local AGGFRAG = 144
local BASIC, CONGESTION = 4, 24
local sub_types = { [0] = "Without congestion control", [1] = "With congestion control" }

local f = {
    sub_type = ProtoField.uint8("aggfrag.sub_type", "Sub-type", base.DEC, sub_types),
    reserved = ProtoField.uint8("aggfrag.reserved", "Reserved", base.HEX),
    p = ProtoField.bool("aggfrag.p", "Path MTU probe in flight", 8, nil, 0x02),
    e = ProtoField.bool("aggfrag.e", "ECN marks are in the loss event rate", 8, nil, 0x01),
    block_offset = ProtoField.uint16("aggfrag.block_offset", "BlockOffset"),
    loss_event_rate = ProtoField.uint32("aggfrag.loss_event_rate", "Inverse of the loss event rate"),
    rtt = ProtoField.uint32("aggfrag.rtt", "Round-trip time in µs"),
    echo_delay = ProtoField.uint32("aggfrag.echo_delay", "Echo delay in µs"),
    transmit_delay = ProtoField.uint32("aggfrag.transmit_delay", "Transmit delay in µs"),
    t_val = ProtoField.uint32("aggfrag.t_val", "TVal"),
    t_echo = ProtoField.uint32("aggfrag.t_echo", "TEcho"),
    continued = ProtoField.bytes("aggfrag.continued", "Piece of a packet from an earlier payload"),
    block = ProtoField.bytes("aggfrag.block", "Inner packet"),
    block_len = ProtoField.uint16("aggfrag.block.len", "Length"),
    piece = ProtoField.bytes("aggfrag.piece", "Start of a packet that continues in the next payload"),
    padding = ProtoField.bytes("aggfrag.padding", "Padding"),
}
aggfrag.fields = f

local bad = ProtoExpert.new("aggfrag.bad_block", "No packet starts like this", expert.group.MALFORMED,
    expert.severity.ERROR)
local bad_header = ProtoExpert.new("aggfrag.bad_header", "Header cut off or of an unknown sub-type",
    expert.group.MALFORMED, expert.severity.ERROR)
aggfrag.experts = { bad, bad_header }

-- Length of the packet at `at`; nil if its length field is cut off, false if it is no packet.
local function block_len(tvb, at)
    local left = tvb:len() - at
    local version = tvb(at, 1):bitfield(0, 4)
    if version == 4 then
        if left < 4 then return nil end
        local len = tvb(at + 2, 2):uint()
        return len >= 20 and tvb(at, 1):bitfield(4, 4) >= 5 and len
    elseif version == 6 then
        if left < 6 then return nil end
        local len = tvb(at + 4, 2):uint()
        return len > 0 and len + 40
    end
    return false
end

-- Shows the header; returns its length, 0 if the rest cannot be read.
local function show_header(tvb, tree)
    local sub_type = tvb(0, 1):uint()
    tree:add(f.sub_type, tvb(0, 1))
    local len = sub_type == 0 and BASIC or CONGESTION
    if sub_type > 1 or tvb:len() < len then
        tree:add_proto_expert_info(bad_header)
        return 0
    end
    if sub_type == 0 then
        tree:add(f.reserved, tvb(1, 1))
    else
        tree:add(f.p, tvb(1, 1))
        tree:add(f.e, tvb(1, 1))
    end
    tree:add(f.block_offset, tvb(2, 2))
    if sub_type == 1 then
        tree:add(f.loss_event_rate, tvb(4, 4))
        tree:add(f.rtt, tvb(8, 3), tvb(8, 3):bitfield(0, 22))
        tree:add(f.echo_delay, tvb(10, 4), tvb(10, 4):bitfield(6, 21))
        tree:add(f.transmit_delay, tvb(13, 3), tvb(13, 3):bitfield(3, 21))
        tree:add(f.t_val, tvb(16, 4))
        tree:add(f.t_echo, tvb(20, 4))
    end
    return len
end

function aggfrag.dissector(tvb, pinfo, root)
    local len = tvb:len()
    if len == 0 then return 0 end
    local tree = root:add(aggfrag, tvb())
    local at = len >= BASIC and show_header(tvb, tree) or 0
    if at == 0 then
        if len < BASIC then tree:add_proto_expert_info(bad_header) end
        return len
    end
    local continued, packets = math.min(tvb(2, 2):uint(), len - at), 0
    if continued > 0 then tree:add(f.continued, tvb(at, continued)) end
    at = at + continued
    while at < len do
        if tvb(at, 1):bitfield(0, 4) == 0 then
            tree:add(f.padding, tvb(at, len - at))
            break
        end
        local block = block_len(tvb, at)
        if block == false then
            tree:add(f.block, tvb(at, len - at)):add_proto_expert_info(bad)
            break
        elseif block == nil or block > len - at then
            tree:add(f.piece, tvb(at, len - at))
            break
        end
        tree:add(f.block, tvb(at, block)):add(f.block_len, tvb(at, math.min(block, 6)), block):set_generated()
        local ip = Dissector.get(tvb(at, 1):bitfield(0, 4) == 4 and "ip" or "ipv6")
        pcall(function() ip:call(tvb(at, block):tvb(), pinfo, root) end)
        packets, at = packets + 1, at + block
    end
    pinfo.cols.protocol = "AGGFRAG"
    pinfo.cols.info = string.format("AGGFRAG BlockOffset=%d, %d inner packets", tvb(2, 2):uint(), packets)
    return len
end

DissectorTable.get("ip.proto"):add(AGGFRAG, aggfrag)
