//! nf_tables messages (`linux/netfilter/nf_tables.h`): tables, chains, sets, counters and the
//! expressions of the guard's rules.
//!
//! A rule is a list of expressions. Each loads a value into a register, compares a register or ends
//! the rule; a failed comparison continues with the next rule.

use std::net::IpAddr;

use wire::{AddrRange, PortRange};

use crate::netlink::{Message, NLM_F_APPEND, NLM_F_CREATE};

/// NFNL_SUBSYS_NFTABLES.
const SUBSYSTEM: u16 = 10;
/// NFNL_MSG_BATCH_BEGIN and NFNL_MSG_BATCH_END.
const BATCH: (u16, u16) = (16, 17);
/// NFPROTO_INET: IPv4 and IPv6.
const INET: u8 = 1;
/// Types of messages: NFT_MSG_….
const NEWTABLE: u16 = 0;
const GETTABLE: u16 = 1;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const DELCHAIN: u16 = 5;
const NEWRULE: u16 = 6;
const GETRULE: u16 = 7;
const DELRULE: u16 = 8;
const NEWSET: u16 = 9;
const DELSET: u16 = 11;
const NEWSETELEM: u16 = 12;
const DELSETELEM: u16 = 14;
const NEWOBJ: u16 = 18;
const GETOBJ: u16 = 19;
/// NFT_OBJECT_COUNTER.
const COUNTER: u32 = 1;
/// Register for addresses and names: NFT_REG_1.
const REG: u32 = 1;
/// Register of verdicts: NFT_REG_VERDICT.
const VERDICT: u32 = 0;

/// The type of a message for the nf_tables subsystem.
const fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

/// Returns whether a notification reports a change of the guard's objects. Counters are not
/// reported.
pub(super) fn is_change(kind: u16) -> bool {
    const CHANGES: [u16; 10] =
        [NEWTABLE, DELTABLE, NEWCHAIN, DELCHAIN, NEWRULE, DELRULE, NEWSET, DELSET, NEWSETELEM, DELSETELEM];
    kind >> 8 == SUBSYSTEM && CHANGES.contains(&(kind & 0xff))
}

/// Address family of a rule: its addresses are at other offsets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(range: &AddrRange) -> Self {
        if range.is_v6() { Self::V6 } else { Self::V4 }
    }

    pub(super) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    const fn address_bytes(self) -> u32 {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    /// nfproto of packets.
    const fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::V4 => "4",
            Self::V6 => "6",
        }
    }
}

/// Packet field or metadata that a rule matches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Field {
    Source(Family),
    Destination(Family),
    /// TCP, UDP, SCTP and the like.
    SourcePort,
    DestinationPort,
}

impl Field {
    /// Base (network or transport header), offset and length in bytes.
    const fn place(self) -> (u32, u32, u32) {
        match self {
            Self::Source(Family::V4) => (1, 12, 4),
            Self::Destination(Family::V4) => (1, 16, 4),
            Self::Source(Family::V6) => (1, 8, 16),
            Self::Destination(Family::V6) => (1, 24, 16),
            Self::SourcePort => (2, 0, 2),
            Self::DestinationPort => (2, 2, 2),
        }
    }
}

/// One expression of a rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Expr {
    /// Packets of one family.
    Is(Family),
    /// Inbound (`true`) or outbound interface of the packet.
    Interface(bool, String),
    /// The packet carries this mark.
    Mark(u32),
    /// Protocol after extension headers.
    Protocol(u8),
    /// A field is in a range of addresses.
    Addresses(Field, AddrRange),
    /// A field is in a range of ports.
    Ports(Field, PortRange),
    /// An address is in a set.
    InSet(Field, String),
    /// `length` bytes at `offset` of the transport header, masked, equal `value`.
    Transport {
        offset: u32,
        mask: Vec<u8>,
        value: Vec<u8>,
    },
    /// The first byte of the transport header is in a range: type of an ICMP message.
    MessageType(u8, u8),
    /// The hop limit is 255: the packet comes from the link.
    HopLimit255,
    /// A fragment other than the first, which has no transport header.
    LaterFragment(Family),
    /// IPv6: the fragment header names this protocol; the protocol of a later fragment is found
    /// nowhere else when it is an extension header (AH).
    FragmentOf(u8),
    /// The destination is an address of this host.
    ForThisHost,
    /// No route leads back to the source by the interface of arrival (RFC 3704 §2.2).
    NoRouteBack,
    /// TCP SYN; needs [`Expr::Protocol`] before it.
    Syn,
    /// The MSS option is greater than this.
    MssAbove(u16),
    /// Sets the MSS option.
    SetMss(u16),
    /// Adds the packet to a counter.
    Count(&'static str),
    Accept,
    Drop,
    /// Goes on in another chain, and returns.
    Jump(String),
    /// Goes on after the jump to this chain.
    Return,
}

