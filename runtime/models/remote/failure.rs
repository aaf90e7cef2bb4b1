//! What a status that is not a success means: typed from status, headers and the codes in the body, never from prose.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use toolwarden_tools::effects::http::HttpHeaders;

use crate::models::ModelError;
use crate::models::wire::ProviderError;

/// Codes of a request that a filter did not let through: an answer, and no failure.
const FILTER_CODES: [&str; 2] = ["content_filter", "content_policy_violation"];
/// Longest wait that is read out of a header, in milliseconds: a week.
const WAIT_MS_MAX: u64 = 7 * 24 * 3600 * 1000;

/// An answer that is no success.
pub(super) struct Failure<'a> {
    pub(super) status: u16,
    pub(super) headers: &'a HttpHeaders,
    pub(super) body: &'a [u8],
}

impl Failure<'_> {
    /// What it comes to: nothing when a filter spoke, which is an answer.
    pub(super) fn outcome(&self, now_unix_ms: u64) -> Result<(), ModelError> {
        let status = self.status;
        let retry_after_ms = retry_after_ms(self.headers, now_unix_ms);
        let mut said = self.said();
        if (400..500).contains(&status) && said.codes.iter().any(|code| FILTER_CODES.contains(&code.as_str())) {
            return Ok(());
        }
        said.message = format!("{} (HTTP {status})", said.message);
        let message = said.message.clone();
        let by_codes = said.kind(retry_after_ms);
        let error = match status {
            300..=399 => ModelError::Unreadable { message: self.redirect() },
            401 | 403 => ModelError::Unauthorized { message },
            404 => ModelError::Invalid { message: format!("{message}; check the model's name and the base address") },
            429 => match by_codes {
                quota @ ModelError::Provider { retryable: false, .. } => quota,
                _ => ModelError::RateLimited { retry_after_ms },
            },
            408 | 409 | 500.. => match by_codes {
                overflow @ ModelError::ContextOverflow { .. } => overflow,
                _ => ModelError::Provider { message, retryable: true, retry_after_ms },
            },
            _ => match by_codes {
                typed @ (ModelError::ContextOverflow { .. } | ModelError::Unauthorized { .. }) => typed,
                _ => ModelError::Invalid { message },
            },
        };
        // The provider's own word about it wins.
        Err(match (self.headers.get("x-should-retry"), error) {
            (Some("true"), error) if !error.is_retryable() => {
                ModelError::Provider { message: error.to_string(), retryable: true, retry_after_ms }
            }
            (Some("false"), error) if error.is_retryable() => {
                ModelError::Provider { message: error.to_string(), retryable: false, retry_after_ms }
            }
            (_, error) => error,
        })
    }

    fn said(&self) -> ProviderError {
        let body: Option<Value> = serde_json::from_slice(self.body).ok();
        match &body {
            Some(body) => ProviderError::of(body.get("error").filter(|error| !error.is_null()).unwrap_or(body)),
            None if self.body.is_empty() => ProviderError::of(&Value::Null),
            None => {
                ProviderError { codes: Vec::new(), message: "it answered with a page and not with JSON".to_owned() }
            }
        }
    }

    fn redirect(&self) -> String {
        let to = self.headers.get("location").unwrap_or("nowhere");
        let end = to.floor_char_boundary(200);
        format!("it redirects to {:?}, and keys are not sent on; give that address if it is right", &to[..end])
    }
}

/// When to try again: milliseconds, seconds, or a date, whichever the provider says.
fn retry_after_ms(headers: &HttpHeaders, now_unix_ms: u64) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| *number >= 0.0);
    let span_ms = |number: f64| {
        let span = Duration::try_from_secs_f64(number / 1000.0).ok();
        span.and_then(|span| u64::try_from(span.as_millis()).ok()).unwrap_or(WAIT_MS_MAX).min(WAIT_MS_MAX)
    };
    if let Some(ms) = headers.get("retry-after-ms").and_then(number) {
        return Some(span_ms(ms));
    }
    let text = headers.get("retry-after")?;
    if let Some(seconds) = number(text) {
        return Some(span_ms(seconds * 1000.0));
    }
    let at = httpdate::parse_http_date(text.trim()).ok()?;
    let at_ms = u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()?;
    Some(at_ms.saturating_sub(now_unix_ms).min(WAIT_MS_MAX))
}

