//! The spool of a call: takes the whole of an output that its tool does not hold, sanitised on its way to a new
//! artifact.
//!
//! Nothing is made before the first byte comes. Memory is one block of the sanitiser, however long the output is.
//! Beyond the most that an artifact may have, bytes are only counted, and the artifact says so at its end. The
//! artifact has no name yet: whether it gets one is decided when the call is settled.

use std::sync::{Arc, Mutex, PoisonError};

use toolwarden_actors::artifact_store::{ArtifactStore, NewArtifact, WrittenArtifact};
use toolwarden_tools::context::Spool;

use super::evidence::Original;
use super::sanitise::Sanitiser;
use super::sanitise::stream::CleanStream;

/// Room for the line that says how much is not kept, in bytes.
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
}

/// What was spooled, as a whole.
pub(crate) struct Spooled {
    pub(crate) artifact: WrittenArtifact,
    pub(crate) original: Original,
    /// How many pieces were taken out of it.
    pub(crate) removed: usize,
    /// How many bytes were too many.
    pub(crate) over_bytes: u64,
}

impl OutputSpool {
    pub(crate) fn new(sanitiser: Arc<Sanitiser>, store: Arc<ArtifactStore>) -> Self {
        Self { sanitiser, store, spooling: Mutex::new(None) }
    }

    /// All that was written; none when nothing was. What comes later is lost.
    pub(crate) fn finish(&self) -> Option<Spooled> {
        let spooling = self.spooling.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let Spooling { clean, mut writer } = spooling;
        let removed = clean.finish(&self.sanitiser, &mut |text| writer.write(text));
        if writer.over_bytes > 0 {
            let note = format!("\n[{} more bytes are not kept: an artifact has no more]\n", writer.over_bytes);
            writer.artifact.write(note.as_bytes());
        }
        let Writer { artifact, over_bytes, .. } = writer;
        let artifact = artifact.finish();
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
        let Spooling { clean, writer } = spooling.get_or_insert_with(|| Spooling {
            clean: CleanStream::default(),
            writer: Writer {
                room_bytes: self.store.artifact_bytes_max().saturating_sub(NOTE_BYTES_MAX),
                artifact: self.store.begin(),
                over_bytes: 0,
            },
        });
        let mut text = String::from_utf8_lossy(bytes);
        // Shown as tools show it: a NUL is data as often as not, and the sanitiser would take it away.
        if text.contains('\0') {
            text = text.replace('\0', "␀").into();
        }
        clean.push(&self.sanitiser, &text, &mut |text| writer.write(text));
    }
}

/// Writes as much as there is room for.
struct Writer {
    artifact: NewArtifact,
    room_bytes: u64,
    over_bytes: u64,
}

impl Writer {
    fn write(&mut self, text: &str) {
        let room = usize::try_from(self.room_bytes).unwrap_or(usize::MAX);
        let (fits, over) = text.split_at(text.floor_char_boundary(room));
        if !over.is_empty() {
            // Once something is left out, nothing follows it.
            self.room_bytes = 0;
            self.over_bytes += over.len() as u64;
        } else {
            self.room_bytes -= fits.len() as u64;
        }
        if !fits.is_empty() {
            self.artifact.write(fits.as_bytes());
        }
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

    use super::{OutputSpool, Sanitiser};

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
            "{}\n[1128 more bytes are not kept: an artifact has no more]\n",
            &"0123456789012345678 ".repeat(50)[..872]
        );
        assert_eq!(spooled.over_bytes, 1128);
        assert_eq!(spooled.original.digest(), &Digest::of(expected.as_bytes()));
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
