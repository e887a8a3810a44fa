//! A connected socket, over the network or within the machine, that never blocks by itself.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, recvmsg, send, sendmsg, socket_with,
};

/// A socket to another process.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    /// Within the machine: carries open files as well.
    Unix(UnixStream),
}

/// The most files that travel with one message (the kernel allows 253).
pub(crate) const MOST_FILES: usize = 128;

impl Stream {
    /// Over the network: small messages leave at once, and a machine that vanished is noticed.
    pub fn tcp(stream: TcpStream) -> io::Result<Stream> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        Ok(Stream::Tcp(stream))
    }

    /// Within the machine.
    pub fn unix(stream: UnixStream) -> io::Result<Stream> {
        stream.set_nonblocking(true)?;
        Ok(Stream::Unix(stream))
    }

    /// Whether open files can travel along.
    pub fn carries_files(&self) -> bool {
        matches!(self, Stream::Unix(_))
    }

    /// Reads what has come, and takes the files that came with it. `WouldBlock` if nothing has.
    pub fn read(&self, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<usize> {
        if !self.carries_files() {
            return Ok(recv(self, bytes, RecvFlags::empty())?.1);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(self, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        if received.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
            // the kernel drops files that this process has no room for
            return Err(Errno::MFILE.into());
        }
        Ok(received.bytes)
    }

    /// Writes what the socket takes, with `files` along with the first byte. `WouldBlock` if it takes nothing.
    pub fn write(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if files.is_empty() {
            return Ok(send(self, bytes, SendFlags::NOSIGNAL)?);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !self.carries_files() || !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::other("these files cannot travel over this connection"));
        }
        Ok(sendmsg(self, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
    }

    /// Waits until the socket can be read (`IN`) or written (`OUT`). False when the time is up.
    pub fn wait(&self, for_what: PollFlags, limit: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(limit).ok();
        match poll(&mut [PollFd::new(self, for_what)], limit.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// The socket for data, which is always of the network.
    pub fn into_tcp(self) -> io::Result<TcpStream> {
        match self {
            Stream::Tcp(stream) => Ok(stream),
            Stream::Unix(_) => Err(io::Error::other("data for the network came through a Unix socket")),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Exact reads and writes on a stream that is given up at a deadline, however slowly bytes trickle in.
pub(crate) struct Limited<'a> {
    stream: &'a Stream,
    deadline: Instant,
    /// Asked now and then whether to give up before.
    stop: Stop<'a>,
}

/// Says whether to give up a wait.
pub(crate) type Stop<'a> = &'a mut dyn FnMut() -> bool;

/// How long a wait lasts between two questions whether to give it up.
const LOOK: Duration = Duration::from_millis(50);

impl<'a> Limited<'a> {
    pub fn new(stream: &'a Stream, limit: Duration, stop: Stop<'a>) -> Self {
        Limited { stream, deadline: Instant::now() + limit, stop }
    }

    fn wait(&mut self, for_what: PollFlags) -> io::Result<()> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other end was too slow"));
            }
            if self.stream.wait(for_what, left.min(LOOK))? {
                return Ok(());
            }
            if (self.stop)() {
                return Err(io::Error::other("it is no longer wanted"));
            }
        }
    }

    pub fn read(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.wait(PollFlags::IN)?;
            match self.stream.read(bytes, &mut Vec::new()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.wait(PollFlags::OUT)?;
            match self.stream.write(bytes, &[]) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether the same thing may succeed a moment later.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// Connects to the abstract Unix socket with this name. Never waits: where the queue of those that wait to be accepted
/// is full, it is tried again later ([`WouldBlock`](io::ErrorKind::WouldBlock)).
pub(super) fn connect_to(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    ioctl_fionbio(&socket, false)?;
    Ok(UnixStream::from(socket))
}
