//! The ranking, on machines that exist only here.

use std::path::Path;

use proptest::prelude::*;

use super::*;

fn interface(name: &str, addresses: &[&str]) -> Interface {
    let address = |text: &&str| {
        let (ip, prefix) = text.split_once('/').unwrap_or((text, "24"));
        let ip: IpAddr = ip.parse().unwrap();
        Address { ip, prefix: prefix.parse().unwrap(), scope: if is_link_local(ip) { 7 } else { 0 } }
    };
    let addresses = addresses.iter().map(address).collect();
    Interface { name: name.to_owned(), up: true, loopback: name == "lo", addresses }
}

fn machine() -> Vec<Interface> {
    let mut down = interface("eth1", &["10.1.0.5"]);
    down.up = false;
    vec![
        interface("lo", &["127.0.0.1/8", "::1/128"]),
        interface("virbr0", &["192.168.122.1"]),
        interface("docker0", &["172.17.0.1/16"]),
        interface("wg0", &["10.8.0.2"]),
        interface("eth0", &["fe80::5/64", "fd00::5/64", "10.0.0.5"]),
        down,
        interface("eth2", &["fe80::7/64"]),
        interface("eth3", &[]),
    ]
}

fn pick(interfaces: &[Interface], environment: &[(&str, &str)], near: Option<&str>) -> Result<Choice> {
    let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
    let config = Config::read(environment, Path::new("/nonexistent/nccl.conf"));
    assert_eq!(config.warnings(), &[] as &[String]);
    let near = near.map(|near| near.parse().unwrap());
    let names = config.text(&variables::SOCKET_IFNAME);
    rank(interfaces, &Rules { names, family: config.text(&variables::SOCKET_FAMILY), near })
}

/// What is chosen, as text.
fn chosen(interfaces: &[Interface], environment: &[(&str, &str)], near: Option<&str>) -> String {
    pick(interfaces, environment, near).unwrap().decision.chosen
}

