//! Sanitising: secrets and control sequences go before anything is stored, shown or hashed.
//!
//! Digests, evidence and events describe the sanitised text; the text before it exists nowhere else. Clean text,
//! the usual case, is returned as it came, after one pass.

use regex::Regex;
use serde_json::Value;
use thiserror::Error;
use toolwarden_tools::outcome::ToolErrorKind;

/// What stands where a secret stood.
pub const REDACTED: &str = "[redacted]";

/// Shortest exact value that is taken as a secret, in bytes: a shorter one would blot out ordinary text.
pub const SECRET_BYTES_MIN: usize = 6;

/// Shapes of secrets that are always looked for: provider keys, access tokens, private keys, credentials in URLs.
const SECRET_SHAPES: [&str; 8] = [
    r"sk-(?:ant-|proj-)?[A-Za-z0-9_-]{20,}",
    r"gh[pousr]_[A-Za-z0-9]{36,}",
    r"github_pat_[A-Za-z0-9_]{40,}",
    r"xox[abprs]-[A-Za-z0-9-]{10,}",
    r"AKIA[0-9A-Z]{16}",
    r"AIza[0-9A-Za-z_-]{35}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)-----END [A-Z ]*PRIVATE KEY-----",
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s:@]*:[^/\s@]+@",
];

/// Takes secrets and control sequences out of text.
#[derive(Debug)]
pub struct Sanitiser {
    secrets: Vec<String>,
    shapes: Option<Regex>,
}

/// Why a sanitiser cannot be built.
#[derive(Debug, Error)]
pub enum SanitiserError {
    /// The exact value is too short to be told from ordinary text.
    #[error("a secret of {bytes} bytes is too short to be redacted; give at least {SECRET_BYTES_MIN}")]
    TooShort {
        /// Its length.
        bytes: usize,
    },
    /// A pattern is no regular expression.
    #[error("not a usable pattern: {0}")]
    Pattern(#[from] regex::Error),
}

impl Sanitiser {
    /// Looks for the usual shapes, for these exact values, and for these further patterns.
    ///
    /// # Errors
    /// [`SanitiserError`] for a value that is too short or a pattern that is none.
    pub fn new(secrets: Vec<String>, patterns: &[String]) -> Result<Self, SanitiserError> {
        if let Some(short) = secrets.iter().find(|secret| secret.len() < SECRET_BYTES_MIN) {
            return Err(SanitiserError::TooShort { bytes: short.len() });
        }
        for pattern in patterns {
            Regex::new(pattern)?;
        }
        let mut shapes: Vec<String> = SECRET_SHAPES.iter().map(|shape| format!("(?:{shape})")).collect();
        shapes.extend(patterns.iter().map(|pattern| format!("(?:{pattern})")));
        let mut secrets = secrets;
        // The longest first, so that a secret within a secret leaves no remainder.
        secrets.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        Ok(Self { secrets, shapes: Some(Regex::new(&shapes.join("|"))?) })
    }

    /// The text without secrets and control sequences, and how many pieces were taken out.
    pub fn clean(&self, text: String) -> (String, usize) {
        let mut removed = 0;
        let mut text = text;
        for secret in &self.secrets {
            let count = text.matches(secret.as_str()).count();
            if count > 0 {
                removed += count;
                text = text.replace(secret.as_str(), REDACTED);
            }
        }
        if let Some(shapes) = &self.shapes {
            let mut count = 0;
            let replaced = shapes.replace_all(&text, |found: &regex::Captures<'_>| {
                count += 1;
                match found.name("scheme") {
                    Some(scheme) => format!("{}{REDACTED}@", scheme.as_str()),
                    None => REDACTED.to_owned(),
                }
            });
            if count > 0 {
                removed += count;
                text = replaced.into_owned();
            }
        }
        if text.bytes().any(is_control) {
            removed += 1;
            text = without_controls(&text);
        }
        (text, removed)
    }
}

