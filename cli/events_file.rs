//! `--events FILE`: every event as one line of JSON, in the journal's order.
//!
//! An entry is in the file when the journal acknowledges it, but for pieces of text, which come in floods: they
//! wait for the next entry of another kind. The first failure ends the recording and is told once, by the journal.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;
use toolwarden::event::{Event, EventKind, EventLine};
use toolwarden_actors::journal::{Entry, JournalSink};

/// Bytes of lines that are held back at most.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// The file, open for as long as the runtime may start a journal.
pub(crate) struct EventsFile {
    path: PathBuf,
    file: File,
}

/// The file cannot be written.
#[derive(Debug, Error)]
#[error("cannot write events to {path}: {source}. Name another file with --events")]
pub(crate) struct EventsFileError {
    path: String,
    source: io::Error,
}

impl EventsFile {
    /// Makes the file, or empties it.
    ///
    /// # Errors
    /// [`EventsFileError`].
    #[expect(clippy::disallowed_methods, reason = "a file that the person names on the command line")]
    pub(crate) fn create(path: &Path) -> Result<Self, EventsFileError> {
        let fail = |source| EventsFileError { path: path.display().to_string(), source };
        // Emptied now, appended to later: a journal that is started again goes on where the last one ended.
        drop(OpenOptions::new().write(true).create(true).truncate(true).open(path).map_err(fail)?);
        let file = OpenOptions::new().append(true).open(path).map_err(fail)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// A sink for a journal that starts; none when the system has no descriptor for it.
    pub(crate) fn sink(&self) -> Option<Box<dyn JournalSink<Event>>> {
        match self.file.try_clone() {
            Ok(file) => {
                let lines = BufWriter::with_capacity(HELD_BYTES_MAX, file);
                Some(Box::new(EventLines { path: self.path.clone(), lines }))
            }
            Err(error) => {
                tracing::error!(file = %self.path.display(), %error, "events are not recorded");
                None
            }
        }
    }
}

/// The lines of one journal; what is held back is written when it goes.
struct EventLines {
    path: PathBuf,
    lines: BufWriter<File>,
}

impl JournalSink<Event> for EventLines {
    fn append(&mut self, entry: &Entry<Event>) -> io::Result<()> {
        self.write(entry).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display())))
    }
}

impl EventLines {
    fn write(&mut self, entry: &Entry<Event>) -> io::Result<()> {
        serde_json::to_writer(&mut self.lines, &EventLine::from(entry))?;
        self.lines.write_all(b"\n")?;
        match entry.event.kind {
            EventKind::TextDelta { .. } | EventKind::ReasoningDelta { .. } | EventKind::ToolOutputDelta { .. } => {
                Ok(())
            }
            _ => self.lines.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests look at real files")]

    use std::path::Path;

    use serde_json::Value;
    use toolwarden::event::{Event, EventKind};
    use toolwarden_actors::journal::Entry;

    use super::EventsFile;

    fn entry(sequence: u64, kind: EventKind) -> Entry<Event> {
        let event = Event { root_session: "s".into(), session: "s".into(), run: None, kind };
        Entry { sequence, unix_ms: 7, event }
    }

    #[test]
    fn lines_are_whole_and_a_second_journal_goes_on_after_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        std::fs::write(&path, "old").unwrap();
        let lines = || -> Vec<Value> {
            let text = std::fs::read_to_string(&path).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let file = EventsFile::create(&path).unwrap();
        let mut sink = file.sink().unwrap();
        sink.append(&entry(1, EventKind::TextDelta { delta: "held".into() })).unwrap();
        assert!(lines().is_empty(), "a piece of text waits");
        sink.append(&entry(2, EventKind::TurnStart { turn: 1 })).unwrap();
        assert_eq!(lines().len(), 2);
        sink.append(&entry(3, EventKind::TextDelta { delta: "last".into() })).unwrap();
        drop(sink);
        file.sink().unwrap().append(&entry(1, EventKind::SessionClosed)).unwrap();
        let lines = lines();
        let types: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["text_delta", "turn_start", "text_delta", "session_closed"]);
        assert_eq!((&lines[1]["sequence"], &lines[1]["timestamp_ms"]), (&2.into(), &7.into()));
    }

    #[test]
    fn what_cannot_be_written_says_which_file() {
        let error = EventsFile::create(Path::new("/nowhere/at/all")).err().unwrap().to_string();
        assert!(error.contains("/nowhere/at/all") && error.contains("--events"), "{error}");
        let full = EventsFile::create(Path::new("/dev/full")).unwrap();
        let error = full.sink().unwrap().append(&entry(1, EventKind::SessionClosed)).unwrap_err();
        assert!(error.to_string().starts_with("/dev/full: "), "{error}");
    }
}
