use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use crate::bootstrap::handshake::Kind;

const LIMIT: Duration = Duration::from_secs(20);
const SECRET: [u8; 32] = [9; 32];

fn service() -> Arc<Service> {
    Service::on(&["127.0.0.1:0".parse().unwrap()]).unwrap()
}

/// A number that no other test has.
fn number() -> u64 {
    u64::from_le_bytes(*random().unwrap().first_chunk().unwrap())
}

#[test]
fn strangers_are_dropped_and_hold_up_nobody() {
    let service = service();
    let door = service.open(number(), &SECRET);
    let address = service.addresses[0];
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    TcpStream::connect(address).unwrap().write_all(&[0xff; 3000]).unwrap();
    drop(TcpStream::connect(address).unwrap());
    let purpose = |rank| door.purpose(Kind::Link, rank, 0);
    assert!(super::super::door::connect(&[address], &[1; 32], purpose(3), LIMIT, &mut || false).is_err());
    let other = Purpose { id: number(), ..purpose(3) };
    assert!(super::super::door::connect(&[address], &SECRET, other, LIMIT, &mut || false).is_err());
    let began = Instant::now();
    let connected = door.connect(&[address], purpose(4), LIMIT, &mut || false).unwrap();
    let within = door.connect_within(service.unix.as_ref().unwrap(), purpose(5), LIMIT, &mut || false).unwrap();
    assert!(!door.take(purpose(4), LIMIT, &mut || false).unwrap().carries_files());
    assert!(door.take(purpose(5), LIMIT, &mut || false).unwrap().carries_files());
    assert!(began.elapsed() < PATIENCE / 2, "strangers held the others up");
    drop((silent, connected, within));
}

#[test]
fn whoever_is_too_slow_is_dropped() {
    let service = service();
    let _door = service.open(number(), &SECRET);
    let mut slow = TcpStream::connect(service.addresses[0]).unwrap();
    slow.write_all(&[7; 10]).unwrap();
    slow.set_read_timeout(Some(PATIENCE * 3)).unwrap();
    let read = slow.read(&mut [0; 10]);
    assert!(matches!(read, Ok(0)) || read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
}

#[test]
fn whoever_does_not_come_is_named() {
    let door = service().open(number(), &SECRET);
    let purpose = door.purpose(Kind::Data { channel: 2, attempt: 0, socket: 0 }, 5, 4);
    let error = door.take(purpose, Duration::from_millis(20), &mut || false).unwrap_err();
    assert_eq!(error.to_string(), "rank 5 did not connect");
    assert!(door.take(purpose, LIMIT, &mut || true).is_err());
}

#[test]
fn a_used_port_is_an_error_that_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Service::on(&[address]).unwrap_err();
    assert!(error.seen().starts_with(&format!("listening on {address} failed")), "{error}");
}

#[test]
fn a_service_ends_with_its_last_door() {
    let wanted = "127.0.0.2:0".parse().unwrap();
    let service = Service::on(&[wanted]).unwrap();
    let address = service.addresses[0];
    let door = service.open(number(), &SECRET);
    assert!(Arc::ptr_eq(&service, &Service::on(&[wanted]).unwrap()));
    drop(service);
    drop(TcpStream::connect(address).unwrap());
    drop(door);
    assert!(TcpStream::connect(address).is_err());
}