impl Sanitiser {
    /// Cleans every text inside of a JSON value; returns how many pieces were taken out.
    pub fn clean_value(&self, value: &mut Value) -> usize {
        let mut removed = 0;
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            match value {
                Value::String(text) => {
                    let (clean, count) = self.clean(std::mem::take(text));
                    *text = clean;
                    removed += count;
                }
                Value::Array(items) => open.extend(items),
                Value::Object(map) => open.extend(map.values_mut()),
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
        removed
    }

    /// Cleans the texts of a failure's kind.
    pub fn clean_kind(&self, kind: ToolErrorKind) -> ToolErrorKind {
        let Ok(mut value) = serde_json::to_value(&kind) else { return kind };
        if self.clean_value(&mut value) == 0 {
            return kind;
        }
        serde_json::from_value(value).unwrap_or(kind)
    }
}

/// Control bytes that no text needs: everything below a blank but tab, newline and carriage return, and DEL.
fn is_control(byte: u8) -> bool {
    matches!(byte, 0..=8 | 11 | 12 | 14..=31 | 127)
}

/// Takes out terminal control sequences (CSI, OSC and their like) as wholes, and other control bytes one by one.
fn without_controls(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\u{1b}' {
            if !c.is_ascii() || !is_control(c as u8) {
                clean.push(c);
            }
            continue;
        }
        match rest.peek() {
            // CSI: parameters, then one final byte.
            Some('[') => {
                rest.next();
                while rest.next_if(|c| matches!(c, '\u{20}'..='\u{3f}')).is_some() {}
                rest.next_if(|c| matches!(c, '\u{40}'..='\u{7e}'));
            }
            // OSC, DCS, PM, APC, SOS: up to BEL or ESC \, or to the end of the line when it never comes.
            Some(']' | 'P' | '^' | '_' | 'X') => {
                rest.next();
                while let Some(c) = rest.next_if(|c| *c != '\n') {
                    if c == '\u{7}' {
                        break;
                    }
                    if c == '\u{1b}' {
                        rest.next_if_eq(&'\\');
                        break;
                    }
                }
            }
            // Two characters.
            Some('\u{20}'..='\u{7e}') => {
                rest.next();
            }
            _ => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::{Sanitiser, SanitiserError};

    fn clean(text: &str) -> String {
        let sanitiser = Sanitiser::new(vec!["zz9-plural-z".into()], &["(?i)ticket-[0-9]+".into()]).unwrap();
        sanitiser.clean(text.to_owned()).0
    }

    #[test]
    fn secrets_of_every_kind_go() {
        assert_eq!(clean("a zz9-plural-z b"), "a [redacted] b");
        // Put together here, so that no tool that looks for keys takes this for one.
        assert_eq!(clean(&format!("key=sk-ant-{}", "a1B2".repeat(6))), "key=[redacted]");
        assert_eq!(clean("https://me:pass@host/x"), "https://[redacted]@host/x");
        assert_eq!(clean("see Ticket-42"), "see [redacted]");
        let key = "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----";
        assert_eq!(clean(&format!("x\n{key}\ny")), "x\n[redacted]\ny");
    }

    #[test]
    fn ordinary_text_stays_to_the_byte() {
        for text in ["", "plain\ttext\r\n", "skill-sk-1 界 e\u{301}", "http://host:80/path@x", "a@b.c"] {
            let sanitiser = Sanitiser::new(Vec::new(), &[]).unwrap();
            assert_eq!(sanitiser.clean(text.to_owned()), (text.to_owned(), 0));
        }
    }

    #[test]
    fn control_sequences_go_as_wholes() {
        assert_eq!(clean("\u{1b}[31mred\u{1b}[0m\u{1b}]0;title\u{7}!"), "red!");
        assert_eq!(clean("a\u{0}b\u{8}c\u{7f}"), "abc");
        assert_eq!(clean("\u{1b}]never ends\nnext"), "\nnext");
        assert_eq!(clean("\u{1b}"), "");
    }

    #[test]
    fn a_value_that_would_blot_out_text_is_refused() {
        assert!(matches!(Sanitiser::new(vec!["abc".into()], &[]), Err(SanitiserError::TooShort { bytes: 3 })));
        assert!(matches!(Sanitiser::new(vec![], &["(".into()]), Err(SanitiserError::Pattern(_))));
    }
}
