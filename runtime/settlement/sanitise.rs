//! Sanitising: secrets and control sequences go before anything is stored, shown or hashed.
//!
//! Digests, evidence and events describe the sanitised text; the text before it exists nowhere else. Control
//! sequences go first: one inside of a secret would otherwise hide it until it is taken out. Clean text, the usual
//! case, is returned as it came, and costs a few scans at the speed of memory: an expression is run only where a
//! word stands that each of its matches holds. A host may add a [`SecurityProvider`], which sees what is left.

mod control;
pub mod stream;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use aho_corasick::packed;
use memchr::memmem;
use regex::Regex;
use serde_json::{Map, Value};
use thiserror::Error;
use toolwarden_tools::outcome::ToolErrorKind;

use self::control::{has_control, without_controls};

/// What stands where a secret stood.
pub const REDACTED: &str = "[redacted]";

/// Shortest exact value that is taken as a secret, in bytes: a shorter one would blot out ordinary text.
pub const SECRET_BYTES_MIN: usize = 6;

/// Shapes of secrets that are always looked for (provider keys, access tokens), each with the words
/// of which every match of it holds one. Each begins at the beginning of a word: a `task-…` holds no `sk-…`. Words are
/// those of ASCII: the Unicode kind is slow in text that is not ASCII.
const SECRET_SHAPES: [(&[&str], &str); 11] = [
    (&["sk-"], r"(?-u:\b)sk-(?:ant-|proj-)?[A-Za-z0-9_-]{20,}"),
    (&["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], r"(?-u:\b)gh[pousr]_[A-Za-z0-9]{36,}"),
    (&["github_pat_"], r"(?-u:\b)github_pat_[A-Za-z0-9_]{40,}"),
    (&["xox"], r"(?-u:\b)xox[abprs]-[A-Za-z0-9-]{10,}"),
    (&["AKIA", "ASIA"], r"(?-u:\b)A[KS]IA[0-9A-Z]{16}"),
    (&["AIza"], r"(?-u:\b)AIza[0-9A-Za-z_-]{35}"),
    (&["glpat-"], r"(?-u:\b)glpat-[A-Za-z0-9_-]{20,}"),
    (&["npm_"], r"(?-u:\b)npm_[A-Za-z0-9]{36}"),
    (&["hf_"], r"(?-u:\b)hf_[A-Za-z0-9]{30,}"),
    (&["k_live_", "k_test_"], r"(?-u:\b)[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    (&["eyJ"], r"(?-u:\b)eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
];

/// The word that every match of [`PRIVATE_KEY`] holds.
const PRIVATE_KEY_WORD: &str = "-----BEGIN ";
/// A private key, with its end or, where a text was cut before it, as far as lines of its kind go.
const PRIVATE_KEY: &str = concat!(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"(?:(?s:.*?)-----END [A-Z ]*PRIVATE KEY-----|(?:\s*(?:[A-Za-z0-9+/=]{16,}|[A-Z][A-Za-z-]*: [^\n]*))*)",
);

/// Credentials in an address: what stands between the scheme and the host. Looked for apart from the other shapes,
/// because addresses are common in ordinary text and the search for this one shape alone is fast.
const CREDENTIALS: &str = r"([a-z][a-z0-9+.-]*://)[^/\s:@]*:[^/\s@]+@";
/// The word that every match of [`CREDENTIALS`] holds.
const CREDENTIALS_WORD: &str = "://";

/// Texts up to this length are first looked at in one pass: keys and short facts are most of what comes here, and each
/// search costs more to begin than to run.
const SHORT_BYTES_MAX: usize = 23;
/// No shape and no private key is shorter than this, in bytes.
const SHAPE_BYTES_MIN: usize = 15;

/// Takes secrets and control sequences out of text.
#[derive(Debug)]
pub struct Sanitiser {
    secrets: Vec<memmem::Finder<'static>>,
    private_key_word: memmem::Finder<'static>,
    private_key: Regex,
    credentials_word: memmem::Finder<'static>,
    credentials: Regex,
    // None when a host has patterns of its own, for nobody knows the words that those hold, and on machines without
    // the instructions for such a search.
    shape_words: Option<packed::Searcher>,
    shapes: Regex,
    /// The shortest exact value, in bytes.
    secret_bytes_min: usize,
    has_own_patterns: bool,
    /// Exact values that are not of one word of ASCII.
    broken_secrets: Vec<String>,
    provider: Option<Arc<dyn SecurityProvider>>,
}

/// A host's own say in what nobody may see.
///
/// It gets every text (outputs, their metadata, events) after the built-in rules, before anything is stored; long
/// outputs come in pieces that end between words.
pub trait SecurityProvider: std::fmt::Debug + Send + Sync {
    /// The text as it may be seen; none when it may stay as it is. It is called on the route of every call: keep it
    /// quick. When it panics, the whole text is withheld.
    fn cleaned(&self, text: &str) -> Option<String>;
}

/// What stands for a text that the security provider broke down over.
const WITHHELD: &str = "[withheld: the security provider failed]";

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
            private_key_word: memmem::Finder::new(PRIVATE_KEY_WORD),
            private_key: Regex::new(PRIVATE_KEY)?,
            credentials_word: memmem::Finder::new(CREDENTIALS_WORD),
            credentials: Regex::new(CREDENTIALS)?,
            shape_words,
            shapes: Regex::new(&shapes.join("|"))?,
            secret_bytes_min: secrets.iter().map(String::len).min().unwrap_or(usize::MAX),
            has_own_patterns: !patterns.is_empty(),
            broken_secrets: secrets
                .iter()
                .filter(|secret| !secret.bytes().all(|b| b.is_ascii_graphic()))
                .cloned()
                .collect(),
            provider: None,
        })
    }

    /// With a host's own provider behind the built-in rules.
    #[must_use]
    pub fn with_provider(mut self, provider: Option<Arc<dyn SecurityProvider>>) -> Self {
        self.provider = provider;
        self
    }

    /// The text without secrets and control sequences, and how many pieces were taken out.
    pub fn clean(&self, text: String) -> (String, usize) {
        if self.is_short_and_plain(&text) {
            return (text, 0);
        }
        let mut removed = 0;
        let mut text = text;
        if has_control(&text) {
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
        // Before the other shapes, whose matches may reach into its first line.
        if self.may_hold_a_private_key(&text) {
            removed += replace(&self.private_key, &mut text, |_| REDACTED.to_owned());
        }
        if self.may_hold_credentials(&text) {
            removed += replace(&self.credentials, &mut text, |found| format!("{}{REDACTED}@", &found[1]));
        }
        if self.may_hold_a_shape(&text) {
            removed += replace(&self.shapes, &mut text, |_| REDACTED.to_owned());
        }
        if let Some(provider) = &self.provider
            && !text.is_empty()
        {
            let cleaned = catch_unwind(AssertUnwindSafe(|| provider.cleaned(&text)));
            if let Some(cleaned) = cleaned.unwrap_or_else(|_panic| Some(WITHHELD.to_owned())) {
                removed += usize::from(cleaned != text);
                text = cleaned;
            }
        }
        (text, removed)
    }

    /// Where a secret begins that stands on both sides of a place in a text.
    fn secret_around(&self, text: &str, cut: usize) -> Option<usize> {
        let around = |from: usize, to: usize| (from < cut && cut < to).then_some(from);
        let exact = self.secrets.iter().flat_map(|secret| {
            let bytes = secret.needle().len();
            secret.find_iter(text.as_bytes()).map(move |at| (at, at + bytes))
        });
        let look = |expected: bool, shape: &Regex| {
            let mut found = expected.then(|| shape.find_iter(text)).into_iter().flatten();
            found.find_map(|found| around(found.start(), found.end()))
        };
        let mut exact = exact;
        exact
            .find_map(|(from, to)| around(from, to))
            .or_else(|| look(self.may_hold_a_private_key(text), &self.private_key))
            .or_else(|| look(self.may_hold_credentials(text), &self.credentials))
            .or_else(|| look(self.may_hold_a_shape(text), &self.shapes))
    }

    /// Whether there may be something to take out; false is certain.
    fn is_suspect(&self, text: &str) -> bool {
        !self.is_short_and_plain(text)
            && (self.provider.is_some()
                || has_control(text)
                || self.secrets.iter().any(|secret| secret.find(text.as_bytes()).is_some())
                || self.may_hold_a_private_key(text)
                || self.may_hold_credentials(text)
                || self.may_hold_a_shape(text))
    }

    /// Whether a text is so short and so plain that there is certainly nothing to take out: no room for an exact value,
    /// no colon for credentials, and of the shapes that would fit none without one of these two characters.
    fn is_short_and_plain(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        bytes.len() <= SHORT_BYTES_MAX
            && bytes.len() < self.secret_bytes_min
            && !self.has_own_patterns
            && self.provider.is_none()
            && bytes.iter().fold(true, |plain, byte| plain & matches!(byte, b' '..=b'~') & (*byte != b':'))
            && (bytes.len() < SHAPE_BYTES_MIN
                || bytes.iter().fold(true, |plain, byte| plain & !matches!(byte, b'-' | b'A')))
    }

    fn may_hold_a_private_key(&self, text: &str) -> bool {
        self.private_key_word.find(text.as_bytes()).is_some()
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

/// The longest prefix up to this length that ends between characters, and what follows it.
fn lossy_prefix(text: &str, bytes_max: usize) -> (&str, &str) {
    text.split_at(text.floor_char_boundary(bytes_max))
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

    // The shortest of each kind, as they stand and one character shorter.
    #[test]
    fn short_texts_are_looked_at_in_one_pass_and_none_is_missed() {
        let plain = Sanitiser::new(Vec::new(), &[]).unwrap();
        let shortest = [
            format!("sk-{}", "a".repeat(20)),
            format!("ghp_{}", "a".repeat(36)),
            format!("github_pat_{}", "a".repeat(40)),
            format!("xoxb-{}", "a".repeat(10)),
            format!("AKIA{}", "A".repeat(16)),
            format!("ASIA{}", "0".repeat(16)),
            format!("AIza{}", "a".repeat(35)),
            format!("glpat-{}", "a".repeat(20)),
            format!("npm_{}", "a".repeat(36)),
            format!("hf_{}", "a".repeat(30)),
            format!("sk_live_{}", "a".repeat(16)),
            format!("eyJ{0}.eyJ{0}.{0}", "a".repeat(10)),
            "-----BEGIN PRIVATE KEY-----".to_owned(),
            "a://:b@".to_owned(),
            "a\u{7}".to_owned(),
            "a\u{202e}".to_owned(),
        ];
        for text in &shortest {
            let (clean, removed) = plain.clean(text.clone());
            assert_eq!(removed, 1, "{text} became {clean}");
            assert!(plain.is_suspect(text));
            let shorter = &text[..text.floor_char_boundary(text.len() - 1)];
            assert_eq!(plain.clean(shorter.to_owned()).1, 0, "{shorter}");
        }
        let shapes = &shortest[..13];
        assert_eq!(shapes.iter().map(String::len).min(), Some(super::SHAPE_BYTES_MIN));
        let short = shapes.iter().filter(|shape| shape.len() <= super::SHORT_BYTES_MAX);
        assert!(short.clone().count() == 4 && short.into_iter().all(|shape| shape.contains(['-', 'A'])));
        let host = Sanitiser::new(vec!["secret".into()], &[]).unwrap();
        assert_eq!(host.clean("a secret".into()), ("a [redacted]".into(), 1));
        assert_eq!(Sanitiser::new(Vec::new(), &["x+".into()]).unwrap().clean("axx".into()).1, 1);
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
        lines.extend(["AKIA", "ASIA"].map(|start| format!("{start}{}", "A1B2".repeat(4))));
        lines.extend(["glpat-", "npm_", "hf_", "sk_live_", "rk_test_"].map(|start| format!("{start}{}", &tail[..36])));
        lines.push(format!("eyJ{tail}.eyJ{tail}.{tail}"));
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
    fn a_private_key_that_was_cut_goes_as_far_as_it_is_there() {
        let body = "MIIEpAIBAAKCAQEA7abcdefghijklmnop\n".repeat(3);
        let cut = format!("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{body}");
        assert_eq!(clean(&format!("a\n{cut}and words (behind) it\n")), "a\n[redacted]\nand words (behind) it\n");
    }

    #[derive(Debug)]
    struct Names;

    impl super::SecurityProvider for Names {
        fn cleaned(&self, text: &str) -> Option<String> {
            assert!(!text.contains("panic"), "as asked");
            text.contains("Ada").then(|| text.replace("Ada", "A."))
        }
    }

    #[test]
    fn a_provider_has_its_say_behind_the_rules() {
        let sanitiser = Sanitiser::new(vec!["zz9-plural-z".into()], &[]).unwrap();
        let sanitiser = sanitiser.with_provider(Some(std::sync::Arc::new(Names)));
        assert_eq!(sanitiser.clean("Ada, zz9-plural-z".into()), ("A., [redacted]".into(), 2));
        let mut value = json!({"Ada": ["Ada", "Bob"]});
        assert_eq!(sanitiser.clean_value(&mut value), 2);
        assert_eq!(value, json!({"A.": ["A.", "Bob"]}));
        assert_eq!(sanitiser.clean("panic".into()).0, super::WITHHELD, "what cannot be judged is not shown");
    }

    #[test]
    fn a_value_that_would_blot_out_text_is_refused() {
        assert!(matches!(Sanitiser::new(vec!["abc".into()], &[]), Err(SanitiserError::TooShort { bytes: 3 })));
        assert!(matches!(Sanitiser::new(vec![], &["(".into()]), Err(SanitiserError::Pattern(_))));
    }
}
