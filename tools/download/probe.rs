//! The first request: does the server give parts, of which version, and how many bytes are there?
//!
//! It asks for one byte. A server that gives the whole instead is taken at its word: that answer is the download.

use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::timeout;
use url::Url;

use super::content_range::ContentRange;
use super::{CONNECTIONS_MAX, DownloadError, Failure, Job, Tries, headers, refused, validator};
use crate::effects::http::{HttpBody, HttpHeaders};
use crate::web::redirects::{Answer, Follow, get};

/// Bytes of a file for which one connection more is worth it, at least.
const BYTES_PER_CONNECTION: u64 = 2 * 1024 * 1024;
/// One MiB.
const MIB: f64 = 1024.0 * 1024.0;
/// How long the one byte may take to arrive, for the connection to be used again.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Pieces of it that are taken.
const DRAIN_PIECES_MAX: usize = 2;
/// Longest content type that is told, in bytes.
const TYPE_BYTES_MAX: usize = 200;

/// What is there.
pub(crate) struct Probed {
    /// Who answered, behind all redirects.
    pub(crate) answered: Url,
    /// Of which type it is, as the server says.
    pub(crate) content_type: Option<String>,
    /// The field that may propose a name.
    pub(crate) disposition: Option<String>,
    /// How many bytes there are, where that is known.
    pub(crate) total: Option<u64>,
    /// Whether the server gives parts.
    pub(crate) gives_parts: bool,
    pub(super) plan: Plan,
}

/// How it can be got.
pub(super) enum Plan {
    /// There is nothing in it.
    Empty,
    /// In parts, of this version.
    Ranges { validator: String },
    /// As a whole, out of this answer where there is one.
    Whole { answer: Option<Answer> },
}

impl Probed {
    /// How many connections are worth it: what is asked for, within what the size allows.
    pub(super) fn connections(&self, wanted: Option<u64>) -> u64 {
        let (Plan::Ranges { .. }, Some(total)) = (&self.plan, self.total) else { return 1 };
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of connections, between 1 and 4 at last"
        )]
        let usual = (total as f64 / MIB).sqrt().round() as u64;
        wanted.unwrap_or(usual).min(total / BYTES_PER_CONNECTION).clamp(1, CONNECTIONS_MAX)
    }

    fn of(answer: Answer, total: Option<u64>, gives_parts: bool, plan: impl FnOnce(Answer) -> Plan) -> Self {
        let text = |name: &str| answer.response.headers.get(name).map(str::to_owned);
        Self {
            content_type: text("content-type").filter(|kind| kind.len() <= TYPE_BYTES_MAX),
            disposition: text("content-disposition"),
            answered: answer.url.clone(),
            total,
            gives_parts,
            plan: plan(answer),
        }
    }
}

pub(super) async fn probe(job: &Job) -> Result<Probed, DownloadError> {
    let mut tries = Tries::default();
    loop {
        let probed = match ask(job).await {
            Ok(probed) => probed,
            Err(failure) => {
                tries.again(failure, false).await?;
                continue;
            }
        };
        return match probed.total.filter(|total| *total > job.bytes_max) {
            Some(total) => Err(DownloadError::TooLarge { bytes: Some(total), max: job.bytes_max }),
            None => Ok(probed),
        };
    }
}

async fn ask(job: &Job) -> Result<Probed, Failure> {
    job.meter.ask()?;
    let mut headers = headers();
    headers.push("range", "bytes=0-0");
    let mut answer = get(&job.web, &job.url, &headers, Follow::Anywhere).await?;
    let fields = &answer.response.headers;
    let range = fields.get("content-range").and_then(ContentRange::parse);
    let whole = |answer, total| Ok(Probed::of(answer, total, false, |_| Plan::Whole { answer: None }));
    match (answer.response.status, range) {
        (206, Some(ContentRange::Part { first: 0, last: 0, total: Some(total) })) => {
            let version = validator(fields);
            drain(&mut answer.response.body).await;
            let plan = version.map_or(Plan::Whole { answer: None }, |validator| Plan::Ranges { validator });
            Ok(Probed::of(answer, Some(total), true, |_| plan))
        }
        (416, Some(ContentRange::Outside { total: Some(0) })) => Ok(Probed::of(answer, Some(0), true, |_| Plan::Empty)),
        // Parts that are not those asked for, or none at all: the whole may still come.
        (206 | 403 | 405 | 416, _) => whole(answer, None),
        (204 | 205, _) => Err(refused(job, &answer.url, &answer.response)),
        (200..=299, _) => {
            let total = length(fields);
            Ok(Probed::of(answer, total, false, |answer| Plan::Whole { answer: Some(answer) }))
        }
        _ => Err(refused(job, &answer.url, &answer.response)),
    }
}

/// How many bytes an answer announces.
pub(super) fn length(headers: &HttpHeaders) -> Option<u64> {
    headers.get("content-length").and_then(|text| text.trim().parse().ok())
}

/// Takes the rest of a short body, so that its connection can be used again.
async fn drain(body: &mut HttpBody) {
    let rest = async {
        for _ in 0..DRAIN_PIECES_MAX {
            if body.next().await.is_none_or(|piece| piece.is_err()) {
                break;
            }
        }
    };
    // A connection that is not drained is closed: slower, and nothing else.
    let _drained = timeout(DRAIN_TIMEOUT, rest).await;
}

#[cfg(test)]
mod tests {
    use super::{Plan, Probed};

    #[test]
    fn connections_follow_the_size() {
        const MIB: u64 = 1024 * 1024;
        let probed = |total: u64| Probed {
            answered: url::Url::parse("http://a.example/").unwrap(),
            content_type: None,
            disposition: None,
            total: Some(total),
            gives_parts: true,
            plan: Plan::Ranges { validator: "\"a\"".to_owned() },
        };
        for (total, wanted, expected) in [
            (0, None, 1),
            (MIB, Some(4), 1),
            (4 * MIB, None, 2),
            (4 * MIB, Some(4), 2),
            (9 * MIB, None, 3),
            (1024 * MIB, None, 4),
            (1024 * MIB, Some(1), 1),
            (8 * MIB, Some(4), 4),
        ] {
            assert_eq!(probed(total).connections(wanted), expected, "{total} {wanted:?}");
        }
        assert_eq!(Probed { plan: Plan::Empty, ..probed(MIB * 64) }.connections(Some(4)), 1);
    }
}
