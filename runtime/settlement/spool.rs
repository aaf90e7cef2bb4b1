//! The spool of a call: takes the whole of an output that its tool does not hold, sanitised on its way to a new
//! artifact.
//!
//! Nothing is made before the first byte comes. Memory is one block of the sanitiser, however long the output is.
//! Beyond [`OUTPUT_BYTES_MAX`], bytes are only counted, and the artifact says so at its end: a command that never
//! stops writing must neither fill the disk nor push out what other calls have kept, and is read as fast as its pipe
//! gives. The artifact has no name yet: whether it gets one is decided when the call is settled.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use toolwarden_actors::artifact_store::{ArtifactStore, NewArtifact, WrittenArtifact};
use toolwarden_tools::context::Spool;
use toolwarden_tools::text::lossy;

use super::evidence::Original;
use super::sanitise::Sanitiser;
use super::sanitise::stream::CleanStream;

/// Most bytes that are kept of an output, unless the store takes less: as much as the largest file that tools read.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Room for the line that says how much was written, in bytes.
const NOTE_BYTES_MAX: u64 = 128;

/// The spool of one call.
pub(crate) struct OutputSpool {
    sanitiser: Arc<Sanitiser>,
    store: Arc<ArtifactStore>,
    spooling: Mutex<Option<Spooling>>,
}

struct Spooling {
    clean: CleanStream,
    writer: Writer,
    /// How many bytes came.
    total_bytes: u64,
}

/// What was spooled, as a whole.
pub(crate) struct Spooled {
    pub(crate) artifact: WrittenArtifact,
    pub(crate) original: Original,
    /// How many pieces were taken out of it.
    pub(crate) removed: usize,
    /// How many bytes came beyond those that are kept; none when all were kept.
    pub(crate) over_bytes: u64,
}

impl OutputSpool {
    pub(crate) fn new(sanitiser: Arc<Sanitiser>, store: Arc<ArtifactStore>) -> Self {
        Self { sanitiser, store, spooling: Mutex::new(None) }
    }

    /// All that was written; none when nothing was. What comes later is lost.
    pub(crate) fn finish(&self) -> Option<Spooled> {
        let spooling = self.spooling.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let Spooling { clean, mut writer, total_bytes } = spooling;
        let removed = clean.finish(&self.sanitiser, &mut |text| writer.write(text));
        let mut over_bytes = 0;
        if writer.is_full {
            over_bytes = total_bytes.saturating_sub(writer.kept_bytes).max(1);
            let note = format!("\n[no more is kept of this output, which had {total_bytes} bytes]\n");
            writer.artifact.write(note.as_bytes());
        }
        let artifact = writer.artifact.finish();
        let bytes = usize::try_from(artifact.bytes()).unwrap_or(usize::MAX);
        let original = Original::known(bytes, artifact.digest().clone());
        Some(Spooled { artifact, original, removed, over_bytes })
    }
}

impl Spool for OutputSpool {
    fn write(&self, bytes: &[u8]) {
        let mut spooling = self.spooling.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.is_empty() {
            return;
        }
        let Spooling { clean, writer, total_bytes } = spooling.get_or_insert_with(|| Spooling {
            clean: CleanStream::default(),
            writer: Writer {
                room_bytes: self.store.artifact_bytes_max().min(OUTPUT_BYTES_MAX).saturating_sub(NOTE_BYTES_MAX),
                artifact: self.store.begin(),
                kept_bytes: 0,
                is_full: false,
            },
            total_bytes: 0,
        });
        *total_bytes += bytes.len() as u64;
        if writer.is_full {
            return;
        }
        let mut text = lossy(bytes);
        // Shown as tools show it: a NUL is data as often as not, and the sanitiser would take it away.
        if text.contains('\0') {
            text = text.replace('\0', "␀").into();
        }
        // Nothing more comes once it is full.
        let _ = clean.push(&self.sanitiser, &text, &mut |text| writer.write(text));
    }
}

/// Writes as much as there is room for.
struct Writer {
    artifact: NewArtifact,
    room_bytes: u64,
    kept_bytes: u64,
    /// Something did not fit; nothing follows it.
    is_full: bool,
}

