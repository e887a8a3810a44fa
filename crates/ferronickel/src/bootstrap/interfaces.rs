//! Which network interface a rank listens on, by NCCL's rules, and why it is not another.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::config::{Config, Setting, variables};
use crate::diagnostics::decisions::{Decision, Refusal};
use crate::error::{Error, ErrorKind, Result};

/// A network interface of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// Up, and with a carrier.
    pub(crate) up: bool,
    pub(crate) loopback: bool,
    pub(crate) addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    /// How many leading bits the addresses of its subnet share.
    pub(crate) prefix: u32,
    /// The index of the interface, for IPv6 addresses that are only valid there; else 0.
    pub(crate) scope: u32,
}

/// An address to listen on. As text it is NCCL's `eth0:10.0.0.1<0>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
    /// The index of the interface, for IPv6 addresses that are only valid there; else 0.
    pub(crate) scope: u32,
}

impl Endpoint {
    /// The address with a port; 0 leaves the port to the system.
    pub(crate) fn socket_address(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(_) => SocketAddr::new(self.ip, port),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope).into(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.ip)?;
        if self.scope != 0 {
            write!(f, "%{}", self.name)?;
        }
        f.write_str("<0>")
    }
}

/// What was chosen and why.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The endpoints, best first; at least one.
    pub(crate) endpoints: Vec<Endpoint>,
    /// What was chosen, and each interface that was not.
    pub(crate) decision: Decision,
    /// Whether `NCCL_SOCKET_IFNAME` names the interface, so that nobody has to be told about it.
    pub(crate) explicit: bool,
}

/// Chooses among the interfaces of this machine; `near` is the address of the root, where it is known.
pub(crate) fn choose(config: &Config, near: Option<IpAddr>) -> Result<Choice> {
    let rules =
        Rules { names: config.text(&variables::SOCKET_IFNAME), family: config.text(&variables::SOCKET_FAMILY), near };
    rank(&interfaces()?, &rules)
}

/// The interfaces of this machine, in the system's order.
fn interfaces() -> Result<Vec<Interface>> {
    let mut interfaces: Vec<Interface> = Vec::new();
    let entries = getifaddrs().map_err(|error| Error::system("getifaddrs", error))?;
    for entry in entries {
        let index = interfaces.iter().position(|known| known.name == entry.interface_name);
        let index = index.unwrap_or_else(|| {
            interfaces.push(Interface {
                name: entry.interface_name.clone(),
                up: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
                loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                addresses: Vec::new(),
            });
            interfaces.len() - 1
        });
        interfaces[index].addresses.extend(entry.address.and_then(|address| read(&address, entry.netmask.as_ref())));
    }
    Ok(interfaces)
}

/// The IP address in a socket address, if it is one.
fn read(address: &SockaddrStorage, mask: Option<&SockaddrStorage>) -> Option<Address> {
    if let Some(v4) = address.as_sockaddr_in() {
        let mask = mask.and_then(|mask| mask.as_sockaddr_in()).map_or(32, |mask| mask.ip().to_bits().leading_ones());
        return Some(Address { ip: v4.ip().into(), prefix: mask, scope: 0 });
    }
    let v6 = address.as_sockaddr_in6()?;
    let mask = mask.and_then(|mask| mask.as_sockaddr_in6()).map_or(128, |mask| mask.ip().to_bits().leading_ones());
    Some(Address { ip: v6.ip().into(), prefix: mask, scope: v6.scope_id() })
}

/// What the choice depends on besides the interfaces.
struct Rules<'c> {
    names: Setting<'c, Option<&'c str>>,
    family: Setting<'c, Option<&'c str>>,
    near: Option<IpAddr>,
}

/// What kind an interface is of, best first: NCCL's order, with tunnels and virtual links after real ones.
///
/// Only interfaces of the best kind that is there are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// `NCCL_SOCKET_IFNAME` names it.
    Named,
    /// The root is on the loopback interface: then nothing else may be listened on, or reaches it.
    LoopbackOfRoot,
    InfiniBand,
    SubnetOfRoot,
    Ordinary,
    Virtual,
    Containers,
    Loopback,
    VirtualMachines,
}

