//! Where the bytes of a running command go: into the capture, on to whoever watches, and all of them to the spool
//! once there are more than the capture's head holds.
//!
//! A watcher gets text at the pace of the tool, not of the command: what is new waits here, bounded, until it is
//! flushed. It is a view; the result is made from the capture alone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::capture::{Capture, CaptureReport};
use crate::context::{DeltaStreams, Progress, Spool};
use crate::effects::processes::{Left, Leftover, OutputSink, Stream};
use crate::outcome::Excerpt;
use crate::screen_text;
use crate::text::lossy;

/// Most bytes shown at once; what comes beyond it before the next flush is counted and not shown.
const SHOWN_BYTES_MAX: usize = 16 * 1024;

/// Records one command.
pub(super) struct Recorder {
    state: Mutex<State>,
    news: Notify,
    spool: Arc<dyn Spool>,
    leftover: Leftover,
}

#[derive(Debug, Default)]
struct State {
    capture: Capture,
    /// Whole characters that were not shown yet, and whose they are, in order.
    fresh: Vec<u8>,
    runs: Vec<(Stream, usize)>,
    unshown_bytes: usize,
    /// Whether all bytes so far are in the spool.
    spooled: bool,
}

impl OutputSink for Recorder {
    fn push(&self, stream: Stream, bytes: &[u8]) {
        let mut state = self.state();
        let State { capture, fresh, runs, unshown_bytes, spooled } = &mut *state;
        let held_bytes = capture.whole().map_or(0, <[u8]>::len);
        let whole = capture.push(stream, bytes);
        if !*spooled && capture.whole().is_none() {
            self.spool.write(&capture.head()[..held_bytes]);
            *spooled = true;
        }
        if *spooled {
            self.spool.write(&whole);
        }
        let end = if *unshown_bytes > 0 { 0 } else { shown_bytes(&whole, SHOWN_BYTES_MAX - fresh.len()) };
        fresh.extend_from_slice(&whole[..end]);
        match runs.last_mut() {
            Some((of, count)) if *of == stream => *count += end,
            _ if end > 0 => runs.push((stream, end)),
            _ => {}
        }
        *unshown_bytes += whole.len() - end;
        drop(state);
        self.news.notify_one();
    }

    fn left(&self, _left: &Left) -> Leftover {
        self.leftover
    }
}

impl Recorder {
    /// Records into this spool; `leftover` is what becomes of processes that the command leaves running.
    pub(super) fn new(spool: Arc<dyn Spool>, leftover: Leftover) -> Self {
        Self { state: Mutex::default(), news: Notify::new(), spool, leftover }
    }

    /// Waits until there is something to flush.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Shows what is new, if anything is.
    pub(super) fn flush(&self, progress: &dyn Progress) {
        let (fresh, runs, unshown_bytes) = {
            let mut state = self.state();
            let State { fresh, runs, unshown_bytes, .. } = &mut *state;
            (std::mem::take(fresh), std::mem::take(runs), std::mem::take(unshown_bytes))
        };
        let settled = |bytes: &[u8]| screen_text::settled(&lossy(bytes)).into_owned();
        let mut text = settled(&fresh);
        let streams = match runs[..] {
            [] => None,
            [(stream, _)] => Some(DeltaStreams::One(stream)),
            _ => {
                let [mut out, mut err] = [Vec::new(), Vec::new()];
                let mut rest = fresh.as_slice();
                for (stream, count) in runs {
                    let (run, behind) = rest.split_at(count);
                    if stream == Stream::Out { &mut out } else { &mut err }.extend_from_slice(run);
                    rest = behind;
                }
                Some(DeltaStreams::Both { out: settled(&out), err: settled(&err) })
            }
        };
        if unshown_bytes > 0 {
            text.push_str(&format!("\n[… {unshown_bytes} bytes came too fast to be shown here …]\n"));
        }
        if !text.is_empty() {
            progress.streams(&text, streams);
        }
    }

