//! A picture that a host puts into a prompt.
//!
//! What a picture is, its first bytes say, and never its name. What must stay true: only kinds that all providers take are
//! let in, and each has a bound, for a picture is kept with the conversation and sent with every turn.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Message;

/// Largest picture, in bytes: the least limit among providers.
pub const PICTURE_BYTES_MAX: usize = 5 * 1024 * 1024;
/// Most pictures of one prompt.
pub const PICTURES_MAX: usize = 8;

/// A picture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// Its type, such as `image/png`.
    media_type: String,
    /// Its bytes in base64.
    data: String,
}

/// Why something is no picture for a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PictureError {
    /// Of another kind.
    #[error("this is no PNG, JPEG, GIF or WebP picture; convert it")]
    Kind,
    /// Larger than [`PICTURE_BYTES_MAX`].
    #[error("the picture has {bytes} bytes; at most {PICTURE_BYTES_MAX} are taken: make it smaller")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// More than [`PICTURES_MAX`].
    #[error("there are {count} pictures; a prompt takes {PICTURES_MAX} at most")]
    TooMany {
        /// How many.
        count: usize,
    },
}

impl Picture {
    /// Takes the bytes of a picture file.
    ///
    /// # Errors
    /// [`PictureError`].
    pub fn new(bytes: &[u8]) -> Result<Self, PictureError> {
        let media_type = match bytes {
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => "image/png",
            [0xff, 0xd8, 0xff, ..] => "image/jpeg",
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => "image/gif",
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
            _ => return Err(PictureError::Kind),
        };
        if bytes.len() > PICTURE_BYTES_MAX {
            return Err(PictureError::TooLarge { bytes: bytes.len() });
        }
        Ok(Self { media_type: media_type.to_owned(), data: STANDARD.encode(bytes) })
    }

    /// Its type.
    pub fn media_type(&self) -> &str {
        &self.media_type
    }

    /// Its entry in a conversation.
    pub fn into_message(self) -> Message {
        Message::Image { media_type: self.media_type, data: self.data }
    }
}

#[cfg(test)]
mod tests {
    use super::{PICTURE_BYTES_MAX, Picture, PictureError};

    #[test]
    fn the_first_bytes_say_what_it_is() {
        let png = Picture::new(b"\x89PNG\r\n\x1a\n....").unwrap();
        assert_eq!((png.media_type(), png.data.as_str()), ("image/png", "iVBORw0KGgouLi4u"));
        assert_eq!(Picture::new(b"\xff\xd8\xff\xe0").unwrap().media_type(), "image/jpeg");
        assert_eq!(Picture::new(b"GIF89a").unwrap().media_type(), "image/gif");
        assert_eq!(Picture::new(b"RIFF....WEBPVP8").unwrap().media_type(), "image/webp");
        for other in [&b""[..], b"<svg>", b"%PDF-1.7", b"\x89PNG"] {
            assert_eq!(Picture::new(other), Err(PictureError::Kind));
        }
        let mut large = b"\xff\xd8\xff".to_vec();
        large.resize(PICTURE_BYTES_MAX + 1, 0);
        assert_eq!(Picture::new(&large), Err(PictureError::TooLarge { bytes: PICTURE_BYTES_MAX + 1 }));
    }
}