impl Kind {
    fn of(interface: &Interface, near: Option<IpAddr>) -> Self {
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| interface.name.starts_with(prefix));
        let holds_root = near.is_some_and(|near| interface.addresses.iter().any(|address| in_subnet(address, near)));
        if interface.loopback || interface.name == "lo" {
            return if near.is_some_and(|near| near.is_loopback()) { Self::LoopbackOfRoot } else { Self::Loopback };
        }
        match () {
            () if begins(&["ib"]) => Self::InfiniBand,
            () if holds_root => Self::SubnetOfRoot,
            () if begins(&["virbr"]) => Self::VirtualMachines,
            () if begins(&["docker", "podman"]) => Self::Containers,
            () if begins(VIRTUAL) => Self::Virtual,
            () => Self::Ordinary,
        }
    }

    /// Why an interface of this kind is not used where there is a better one.
    fn reason(self, best: &Endpoint) -> String {
        let name = &best.name;
        match self {
            Self::Virtual => format!("a tunnel or virtual link, after real ones such as {name}"),
            Self::Containers => format!("a network of containers, used only where nothing better than {name} is up"),
            Self::Loopback => "reaches this host only".to_owned(),
            Self::VirtualMachines => "a network of virtual machines, used only where there is nothing else".to_owned(),
            Self::Named | Self::LoopbackOfRoot | Self::InfiniBand | Self::SubnetOfRoot | Self::Ordinary => {
                format!("{name} goes first")
            }
        }
    }
}

/// How the names of tunnels and of virtual links begin.
const VIRTUAL: &[&str] =
    &["tun", "tap", "wg", "veth", "br-", "tailscale", "zt", "cni", "flannel", "cali", "lxc", "vnet", "gre", "sit"];

/// Whether the address lies in the subnet.
fn in_subnet(subnet: &Address, ip: IpAddr) -> bool {
    match (subnet.ip, ip) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= subnet.prefix,
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= subnet.prefix,
        _ => false,
    }
}

/// `NCCL_SOCKET_IFNAME`: `eth,ib` is how names begin, `=eth0` whole names, `^` before either all others.
struct Names<'c> {
    exclude: bool,
    exact: bool,
    names: Vec<&'c str>,
}

impl<'c> Names<'c> {
    fn new(text: &'c str) -> Self {
        let text = text.trim();
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        // NCCL reads one = for the whole list; who writes it before each name means the same.
        let bare = |name: &'c str| name.trim().trim_start_matches(if exact { "=" } else { "" });
        Self { exclude, exact, names: text.split(',').map(bare).filter(|name| !name.is_empty()).collect() }
    }

    fn allow(&self, interface: &str) -> bool {
        let listed = self.names.iter().any(|name| match self.exact {
            true => interface == *name,
            false => interface.starts_with(name),
        });
        listed != self.exclude
    }
}

/// The choice as a function of what there is.
fn rank(interfaces: &[Interface], rules: &Rules<'_>) -> Result<Choice> {
    let names = rules.names.value.map(Names::new);
    if names.as_ref().is_some_and(|names| names.names.is_empty()) {
        return Err(Error::new(ErrorKind::InvalidUsage, format!("{} names no interface", rules.names.reason()))
            .hint(format!("name some of these: {}", list(interfaces))));
    }
    let explicit = names.as_ref().is_some_and(|names| !names.exclude);
    let mut refused = Vec::new();
    let mut candidates: Vec<(Kind, Endpoint)> = Vec::new();
    for interface in interfaces {
        let kind = if explicit { Kind::Named } else { Kind::of(interface, rules.near) };
        let result = match &names {
            Some(names) if !names.allow(&interface.name) => Err(rules.names.reason()),
            _ => endpoint(interface, explicit, rules).map(|endpoint| candidates.push((kind, endpoint))),
        };
        refused.extend(result.err().map(|reason| Refusal { candidate: interface.name.clone(), reason }));
    }
    // The sort is stable: among equals the system's order counts.
    candidates.sort_by_key(|(kind, _)| *kind);
    let Some((best_kind, best)) = candidates.first().cloned() else {
        return Err(nothing(interfaces, rules, &refused));
    };
    let used = candidates.iter().take_while(|(kind, _)| *kind == best_kind).count();
    let worse = candidates.split_off(used).into_iter();
    let worse = worse.map(|(kind, endpoint)| Refusal { reason: kind.reason(&best), candidate: endpoint.name });
    let refused: Vec<_> = worse.chain(refused).collect();
    let endpoints: Vec<_> = candidates.into_iter().map(|(_, endpoint)| endpoint).collect();
    let chosen = endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(" ");
    Ok(Choice { endpoints, decision: Decision { about: "Bootstrap".to_owned(), chosen, refused }, explicit })
}