/// Hook of a base chain: NF_INET_….
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Hook {
    pub(super) number: u32,
    pub(super) priority: i32,
}

/// A transaction on one table: all of it or nothing comes into force.
#[derive(Debug)]
pub(crate) struct Transaction {
    table: String,
    messages: Vec<Message>,
    rules: usize,
}

fn header(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}

impl Transaction {
    pub(super) fn new(table: &str) -> Self {
        let begin = Message::new(BATCH.0, 0, &[0, 0, 0, SUBSYSTEM as u8]);
        Self { table: table.to_owned(), messages: vec![begin], rules: 0 }
    }

    /// Name of the table.
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// The messages to send, in order; the kernel acknowledges the last.
    pub(super) fn finish(mut self) -> Vec<Message> {
        if let Some(last) = self.messages.last_mut() {
            last.acknowledge();
        }
        self.messages.push(Message::new(BATCH.1, 0, &[0, 0, 0, SUBSYSTEM as u8]));
        self.messages
    }

    fn push(&mut self, message: u16, flags: u16, fill: impl FnOnce(&mut Message)) {
        let mut request = Message::new(kind(message), flags, &header(INET));
        request.text(1, &self.table);
        fill(&mut request);
        self.messages.push(request);
    }

    /// Creates the table unless it exists.
    pub(super) fn add_table(&mut self) {
        self.push(NEWTABLE, NLM_F_CREATE, |_| ());
    }

    /// Removes the table with all that is in it.
    pub(super) fn remove_table(&mut self) {
        self.push(DELTABLE, 0, |_| ());
    }

    /// Adds a counter that begins with `packets` and `bytes`.
    pub(super) fn add_counter(&mut self, name: &str, (packets, bytes): (u64, u64)) {
        self.push(NEWOBJ, NLM_F_CREATE, |request| {
            request.text(2, name).be32(3, COUNTER).nest(4, |data| {
                data.attr(1, &bytes.to_be_bytes()).attr(2, &packets.to_be_bytes());
            });
        });
    }

    /// Adds a chain; without a hook it is for jumps only.
    pub(super) fn add_chain(&mut self, name: &str, hook: Option<Hook>) {
        self.push(NEWCHAIN, NLM_F_CREATE, |request| {
            request.text(3, name);
            if let Some(hook) = hook {
                request.nest(4, |at| {
                    at.be32(1, hook.number).be32(2, hook.priority.cast_unsigned());
                });
                // Packets that match no rule are accepted.
                request.be32(5, 1).text(7, "filter");
            }
        });
    }

    /// Adds a set of address ranges that do not overlap, in ascending order.
    pub(super) fn add_set(&mut self, id: u32, name: &str, family: Family, ranges: &[AddrRange]) {
        // NFT_SET_INTERVAL.
        const INTERVAL: u32 = 0x4;
        // Types as `nft` prints them: ipv4_addr, ipv6_addr.
        let key_type = match family {
            Family::V4 => 7,
            Family::V6 => 8,
        };
        self.push(NEWSET, NLM_F_CREATE, |request| {
            request.text(2, name).be32(3, INTERVAL).be32(4, key_type).be32(5, family.address_bytes()).be32(10, id);
        });
        for chunk in ranges.chunks(ELEMENTS_PER_MESSAGE) {
            self.push(NEWSETELEM, NLM_F_CREATE, |request| {
                request.text(2, name).be32(4, id).nest(3, |list| {
                    for range in chunk {
                        element(list, range.start, 0);
                        // The end of an interval is exclusive; the last address has none.
                        if let Some(after) = next(range.end) {
                            element(list, after, 1);
                        }
                    }
                });
            });
        }
    }

    /// Rules that were appended.
    pub(super) fn rules(&self) -> usize {
        self.rules
    }

