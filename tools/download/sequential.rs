//! The whole over one connection; what broke goes on where it stood, if it is still the same version.
//!
//! Bytes are appended to what is there only when the server says that they follow it, of the same version. Anything
//! else starts again from nothing.

use url::Url;

use super::content_range::ContentRange;
use super::probe::length;
use super::sink::Sink;
use super::{
    Destination, DownloadError, Failure, Job, STEP_BYTES, Tries, headers, is_version, next_piece, refused, reserve,
    validator,
};
use crate::digest::Digest;
use crate::effects::http::HttpHeaders;
use crate::web::redirects::{Answer, Follow, get};

/// A download on its way.
struct Course<'j> {
    job: &'j Job,
    to: &'j Destination,
    sink: Sink,
    /// Bytes that are there.
    received: u64,
    /// How many there are to be.
    total: Option<u64>,
    /// Who gave them and of which version they are, when it can go on where it stands.
    resumable: Option<(Url, String)>,
}

pub(super) async fn fetch(job: &Job, first: Option<Answer>, to: &Destination) -> Result<(u64, Digest), DownloadError> {
    to.file.set_size(0)?;
    job.meter.restart();
    let sink = Sink::begin(&to.file, &to.alive);
    let mut course = Course { job, to, sink, received: 0, total: None, resumable: None };
    let mut tries = Tries::default();
    let mut first = first;
    loop {
        let before = course.received;
        let failure = match course.go_on(first.take()).await {
            Ok(()) => break,
            Err(Failure::Closed) => {
                course.sink.abandon().await?;
                return Err(Failure::Closed.into_error(tries.attempts + 1));
            }
            Err(failure) => failure,
        };
        if matches!(failure, Failure::Changed(_)) {
            course.resumable = None;
        }
        let got_far = course.resumable.is_some() && course.received >= before + STEP_BYTES;
        tries.again(failure, got_far).await?;
        if course.resumable.is_none() {
            course.restart().await?;
        }
    }
    let received = course.received;
    let (bytes, digest) = course.sink.finish().await?;
    if bytes != received {
        let reason = format!("{bytes} of {received} bytes can be read back");
        return Err(DownloadError::Broken { reason, attempts: tries.attempts + 1 });
    }
    Ok((bytes, digest))
}

impl Course<'_> {
    /// Begins again from nothing.
    async fn restart(&mut self) -> Result<(), DownloadError> {
        if self.received > 0 {
            let fresh = Sink::begin(&self.to.file, &self.to.alive);
            std::mem::replace(&mut self.sink, fresh).abandon().await?;
            self.to.file.set_size(0)?;
            self.job.meter.restart();
        }
        (self.received, self.total) = (0, None);
        Ok(())
    }

    /// One request, and its body to the end.
    async fn go_on(&mut self, first: Option<Answer>) -> Result<(), Failure> {
        let answer = match first {
            Some(answer) => answer,
            None => self.ask().await?,
        };
        let fields = &answer.response.headers;
        let range = fields.get("content-range").and_then(ContentRange::parse);
        match (answer.response.status, range) {
            (206, Some(ContentRange::Part { first, last, total: Some(total) })) if self.received > 0 => {
                let goes_on = first == self.received && Some(total) == self.total && last + 1 == total;
                let same =
                    self.resumable.as_ref().is_some_and(|(_, version)| is_version(fields, version) == Some(true));
                if !goes_on || !same {
                    return Err(Failure::Changed("the server went on with something else"));
                }
            }
            // Case C098: the whole instead of the rest is a new beginning, never more of the same.
            (200, _) if self.received > 0 => {
                self.restart().await.map_err(Failure::Final)?;
                self.begin(&answer.url, &answer.response.headers).await?;
            }
            (200 | 201 | 203, _) if self.received == 0 => self.begin(&answer.url, &answer.response.headers).await?,
            (403 | 404 | 410 | 412 | 416, _) if self.received > 0 => {
                return Err(Failure::Changed("the server gives no more of it"));
            }
            (206, _) => return Err(Failure::Changed("the server gave a part that was not asked for")),
            _ => return Err(refused(self.job, &answer.url, &answer.response)),
        }
        self.take(answer).await
    }

    async fn ask(&self) -> Result<Answer, Failure> {
        self.job.meter.ask()?;
        let mut headers = headers();
        match &self.resumable {
            Some((url, version)) if self.received > 0 => {
                headers.push("range", format!("bytes={}-", self.received));
                headers.push("if-range", version.clone());
                Ok(get(&self.job.web, url, &headers, Follow::SameOrigin).await?)
            }
            _ => Ok(get(&self.job.web, &self.job.url, &headers, Follow::Anywhere).await?),
        }
    }

    /// Takes the head of the answer that the file begins with.
    async fn begin(&mut self, url: &Url, fields: &HttpHeaders) -> Result<(), Failure> {
        self.total = length(fields);
        let max = self.job.bytes_max;
        if let Some(total) = self.total {
            if total > max {
                return Err(Failure::Final(DownloadError::TooLarge { bytes: Some(total), max }));
            }
            reserve(self.to, total).await?;
        }
        let gives_parts = fields.get("accept-ranges").is_none_or(|unit| !unit.trim().eq_ignore_ascii_case("none"));
        self.resumable = match (self.total, validator(fields)) {
            (Some(_), Some(version)) if gives_parts => Some((url.clone(), version)),
            _ => None,
        };
        Ok(())
    }

    async fn take(&mut self, answer: Answer) -> Result<(), Failure> {
        let mut body = answer.response.body;
        let (total, max) = (self.total, self.job.bytes_max);
        loop {
            let piece = match next_piece(&mut body).await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(broken) => {
                    // A body that ends early is told by its figures, whatever the connection said of it.
                    return Err(match total {
                        Some(total) => Failure::Truncated { received: self.received, total },
                        None => broken,
                    });
                }
            };
            let bytes = piece.len() as u64;
            if self.received + bytes > max {
                return Err(Failure::Final(DownloadError::TooLarge { bytes: None, max }));
            }
            if total.is_some_and(|total| self.received + bytes > total) {
                return Err(Failure::Changed("more came than was announced"));
            }
            self.sink.take(self.received, piece).await?;
            self.received += bytes;
            self.job.meter.add(bytes);
        }
        match total.filter(|total| self.received < *total) {
            Some(total) => Err(Failure::Truncated { received: self.received, total }),
            None => Ok(()),
        }
    }
}