#[test]
fn every_interface_that_is_refused_has_its_reason() {
    let choice = pick(&machine(), &[], None).unwrap();
    assert!(!choice.explicit);
    insta::assert_snapshot!(choice.decision.to_string().replace("; ", "\n"), @r"
    Bootstrap: eth0:10.0.0.5<0>
    wg0 refused: a tunnel or virtual link, after real ones such as eth0
    docker0 refused: a network of containers, used only where nothing better than eth0 is up
    lo refused: reaches this host only
    virbr0 refused: a network of virtual machines, used only where there is nothing else
    eth1 refused: it is down
    eth2 refused: it has only an IPv6 link-local address, which is used only if the interface is named
    eth3 refused: it has no IP address
    ");
}

#[test]
fn the_next_best_is_taken_when_the_best_is_gone() {
    let mut machine = machine();
    machine.insert(3, interface("ib0", &["10.9.0.5"]));
    let mut order = Vec::new();
    loop {
        order.push(chosen(&machine, &[], None));
        let name = order.last().unwrap().split(':').next().unwrap().to_owned();
        machine.retain(|interface| interface.name != name);
        if !machine.iter().any(|interface| interface.up && interface.name != "eth2" && interface.name != "eth3") {
            break;
        }
    }
    assert_eq!(
        order,
        [
            "ib0:10.9.0.5<0>",
            "eth0:10.0.0.5<0>",
            "wg0:10.8.0.2<0>",
            "docker0:172.17.0.1<0>",
            "lo:127.0.0.1<0>",
            "virbr0:192.168.122.1<0>"
        ]
    );
    let error = pick(&machine, &[], None).unwrap_err();
    assert!(error.to_string().contains("eth1 refused: it is down"), "{error}");
}

#[test]
fn names_are_nccls() {
    let machine = machine();
    for (names, expected) in [
        ("eth0", "eth0:10.0.0.5<0>"),
        ("eth", "eth0:10.0.0.5<0> eth1:10.1.0.5<0> eth2:fe80::7%eth2<0>"),
        ("=eth2", "eth2:fe80::7%eth2<0>"),
        ("=eth1,=eth2", "eth1:10.1.0.5<0> eth2:fe80::7%eth2<0>"),
        ("=docker0,wg0", "docker0:172.17.0.1<0> wg0:10.8.0.2<0>"),
        ("lo", "lo:127.0.0.1<0>"),
        (" docker , wg ", "docker0:172.17.0.1<0> wg0:10.8.0.2<0>"),
        ("^eth", "wg0:10.8.0.2<0>"),
        ("^eth,wg", "docker0:172.17.0.1<0>"),
        ("^=eth", "eth0:10.0.0.5<0>"),
        ("^=eth0", "wg0:10.8.0.2<0>"),
    ] {
        assert_eq!(chosen(&machine, &[("NCCL_SOCKET_IFNAME", names)], None), expected, "{names}");
        let choice = pick(&machine, &[("NCCL_SOCKET_IFNAME", names)], None).unwrap();
        assert_eq!(choice.explicit, !names.starts_with('^'), "{names}");
    }
}

#[test]
fn a_name_that_matches_nothing_is_answered_with_the_names_there_are() {
    for names in ["enp", "=eth", "^lo,virbr,docker,wg,eth", "^", ","] {
        let error = pick(&machine(), &[("NCCL_SOCKET_IFNAME", names)], None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        let text = error.to_string();
        assert!(text.contains(&format!("NCCL_SOCKET_IFNAME={names} set in the environment")), "{text}");
        assert!(text.contains("docker0 (172.17.0.1), ") && text.contains("eth1 (10.1.0.5, down), "), "{text}");
    }
    let error = pick(&machine(), &[("NCCL_SOCKET_IFNAME", "eth3")], None).unwrap_err();
    assert!(error.to_string().contains("eth3 refused: it has no IP address"), "{error}");
}

#[test]
fn the_family_decides_among_the_addresses() {
    let family = |family| [("NCCL_SOCKET_FAMILY", family)];
    assert_eq!(chosen(&machine(), &family("AF_INET6"), None), "eth0:fd00::5<0>");
    assert_eq!(chosen(&machine(), &family("AF_INET"), None), "eth0:10.0.0.5<0>");
    let only_v4 = [interface("eth0", &["10.0.0.5"])];
    let error = pick(&only_v4, &family("AF_INET6"), None).unwrap_err();
    assert!(error.to_string().contains("no address for NCCL_SOCKET_FAMILY=AF_INET6 set in"), "{error}");
}

#[test]
fn the_root_draws_the_choice_to_its_subnet() {
    let mut machine = machine();
    machine.push(interface("eth9", &["10.77.0.5"]));
    assert_eq!(chosen(&machine, &[], None), "eth0:10.0.0.5<0> eth9:10.77.0.5<0>");
    assert_eq!(chosen(&machine, &[], Some("10.77.0.1")), "eth9:10.77.0.5<0>");
    assert_eq!(chosen(&machine, &[], Some("172.17.3.4")), "docker0:172.17.0.1<0>");
    assert_eq!(chosen(&machine, &[], Some("127.0.0.1")), "lo:127.0.0.1<0>");
    assert_eq!(chosen(&machine, &[], Some("::1")), "lo:::1<0>");
    // A name says more than the root's address.
    assert_eq!(chosen(&machine, &[("NCCL_SOCKET_IFNAME", "eth0")], Some("10.77.0.1")), "eth0:10.0.0.5<0>");
    machine.push(interface("ib0", &["10.9.0.5"]));
    assert_eq!(chosen(&machine, &[], Some("10.77.0.1")), "ib0:10.9.0.5<0>");
    assert_eq!(chosen(&machine, &[], Some("127.0.0.1")), "lo:127.0.0.1<0>");
}

#[test]
fn a_link_local_address_keeps_its_scope() {
    let choice = pick(&machine(), &[("NCCL_SOCKET_IFNAME", "=eth2")], None).unwrap();
    assert_eq!(choice.endpoints[0].socket_address(80).to_string(), "[fe80::7%7]:80");
}

#[test]
fn this_machine_has_an_interface() {
    let choice = choose(&Config::default(), None).unwrap();
    assert!(!choice.endpoints.is_empty());
    std::net::TcpListener::bind(choice.endpoints[0].socket_address(0)).unwrap();
}

fn any_interface() -> impl Strategy<Value = Interface> {
    let name = "(eth|ib|lo|docker|virbr|wg|tun|veth)[0-3]?";
    let addresses = prop::collection::vec((any::<IpAddr>(), 0..=32u32, 0..3u32), 0..4);
    (name, any::<bool>(), any::<bool>(), addresses).prop_map(|(name, up, loopback, addresses)| Interface {
        name,
        up,
        loopback,
        addresses: addresses.into_iter().map(|(ip, prefix, scope)| Address { ip, prefix, scope }).collect(),
    })
}

proptest! {
    #[test]
    fn every_interface_is_chosen_or_has_a_reason(
        interfaces in prop::collection::vec(any_interface(), 0..8),
        names in "[\\^=]{0,2}((eth|ib|lo|docker)[0-3]?,?){0,3}",
        near in any::<Option<IpAddr>>(),
    ) {
        let config = Config::default().with("NCCL_SOCKET_IFNAME", &names).unwrap();
        let rules = Rules {
            names: config.text(&variables::SOCKET_IFNAME), family: config.text(&variables::SOCKET_FAMILY), near,
        };
        match rank(&interfaces, &rules) {
            Ok(choice) => {
                prop_assert!(!choice.endpoints.is_empty());
                prop_assert_eq!(choice.endpoints.len() + choice.decision.refused.len(), interfaces.len());
                for endpoint in &choice.endpoints {
                    let is_it = |interface: &&Interface| interface.name == endpoint.name
                        && interface.addresses.iter().any(|address| address.ip == endpoint.ip)
                        && (choice.explicit || interface.up);
                    prop_assert!(interfaces.iter().any(|interface| is_it(&interface)));
                }
            }
            Err(error) => {
                let text = error.to_string();
                prop_assert!(interfaces.iter().all(|interface| text.contains(&interface.name)), "{}", text);
            }
        }
    }
}
