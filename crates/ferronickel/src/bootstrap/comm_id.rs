//! `NCCL_COMM_ID`: the address at which rank 0 listens, and what has to be true before ranks may meet there.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::net::if_::if_nametoindex;

use super::unique_id::UniqueId;
use crate::config::{Config, variables};
use crate::diagnostics::log::warn;
use crate::error::{Error, ErrorKind, Result};

/// Where and under which secret ranks meet that were given an address instead of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommId {
    /// Where rank 0 listens.
    pub(crate) address: SocketAddr,
    /// Whether `FERRONICKEL_SECRET` protects it; if not, all that protects it is that few can reach the address.
    pub(crate) has_secret: bool,
}

impl CommId {
    /// What `NCCL_COMM_ID` says, if it is set.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) where it is no address, or one that needs a secret and has none;
    /// [`System`](ErrorKind::System) where the name of the host is not known.
    pub(crate) fn from_config(config: &Config) -> Result<Option<CommId>> {
        let setting = config.text(&variables::COMM_ID);
        let Some(text) = setting.value else { return Ok(None) };
        let written = Written::parse(text).map_err(|wrong| {
            Error::new(ErrorKind::InvalidUsage, format!("{}: {wrong}", setting.reason()))
                .hint("write it as 10.0.0.1:29500, [fd00::1]:29500, [fe80::1%eth0]:29500 or host:29500")
        })?;
        let address = written.resolve(config)?;
        let has_secret = config.text(&variables::SECRET).value.is_some();
        let allowed = config.flag(&variables::ALLOW_OPEN_BOOTSTRAP).value;
        if !has_secret && !allowed && !address.ip().is_loopback() {
            let seen = format!("{} is reachable from other machines and no secret protects it", setting.reason());
            return Err(Error::new(ErrorKind::InvalidUsage, seen).hint(
                "set FERRONICKEL_SECRET to the same secret for every rank, or \
                 FERRONICKEL_ALLOW_OPEN_BOOTSTRAP=1 to let anybody join who can reach the address",
            ));
        }
        Ok(Some(CommId { address, has_secret }))
    }

    /// The id that every rank makes by itself which makes as many as this one.
    pub(crate) fn unique_id(&self, config: &Config) -> Result<UniqueId> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        if !self.has_secret {
            warn!(
                -1,
                "NCCL_COMM_ID {} has no secret: whoever can reach it can join; FERRONICKEL_SECRET gives it one",
                self.address
            );
        }
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let secret = config.text(&variables::SECRET).value.unwrap_or_default();
        // the secret comes last, since it alone can have any length
        let material = [&made.to_le_bytes(), self.address.to_string().as_bytes(), &[0], secret.as_bytes()].concat();
        let secret = blake3::derive_key("ferronickel NCCL_COMM_ID secret", &material);
        UniqueId::at(&secret, true, &[self.address])
    }
}

/// The two halves of an address, as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written<'t> {
    host: Host<'t>,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host<'t> {
    Ip(IpAddr),
    /// An IPv6 address and the interface on which it is valid.
    Scoped(Ipv6Addr, &'t str),
    Name(&'t str),
}

impl<'t> Written<'t> {
    fn parse(text: &'t str) -> std::result::Result<Self, String> {
        let text = text.trim();
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or("there is no ] after the [")?;
                (v6(host)?, rest.strip_prefix(':').ok_or("there is no :port after the ]")?)
            }
            None => {
                let (host, port) = text.rsplit_once(':').ok_or("there is no :port")?;
                if host.contains(':') {
                    return Err("an IPv6 address needs [ and ] around it, before the :port".to_owned());
                }
                (v4_or_name(host)?, port)
            }
        };
        match port.parse() {
            Ok(0) => Err("port 0 would be another port for each rank".to_owned()),
            // `parse` would take a plus sign.
            Ok(number) if port.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Self { host, port: number }),
            _ => Err(format!("'{port}' is no port; a number from 1 to 65535 would be right")),
        }
    }

    fn resolve(&self, config: &Config) -> Result<SocketAddr> {
        match self.host {
            Host::Ip(ip) => Ok(SocketAddr::new(ip, self.port)),
            Host::Scoped(ip, scope) => {
                let index = scope.parse().or_else(|_| if_nametoindex(scope)).map_err(|error| {
                    let seen = format!("NCCL_COMM_ID names the interface '{scope}', which is not here: {error}");
                    Error::new(ErrorKind::InvalidUsage, seen).hint("write an interface of this machine after the %")
                })?;
                Ok(SocketAddrV6::new(ip, self.port, 0, index).into())
            }
            Host::Name(name) => self.look_up(name, config),
        }
    }

    /// Every rank must come to the same address, so the first of the family that is asked for is taken, IPv4 first.
    fn look_up(&self, name: &str, config: &Config) -> Result<SocketAddr> {
        let request = format!("looking up the host '{name}' of NCCL_COMM_ID");
        let found = (name, self.port).to_socket_addrs().map_err(|error| Error::system(&request, error))?;
        let family = config.text(&variables::SOCKET_FAMILY);
        let mut found: Vec<_> = found
            .filter(|address| match family.value {
                Some("AF_INET") => address.is_ipv4(),
                Some(_) => address.is_ipv6(),
                None => true,
            })
            .collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        found.first().copied().ok_or_else(|| {
            let seen = format!("the host '{name}' of NCCL_COMM_ID has no address for {}", family.reason());
            Error::new(ErrorKind::InvalidUsage, seen).hint("write its address instead of its name")
        })
    }
}