/// The address of an interface to use, or why there is none.
fn endpoint(interface: &Interface, named: bool, rules: &Rules<'_>) -> std::result::Result<Endpoint, String> {
    if !interface.up && !named {
        return Err("it is down".to_owned());
    }
    if interface.addresses.is_empty() {
        return Err("it has no IP address".to_owned());
    }
    let of_family = |address: &&Address| match rules.family.value {
        Some("AF_INET") => address.ip.is_ipv4(),
        Some(_) => address.ip.is_ipv6(),
        None => true,
    };
    let mut addresses: Vec<_> = interface.addresses.iter().filter(of_family).collect();
    if addresses.is_empty() {
        return Err(format!("it has no address for {}", rules.family.reason()));
    }
    if !named {
        addresses.retain(|address| !is_link_local(address.ip));
    }
    let near = |address: &Address| rules.near.is_some_and(|near| in_subnet(address, near));
    let order = |address: &&&Address| (!near(address), address.ip.is_ipv6(), is_link_local(address.ip));
    let best = addresses.iter().min_by_key(order);
    best.map(|address| Endpoint { name: interface.name.clone(), ip: address.ip, scope: address.scope }).ok_or_else(
        || "it has only an IPv6 link-local address, which is used only if the interface is named".to_owned(),
    )
}

/// IPv6 only: such an address means nothing without the interface.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The error where no interface is left.
fn nothing(interfaces: &[Interface], rules: &Rules<'_>, refused: &[Refusal]) -> Error {
    if rules.names.value.is_some() && refused.iter().all(|refusal| refusal.reason == rules.names.reason()) {
        let verb =
            if rules.names.value.is_some_and(|names| names.trim().starts_with('^')) { "leaves" } else { "matches" };
        let seen = format!("{} {verb} no network interface", rules.names.reason());
        return Error::new(ErrorKind::InvalidUsage, seen)
            .hint(format!("the interfaces are {}; a name matches by its beginning, =name exactly", list(interfaces)));
    }
    let wishes = rules.names.value.is_some() || rules.family.value.is_some();
    let kind = if wishes { ErrorKind::InvalidUsage } else { ErrorKind::System };
    let reasons: Vec<_> = refused.iter().map(Refusal::to_string).collect();
    let reasons = if reasons.is_empty() { "there is none".to_owned() } else { reasons.join("; ") };
    Error::new(kind, format!("no network interface can be used: {reasons}"))
        .hint("set NCCL_SOCKET_IFNAME to one that is up and has an address")
}

/// Every interface with its addresses.
fn list(interfaces: &[Interface]) -> String {
    let one = |interface: &Interface| {
        let addresses: Vec<_> = interface.addresses.iter().map(|address| address.ip.to_string()).collect();
        let addresses = if addresses.is_empty() { "no address".to_owned() } else { addresses.join(", ") };
        format!("{} ({addresses}{})", interface.name, if interface.up { "" } else { ", down" })
    };
    match interfaces {
        [] => "none".to_owned(),
        _ => interfaces.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests;
