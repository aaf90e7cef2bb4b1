//! Sanitising: secrets and control sequences go before anything is stored, shown or hashed.
//!
//! Digests, evidence and events describe the sanitised text; the text before it exists nowhere else. Control
//! sequences go first: one inside of a secret would otherwise hide it until it is taken out. Clean text, the usual
//! case, is returned as it came, and costs a few scans at the speed of memory: an expression is run only where a
//! word stands that each of its matches holds.

use aho_corasick::packed;
use memchr::memmem;
use regex::Regex;
use serde_json::{Map, Value};
use thiserror::Error;
use toolwarden_tools::outcome::ToolErrorKind;

/// What stands where a secret stood.
pub const REDACTED: &str = "[redacted]";

/// Shortest exact value that is taken as a secret, in bytes: a shorter one would blot out ordinary text.
pub const SECRET_BYTES_MIN: usize = 6;

/// Shapes of secrets that are always looked for (provider keys, access tokens, private keys), each with the words
/// of which every match of it holds one. Each begins at the beginning of a word: a `task-…` holds no `sk-…`. Words are
/// those of ASCII: the Unicode kind is slow in text that is not ASCII.
const SECRET_SHAPES: [(&[&str], &str); 7] = [
    (&["sk-"], r"(?-u:\b)sk-(?:ant-|proj-)?[A-Za-z0-9_-]{20,}"),
    (&["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], r"(?-u:\b)gh[pousr]_[A-Za-z0-9]{36,}"),
    (&["github_pat_"], r"(?-u:\b)github_pat_[A-Za-z0-9_]{40,}"),
    (&["xox"], r"(?-u:\b)xox[abprs]-[A-Za-z0-9-]{10,}"),
    (&["AKIA"], r"(?-u:\b)AKIA[0-9A-Z]{16}"),
    (&["AIza"], r"(?-u:\b)AIza[0-9A-Za-z_-]{35}"),
    (&["-----BEGIN "], r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)-----END [A-Z ]*PRIVATE KEY-----"),
];

/// Credentials in an address: what stands between the scheme and the host. Looked for apart from the other shapes,
/// because addresses are common in ordinary text and the search for this one shape alone is fast.
const CREDENTIALS: &str = r"([a-z][a-z0-9+.-]*://)[^/\s:@]*:[^/\s@]+@";
/// The word that every match of [`CREDENTIALS`] holds.
const CREDENTIALS_WORD: &str = "://";

/// Takes secrets and control sequences out of text.
#[derive(Debug)]
pub struct Sanitiser {
    secrets: Vec<memmem::Finder<'static>>,
    credentials_word: memmem::Finder<'static>,
    credentials: Regex,
    // None when a host has patterns of its own, for nobody knows the words that those hold, and on machines without
    // the instructions for such a search.
    shape_words: Option<packed::Searcher>,
    shapes: Regex,
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
        let builtin = SECRET_SHAPES.iter().map(|(_, shape)| *shape);
        let shapes: Vec<String> =
            builtin.chain(patterns.iter().map(String::as_str)).map(|shape| format!("(?:{shape})")).collect();
        let shape_words = match patterns {
            [] => packed::Searcher::new(SECRET_SHAPES.iter().flat_map(|(words, _)| *words)),
            _ => None,
        };
        let mut secrets = secrets;
        // The longest first, so that a secret within a secret leaves no remainder.
        secrets.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        Ok(Self {
            secrets: secrets.iter().map(|secret| memmem::Finder::new(secret).into_owned()).collect(),
            credentials_word: memmem::Finder::new(CREDENTIALS_WORD),
            credentials: Regex::new(CREDENTIALS)?,
            shape_words,
            shapes: Regex::new(&shapes.join("|"))?,
        })
    }

    /// The text without secrets and control sequences, and how many pieces were taken out.
    pub fn clean(&self, text: String) -> (String, usize) {
        let mut removed = 0;
        let mut text = text;
        if has_control(text.as_bytes()) {
            removed += 1;
            text = without_controls(&text);
        }
        for secret in &self.secrets {
            let count = secret.find_iter(text.as_bytes()).count();
            if let (1.., Ok(secret)) = (count, std::str::from_utf8(secret.needle())) {
                removed += count;
                text = text.replace(secret, REDACTED);
            }
        }
        if self.may_hold_credentials(&text) {
            removed += replace(&self.credentials, &mut text, |found| format!("{}{REDACTED}@", &found[1]));
        }
        if self.may_hold_a_shape(&text) {
            removed += replace(&self.shapes, &mut text, |_| REDACTED.to_owned());
        }
        (text, removed)
    }

    /// Whether there may be something to take out; false is certain.
    fn is_suspect(&self, text: &str) -> bool {
        has_control(text.as_bytes())
            || self.secrets.iter().any(|secret| secret.find(text.as_bytes()).is_some())
            || self.may_hold_credentials(text)
            || self.may_hold_a_shape(text)
    }

    fn may_hold_credentials(&self, text: &str) -> bool {
        self.credentials_word.find(text.as_bytes()).is_some()
    }

    fn may_hold_a_shape(&self, text: &str) -> bool {
        self.shape_words.as_ref().is_none_or(|words| words.find(text).is_some())
    }
}

/// Replaces every match in a text; returns how many there were.
fn replace(shape: &Regex, text: &mut String, with: impl Fn(&regex::Captures<'_>) -> String) -> usize {
    let mut count = 0;
    let replaced = shape.replace_all(text, |found: &regex::Captures<'_>| {
        count += 1;
        with(found)
    });
    if let std::borrow::Cow::Owned(replaced) = replaced {
        *text = replaced;
    }
    count
}

impl Sanitiser {
    /// Cleans every text inside of a JSON value, keys too; returns how many pieces were taken out.
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
                Value::Object(map) => {
                    removed += self.clean_keys(map);
                    open.extend(map.values_mut());
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
        removed
    }

    /// Cleans the keys of an object; keys that become alike are numbered, so that nothing gets lost.
    fn clean_keys(&self, map: &mut Map<String, Value>) -> usize {
        if !map.keys().any(|key| self.is_suspect(key)) {
            return 0;
        }
        let mut removed = 0;
        for (key, value) in std::mem::take(map) {
            let (key, count) = self.clean(key);
            removed += count;
            let taken = map.contains_key(&key);
            let key = if taken { format!("{key} {}", map.len() + 1) } else { key };
            map.insert(key, value);
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

/// How many bytes are looked at before the search for control bytes may end.
const CONTROL_BLOCK_BYTES: usize = 1024;

/// Control bytes that no text needs: everything below a blank but tab, newline and carriage return, and DEL.
fn is_control(byte: u8) -> bool {
    matches!(byte, 0..=8 | 11 | 12 | 14..=31 | 127)
}

/// Whether a text holds such a byte; by blocks, so that it is searched many bytes at a time.
fn has_control(text: &[u8]) -> bool {
    let any = |block: &[u8]| block.iter().fold(false, |any, byte| any | is_control(*byte));
    text.chunks(CONTROL_BLOCK_BYTES).any(any)
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
    use serde_json::json;

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
    fn a_control_sequence_hides_no_secret() {
        assert_eq!(clean("key=sk-ant-\u{1b}[0mabcdefghij\u{0}klmnopqrstuvwx!"), "key=[redacted]!");
        assert_eq!(clean("https:/\u{1b}[1m/me:pass@host"), "https://[redacted]@host");
    }

    #[test]
    fn a_key_as_a_password_goes_with_it() {
        let key = format!("sk-proj-{}", "a1B2".repeat(6));
        assert_eq!(clean(&format!("https://me:{key}@host/{key}")), "https://[redacted]@host/[redacted]");
    }

    // The words decide only whether an expression is run, never what is found.
    #[test]
    fn every_match_of_a_shape_holds_one_of_its_words() {
        let text = one_of_each();
        for (words, shape) in super::SECRET_SHAPES {
            let shape = regex::Regex::new(shape).unwrap();
            let found: Vec<&str> = shape.find_iter(&text).map(|found| found.as_str()).collect();
            assert!(!found.is_empty(), "{shape} is not tried");
            assert!(found.iter().all(|found| words.iter().any(|word| found.contains(word))), "{shape}: {found:?}");
        }
        let sanitiser = Sanitiser::new(Vec::new(), &[]).unwrap();
        for line in text.split('\n') {
            assert_eq!(sanitiser.clean(line.to_owned()), ("[redacted]".to_owned(), 1), "{line}");
        }
    }

    /// A secret of each shape and each spelling, one a line.
    fn one_of_each() -> String {
        let tail = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0U1v2";
        let mut lines: Vec<String> =
            ["sk-", "sk-ant-", "sk-proj-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"]
                .iter()
                .map(|start| format!("{start}{tail}"))
                .collect();
        lines.extend(["a", "b", "p", "r", "s"].map(|kind| format!("xox{kind}-{tail}")));
        lines.push(format!("AKIA{}", "A1B2".repeat(4)));
        lines.push(format!("AIza{}", &tail[..35]));
        lines.push("-----BEGIN PRIVATE KEY-----x-----END PRIVATE KEY-----".into());
        lines.join("\n")
    }

    /// The id of a child session, which was taken for a provider's key.
    const TASK: &str = "task-run-task-795175dd285d4370b2a35411b700f6ae";

    #[test]
    fn keys_are_cleaned_and_none_gets_lost() {
        let sanitiser = Sanitiser::new(Vec::new(), &["ticket-[0-9]+".into()]).unwrap();
        let mut value = json!({"a": [{"ticket-1": "ticket-2", "ticket-3": 4}], "b": 5});
        assert_eq!(sanitiser.clean_value(&mut value), 3);
        assert_eq!(value, json!({"a": [{"[redacted]": "[redacted]", "[redacted] 2": 4}], "b": 5}));
    }

    #[test]
    fn ordinary_text_stays_to_the_byte() {
        for text in ["", "plain\ttext\r\n", "skill-sk-1 界 e\u{301}", "http://host:80/path@x", "a@b.c", TASK] {
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
