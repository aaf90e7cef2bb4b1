//! Text in a file: which encoding its bytes have, and the way there and back without losing a byte.
//!
//! A byte-order mark decides; then bytes that are UTF-8 are UTF-8; anything else is a legacy encoding, detected.
//! What cannot be written back exactly as it was is refused here, so that no edit leaves a file in two encodings.
//! Everywhere a line ends at LF (a CR before it belongs to the ending) and nowhere else.

use std::borrow::Cow;
use std::fmt;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use thiserror::Error;

/// Most bytes given to the detector of legacy encodings.
const DETECTED_BYTES_MAX: usize = 64 * 1024;

/// How the bytes of a text file are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8 without a mark.
    Utf8,
    /// UTF-8 after a byte-order mark.
    Utf8Bom,
    /// UTF-16, low byte first, after a byte-order mark.
    Utf16Le,
    /// UTF-16, high byte first, after a byte-order mark.
    Utf16Be,
    /// Anything older; detected, so it may be wrong.
    Legacy(&'static encoding_rs::Encoding),
}

/// Why bytes are no text that can be changed and written back, or a text cannot be written in an encoding.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TextError {
    /// Not text at all.
    #[error("it is binary ({kind})")]
    Binary {
        /// What it seems to be.
        kind: &'static str,
    },
    /// Reading it as text loses something.
    #[error("its bytes are not well-formed {encoding}, so a change could not keep the rest as it is")]
    Malformed {
        /// The encoding that it has otherwise.
        encoding: String,
    },
    /// The encoding has no such character.
    #[error("its encoding is {encoding}, which has no character {character:?}")]
    Unmappable {
        /// The encoding.
        encoding: String,
        /// The first character that it does not have.
        character: char,
    },
}

impl Encoding {
    /// The encoding of the file that starts with these bytes, and ends with them when `whole`.
    pub fn detect(start: &[u8], whole: bool) -> Self {
        match start {
            [0xef, 0xbb, 0xbf, ..] => return Self::Utf8Bom,
            [0xff, 0xfe, ..] => return Self::Utf16Le,
            [0xfe, 0xff, ..] => return Self::Utf16Be,
            _ => {}
        }
        match std::str::from_utf8(start) {
            Ok(_) => Self::Utf8,
            // The last character goes on behind the part that we have.
            Err(error) if !whole && error.error_len().is_none() => Self::Utf8,
            Err(_) => {
                let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
                let part = &start[..start.len().min(DETECTED_BYTES_MAX)];
                detector.feed(part, whole && part.len() == start.len());
                Self::Legacy(detector.guess(None, Utf8Detection::Deny))
            }
        }
    }

    /// The byte-order mark that such a file starts with; empty for none.
    pub fn mark(self) -> &'static [u8] {
        match self {
            Self::Utf8Bom => &[0xef, 0xbb, 0xbf],
            Self::Utf16Le => &[0xff, 0xfe],
            Self::Utf16Be => &[0xfe, 0xff],
            Self::Utf8 | Self::Legacy(_) => &[],
        }
    }

    /// A decoder for what follows the mark; none where the bytes are UTF-8 already.
    pub fn decoder(self) -> Option<encoding_rs::Decoder> {
        match self {
            Self::Utf8 | Self::Utf8Bom => None,
            Self::Utf16Le => Some(encoding_rs::UTF_16LE.new_decoder_without_bom_handling()),
            Self::Utf16Be => Some(encoding_rs::UTF_16BE.new_decoder_without_bom_handling()),
            Self::Legacy(encoding) => Some(encoding.new_decoder_without_bom_handling()),
        }
    }

    /// Writes a text in this encoding, without a mark.
    ///
    /// # Errors
    /// [`TextError::Unmappable`].
    pub fn encode(self, text: &str) -> Result<Cow<'_, [u8]>, TextError> {
        match self {
            Self::Utf8 | Self::Utf8Bom => Ok(Cow::Borrowed(text.as_bytes())),
            Self::Utf16Le => Ok(text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
            Self::Utf16Be => Ok(text.encode_utf16().flat_map(u16::to_be_bytes).collect()),
            Self::Legacy(encoding) => match encoding.encode(text) {
                (bytes, _, false) => Ok(bytes),
                _ => {
                    let missing = |c: &char| !c.is_ascii() && encoding.encode(c.encode_utf8(&mut [0; 4])).2;
                    let character = text.chars().find(missing).unwrap_or(char::REPLACEMENT_CHARACTER);
                    Err(TextError::Unmappable { encoding: self.to_string(), character })
                }
            },
        }
    }

    /// Whether the encoding is known for sure, by a mark or because all bytes fit.
    pub fn is_certain(self) -> bool {
        !matches!(self, Self::Legacy(_))
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Utf8 => out.write_str("utf-8"),
            Self::Utf8Bom => out.write_str("utf-8 with byte-order mark"),
            Self::Utf16Le => out.write_str("utf-16le"),
            Self::Utf16Be => out.write_str("utf-16be"),
            Self::Legacy(encoding) => out.write_str(&encoding.name().to_ascii_lowercase()),
        }
    }
}