    /// The text for the model, and what became of the output. What comes later is lost. When the text is less than
    /// the whole, the whole is in the spool by then.
    pub(super) fn finish(&self) -> (String, CaptureReport) {
        let State { capture, spooled, .. } = std::mem::take(&mut *self.state());
        let whole = if spooled { Vec::new() } else { capture.whole().unwrap_or_default().to_vec() };
        let rest = capture.unfinished().concat();
        let (text, report) = capture.finish();
        if spooled || report.excerpt() != Excerpt::Whole {
            self.spool.write(&whole);
            self.spool.write(&rest);
        }
        (text, report)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many of these bytes fit in the room without a part of a character at the end.
fn shown_bytes(bytes: &[u8], room: usize) -> usize {
    if bytes.len() <= room {
        return bytes.len();
    }
    match std::str::from_utf8(&bytes[..room]) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => room,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::{Recorder, SHOWN_BYTES_MAX};
    use crate::capture::HEAD_BYTES_MAX;
    use crate::context::{DeltaStreams, NoSpool, Progress, Spool};
    use crate::effects::processes::{Leftover, OutputSink as _, Stream::Err, Stream::Out};
    use crate::outcome::Excerpt;

    #[derive(Default)]
    struct Spooled(Mutex<Vec<u8>>);

    impl Spool for Spooled {
        fn write(&self, bytes: &[u8]) {
            self.0.lock().unwrap().extend_from_slice(bytes);
        }
    }

    /// What a spool got of these chunks, and how the text differs from it.
    fn spooled<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Excerpt) {
        let spool = Arc::new(Spooled::default());
        let recorder = Recorder::new(spool.clone(), Leftover::Stop);
        chunks.into_iter().for_each(|chunk| recorder.push(Out, chunk));
        let excerpt = recorder.finish().1.excerpt();
        let bytes = std::mem::take(&mut *spool.0.lock().unwrap());
        (bytes, excerpt)
    }

    // Cases C016 and C020: whatever the text lacks, the spool has.
    #[test]
    fn the_spool_gets_every_byte_that_the_text_lacks() {
        let long: Vec<u8> = (0..60_000).flat_map(|n: u32| format!("{n} 界\n").into_bytes()).collect();
        for step in [1000, HEAD_BYTES_MAX, HEAD_BYTES_MAX + 1, long.len()] {
            let (bytes, excerpt) = spooled(long.chunks(step));
            assert!(bytes == long, "{step}");
            assert!(matches!(excerpt, Excerpt::Cut { shown_bytes: 90_000..=102_400 }), "{excerpt:?}");
        }
        let line = vec![b'x'; 200_000];
        assert_eq!(spooled(line.chunks(4096)), (line.clone(), Excerpt::RewrittenAndCut));
        assert_eq!(spooled([&line[..9000]]), (line[..9000].to_vec(), Excerpt::Rewritten));
        let drawn = b"10%\r50%\r100%\n\xe4\xb8";
        assert_eq!(spooled([&drawn[..]]), (drawn.to_vec(), Excerpt::Rewritten));
        assert_eq!(spooled([&b"\x1b[31mred\x1b[0m\r\n"[..]]), (Vec::new(), Excerpt::Whole));
    }

    // Both streams together and each alone, however they take turns.
    #[test]
    fn streams_are_shown_together_and_apart() {
        #[derive(Default)]
        struct Apart(Mutex<Vec<(String, Option<DeltaStreams>)>>);
        impl Progress for Apart {
            fn delta(&self, _text: &str) {}
            fn streams(&self, text: &str, streams: Option<DeltaStreams>) {
                self.0.lock().unwrap().push((text.to_owned(), streams));
            }
        }
        let (recorder, shown) = (Recorder::new(Arc::new(NoSpool), Leftover::Stop), Apart::default());
        recorder.push(Out, b"a\n");
        recorder.push(Out, b"b\n");
        recorder.flush(&shown);
        recorder.push(Err, b"c\n");
        recorder.flush(&shown);
        recorder.push(Out, b"d\xe4\xb8");
        recorder.push(Err, b"e");
        recorder.push(Out, b"\xadf");
        recorder.flush(&shown);
        let both = DeltaStreams::Both { out: "d中f".into(), err: "e".into() };
        let expected = [("a\nb\n", DeltaStreams::One(Out)), ("c\n", DeltaStreams::One(Err)), ("de中f", both)];
        let expected = expected.map(|(text, streams)| (text.to_owned(), Some(streams)));
        assert_eq!(*shown.0.lock().unwrap(), expected);
    }

    #[derive(Default)]
    struct Shown(Mutex<Vec<String>>);

    impl Progress for Shown {
        fn delta(&self, text: &str) {
            self.0.lock().unwrap().push(text.to_owned());
        }
    }

    #[test]
    fn deltas_are_whole_characters_and_bounded() {
        let (recorder, shown) = (Recorder::new(Arc::new(NoSpool), Leftover::Stop), Shown::default());
        recorder.flush(&shown);
        recorder.push(Out, b"a\xe4\xb8");
        recorder.flush(&shown);
        recorder.push(Out, b"\xad\x1b[31mb");
        recorder.flush(&shown);
        recorder.push(Out, "é".repeat(SHOWN_BYTES_MAX).as_bytes());
        recorder.push(Out, b"more");
        recorder.flush(&shown);
        let shown = shown.0.into_inner().unwrap();
        assert_eq!(shown[..2], ["a", "中b"]);
        assert_eq!(shown.len(), 3);
        let unshown = SHOWN_BYTES_MAX + 4;
        let expected =
            format!("{}\n[… {unshown} bytes came too fast to be shown here …]\n", "é".repeat(SHOWN_BYTES_MAX / 2));
        assert_eq!(shown[2], expected);
        assert_eq!(recorder.finish().1.out.total_bytes as usize, 3 + 7 + 4 + 2 * SHOWN_BYTES_MAX);
    }
}
