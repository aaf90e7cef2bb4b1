//! The pipes of one running command, served from a single task: both outputs in turns, and standard input beside
//! them, so that neither a command that never reads nor one that never ends a line can block anything.
//!
//! An output that fills its pipe gets a longer one, and is from then on looked at in pauses and not at every write (see
//! [`super::pace`]). All state is in [`Pipes`]: a future of it may be dropped at any await and the next one goes on where
//! it was.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::effects::processes::pace::{Pace, read_now};
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
    outputs: [Output; 2],
    /// The pauses, once an output is long.
    pace: Option<Pace>,
    /// Standard input and all that is to be written to it.
    feed: Option<(Sender, Vec<u8>)>,
    fed_bytes: usize,
    buffer: Box<[u8]>,
}

/// One output.
enum Output {
    /// The task is woken when something comes.
    Awaited(Receiver),
    /// It is looked at after each pause.
    Paced(OwnedFd),
    /// Nobody can write to it any more.
    Closed,
}

/// What a look at an output brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// So many bytes.
    Bytes(usize),
    /// Nothing: it is empty, closed, or not looked at now.
    Nothing,
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
            outputs: [
                Output::Awaited(Receiver::from_owned_fd_unchecked(out)?),
                Output::Awaited(Receiver::from_owned_fd_unchecked(err)?),
            ],
            pace: None,
            feed,
            fed_bytes: 0,
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
        self.outputs.iter().all(|output| matches!(output, Output::Closed))
    }

    /// Moves what can be moved now. The outputs take turns, so that an endless one does not starve the other;
    /// tokio's budget ends the loop when there is always more.
    fn poll(&mut self, context: &mut Context<'_>, sink: &dyn OutputSink) {
        self.poll_feed(context);
        loop {
            self.move_awaited(context, sink);
            if self.look_at_paced(context, sink) {
                return;
            }
        }
    }

    fn move_awaited(&mut self, context: &mut Context<'_>, sink: &dyn OutputSink) {
        let mut turn_bytes = READ_BYTES_MAX;
        loop {
            let [out, err] = self.turn(turn_bytes, sink, |output, buffer| output.poll(buffer, context));
            if out == Look::Nothing && err == Look::Nothing {
                return;
            }
            self.pace_long_ones([out, err]);
            turn_bytes = turn_after(out, err);
        }
    }

    /// Looks at each output once.
    fn turn(
        &mut self,
        turn_bytes: usize,
        sink: &dyn OutputSink,
        mut look: impl FnMut(&mut Output, &mut [u8]) -> Look,
    ) -> [Look; 2] {
        let mut looks = [Look::Nothing; 2];
        for ((output, stream), seen) in self.outputs.iter_mut().zip([Stream::Out, Stream::Err]).zip(&mut looks) {
            let buffer = &mut self.buffer[..turn_bytes];
            *seen = look(output, buffer);
            if let Look::Bytes(count) = seen {
                sink.push(stream, &buffer[..*count]);
            }
        }
        looks
    }

    /// After a pause, moves what the paced outputs hold, a pipe's length at the most, and begins the next one. False
    /// when there are none any more that were paced just now: they are to be awaited.
    fn look_at_paced(&mut self, context: &mut Context<'_>, sink: &dyn OutputSink) -> bool {
        match &mut self.pace {
            Some(pace) => {
                if !pace.is_over(context) {
                    return true;
                }
            }
            None => return true,
        }
        let (mut moved_bytes, mut turn_bytes) = (0, READ_BYTES_MAX);
        while moved_bytes < LONG_PIPE_BYTES {
            let [out, err] = self.turn(turn_bytes, sink, |output, buffer| output.read_paced(buffer));
            let bytes = [out, err].map(|look| if let Look::Bytes(count) = look { count } else { 0 });
            if bytes == [0, 0] {
                break;
            }
            moved_bytes += bytes[0] + bytes[1];
            turn_bytes = turn_after(out, err);
        }
        let is_paced = |output: &Output| matches!(output, Output::Paced(_));
        if self.outputs.iter().any(is_paced)
            && let Some(pace) = &mut self.pace
            && pace.begin(moved_bytes > 0)
        {
            if pace.is_over(context) {
                context.waker().wake_by_ref();
            }
            return true;
        }
        self.pace = None;
        self.outputs.iter_mut().for_each(Output::await_again);
        false
    }

    /// Gives outputs that fill their pipes longer ones, and pauses.
    fn pace_long_ones(&mut self, looks: [Look; 2]) {
        for (output, look) in self.outputs.iter_mut().zip(looks) {
            if look == Look::Bytes(READ_BYTES_MAX) && matches!(output, Output::Awaited(_)) {
                if self.pace.is_none() {
                    // Where there is no timer, it is awaited as before.
                    self.pace = Pace::new().ok();
                }
                if self.pace.is_some() {
                    output.pace();
                }
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

/// How much is taken in a turn after one that brought this.
fn turn_after(out: Look, err: Look) -> usize {
    match (out, err) {
        (Look::Bytes(_), Look::Bytes(_)) => TURN_BYTES_MAX,
        _ => READ_BYTES_MAX,
    }
}

impl Output {
    /// Takes one chunk, if it is awaited and one is there; else the task is woken when one comes.
    fn poll(&mut self, buffer: &mut [u8], context: &mut Context<'_>) -> Look {
        let Self::Awaited(pipe) = self else { return Look::Nothing };
        let mut read = ReadBuf::new(buffer);
        match Pin::new(pipe).poll_read(context, &mut read) {
            Poll::Pending => Look::Nothing,
            Poll::Ready(Ok(())) if !read.filled().is_empty() => Look::Bytes(read.filled().len()),
            Poll::Ready(_) => {
                *self = Self::Closed;
                Look::Nothing
            }
        }
    }

    /// Takes one chunk, if it is paced and one is there.
    fn read_paced(&mut self, buffer: &mut [u8]) -> Look {
        let Self::Paced(pipe) = self else { return Look::Nothing };
        match read_now(pipe, buffer) {
            Ok(None) => Look::Nothing,
            Ok(Some(count)) if count > 0 => Look::Bytes(count),
            _ => {
                *self = Self::Closed;
                Look::Nothing
            }
        }
    }

    /// Gives it a long pipe and takes it out of the runtime's sight.
    fn pace(&mut self) {
        *self = match std::mem::replace(self, Self::Closed) {
            Self::Awaited(pipe) => {
                // It works as it is, too.
                let _ = rustix::pipe::fcntl_setpipe_size(&pipe, LONG_PIPE_BYTES);
                match pipe.into_nonblocking_fd() {
                    Ok(pipe) => Self::Paced(pipe),
                    // What cannot be taken back cannot be read either.
                    Err(_) => Self::Closed,
                }
            }
            other => other,
        };
    }

    /// Puts it into the runtime's sight again.
    fn await_again(&mut self) {
        *self = match std::mem::replace(self, Self::Closed) {
            Self::Paced(pipe) => Receiver::from_owned_fd_unchecked(pipe).map_or(Self::Closed, Self::Awaited),
            other => other,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::task::Poll;

    use super::{LONG_PIPE_BYTES, Output, Pipes};
    use crate::effects::processes::{OutputSink, Stream};

    /// Keeps what came on standard error and counts the rest, whose bytes say where they belong.
    #[derive(Default)]
    struct Counting {
        out: AtomicUsize,
        err: Mutex<Vec<u8>>,
    }

    impl OutputSink for Counting {
        fn push(&self, stream: Stream, bytes: &[u8]) {
            match stream {
                Stream::Err => self.err.lock().unwrap().extend_from_slice(bytes),
                Stream::Out => {
                    let at = self.out.fetch_add(bytes.len(), Ordering::Relaxed);
                    assert!(bytes.iter().zip(at..).all(|(byte, at)| usize::from(*byte) == at % 251), "at {at}");
                }
            }
        }
    }

    // Long enough to be looked at in pauses; then quiet, and awaited again; then a word on each stream, and the end.
    #[tokio::test]
    async fn a_flood_arrives_whole_and_so_does_what_comes_late() {
        let total = 6 * LONG_PIPE_BYTES + 12_345;
        let (mut pipes, far) = Pipes::open(None).unwrap();
        let (go, goes) = channel();
        let writer = std::thread::spawn(move || {
            let (mut out, mut err) = (std::fs::File::from(far.out), std::fs::File::from(far.err));
            let bytes: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
            bytes.chunks(8192).for_each(|part| out.write_all(part).unwrap());
            goes.recv().unwrap();
            err.write_all(b"late").unwrap();
            out.write_all(&[(total % 251) as u8]).unwrap();
        });
        let counting = Counting::default();
        let (mut was_paced, mut rounds) = (false, 0_u64);
        std::future::poll_fn(|context| {
            pipes.poll(context, &counting);
            rounds += 1;
            let is_paced = pipes.outputs.iter().any(|output| matches!(output, Output::Paced(_)));
            was_paced |= is_paced;
            let is_all = counting.out.load(Ordering::Relaxed) == total;
            if is_all && !is_paced { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert!(was_paced, "it was never long");
        assert!(rounds < 768, "{rounds} wakings for 768 writes");
        go.send(()).unwrap();
        pipes.drained(&counting).await;
        writer.join().unwrap();
        assert_eq!(
            (counting.out.load(Ordering::Relaxed), counting.err.lock().unwrap().as_slice()),
            (total + 1, &b"late"[..])
        );
        assert!(pipes.are_closed());
    }
}