/// A whole text file, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedText {
    /// Its text without the mark.
    pub text: String,
    /// Its encoding.
    pub encoding: Encoding,
}

impl DecodedText {
    /// Decodes a whole file; [`Self::to_bytes`] gives the same bytes again.
    ///
    /// # Errors
    /// [`TextError`] when the bytes are no text, or could not be written back as they are.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TextError> {
        if let Some(kind) = binary_kind(bytes) {
            return Err(TextError::Binary { kind });
        }
        let encoding = Encoding::detect(bytes, true);
        let body = &bytes[encoding.mark().len()..];
        let malformed = || TextError::Malformed { encoding: encoding.to_string() };
        let text = match encoding.decoder() {
            None => std::str::from_utf8(body).map_err(|_| malformed())?.to_owned(),
            Some(decoder) => {
                let text = decoder.encoding().decode_without_bom_handling(body).0.into_owned();
                if encoding.encode(&text).map_err(|_| malformed())?.as_ref() != body {
                    return Err(malformed());
                }
                text
            }
        };
        if text.contains('\0') {
            return Err(TextError::Binary { kind: "data with NUL bytes" });
        }
        Ok(Self { text, encoding })
    }

    /// The bytes of the file: mark and text.
    ///
    /// # Errors
    /// [`TextError::Unmappable`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, TextError> {
        let mut bytes = self.encoding.mark().to_vec();
        bytes.extend_from_slice(&self.encoding.encode(&self.text)?);
        Ok(bytes)
    }
}

/// Whether bytes that are not UTF-8 were most likely meant to be: more of their characters fit than do not.
pub fn seems_broken_utf8(bytes: &[u8]) -> bool {
    let (mut fitting, mut broken) = (0_usize, 0_usize);
    for chunk in bytes.utf8_chunks() {
        fitting += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        broken += usize::from(!chunk.invalid().is_empty());
    }
    broken > 0 && fitting > broken
}

