//! What kind of network an address is of: the special-purpose registries of IANA (RFC 6890 and its updates).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether a server that follows others' links may connect to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// On the internet.
    Public,
    /// On this machine or in a network of one's own: only where the administrator says so.
    Private(&'static str),
    /// Never: no host, a group, or where clouds keep their machines' credentials.
    Never(&'static str),
}

/// What the address is.
pub(super) fn reach(address: IpAddr) -> Reach {
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => v6(address),
    }
}

/// First address, prefix length.
type V4Net = ([u8; 4], u32);
type V6Net = ([u16; 8], u32);

const V4_PRIVATE: &[(V4Net, &str)] = &[
    (([10, 0, 0, 0], 8), "private"),
    (([100, 64, 0, 0], 10), "shared by a carrier's customers"),
    (([127, 0, 0, 0], 8), "loopback"),
    (([172, 16, 0, 0], 12), "private"),
    (([192, 168, 0, 0], 16), "private"),
];

const V4_NEVER: &[(V4Net, &str)] = &[
    (([0, 0, 0, 0], 8), "unspecified"),
    (
        ([169, 254, 0, 0], 16),
        "link-local, where clouds keep metadata",
    ),
    // Azure's.
    (([168, 63, 129, 16], 32), "where a cloud keeps metadata"),
    (([100, 100, 100, 200], 32), "where a cloud keeps metadata"),
    (([192, 0, 0, 0], 24), "of protocol assignments"),
    (([192, 0, 2, 0], 24), "of documentation"),
    (([192, 88, 99, 0], 24), "a relay's"),
    (([198, 18, 0, 0], 15), "of benchmarks"),
    (([198, 51, 100, 0], 24), "of documentation"),
    (([203, 0, 113, 0], 24), "of documentation"),
    (([224, 0, 0, 0], 4), "multicast"),
    (([240, 0, 0, 0], 4), "reserved"),
];

const V6_PRIVATE: &[(V6Net, &str)] = &[
    (([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),
    (([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "unique-local"),
];

const V6_NEVER: &[(V6Net, &str)] = &[
    // AWS's.
    (
        ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128),
        "where a cloud keeps metadata",
    ),
    (([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified"),
    (([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
    (
        ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
        "of protocol assignments",
    ),
    (([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "of documentation"),
    (([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "of documentation"),
    // Its IPv4 address is behind a relay of somebody's.
    (([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "of 6to4"),
];

/// Global unicast; all else that is not listed is reserved.
const V6_GLOBAL: V6Net = ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// Addresses that hold one of IPv4 in their last 32 bits: mapped, and of translators (RFC 6052).
const V6_EMBEDDED: &[V6Net] = &[
    ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96),
    ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96),
];

fn in_v4(address: Ipv4Addr, (net, prefix): V4Net) -> bool {
    let net = Ipv4Addr::from(net).to_bits();
    (address.to_bits() ^ net).leading_zeros() >= prefix
}

fn in_v6(address: Ipv6Addr, (net, prefix): V6Net) -> bool {
    let net = Ipv6Addr::from(net).to_bits();
    (address.to_bits() ^ net).leading_zeros() >= prefix
}

fn v4(address: Ipv4Addr) -> Reach {
    if let Some((_, what)) = V4_NEVER.iter().find(|(net, _)| in_v4(address, *net)) {
        return Reach::Never(what);
    }
    let private = V4_PRIVATE.iter().find(|(net, _)| in_v4(address, *net));
    private.map_or(Reach::Public, |(_, what)| Reach::Private(what))
}

fn v6(address: Ipv6Addr) -> Reach {
    if V6_EMBEDDED.iter().any(|net| in_v6(address, *net)) {
        let [.., a, b, c, d] = address.octets();
        return v4(Ipv4Addr::new(a, b, c, d));
    }
    if let Some((_, what)) = V6_NEVER.iter().find(|(net, _)| in_v6(address, *net)) {
        return Reach::Never(what);
    }
    if let Some((_, what)) = V6_PRIVATE.iter().find(|(net, _)| in_v6(address, *net)) {
        return Reach::Private(what);
    }
    if in_v6(address, V6_GLOBAL) {
        Reach::Public
    } else {
        Reach::Never("reserved")
    }
}

#[cfg(test)]
mod tests;
