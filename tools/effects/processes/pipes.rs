//! The pipes of one running command, served from a single task: both outputs in turns, and standard input beside
//! them, so that neither a command that never reads nor one that never ends a line can block anything.
//!
//! All state is in [`Pipes`]: a future of it may be dropped at any await and the next one goes on where it was.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::effects::processes::{OutputSink, Stream};

/// Most bytes taken from a pipe at once: what a pipe holds.
const READ_BYTES_MAX: usize = 64 * 1024;

/// What a pipe is made to hold once a command has filled it, in bytes: whoever writes much then waits less often for
/// the reader. As much as the system gives to anybody; where it gives less, the pipe stays as it is.
const LONG_PIPE_BYTES: usize = 1024 * 1024;
/// Most bytes taken from a pipe at once while both outputs have some, so that their order comes near to the real one.
const TURN_BYTES_MAX: usize = 8 * 1024;

/// The ends of a command's standard streams that are held here.
pub(super) struct Pipes {
    out: Option<Receiver>,
    err: Option<Receiver>,
    /// Standard input and all that is to be written to it.
    feed: Option<(Sender, Vec<u8>)>,
    fed_bytes: usize,
    /// Which outputs have been given a long pipe.
    is_long: [bool; 2],
    buffer: Box<[u8]>,
}

/// The ends that belong to the command. Every copy here must be closed once it runs: an end of file comes only when
/// nobody holds the writing end.
pub(super) struct FarEnds {
    pub(super) out: OwnedFd,
    pub(super) err: OwnedFd,
    /// Standard input, unless that is the null device.
    pub(super) input: Option<OwnedFd>,
}

impl Pipes {
    /// Makes the pipes of a command; `input` is what will be written to its standard input.
    pub(super) fn open(input: Option<Vec<u8>>) -> io::Result<(Self, FarEnds)> {
        let (out, far_out) = pipe_with(PipeFlags::CLOEXEC)?;
        let (err, far_err) = pipe_with(PipeFlags::CLOEXEC)?;
        let (feed, far_input) = match input {
            None => (None, None),
            Some(bytes) => {
                let (far, near) = pipe_with(PipeFlags::CLOEXEC)?;
                rustix::io::ioctl_fionbio(&near, true)?;
                (Some((Sender::from_owned_fd_unchecked(near)?, bytes)), Some(far))
            }
        };
        rustix::io::ioctl_fionbio(&out, true)?;
        rustix::io::ioctl_fionbio(&err, true)?;
        let pipes = Self {
            out: Some(Receiver::from_owned_fd_unchecked(out)?),
            err: Some(Receiver::from_owned_fd_unchecked(err)?),
            feed,
            fed_bytes: 0,
            is_long: [false; 2],
            buffer: vec![0; READ_BYTES_MAX].into_boxed_slice(),
        };
        Ok((pipes, FarEnds { out: far_out, err: far_err, input: far_input }))
    }

    /// Moves bytes for as long as it is polled; never ends.
    pub(super) async fn serve(&mut self, sink: &dyn OutputSink) {
        self.serve_until(sink, false).await;
    }

    /// Moves bytes until both outputs are closed.
    pub(super) async fn drained(&mut self, sink: &dyn OutputSink) {
        self.serve_until(sink, true).await;
    }

    /// Moves bytes; ends when both outputs are closed if that is wanted, else never.
    pub(super) async fn serve_until(&mut self, sink: &dyn OutputSink, closed: bool) {
        std::future::poll_fn(|context| {
            self.poll(context, sink);
            if closed && self.are_closed() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await
    }

    /// Whether nobody can write to the outputs any more.
    pub(super) fn are_closed(&self) -> bool {
        self.out.is_none() && self.err.is_none()
    }

    /// Moves what can be moved now. The outputs take turns, so that an endless one does not starve the other;
    /// tokio's budget ends the loop when there is always more.
    fn poll(&mut self, context: &mut Context<'_>, sink: &dyn OutputSink) {
        self.poll_feed(context);
        let mut turn_bytes = READ_BYTES_MAX;
        loop {
            let buffer = &mut self.buffer[..turn_bytes];
            let [out_is_long, err_is_long] = &mut self.is_long;
            let out = poll_output(&mut self.out, out_is_long, Stream::Out, buffer, context, sink);
            let err = poll_output(&mut self.err, err_is_long, Stream::Err, buffer, context, sink);
            if !out && !err {
                return;
            }
            turn_bytes = if out && err { TURN_BYTES_MAX } else { READ_BYTES_MAX };
        }
    }

    fn poll_feed(&mut self, context: &mut Context<'_>) {
        while let Some((stdin, bytes)) = &mut self.feed {
            let rest = &bytes[self.fed_bytes..];
            let written = if rest.is_empty() { Poll::Ready(Ok(0)) } else { Pin::new(stdin).poll_write(context, rest) };
            match written {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) if count > 0 => self.fed_bytes += count,
                // All is written, or nobody reads: closing it is the end of file.
                Poll::Ready(_) => self.feed = None,
            }
        }
    }
}

/// Takes one chunk from an output, if one is there; says whether it is worth asking again.
fn poll_output(
    output: &mut Option<Receiver>,
    is_long: &mut bool,
    stream: Stream,
    buffer: &mut [u8],
    context: &mut Context<'_>,
    sink: &dyn OutputSink,
) -> bool {
    let Some(pipe) = output else { return false };
    let mut read = ReadBuf::new(buffer);
    match Pin::new(&mut *pipe).poll_read(context, &mut read) {
        Poll::Pending => false,
        Poll::Ready(Ok(())) if !read.filled().is_empty() => {
            if read.filled().len() == READ_BYTES_MAX && !*is_long {
                *is_long = true;
                // It works as it is, too.
                let _ = rustix::pipe::fcntl_setpipe_size(pipe, LONG_PIPE_BYTES);
            }
            sink.push(stream, read.filled());
            true
        }
        Poll::Ready(_) => {
            *output = None;
            false
        }
    }
}
