//! Reads a file as ranking sees it: whole and as text, up to a limit.

use std::io::{Read as _, Seek as _};

use crate::effects::files::{FileError, Files};
use crate::search::stop::Stop;
use crate::search::text::{AtNul, Extent, TextFacts, TextReader, read_whole, settle_whole};
use crate::workspace_path::WorkspacePath;

/// Largest file that is ranked, in bytes; so is its text.
pub const FILE_BYTES_MAX: u64 = 512 * 1024;

/// Why a file is not read as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// It is larger than [`FILE_BYTES_MAX`].
    Oversized,
    /// It is not there any more.
    Gone,
    /// It cannot be read.
    Failed,
}

/// Whether a file of this size is too large to be ranked.
pub(crate) fn is_oversized(extent: Extent) -> bool {
    u64::from(extent.file_bytes.max(extent.text_bytes)) > FILE_BYTES_MAX
}

/// Reads a whole file as text, into a buffer that is used again; none when it is binary.
pub(crate) fn read_text<'b>(
    files: &dyn Files,
    path: &WorkspacePath,
    buffer: &'b mut Vec<u8>,
    stop: &Stop,
) -> Result<Option<&'b [u8]>, ReadError> {
    let mut file = match files.open_listed(path) {
        Ok(file) => file,
        Err(FileError::NotFound { .. }) => return Err(ReadError::Gone),
        Err(_) => return Err(ReadError::Failed),
    };
    if file.stat().size_bytes > FILE_BYTES_MAX {
        return Err(ReadError::Oversized);
    }
    let mut facts = TextFacts::default();
    let filled = read_whole(file.as_mut(), buffer).map_err(|_| ReadError::Failed)?;
    if let Some(range) = filled.and_then(|filled| settle_whole(&mut buffer[..filled], AtNul::End, &mut facts)) {
        return Ok(facts.binary_at_byte.is_none().then(|| &buffer[range]));
    }
    // What must be decoded, and what has no size or another one than it said.
    file.rewind().map_err(|_| ReadError::Failed)?;
    buffer.clear();
    let mut reader = TextReader::open(file, AtNul::End, stop.clone()).map_err(|_| ReadError::Failed)?;
    // UTF-16 may grow, and a file may grow while it is read.
    reader.by_ref().take(FILE_BYTES_MAX + 1).read_to_end(buffer).map_err(|_| ReadError::Failed)?;
    if buffer.len() as u64 > FILE_BYTES_MAX {
        return Err(ReadError::Oversized);
    }
    Ok(reader.facts().binary_at_byte.is_none().then_some(&buffer[..]))
}

#[cfg(test)]
mod tests {
    use super::{FILE_BYTES_MAX, ReadError, is_oversized, read_text};
    use crate::search::stop::Stop;
    use crate::search::text::Extent;
    use crate::search::twin::{TreeTwin, at};

    #[test]
    fn what_is_too_large_binary_or_gone_is_told() {
        let twin = TreeTwin::default();
        let size = usize::try_from(FILE_BYTES_MAX).unwrap();
        twin.put("full", &vec![b'a'; size]);
        twin.put("over", &vec![b'a'; size + 1]);
        // Twice as much text as file: letters that take one byte pair there and three bytes here.
        twin.put("wide", &[&b"\xff\xfe"[..], &b"\x13\x7f".repeat(size / 2 - 1)].concat());
        twin.put("binary", b"a\0b");
        twin.put("small", b"\xef\xbb\xbfa\r\nb");
        twin.put("utf16", b"\xff\xfea\0\r\0\n\0");
        let read = |path: &str| {
            // Whatever was in the buffer before.
            let mut buffer = vec![b'z'; 9];
            read_text(&twin, &at(path), &mut buffer, &Stop::default()).map(|text| text.map(<[u8]>::to_vec))
        };
        assert_eq!(read("full").map(|text| text.unwrap().len()), Ok(size));
        assert_eq!(read("small"), Ok(Some(b"a\nb".to_vec())));
        assert_eq!(read("utf16"), Ok(Some(b"a\n".to_vec())));
        assert_eq!((read("over"), read("wide")), (Err(ReadError::Oversized), Err(ReadError::Oversized)));
        assert_eq!((read("binary"), read("gone")), (Ok(None), Err(ReadError::Gone)));
        let extent = |bytes: usize| Extent::of(bytes as u64, b"");
        assert!(is_oversized(extent(size + 1)) && !is_oversized(extent(size)));
        assert!(is_oversized(Extent::of(9, &vec![b'a'; size + 1])));
    }
}