impl Writer {
    fn write(&mut self, text: &str) -> ControlFlow<()> {
        let room = usize::try_from(self.room_bytes - self.kept_bytes).unwrap_or(usize::MAX);
        let fits = &text[..text.floor_char_boundary(room)];
        self.is_full = fits.len() < text.len();
        self.kept_bytes += fits.len() as u64;
        if !fits.is_empty() {
            self.artifact.write(fits.as_bytes());
        }
        if self.is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use toolwarden_actors::artifact_store::{ArtifactLimits, ArtifactStore};
    use toolwarden_tools::context::Spool as _;
    use toolwarden_tools::digest::Digest;
    use toolwarden_tools::effects::blobs::memory::MemoryBlobs;
    use toolwarden_tools::effects::clock::SystemClock;

    use super::{OutputSpool, Sanitiser, Spooled};

    fn spool(artifact_bytes_max: u64) -> OutputSpool {
        let limits = ArtifactLimits { bytes_max: 1 << 30, artifact_bytes_max, age_max: Duration::from_secs(1) };
        let blobs = MemoryBlobs::new(Arc::new(SystemClock::new()), 1 << 20);
        let sanitiser = Sanitiser::new(vec!["zz9-plural-z".into()], &[]).unwrap();
        OutputSpool::new(Arc::new(sanitiser), Arc::new(ArtifactStore::new(Arc::new(blobs), limits)))
    }

    #[test]
    fn what_is_spooled_is_sanitised_across_pieces() {
        let spool = spool(1 << 20);
        assert!(spool.finish().is_none());
        spool.write(b"a zz9-pl");
        spool.write(b"ural-z b\xff\0\x1b[31m");
        let spooled = spool.finish().unwrap();
        let expected = "a [redacted] b\u{fffd}␀";
        assert_eq!(
            (spooled.original.bytes(), spooled.original.digest()),
            (expected.len(), &Digest::of(expected.as_bytes()))
        );
        assert_eq!((spooled.removed, spooled.over_bytes), (2, 0));
        assert!(spool.finish().is_none(), "it was taken");
    }

    #[test]
    fn what_is_too_much_is_counted_and_said() {
        let spool = spool(1000);
        (0..100).for_each(|_| spool.write(b"0123456789012345678 "));
        let spooled = spool.finish().unwrap();
        let expected = format!(
            "{}\n[no more is kept of this output, which had 2000 bytes]\n",
            &"0123456789012345678 ".repeat(50)[..872]
        );
        assert_eq!(spooled.over_bytes, 1128);
        assert_eq!(spooled.original.digest(), &Digest::of(expected.as_bytes()));
    }

    // Whoever reads a pipe gets other pieces each time.
    #[test]
    fn where_an_output_is_cut_does_not_depend_on_its_pieces() {
        let text = "words zz9-plural-z of a long 界\0 output\n".repeat(10_000);
        let spooled = |piece_bytes: usize| {
            let spool = spool(100_000);
            text.as_bytes().chunks(piece_bytes).for_each(|piece| spool.write(piece));
            let Spooled { original, removed, over_bytes, .. } = spool.finish().unwrap();
            (original.bytes(), original.digest().clone(), removed, over_bytes)
        };
        let expected = spooled(text.len());
        assert!(expected.2 > 2000 && expected.3 > 200_000, "{expected:?}");
        // Whole characters, as the recorder of a command gives them.
        let line_bytes = text.find('\n').unwrap() + 1;
        for piece_bytes in [1, 7, 100, 1703, 5000].map(|lines| lines * line_bytes) {
            assert_eq!(spooled(piece_bytes), expected, "{piece_bytes}");
        }
    }

    #[test]
    fn a_store_without_room_does_not_change_the_figures() {
        let spool = spool(1 << 30);
        let text = "words of a long output\n".repeat(100_000);
        text.as_bytes().chunks(10_000).for_each(|part| spool.write(part));
        let spooled = spool.finish().unwrap();
        assert_eq!((spooled.original.bytes(), spooled.original.digest()), (text.len(), &Digest::of(text.as_bytes())));
    }
}