#[cfg(test)]
mod tests {
    use toolwarden_tools::effects::http::HttpHeaders;

    use super::{Failure, WAIT_MS_MAX, retry_after_ms};
    use crate::models::ModelError;

    fn outcome(status: u16, headers: &[(&str, &str)], body: &str) -> Result<(), ModelError> {
        let headers: HttpHeaders = headers.iter().copied().collect();
        Failure { status, headers: &headers, body: body.as_bytes() }.outcome(0)
    }

    #[test]
    fn waits_come_in_three_forms() {
        let wait = |name: &str, value: &str| retry_after_ms(&[(name, value)].into_iter().collect(), 784_111_770_000);
        assert_eq!(wait("retry-after", "2"), Some(2000));
        assert_eq!(wait("Retry-After", "0.5"), Some(500));
        assert_eq!(wait("retry-after-ms", "17"), Some(17));
        assert_eq!(wait("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), Some(7000));
        assert_eq!(wait("retry-after", "Tue, 06 Nov 1990 08:49:37 GMT"), Some(0));
        assert_eq!(wait("retry-after", "1e300"), Some(WAIT_MS_MAX));
        for nothing in ["", "soon", "-1", "NaN"] {
            assert_eq!(wait("retry-after", nothing), None, "{nothing}");
        }
    }

    #[test]
    fn status_and_codes_make_the_kind() {
        let retryable = |status| outcome(status, &[], "{}").unwrap_err().is_retryable();
        assert!([408, 409, 429, 500, 502, 503, 504, 529].into_iter().all(retryable));
        assert!(![301, 400, 401, 403, 404, 413, 422].into_iter().any(retryable));
        let quota = outcome(429, &[], r#"{"error":{"code":"insufficient_quota","message":"pay"}}"#).unwrap_err();
        assert!(!quota.is_retryable() && quota.to_string().contains("pay"), "{quota}");
        let limited = outcome(429, &[("retry-after", "3")], "").unwrap_err();
        assert_eq!(limited, ModelError::RateLimited { retry_after_ms: Some(3000) });
        let overflow = outcome(400, &[], r#"{"error":{"code":"context_length_exceeded","message":"long"}}"#);
        assert!(matches!(overflow, Err(ModelError::ContextOverflow { .. })), "{overflow:?}");
        assert_eq!(outcome(400, &[], r#"{"error":{"code":"content_filter","message":"no"}}"#), Ok(()));
        // Prose says nothing.
        let prose = outcome(400, &[], r#"{"error":{"message":"rate limit exceeded, retry"}}"#).unwrap_err();
        assert!(matches!(prose, ModelError::Invalid { .. }), "{prose:?}");
        let page = outcome(502, &[], "<html>secret page</html>").unwrap_err();
        assert!(page.is_retryable() && page.to_string().contains("502") && !page.to_string().contains("secret"));
        let moved = outcome(307, &[("location", "https://elsewhere/v1")], "").unwrap_err();
        assert!(moved.to_string().contains("elsewhere"), "{moved}");
    }

    #[test]
    fn the_provider_decides_what_is_tried_again() {
        assert!(outcome(400, &[("x-should-retry", "true")], "{}").unwrap_err().is_retryable());
        assert!(!outcome(500, &[("x-should-retry", "false")], "{}").unwrap_err().is_retryable());
        assert!(outcome(500, &[("x-should-retry", "perhaps")], "{}").unwrap_err().is_retryable());
    }
}
