//! The log of one run: records as JSON lines, each with the next number, durable before anybody acts on it.
//!
//! A last line without its end was never acknowledged and is cut. Everything else that is not as it was written (a
//! number out of order, a line that is no record) is damage, and is refused by its line.

use std::io::ErrorKind;

use thiserror::Error;

use crate::effects::files::{FileError, Files, LogFile};
use crate::workflow::event::{Entry, Event};
use crate::workflow::{LOG_BYTES_MAX, RUN_ID_CHARS_MAX};
use crate::workspace_path::WorkspacePath;

/// Where logs stand in a workspace.
pub const FOLDER: &str = ".a3s/workflow";

/// Where records go.
pub trait Records: Send + Sync {
    /// Puts records at the end; they are durable when this returns. `expected` is the number of the last record before.
    ///
    /// # Errors
    /// [`LogError`]; none of the records counts as written then.
    fn append(&mut self, expected: u64, entries: &[Entry]) -> Result<(), LogError>;

    /// Whether the records outlive the process.
    fn is_durable(&self) -> bool;
}

/// Why a log cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LogError {
    /// Not the id of a run.
    #[error("{0:?} is no run_id; take 1 to {RUN_ID_CHARS_MAX} of A-Z a-z 0-9 _ -")]
    RunId(String),
    /// Another call drives the run.
    #[error("run {0:?} is being driven by another call; wait for its end")]
    Held(String),
    /// It is not as it was written.
    #[error("the log of run {run_id:?} is damaged in line {line} ({reason}); take another run_id, or mend the file")]
    Damaged {
        /// Which run.
        run_id: String,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// Somebody else has written meanwhile.
    #[error("the log of the run has record {found}, where {expected} was expected to be the last; ask again")]
    Sequence {
        /// What was expected.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// The file system said no.
    #[error("the log of the run cannot be used: {0}")]
    Io(String),
    /// It is full.
    #[error("the log of the run is longer than {LOG_BYTES_MAX} bytes; end it with less in each step")]
    Full,
}

/// Whether an id can be the id of a run: it becomes the name of a file.
///
/// # Errors
/// [`LogError::RunId`].
pub fn check_run_id(run_id: &str) -> Result<(), LogError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    match (1..=RUN_ID_CHARS_MAX).contains(&run_id.len()) && run_id.bytes().all(fits) {
        true => Ok(()),
        false => Err(LogError::RunId(run_id.to_owned())),
    }
}

/// Opens the log of a run in a workspace: what is there, and where more goes. Where a workspace keeps no logs (it is
/// not on this machine, or may not be written), the records are kept for as long as the call takes.
///
/// # Errors
/// [`LogError`].
pub fn open(files: &dyn Files, run_id: &str) -> Result<(Vec<Entry>, Box<dyn Records>), LogError> {
    check_run_id(run_id)?;
    let mut file = match files.open_log(&path_of(run_id)?) {
        Ok(file) => file,
        Err(FileError::Held { .. }) => return Err(LogError::Held(run_id.to_owned())),
        Err(FileError::Unsupported { .. }) => {
            return Ok((Vec::new(), Box::new(MemoryRecords { last: 0 })));
        }
        Err(error) => return Err(LogError::Io(error.to_string())),
    };
    let bytes = file.read(LOG_BYTES_MAX).map_err(failed)?;
    let (entries, whole) = read(run_id, &bytes)?;
    if whole < bytes.len() {
        file.cut(whole as u64).map_err(failed)?;
    }
    let last = entries.last().map_or(0, |entry| entry.sequence);
    Ok((entries, Box::new(FileRecords { file, last, bytes: whole as u64 })))
}

fn path_of(run_id: &str) -> Result<WorkspacePath, LogError> {
    WorkspacePath::parse(&format!("{FOLDER}/{run_id}.jsonl"), "").map_err(|error| LogError::Io(error.to_string()))
}

fn failed(error: std::io::Error) -> LogError {
    match error.kind() {
        ErrorKind::FileTooLarge => LogError::Full,
        _ => LogError::Io(error.to_string()),
    }
}

/// The whole records, and where they end.
///
/// # Errors
/// [`LogError::Damaged`].
pub fn read(run_id: &str, bytes: &[u8]) -> Result<(Vec<Entry>, usize), LogError> {
    let damaged = |line, reason| LogError::Damaged { run_id: run_id.to_owned(), line, reason };
    let (mut entries, mut at) = (Vec::<Entry>::new(), 0);
    while let Some(end) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let line = entries.len() + 1;
        let entry: Entry =
            serde_json::from_slice(&bytes[at..at + end]).map_err(|_| damaged(line, "it is no record"))?;
        if entry.sequence != line as u64 {
            return Err(damaged(line, "its number is out of order"));
        }
        match (&entry.event, line) {
            (Event::RunCreated { run_id: recorded, .. }, 1) if recorded == run_id => {}
            (Event::RunCreated { .. }, 1) => return Err(damaged(line, "it is another run's")),
            (_, 1) => return Err(damaged(line, "it does not begin the run")),
            _ => {}
        }
        entries.push(entry);
        at += end + 1;
    }
    Ok((entries, at))
}

