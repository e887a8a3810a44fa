//! Connections over TCP between ranks: who listens, who connects, and that strangers are turned away.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::handshake::{self, Purpose};
use crate::diagnostics::log::warn;

/// How long a stranger may take to prove that it is none.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Where a rank is reached, and the name of the interface for the log.
pub(crate) struct Listener {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Listener {
    /// Listens on the loopback interface: the ranks are in one process.
    pub fn new() -> io::Result<Listener> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Listener { listener, address })
    }

    /// Accepts the connections that are expected, in whatever order they come. A connection that proves nothing, or
    /// is not expected, costs its sender the connection and us a line in the log.
    pub fn accept(
        &self,
        secret: &[u8; 32],
        mut expected: Vec<Purpose>,
        limit: Duration,
        stop: impl Fn() -> bool,
    ) -> io::Result<Vec<(Purpose, TcpStream)>> {
        let deadline = Instant::now() + limit;
        let mut accepted = Vec::new();
        while !expected.is_empty() {
            let (stream, from) = match self.listener.accept() {
                Ok(connection) => connection,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if stop() || Instant::now() > deadline {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{expected:?} did not connect")));
                    }
                    std::thread::sleep(Duration::from_micros(200));
                    continue;
                }
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(error),
            };
            let proved = prepare(&stream).and_then(|()| handshake::accept(&stream, secret, HANDSHAKE.min(limit)));
            match proved.map(|purpose| (purpose, expected.iter().position(|&other| other == purpose))) {
                Ok((purpose, Some(at))) => {
                    expected.swap_remove(at);
                    accepted.push((purpose, stream));
                }
                Ok((purpose, None)) => {
                    warn!(-1, "NET/Socket : dropped a connection from {from}: {purpose:?} is not expected")
                }
                Err(error) => warn!(-1, "NET/Socket : dropped a connection from {from}: {error}"),
            }
        }
        Ok(accepted)
    }
}

/// Connects to a rank.
pub(crate) fn connect(
    address: SocketAddr,
    secret: &[u8; 32],
    purpose: Purpose,
    limit: Duration,
) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, limit)?;
    prepare(&stream)?;
    handshake::connect(&stream, secret, purpose, limit)?;
    Ok(stream)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)
}

/// Errors of `accept` that concern the connection that was to be accepted, not the listener.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn strangers_are_dropped_and_the_expected_come_through() {
        let listener = Listener::new().unwrap();
        let address = listener.address;
        let wanted = |channel| Purpose { channel, from: 1, to: 0 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // garbage, a closed connection, a wrong secret, an unexpected purpose, then the real ones
                TcpStream::connect(address).unwrap().write_all(&[0xff; 300]).unwrap();
                drop(TcpStream::connect(address).unwrap());
                assert!(connect(address, &[1; 32], wanted(0), LIMIT).is_err());
                let _unexpected = connect(address, &[9; 32], wanted(7), LIMIT);
                let streams = [1, 0].map(|channel| connect(address, &[9; 32], wanted(channel), LIMIT).unwrap());
                drop(streams);
            });
            let accepted = listener.accept(&[9; 32], vec![wanted(0), wanted(1)], LIMIT, || false).unwrap();
            assert_eq!(accepted.iter().map(|(purpose, _)| purpose.channel).collect::<Vec<_>>(), [1, 0]);
        });
    }

    #[test]
    fn whoever_does_not_come_is_named() {
        let listener = Listener::new().unwrap();
        let missing = Purpose { channel: 2, from: 5, to: 4 };
        let error = listener.accept(&[9; 32], vec![missing], Duration::from_millis(20), || false).unwrap_err();
        assert!(error.to_string().contains("channel: 2, from: 5"), "{error}");
    }
}