fn v6(host: &str) -> std::result::Result<Host<'_>, String> {
    let (ip, scope) = host.split_once('%').map_or((host, None), |(ip, scope)| (ip, Some(scope)));
    let ip: Ipv6Addr = ip.parse().map_err(|_| format!("'{ip}' between [ and ] is no IPv6 address"))?;
    match scope {
        None if ip.is_unspecified() => Err(anywhere(host)),
        None if ip.is_unicast_link_local() => Err(format!("'{ip}' is link-local: add its interface, as in {ip}%eth0")),
        None => Ok(Host::Ip(ip.into())),
        Some("") => Err("there is no interface after the %".to_owned()),
        Some(scope) => Ok(Host::Scoped(ip, scope)),
    }
}

fn v4_or_name(host: &str) -> std::result::Result<Host<'_>, String> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return if ip.is_unspecified() { Err(anywhere(host)) } else { Ok(Host::Ip(ip)) };
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if host.is_empty() {
        return Err("there is no host before the port".to_owned());
    }
    // The last label of a name is never a number; what looks like an address and is none is no name either.
    let number = host.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    if !host.bytes().all(is_name) || number {
        return Err(format!("'{}' is neither an address nor the name of a host", host.escape_debug()));
    }
    Ok(Host::Name(host))
}

fn anywhere(host: &str) -> String {
    format!("'{host}' stands for every address, and the other ranks need the one to connect to")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn config(environment: &[(&str, &str)]) -> Config {
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        Config::read(environment, Path::new("/nonexistent/nccl.conf"))
    }

    fn comm_id(address: &str, others: &[(&str, &str)]) -> Result<CommId> {
        let environment: Vec<_> = [("NCCL_COMM_ID", address)].into_iter().chain(others.iter().copied()).collect();
        CommId::from_config(&config(&environment)).map(|found| found.expect("it is set"))
    }

    #[test]
    fn addresses_are_read() {
        assert_eq!(CommId::from_config(&config(&[])).unwrap(), None);
        let secret = [("FERRONICKEL_SECRET", "s")];
        for (text, address) in [
            ("10.0.0.1:29500", "10.0.0.1:29500"),
            (" 127.0.0.1:1 ", "127.0.0.1:1"),
            ("[::1]:65535", "[::1]:65535"),
            ("[fd00::1]:80", "[fd00::1]:80"),
            ("[fe80::1%1]:80", "[fe80::1%1]:80"),
            ("[fe80::1%lo]:80", "[fe80::1%1]:80"),
        ] {
            let found = comm_id(text, &secret).unwrap();
            assert_eq!((found.address, found.has_secret), (address.parse().unwrap(), true), "{text}");
        }
        assert!(comm_id("localhost:80", &[]).unwrap().address.ip().is_loopback());
    }

    #[test]
    fn what_is_no_address_is_said() {
        for (text, words) in [
            ("10.0.0.1", "there is no :port"),
            ("10.0.0.1:", "'' is no port"),
            ("10.0.0.1:+5", "'+5' is no port"),
            ("10.0.0.1:65536", "'65536' is no port"),
            ("10.0.0.1:0", "port 0 would be another port for each rank"),
            (":80", "there is no host"),
            ("fd00::1:80", "needs [ and ] around it"),
            ("[fd00::1:80", "there is no ] after the ["),
            ("[fd00::1]80", "there is no :port after the ]"),
            ("[10.0.0.1]:80", "'10.0.0.1' between [ and ] is no IPv6 address"),
            ("[fe80::1]:80", "is link-local"),
            ("[fe80::1%]:80", "no interface after the %"),
            ("[fe80::1%nothere9]:80", "'nothere9', which is not here"),
            ("10.0.0.256:80", "'10.0.0.256' is neither an address nor"),
            ("two words:80", "'two words' is neither"),
            ("0.0.0.0:80", "stands for every address"),
            ("[::]:80", "stands for every address"),
        ] {
            let error = comm_id(text, &[("FERRONICKEL_SECRET", "s")]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            assert!(error.to_string().contains(words), "{text}: {error}");
            assert!(error.to_string().contains("NCCL_COMM_ID"), "{text}: {error}");
        }
    }

    #[test]
    fn an_address_that_others_reach_needs_a_secret_or_leave() {
        assert!(!comm_id("127.0.0.1:80", &[]).unwrap().has_secret);
        assert!(!comm_id("[::1]:80", &[]).unwrap().has_secret);
        let error = comm_id("10.0.0.1:80", &[]).unwrap_err();
        assert!(error.to_string().contains("no secret protects it; set FERRONICKEL_SECRET"), "{error}");
        assert!(!comm_id("10.0.0.1:80", &[("FERRONICKEL_ALLOW_OPEN_BOOTSTRAP", "1")]).unwrap().has_secret);
        assert!(comm_id("10.0.0.1:80", &[("FERRONICKEL_SECRET", "s")]).unwrap().has_secret);
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_told(text in "[0-9a-f:.%\\[\\] x-]{0,24}|.{0,12}") {
            if let Ok(written) = Written::parse(&text) {
                prop_assert!(written.port > 0);
            }
        }

        #[test]
        fn an_address_as_it_is_printed_is_read(address in any::<SocketAddr>()) {
            let text = address.to_string();
            prop_assume!(!address.ip().is_unspecified() && address.port() != 0);
            let Ok(written) = Written::parse(&text) else {
                prop_assert!(text.starts_with("[fe"), "{}", text);
                return Ok(());
            };
            prop_assert_eq!(written.port, address.port());
        }
    }
}
