//! The pipes of one running command, served from a single task: both outputs in turns, and standard input beside
//! them, so that neither a command that never reads nor one that never ends a line can block anything.
//!
//! All state is in [`Pipes`]: a future of it may be dropped at any await and the next one goes on where it was.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};

use crate::effects::processes::{OutputSink, Stream};

/// Most bytes taken from a pipe at once: what a pipe holds.
const READ_BYTES_MAX: usize = 64 * 1024;

/// The ends of a command's standard streams that are held here.
pub(super) struct Pipes {
    out: Option<ChildStdout>,
    err: Option<ChildStderr>,
    /// Standard input and all that is to be written to it.
    feed: Option<(ChildStdin, Vec<u8>)>,
    fed_bytes: usize,
    buffer: Box<[u8]>,
}

impl Pipes {
    /// Takes the pipes out of a child; `input` is written to its standard input, if that is a pipe.
    pub(super) fn of(child: &mut Child, input: Option<Vec<u8>>) -> Self {
        Self {
            out: child.stdout.take(),
            err: child.stderr.take(),
            feed: child.stdin.take().zip(input),
            fed_bytes: 0,
            buffer: vec![0; READ_BYTES_MAX].into_boxed_slice(),
        }
    }

    /// Moves bytes for as long as it is polled; never ends.
    pub(super) async fn serve(&mut self, sink: &dyn OutputSink) {
        std::future::poll_fn(|context| {
            self.poll(context, sink);
            Poll::Pending
        })
        .await
    }

    /// Moves bytes until both outputs are closed.
    pub(super) async fn drained(&mut self, sink: &dyn OutputSink) {
        std::future::poll_fn(|context| {
            self.poll(context, sink);
            if self.are_closed() { Poll::Ready(()) } else { Poll::Pending }
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
        loop {
            let out = poll_output(&mut self.out, Stream::Out, &mut self.buffer, context, sink);
            let err = poll_output(&mut self.err, Stream::Err, &mut self.buffer, context, sink);
            if !out && !err {
                return;
            }
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
fn poll_output<R: AsyncRead + Unpin>(
    output: &mut Option<R>,
    stream: Stream,
    buffer: &mut [u8],
    context: &mut Context<'_>,
    sink: &dyn OutputSink,
) -> bool {
    let Some(pipe) = output else { return false };
    let mut read = ReadBuf::new(buffer);
    match Pin::new(pipe).poll_read(context, &mut read) {
        Poll::Pending => false,
        Poll::Ready(Ok(())) if !read.filled().is_empty() => {
            sink.push(stream, read.filled());
            true
        }
        Poll::Ready(_) => {
            *output = None;
            false
        }
    }
}
