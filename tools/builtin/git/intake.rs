//! Where the output of git goes: taken as it comes, in bounded memory, however much there is.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::effects::processes::{OutputSink, Stream};

/// Most bytes of a list that are kept; what comes beyond is counted and dropped.
pub(super) const LIST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most bytes of git's complaints that are kept.
const COMPLAINT_BYTES_MAX: usize = 8 * 1024;

/// Takes standard output piece by piece.
pub(super) trait Intake: Default + Send + 'static {
    /// The next bytes.
    fn take(&mut self, bytes: &[u8]);
}

/// The start of a list, as bytes.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// What was kept.
    pub(super) bytes: Vec<u8>,
    /// How many bytes there were.
    total_bytes: usize,
}

impl Intake for Kept {
    fn take(&mut self, bytes: &[u8]) {
        self.total_bytes += bytes.len();
        let room = LIST_BYTES_MAX - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl Kept {
    /// Whether everything was kept.
    pub(super) fn is_whole(&self) -> bool {
        self.total_bytes == self.bytes.len()
    }

    /// The NUL-ended fields; one that was cut is left out.
    pub(super) fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let end = memchr::memrchr(0, &self.bytes);
        let fields = end.map(|end| self.bytes[..end].split(|byte| *byte == 0));
        fields.into_iter().flatten()
    }

    /// The first line, without its end.
    pub(super) fn first_line(&self) -> String {
        let line = self.bytes.split(|byte| matches!(byte, b'\n' | 0)).next().unwrap_or_default();
        shown(line)
    }
}

/// Hands standard output on and keeps the start of standard error.
#[derive(Debug, Default)]
pub(super) struct Sink<T> {
    state: Mutex<(T, Vec<u8>)>,
}

impl<T: Intake> OutputSink for Sink<T> {
    fn push(&self, stream: Stream, bytes: &[u8]) {
        let mut state = self.state();
        let (intake, complaint) = &mut *state;
        match stream {
            Stream::Out => intake.take(bytes),
            Stream::Err => {
                let room = COMPLAINT_BYTES_MAX - complaint.len();
                complaint.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        }
    }
}

impl<T: Intake> Sink<T> {
    pub(super) fn of(intake: T) -> Self {
        Self { state: Mutex::new((intake, Vec::new())) }
    }

    /// What was taken, and the complaints. What comes later is lost.
    pub(super) fn finish(&self) -> (T, String) {
        let (intake, complaint) = std::mem::take(&mut *self.state());
        (intake, String::from_utf8_lossy(&complaint).into_owned())
    }

    fn state(&self) -> MutexGuard<'_, (T, Vec<u8>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A text of git on one line, whatever it holds.
pub(super) fn shown(bytes: &[u8]) -> String {
    let odd = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    String::from_utf8_lossy(bytes).replace(odd, " ")
}

#[cfg(test)]
mod tests {
    use super::{COMPLAINT_BYTES_MAX, Intake as _, Kept, LIST_BYTES_MAX, Sink, shown};
    use crate::effects::processes::{OutputSink as _, Stream};

    #[test]
    fn memory_is_bounded_and_a_cut_field_is_left_out() {
        let mut kept = Kept::default();
        for _ in 0..100 {
            kept.take(&[b'x'; 100_000]);
            kept.take(b"\0");
        }
        assert_eq!((kept.bytes.len(), kept.is_whole()), (LIST_BYTES_MAX, false));
        assert!(kept.fields().all(|field| field.len() == 100_000));
        let sink = Sink::of(Kept::default());
        sink.push(Stream::Err, &[b'e'; 3 * COMPLAINT_BYTES_MAX]);
        sink.push(Stream::Out, b"a\0b\0");
        let (kept, complaint) = sink.finish();
        assert_eq!(complaint.len(), COMPLAINT_BYTES_MAX);
        assert_eq!(kept.fields().collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(Kept::default().fields().count(), 0);
    }

    #[test]
    fn one_line_stays_one_line() {
        assert_eq!(shown("a\nb\u{1b}[31m\u{202e}\u{e4}".as_bytes()), "a b [31m ä");
        assert_eq!(shown(b"\xff"), "\u{fffd}");
    }
}