/// Starts of files that are no text, and what they are.
const SIGNATURES: [(&[u8], &str); 22] = [
    (b"\x7fELF", "ELF program or library"),
    (b"MZ\x90\0", "Windows program"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program"),
    (b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
    (b"\0asm", "WebAssembly module"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\0", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (b"%PDF-", "PDF document"),
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF87a", "GIF image"),
    (b"GIF89a", "GIF image"),
    (b"SQLite format 3\0", "SQLite database"),
    (b"\x00\x00\xfe\xff", "UTF-32 text"),
    (b"\xff\xfe\0\0", "UTF-32 text"),
    (b"OggS", "Ogg media"),
    (b"fLaC", "FLAC audio"),
    (b"RIFF", "RIFF media"),
];

/// What the file that starts with these bytes is, when its start tells that it is no text.
pub fn binary_kind(start: &[u8]) -> Option<&'static str> {
    let (signature, kind) = SIGNATURES.iter().find(|(signature, _)| start.starts_with(signature))?;
    // Letters alone could begin a text as well: then a NUL or broken UTF-8 must follow.
    let telling = signature.iter().any(|byte| !byte.is_ascii_graphic() && *byte != b' ');
    let near = &start[..start.len().min(DETECTED_BYTES_MAX)];
    let doubtful = || memchr::memchr(0, near).is_some() || !matches!(Encoding::detect(near, false), Encoding::Utf8);
    (telling || doubtful()).then_some(kind)
}

/// Bytes as text, with U+FFFD where they are none. Nearly all are, and to check that first is ten times as fast.
pub fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// Whether a byte goes on with a character of UTF-8.
pub(crate) fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// How many bytes a character of UTF-8 has that begins with this one; 1 where none does.
pub(crate) fn character_bytes(first: u8) -> usize {
    match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    }
}

/// How many bytes at the end are the start of a character that goes on: 0 to 3.
pub(crate) fn unfinished_bytes(bytes: &[u8]) -> usize {
    let back = bytes.iter().rev().take(3).take_while(|byte| is_continuation(**byte)).count() + 1;
    let Some(first) = bytes.len().checked_sub(back).map(|at| bytes[at]) else { return 0 };
    if character_bytes(first) > back { back } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::{DecodedText, Encoding, TextError, binary_kind};

    // Cases C023 and C025: mark and encoding come back as they were.
    #[test]
    fn every_text_goes_there_and_back() {
        let files: [(&[u8], &str, &str); 6] = [
            (b"plain \xc3\xa9\n", "plain \u{e9}\n", "utf-8"),
            (b"\xef\xbb\xbfimport x\n", "import x\n", "utf-8 with byte-order mark"),
            (b"\xff\xfeh\0i\0\n\0", "hi\n", "utf-16le"),
            (b"\xfe\xff\0h\0i", "hi", "utf-16be"),
            (
                b"caf\xe9 na\xefve r\xe9sum\xe9 d\xe9j\xe0 vu",
                "caf\u{e9} na\u{ef}ve r\u{e9}sum\u{e9} d\u{e9}j\u{e0} vu",
                "windows-1252",
            ),
            (b"", "", "utf-8"),
        ];
        for (bytes, text, name) in files {
            let decoded = DecodedText::from_bytes(bytes).unwrap();
            assert_eq!((decoded.text.as_str(), decoded.encoding.to_string().as_str()), (text, name));
            assert_eq!(decoded.to_bytes().unwrap(), bytes);
        }
        let (japanese, _, _) = encoding_rs::SHIFT_JIS.encode("こんにちは、世界。日本語のテキストです。");
        let decoded = DecodedText::from_bytes(&japanese).unwrap();
        assert_eq!(decoded.encoding.to_string(), "shift_jis");
        assert_eq!(decoded.to_bytes().unwrap(), japanese.as_ref());
    }

    #[test]
    fn what_would_lose_bytes_is_refused() {
        assert!(matches!(DecodedText::from_bytes(b"a\0b"), Err(TextError::Binary { .. })));
        assert!(matches!(DecodedText::from_bytes(b"\xff\xfeh\0\0"), Err(TextError::Malformed { .. })), "half a unit");
        assert!(
            matches!(DecodedText::from_bytes(b"\xff\xfe\0\xd8a\0"), Err(TextError::Malformed { .. })),
            "half a pair"
        );
        assert!(matches!(DecodedText::from_bytes(b"\xef\xbb\xbf\xff"), Err(TextError::Malformed { .. })));
        let latin = Encoding::Legacy(encoding_rs::WINDOWS_1252);
        assert_eq!(
            latin.encode("a 世"),
            Err(TextError::Unmappable { encoding: "windows-1252".into(), character: '世' })
        );
    }

    #[test]
    fn broken_utf8_is_told_from_older_encodings() {
        assert!(super::seems_broken_utf8(
            "é è ü \u{4e16}".as_bytes().iter().copied().chain([0xff]).collect::<Vec<_>>().as_slice()
        ));
        assert!(!super::seems_broken_utf8(b"caf\xe9 d\xe9j\xe0"));
        assert!(!super::seems_broken_utf8("é".as_bytes()));
    }

    #[test]
    fn known_starts_are_named_and_words_are_not_mistaken() {
        assert_eq!(binary_kind(b"\x7fELF\x02\x01\x01\0"), Some("ELF program or library"));
        assert_eq!(binary_kind(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"), Some("PDF document"));
        assert_eq!(binary_kind(b"%PDF-notes about the format\n"), None);
        assert_eq!(binary_kind(b"RIFF raff\n"), None);
        assert_eq!(Encoding::detect("aé".as_bytes().split_last().unwrap().1, false), Encoding::Utf8);
    }
}