    /// Appends a rule.
    pub(super) fn add_rule(&mut self, chain: &str, expressions: &[Expr]) {
        self.rules += 1;
        self.push(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, |request| {
            request.text(2, chain).nest(4, |list| expressions.iter().for_each(|expression| encode(expression, list)));
        });
    }
}

/// Elements of a set per message: the list is one attribute of at most 64 KiB.
const ELEMENTS_PER_MESSAGE: usize = 500;

fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

fn next(addr: IpAddr) -> Option<IpAddr> {
    match addr {
        IpAddr::V4(addr) => addr.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(addr) => addr.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

fn element(list: &mut Message, addr: IpAddr, flags: u32) {
    list.nest(1, |element| {
        element.nest(1, |key| {
            key.attr(1, &octets(addr));
        });
        if flags != 0 {
            element.be32(3, flags);
        }
    });
}

fn expr(list: &mut Message, name: &str, fill: impl FnOnce(&mut Message)) {
    list.nest(1, |element| {
        element.text(1, name).nest(2, fill);
    });
}

/// Loads a value about the packet: NFT_META_….
fn meta(list: &mut Message, key: u32) {
    expr(list, "meta", |data| {
        data.be32(1, REG).be32(2, key);
    });
}

fn payload(list: &mut Message, (base, offset, length): (u32, u32, u32)) {
    expr(list, "payload", |data| {
        data.be32(1, REG).be32(2, base).be32(3, offset).be32(4, length);
    });
}

fn mask(list: &mut Message, mask: &[u8]) {
    expr(list, "bitwise", |data| {
        data.be32(1, REG).be32(2, REG).be32(3, mask.len() as u32);
        data.nest(4, |value| {
            value.attr(1, mask);
        });
        data.nest(5, |value| {
            value.attr(1, &vec![0; mask.len()]);
        });
    });
}

#[derive(Clone, Copy)]
enum Is {
    Equal = 0,
    Unequal = 1,
    Greater = 4,
}

fn compare(list: &mut Message, is: Is, value: &[u8]) {
    expr(list, "cmp", |data| {
        data.be32(1, REG).be32(2, is as u32).nest(3, |data| {
            data.attr(1, value);
        });
    });
}

/// Between two values, both included. Equal ones take one comparison.
fn within(list: &mut Message, first: &[u8], last: &[u8]) {
    if first == last {
        return compare(list, Is::Equal, first);
    }
    expr(list, "range", |data| {
        data.be32(1, REG).be32(2, 0);
        data.nest(3, |from| {
            from.attr(1, first);
        });
        data.nest(4, |to| {
            to.attr(1, last);
        });
    });
}

fn verdict(list: &mut Message, code: i32, chain: Option<&str>) {
    expr(list, "immediate", |data| {
        data.be32(1, VERDICT).nest(2, |data| {
            data.nest(2, |verdict| {
                verdict.be32(1, code.cast_unsigned());
                if let Some(chain) = chain {
                    verdict.text(2, chain);
                }
            });
        });
    });
}

/// An interface name as the kernel compares it: all 16 bytes.
fn padded(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    let length = name.len().min(15);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    bytes
}

fn encode(expression: &Expr, list: &mut Message) {
    match expression {
        Expr::Is(family) => {
            meta(list, 15);
            compare(list, Is::Equal, &[family.number()]);
        }
        Expr::Interface(inbound, name) => {
            meta(list, if *inbound { 6 } else { 7 });
            compare(list, Is::Equal, &padded(name));
        }
        Expr::Mark(mark) => {
            meta(list, 3);
            compare(list, Is::Equal, &mark.to_ne_bytes());
        }
        Expr::Protocol(number) => {
            meta(list, 16);
            compare(list, Is::Equal, &[*number]);
        }
        Expr::Addresses(field, range) => {
            payload(list, field.place());
            within(list, &octets(range.start), &octets(range.end));
        }
        Expr::Ports(field, range) => {
            payload(list, field.place());
            within(list, &range.start.to_be_bytes(), &range.end.to_be_bytes());
        }
        Expr::InSet(field, set) => {
            payload(list, field.place());
            expr(list, "lookup", |data| {
                data.text(1, set).be32(2, REG);
            });
        }
        Expr::Transport { offset, mask: bits, value } => {
            payload(list, (2, *offset, bits.len() as u32));
            mask(list, bits);
            compare(list, Is::Equal, value);
        }
        Expr::MessageType(first, last) => {
            payload(list, (2, 0, 1));
            within(list, &[*first], &[*last]);
        }
        Expr::HopLimit255 => {
            payload(list, (1, 7, 1));
            compare(list, Is::Equal, &[255]);
        }
        Expr::LaterFragment(Family::V4) => {
            payload(list, (1, 6, 2));
            mask(list, &0x1fff_u16.to_be_bytes());
            compare(list, Is::Unequal, &[0, 0]);
        }
        Expr::LaterFragment(Family::V6) => {
            // Two bytes at offset 2 of the fragment header (next header 44).
            expr(list, "exthdr", |data| {
                data.be32(1, REG).attr(2, &[44]).be32(3, 2).be32(4, 2);
            });
            mask(list, &0xfff8_u16.to_be_bytes());
            compare(list, Is::Unequal, &[0, 0]);
        }
        Expr::FragmentOf(protocol) => {
            expr(list, "exthdr", |data| {
                data.be32(1, REG).attr(2, &[44]).be32(3, 0).be32(4, 1);
            });
            compare(list, Is::Equal, &[*protocol]);
        }
        Expr::ForThisHost => {
            // Type of the destination's route: RTN_LOCAL.
            expr(list, "fib", |data| {
                data.be32(1, REG).be32(2, 3).be32(3, 0x2);
            });
            compare(list, Is::Equal, &2_u32.to_ne_bytes());
        }
        Expr::NoRouteBack => {
            // Interface of the route to the source, restricted to the interface of arrival: 0 is
            // none.
            expr(list, "fib", |data| {
                data.be32(1, REG).be32(2, 1).be32(3, 0x1 | 0x8);
            });
            compare(list, Is::Equal, &0_u32.to_ne_bytes());
        }
        Expr::Syn => {
            payload(list, (2, 13, 1));
            mask(list, &[0x02]);
            compare(list, Is::Unequal, &[0]);
        }
        Expr::MssAbove(mss) => {
            // The value of TCP option 2 (RFC 9293 §3.7.1).
            expr(list, "exthdr", |data| {
                data.be32(1, REG).attr(2, &[2]).be32(3, 2).be32(4, 2).be32(6, 1);
            });
            compare(list, Is::Greater, &mss.to_be_bytes());
        }
        Expr::SetMss(mss) => {
            expr(list, "immediate", |data| {
                data.be32(1, REG).nest(2, |data| {
                    data.attr(1, &mss.to_be_bytes());
                });
            });
            expr(list, "exthdr", |data| {
                data.attr(2, &[2]).be32(3, 2).be32(4, 2).be32(6, 1).be32(7, REG);
            });
        }
        Expr::Count(name) => expr(list, "objref", |data| {
            data.be32(1, COUNTER).text(2, name);
        }),
        Expr::Accept => verdict(list, 1, None),
        Expr::Drop => verdict(list, 0, None),
        Expr::Jump(chain) => verdict(list, -3, Some(chain)),
        Expr::Return => verdict(list, -5, None),
    }
}

/// A request for a counter of a table.
pub(super) fn get_counter(table: &str, name: &str) -> Message {
    let mut request = Message::new(kind(GETOBJ), 0, &header(INET));
    request.text(1, table).text(2, name).be32(3, COUNTER);
    request
}

/// A request for a table.
pub(super) fn get_table(table: &str) -> Message {
    let mut request = Message::new(kind(GETTABLE), 0, &header(INET));
    request.text(1, table);
    request
}

/// A request for all rules of a table.
pub(super) fn list_rules(table: &str) -> Message {
    let mut request = Message::new(kind(GETRULE), 0, &header(INET));
    request.text(1, table);
    request
}

/// Packets and bytes of the counter in the body of a reply.
pub(super) fn counter(body: &[u8]) -> Option<(u64, u64)> {
    use crate::netlink::attribute;
    let data = attribute(body.get(4..)?, 4)?;
    let number = |kind| attribute(data, kind)?.try_into().ok().map(u64::from_be_bytes);
    Some((number(2)?, number(1)?))
}

/// The table that the body of a notification names.
pub(super) fn table_of(body: &[u8]) -> Option<&str> {
    let name = crate::netlink::attribute(body.get(4..)?, 1)?;
    std::str::from_utf8(name.strip_suffix(&[0])?).ok()
}
