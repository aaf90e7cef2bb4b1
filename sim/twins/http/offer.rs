//! A file that a pretended server offers: its versions, and how the server answers for parts of it.
//!
//! The bytes of every version follow from address and number alone, so that whoever has the play can tell whether a
//! file that arrived is one of them. All versions have the same length: only their bytes tell them apart.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use toolwarden_tools::effects::http::HttpHeaders;

use crate::play::{Offer, Validator};
use crate::seed::Generator;

/// How many versions a file may go through.
pub const VERSIONS_MAX: usize = 4;
/// Most bytes of an offered file.
pub const OFFER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes that are drawn; a file repeats them, each time with another stamp.
const BLOCK_BYTES: usize = 4_096;

/// The bytes of a version.
pub fn content(offer: &Offer, version: usize) -> Bytes {
    let seed = offer.url.bytes().fold(version as u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut generator = Generator::new(seed);
    let block: Vec<u8> = (0..BLOCK_BYTES / 8).flat_map(|_| generator.draw().to_le_bytes()).collect();
    let length = offer.bytes.min(OFFER_BYTES_MAX);
    let mut bytes = Vec::with_capacity(length + BLOCK_BYTES);
    for number in 0..length.div_ceil(BLOCK_BYTES) {
        let at = bytes.len();
        bytes.extend_from_slice(&block);
        bytes[at..at + 8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    bytes.truncate(length);
    Bytes::from(bytes)
}

/// A file on its server.
pub(super) struct Served {
    offer: Offer,
    version: AtomicUsize,
}

/// An answer, before anything goes wrong with its body.
pub(super) struct Given {
    pub(super) status: u16,
    pub(super) headers: HttpHeaders,
    pub(super) whole: Bytes,
}

/// What a server does on purpose or by mistake, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quirk {
    /// There is a new version from now on.
    Changes,
    /// The whole comes although a part was asked for.
    WholeForPart,
    /// Another part comes than was asked for, and says so.
    OtherPart,
    /// It wants to be asked later.
    Later,
    /// It says no for once.
    Refuses,
}

impl Served {
    pub(super) fn new(offer: Offer) -> Self {
        Self { offer, version: AtomicUsize::new(0) }
    }

    /// Where it leads instead of giving bytes.
    pub(super) fn leads_to(&self) -> Option<&str> {
        self.offer.leads_to.as_deref()
    }

    fn validator(&self, version: usize) -> Option<(&'static str, String)> {
        match self.offer.validator {
            Validator::Strong => Some(("etag", format!("\"v{version}\""))),
            Validator::Weak => Some(("etag", format!("W/\"v{version}\""))),
            Validator::Dated => Some(("last-modified", format!("Sun, 06 Nov 1994 08:49:{:02} GMT", 10 + version))),
            Validator::None => None,
        }
    }

    /// Answers a request with these fields.
    pub(super) fn answer(&self, asked: &HttpHeaders, quirk: Option<Quirk>) -> Given {
        let plain = |status: u16, fields: &[(&str, &str)], text: &'static str| {
            let mut headers: HttpHeaders = fields.iter().copied().collect();
            headers.push("content-length", text.len().to_string());
            Given { status, headers, whole: Bytes::from_static(text.as_bytes()) }
        };
        match quirk {
            Some(Quirk::Changes) => {
                let now = self.version.load(Ordering::Relaxed);
                self.version.store((now + 1).min(VERSIONS_MAX - 1), Ordering::Relaxed);
            }
            Some(Quirk::Later) => return plain(429, &[("retry-after", "2")], "later"),
            Some(Quirk::Refuses) => return plain(403, &[], "no"),
            _ => {}
        }
        let version = self.version.load(Ordering::Relaxed);
        let bytes = content(&self.offer, version);
        let validator = self.validator(version);
        let mut headers: HttpHeaders = [("content-type", "application/octet-stream")].into_iter().collect();
        headers.push("date", "Sun, 06 Nov 1994 09:49:37 GMT");
        if let Some((field, value)) = &validator {
            headers.push(*field, value.clone());
        }
        let is_same =
            asked.get("if-range").is_none_or(|wanted| validator.as_ref().is_some_and(|(_, now)| now == wanted));
        let range = asked.get("range").and_then(|text| range(text, bytes.len()));
        let parts = self.offer.parts && is_same && quirk != Some(Quirk::WholeForPart);
        let (Some(range), true) = (range, parts) else {
            headers.push("content-length", bytes.len().to_string());
            return Given { status: 200, headers, whole: bytes };
        };
        let Some((mut first, mut last)) = range else {
            headers.push("content-range", format!("bytes */{}", bytes.len()));
            headers.push("content-length", "0");
            return Given { status: 416, headers, whole: Bytes::new() };
        };
        if quirk == Some(Quirk::OtherPart) {
            (first, last) = (first.saturating_sub(1), last.saturating_sub(1).max(first.saturating_sub(1)));
        }
        let part = bytes.slice(first..=last);
        headers.push("content-range", format!("bytes {first}-{last}/{}", bytes.len()));
        headers.push("content-length", part.len().to_string());
        Given { status: 206, headers, whole: part }
    }
}

/// Reads a range; none when it is not one, and none inside when it lies outside of the file.
#[expect(clippy::option_option, reason = "no range, and a range of nothing, are two things")]
fn range(text: &str, length: usize) -> Option<Option<(usize, usize)>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let first: usize = first.parse().ok()?;
    let last = if last.is_empty() { usize::MAX } else { last.parse().ok()? };
    Some((first < length && first <= last).then(|| (first, last.min(length.saturating_sub(1)))))
}
