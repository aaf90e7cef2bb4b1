//! Parts of one version, over several connections.
//!
//! The file is cut into pieces of work that are taken in order, so that the hash can follow closely and a slow
//! connection holds up only its own piece. Every answer must be exactly what was asked for, to the byte, and of the
//! version that was probed; what broke goes on where it stood.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::try_join_all;
use url::Url;

use super::content_range::ContentRange;
use super::sink::Sink;
use super::{Destination, Failure, Job, STEP_BYTES, Tries, headers, is_version, next_piece, refused, reserve};
use crate::digest::Digest;
use crate::effects::http::HttpBody;
use crate::web::redirects::{Follow, get};

/// Pieces of work for each connection: few, for each costs a request; more than one, for connections differ.
const PIECES_PER_CONNECTION: u64 = 8;
/// Smallest piece of work, in bytes.
const PIECE_BYTES_MIN: u64 = 2 * 1024 * 1024;
/// Largest piece of work, in bytes.
const PIECE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Pieces begin at multiples of it, in bytes.
const ALIGNMENT: u64 = 4096;

/// What is got in parts.
pub(super) struct Wanted<'w> {
    /// Who gives it.
    pub(super) url: &'w Url,
    /// Of which version.
    pub(super) validator: &'w str,
    /// How many bytes.
    pub(super) total: u64,
    /// Over how many connections.
    pub(super) connections: u64,
}

pub(super) async fn fetch(job: &Job, wanted: &Wanted<'_>, to: &Destination) -> Result<(u64, Digest), Failure> {
    reserve(to, wanted.total).await?;
    let sink = Sink::begin(&to.file, &to.alive);
    let piece_bytes = piece_bytes(wanted.total, wanted.connections);
    let next = AtomicU64::new(0);
    let connections = (0..wanted.connections).map(|_| async {
        loop {
            let first = next.fetch_add(piece_bytes, Ordering::Relaxed);
            if first >= wanted.total {
                return Ok(());
            }
            let end = first.saturating_add(piece_bytes).min(wanted.total);
            fetch_piece(job, wanted, &sink, first, end).await?;
        }
    });
    let fetched: Result<Vec<()>, Failure> = try_join_all(connections).await;
    let failed = match fetched {
        Ok(_) => match sink.finish().await {
            Ok((bytes, digest)) if bytes == wanted.total => return Ok((bytes, digest)),
            Ok(_) => return Err(Failure::Changed("not all of it can be read back")),
            Err(error) => return Err(Failure::Final(error.into())),
        },
        Err(failed) => failed,
    };
    sink.abandon().await.map_err(|error| Failure::Final(error.into()))?;
    Err(failed)
}

/// How many bytes are asked for at a time.
fn piece_bytes(total: u64, connections: u64) -> u64 {
    let even = total / (connections * PIECES_PER_CONNECTION).max(1);
    even.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX).next_multiple_of(ALIGNMENT)
}

/// Gets the bytes from `first` up to `end`, which is not among them.
async fn fetch_piece(job: &Job, wanted: &Wanted<'_>, sink: &Sink, first: u64, end: u64) -> Result<(), Failure> {
    let mut tries = Tries::default();
    let mut at = first;
    loop {
        let before = at;
        let failure = match ask(job, wanted, at, end).await {
            Ok(mut body) => match take(job, &mut body, sink, &mut at, end).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            },
            Err(failure) => failure,
        };
        if matches!(failure, Failure::Changed(_) | Failure::Closed) {
            return Err(failure);
        }
        let is_limited = matches!(failure, Failure::Limited(_));
        // What is left of a piece after all tries is got with the whole; being told to wait is an answer.
        if let Err(error) = tries.again(failure, at >= before + STEP_BYTES).await {
            return Err(match error {
                super::DownloadError::Broken { reason, .. } if !is_limited => Failure::Passing(reason),
                super::DownloadError::Truncated { received, total, .. } => Failure::Truncated { received, total },
                error => Failure::Final(error),
            });
        }
    }
}

async fn ask(job: &Job, wanted: &Wanted<'_>, at: u64, end: u64) -> Result<HttpBody, Failure> {
    job.meter.ask()?;
    let last = end - 1;
    let mut headers = headers();
    headers.push("range", format!("bytes={at}-{last}"));
    headers.push("if-range", wanted.validator);
    let answer = match get(&job.web, wanted.url, &headers, Follow::SameOrigin).await {
        Ok(answer) => answer,
        Err(crate::web::WebError::Redirect { .. }) => {
            return Err(Failure::Changed("a part was to come from another origin"));
        }
        Err(error) => return Err(error.into()),
    };
    let fields = &answer.response.headers;
    match answer.response.status {
        206 => {
            let expected = ContentRange::Part { first: at, last, total: Some(wanted.total) };
            let is_exact = fields.get("content-range").and_then(ContentRange::parse) == Some(expected);
            let is_long_enough = super::probe::length(fields).is_none_or(|bytes| bytes == end - at);
            if !is_exact || !is_long_enough {
                return Err(Failure::Changed("the server gave a part that was not asked for"));
            }
            if is_version(fields, wanted.validator) == Some(false) {
                return Err(Failure::Changed("it changed while it was fetched"));
            }
            Ok(answer.response.body)
        }
        200 | 412 | 416 => Err(Failure::Changed("it changed while it was fetched")),
        401 | 403 | 404 | 410 => Err(Failure::Changed("the server gives no more parts of it")),
        _ => Err(refused(job, &answer.url, &answer.response)),
    }
}

/// Takes a body to its end; `at` tells how far it came.
async fn take(job: &Job, body: &mut HttpBody, sink: &Sink, at: &mut u64, end: u64) -> Result<(), Failure> {
    while let Some(piece) = next_piece(body).await? {
        let bytes = piece.len() as u64;
        if *at + bytes > end {
            return Err(Failure::Changed("more came than was announced"));
        }
        sink.take(*at, piece).await?;
        *at += bytes;
        job.meter.add(bytes);
    }
    if *at < end {
        return Err(Failure::Passing(format!("a part ended at byte {at} of {end}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::piece_bytes;

    #[test]
    fn pieces_are_aligned_and_cover_everything() {
        for total in [1, 4 << 20, (4 << 20) + 1, 1 << 30, 8 << 30] {
            for connections in 1..=4 {
                let bytes = piece_bytes(total, connections);
                assert!(bytes.is_multiple_of(4096) && (2 << 20..=64 << 20).contains(&bytes), "{total} {connections}");
                assert!(total.div_ceil(bytes) <= 128);
            }
        }
        assert_eq!(piece_bytes(1 << 30, 4), 32 << 20);
    }
}
