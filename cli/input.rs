//! What a person hands over (a file that they name, or standard input, both bounded) and the files that they ask for.
//!
//! Everything here is read before the work begins, so Ctrl-C still ends the program at once while it waits.

use std::io::{IsTerminal as _, Read, Write as _};
use std::path::Path;

use thiserror::Error;

/// Why a text cannot be taken.
#[derive(Debug, Error)]
pub(crate) enum InputError {
    /// It cannot be read.
    #[error("cannot read {what} from {place}: {source}")]
    Read {
        /// What it was to be.
        what: &'static str,
        /// Where from.
        place: String,
        /// The system's own words.
        source: std::io::Error,
    },
    /// It is longer than is taken.
    #[error("{what} from {place} has more than {bytes_max} bytes, which is the most that is taken")]
    TooLarge {
        /// What it was to be.
        what: &'static str,
        /// Where from.
        place: String,
        /// The bound.
        bytes_max: u64,
    },
    /// It cannot be written.
    #[error("cannot write {what} to {place}: {source}")]
    Write {
        /// What it was to be.
        what: &'static str,
        /// Where to.
        place: String,
        /// The system's own words.
        source: std::io::Error,
    },
    /// It is no text.
    #[error("{what} from {place} is not UTF-8 text (byte {offset} begins no character)")]
    NotText {
        /// What it was to be.
        what: &'static str,
        /// Where from.
        place: String,
        /// Where the first wrong byte is, counted from 0.
        offset: usize,
    },
}

/// Reads a file that the command line names.
///
/// # Errors
/// [`InputError`].
#[expect(clippy::disallowed_methods, reason = "a file that the person names on the command line, not the model's")]
pub(crate) fn read_file(path: &Path, what: &'static str, bytes_max: u64) -> Result<String, InputError> {
    let place = path.display().to_string();
    match std::fs::File::open(path) {
        Ok(file) => read_bounded(file, what, place, bytes_max),
        Err(source) => Err(InputError::Read { what, place, source }),
    }
}

/// Reads the bytes of a file that the command line names.
///
/// # Errors
/// [`InputError`].
#[expect(clippy::disallowed_methods, reason = "a file that the person names on the command line, not the model's")]
pub(crate) fn read_bytes(path: &Path, what: &'static str, bytes_max: u64) -> Result<Vec<u8>, InputError> {
    let place = path.display().to_string();
    let read = std::fs::File::open(path).and_then(|file| {
        let mut bytes = Vec::new();
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    match read {
        Ok(bytes) if bytes.len() as u64 > bytes_max => Err(InputError::TooLarge { what, place, bytes_max }),
        Ok(bytes) => Ok(bytes),
        Err(source) => Err(InputError::Read { what, place, source }),
    }
}

/// Writes a file that the command line names, over one that is there.
///
/// # Errors
/// [`InputError::Write`].
#[expect(clippy::disallowed_methods, reason = "a file that the person names on the command line, not the model's")]
pub(crate) fn write_file(path: &Path, what: &'static str, bytes: &[u8]) -> Result<(), InputError> {
    std::fs::write(path, bytes).map_err(|source| InputError::Write { what, place: path.display().to_string(), source })
}

/// Writes a file that the command line names and that is not there yet.
///
/// # Errors
/// [`InputError::Write`].
#[expect(clippy::disallowed_methods, reason = "a file that the person names on the command line, not the model's")]
pub(crate) fn write_new_file(path: &Path, what: &'static str, bytes: &[u8]) -> Result<(), InputError> {
    let written = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    let written = written.and_then(|mut file| file.write_all(bytes));
    written.map_err(|source| InputError::Write { what, place: path.display().to_string(), source })
}

/// Reads all of standard input; says that it waits when a person has to type.
///
/// # Errors
/// [`InputError`].
pub(crate) fn read_stdin(what: &'static str, bytes_max: u64) -> Result<String, InputError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        // A terminal that is gone has nobody to be told.
        let _ = writeln!(std::io::stderr(), "type {what}, then Ctrl-D on a line of its own");
    }
    read_bounded(stdin.lock(), what, "standard input".to_owned(), bytes_max)
}

fn read_bounded(source: impl Read, what: &'static str, place: String, bytes_max: u64) -> Result<String, InputError> {
    let mut bytes = Vec::new();
    if let Err(source) = source.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes) {
        return Err(InputError::Read { what, place, source });
    }
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > bytes_max {
        return Err(InputError::TooLarge { what, place, bytes_max });
    }
    String::from_utf8(bytes).map_err(|error| InputError::NotText {
        what,
        place,
        offset: error.utf8_error().valid_up_to(),
    })
}

#[cfg(test)]
mod tests {
    use super::{InputError, read_bounded};

    fn read(bytes: &[u8]) -> Result<String, InputError> {
        read_bounded(bytes, "the question", "here".to_owned(), 4)
    }

    #[test]
    fn input_is_bounded_text() {
        assert_eq!(read(b"abcd").unwrap(), "abcd");
        assert!(matches!(read(b"abcde"), Err(InputError::TooLarge { bytes_max: 4, .. })));
        assert!(matches!(read(b"ab\xff"), Err(InputError::NotText { offset: 2, .. })));
    }
}