struct FileRecords {
    file: Box<dyn LogFile>,
    last: u64,
    bytes: u64,
}

impl Records for FileRecords {
    fn append(&mut self, expected: u64, entries: &[Entry]) -> Result<(), LogError> {
        if expected != self.last {
            return Err(LogError::Sequence { expected, found: self.last });
        }
        let mut text = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut text, entry).map_err(|error| LogError::Io(error.to_string()))?;
            text.push(b'\n');
        }
        if self.bytes + text.len() as u64 > LOG_BYTES_MAX {
            return Err(LogError::Full);
        }
        if let Err(error) = self.file.append(&text) {
            // What was written of it must not stand before what comes next. Where even that fails, the next reader finds
            // a last line without its end, or a record that nobody acted on.
            let _refused = self.file.cut(self.bytes);
            return Err(failed(error));
        }
        self.bytes += text.len() as u64;
        self.last = entries.last().map_or(self.last, |entry| entry.sequence);
        Ok(())
    }

    fn is_durable(&self) -> bool {
        true
    }
}

struct MemoryRecords {
    last: u64,
}

impl Records for MemoryRecords {
    fn append(&mut self, expected: u64, entries: &[Entry]) -> Result<(), LogError> {
        if expected != self.last {
            return Err(LogError::Sequence { expected, found: self.last });
        }
        self.last = entries.last().map_or(self.last, |entry| entry.sequence);
        Ok(())
    }

    fn is_durable(&self) -> bool {
        false
    }
}

/// The output of a step that is completed, out of the log of a run that was asked this query; none for anything else.
/// Never crosses runs, never takes what is not durable.
pub fn recover_dynamic_workflow_step_output(
    files: &dyn Files,
    run_id: &str,
    expected_query: &str,
    step_id: &str,
) -> Option<serde_json::Value> {
    check_run_id(run_id).ok()?;
    let path = path_of(run_id).ok()?;
    // A log is never made by looking for it, and a link in its place is not followed.
    let stat = files.stat(&path, crate::effects::files::Links::Stay).ok()?;
    if stat.kind != crate::effects::files::FileKind::File || files.canonical(&path).ok()? != path {
        return None;
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(files.open(&path).ok()?, LOG_BYTES_MAX), &mut bytes).ok()?;
    let (entries, _) = read(run_id, &bytes).ok()?;
    let asked = entries.iter().any(|entry| {
        matches!(&entry.event, Event::RunCreated { input, .. }
            if input.get("query").and_then(serde_json::Value::as_str) == Some(expected_query))
    });
    let outputs = entries.into_iter().rev().filter(|_| asked);
    outputs.into_iter().find_map(|entry| match entry.event {
        Event::StepCompleted { step_id: completed, output } if completed == step_id => Some(output),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::{FileRecords, LogError, Records as _};
    use crate::effects::files::LogFile;
    use crate::workflow::event::{Entry, Event};

    /// A log on a disk that has room for so many bytes.
    struct Small {
        held: Arc<Mutex<Vec<u8>>>,
        room_bytes: usize,
    }

    impl LogFile for Small {
        fn read(&mut self, _bytes_max: u64) -> io::Result<Vec<u8>> {
            Ok(self.held.lock().unwrap().clone())
        }

        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            let mut held = self.held.lock().unwrap();
            let fits = bytes.len().min(self.room_bytes - held.len());
            held.extend_from_slice(&bytes[..fits]);
            if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }

        fn cut(&mut self, bytes: u64) -> io::Result<()> {
            self.held.lock().unwrap().truncate(bytes as usize);
            Ok(())
        }
    }

    // Found in a review: half a record stayed, and the next one was written behind it.
    #[test]
    fn what_was_written_of_a_refused_record_is_taken_away() {
        let held = Arc::new(Mutex::new(Vec::new()));
        let file = Box::new(Small { held: Arc::clone(&held), room_bytes: 150 });
        let mut records = FileRecords { file, last: 0, bytes: 0 };
        let entry = |sequence| Entry { sequence, at_ms: 0, event: Event::RunStarted };
        records.append(0, &[entry(1)]).unwrap();
        let before = held.lock().unwrap().clone();
        let many: Vec<Entry> = (2..20).map(entry).collect();
        assert!(matches!(records.append(1, &many), Err(LogError::Io(_))));
        assert_eq!(*held.lock().unwrap(), before);
        records.append(1, &[entry(2)]).unwrap();
        assert!(held.lock().unwrap().ends_with(b"\n"));
    }
}
