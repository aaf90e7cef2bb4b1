//! Content digests: `sha256:` and 64 lower-case hex digits, over exactly the bytes given.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::canonical_json::canonical;

/// What every written digest starts with.
const PREFIX: &str = "sha256:";

/// A SHA-256 digest in its written form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_hash(&Sha256::digest(bytes))
    }

    /// The digest of `domain`, a zero byte, and `bytes`: two uses of one text never share a digest.
    pub fn of_domain(domain: &str, bytes: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(domain.as_bytes());
        hash.update([0]);
        hash.update(bytes);
        Self::from_hash(&hash.finalize())
    }

    /// The digest of a JSON value in canonical form (RFC 8785): key order and spacing do not count.
    pub fn of_json(value: &Value) -> Self {
        Self::of(&canonical(value))
    }

    /// A digest from its written form; none unless it is `sha256:` and 64 lower-case hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        Self::from_hex(text.strip_prefix(PREFIX)?)
    }

    /// A digest from its 64 lower-case hex digits.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let is_hex = hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then(|| Self([PREFIX, hex].concat()))
    }

    fn from_hash(hash: &[u8]) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = Vec::with_capacity(PREFIX.len() + 2 * hash.len());
        text.extend_from_slice(PREFIX.as_bytes());
        text.extend(hash.iter().flat_map(|byte| [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]));
        // All of it is ASCII.
        Self(String::from_utf8(text).unwrap_or_default())
    }

    /// `sha256:<64 hex digits>`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 hex digits alone.
    pub fn hex(&self) -> &str {
        &self.0[PREFIX.len()..]
    }
}

/// The digest of bytes that come piece by piece.
#[derive(Clone, Default)]
pub struct RunningDigest(Sha256);

impl RunningDigest {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes taken.
    pub fn finish(self) -> Digest {
        Digest::from_hash(&self.0.finalize())
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl TryFrom<String> for Digest {
    type Error = MalformedDigest;

    fn try_from(text: String) -> Result<Self, MalformedDigest> {
        Self::parse(&text).ok_or(MalformedDigest)
    }
}

/// A text is not the written form of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a digest is sha256: and 64 lower-case hex digits")]
pub struct MalformedDigest;

impl fmt::Debug for RunningDigest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("RunningDigest")
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Digest;

    #[test]
    fn a_known_answer_and_the_empty_text() {
        assert_eq!(Digest::of(b"ok\n").hex()[..16], *"dc51b8c96c2d745d");
        assert_eq!(Digest::of(b"").hex()[..16], *"e3b0c44298fc1c14");
    }

    #[test]
    fn only_the_one_written_form_is_read() {
        let written = Digest::of(b"ok\n");
        assert_eq!(Digest::parse(written.as_str()), Some(written.clone()));
        assert_eq!(Digest::from_hex(written.hex()), Some(written.clone()));
        let upper = written.as_str().to_uppercase();
        for wrong in ["", "sha256:", written.hex(), &upper, &written.as_str()[..70], "sha256:zz"] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
            assert!(serde_json::from_value::<Digest>(json!(wrong)).is_err());
        }
        assert_eq!(serde_json::from_value::<Digest>(json!(written)).unwrap(), written);
    }

    #[test]
    fn pieces_and_the_whole_agree() {
        let mut running = super::RunningDigest::default();
        running.update(b"o");
        running.update(b"k\n");
        assert_eq!(running.finish(), Digest::of(b"ok\n"));
    }

    #[test]
    fn key_order_does_not_count_but_values_do() {
        let one = json!({"a": 1, "b": [1, 2]});
        let other = json!({"b": [1, 2], "a": 1});
        assert_eq!(Digest::of_json(&one), Digest::of_json(&other));
        assert_ne!(Digest::of_json(&one), Digest::of_json(&json!({"a": 1, "b": [2, 1]})));
    }
}
