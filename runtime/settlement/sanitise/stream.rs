//! Sanitising text that comes piece by piece: a secret that is cut in two is still one.
//!
//! Of what has come, only that much goes on that nothing in it can be the beginning of a secret or of a control
//! sequence: up to the last blank, and not into an open private key or exact value. What is held is bounded by
//! [`HELD_BYTES_MAX`]; text without a blank for longer than that goes on at a place where no secret known by then
//! is cut.

use std::ops::ControlFlow;

use toolwarden_tools::context::DeltaStreams;
use toolwarden_tools::effects::processes::Stream;

use super::control::unfinished_sequence;
use super::{Sanitiser, lossy_prefix};

/// Most bytes that wait for their continuation.
pub const HELD_BYTES_MAX: usize = 16 * 1024;
/// Longest secret that is found in text without any blank, in bytes.
pub const UNBROKEN_SECRET_BYTES_MAX: usize = 1024;
/// How much is cleaned at a time, in bytes.
const BLOCK_BYTES: usize = 64 * 1024;
/// What every private key begins and ends with.
const KEY_BEGINS: &str = "-----BEGIN ";
const KEY_ENDS: &str = "-----END ";
/// What stands in both.
const KEY_DASHES: &str = "-----";

/// Text on its way to people who look on: goes on as soon as nothing in it can be cut.
#[derive(Debug, Default)]
pub struct Held {
    text: String,
}

impl Held {
    /// Takes the next piece and gives on what can go, not cleaned yet.
    pub fn push(&mut self, sanitiser: &Sanitiser, piece: &str) -> Option<String> {
        self.text.push_str(piece);
        let settled = sanitiser.settled_bytes(&self.text, true);
        let settled = if sanitiser.begins_nothing(&self.text[settled..]) { self.text.len() } else { settled };
        let rest = self.text.split_off(settled);
        let ready = std::mem::replace(&mut self.text, rest);
        (!ready.is_empty()).then_some(ready)
    }

    /// What was held at the end.
    pub fn finish(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.text);
        (!rest.is_empty()).then_some(rest)
    }
}

/// Output on its way to people who look on: both streams together, and each of them apart.
#[derive(Debug, Default)]
pub struct HeldOutput {
    both: Held,
    out: Held,
    err: Held,
}

impl HeldOutput {
    /// Takes the next piece, and which stream it is from where that is known; gives on what can go of it.
    pub fn push(
        &mut self,
        sanitiser: &Sanitiser,
        text: &str,
        streams: Option<&DeltaStreams>,
    ) -> Option<(String, Option<DeltaStreams>)> {
        let (out, err) = match streams {
            None => ("", ""),
            Some(DeltaStreams::One(Stream::Out)) => (text, ""),
            Some(DeltaStreams::One(Stream::Err)) => ("", text),
            Some(DeltaStreams::Both { out, err }) => (out.as_str(), err.as_str()),
        };
        let push = |held: &mut Held, piece: &str| match piece {
            "" => None,
            piece => held.push(sanitiser, piece),
        };
        let parts = (push(&mut self.both, text), push(&mut self.out, out), push(&mut self.err, err));
        told(parts.0, parts.1, parts.2)
    }

    /// What was held at the end.
    pub fn finish(&mut self) -> Option<(String, Option<DeltaStreams>)> {
        told(self.both.finish(), self.out.finish(), self.err.finish())
    }
}

/// A delta from what can go of the text and of each stream; none when nothing can.
fn told(both: Option<String>, out: Option<String>, err: Option<String>) -> Option<(String, Option<DeltaStreams>)> {
    let streams = match (out, err) {
        (None, None) => None,
        (Some(out), None) if both.as_ref() == Some(&out) => Some(DeltaStreams::One(Stream::Out)),
        (None, Some(err)) if both.as_ref() == Some(&err) => Some(DeltaStreams::One(Stream::Err)),
        (out, err) => Some(DeltaStreams::Both { out: out.unwrap_or_default(), err: err.unwrap_or_default() }),
    };
    (both.is_some() || streams.is_some()).then(|| (both.unwrap_or_default(), streams))
}

/// Cleans a long text in blocks; the result does not depend on how the text was cut into pieces.
#[derive(Debug, Default)]
pub struct CleanStream {
    block: String,
    removed: usize,
}

impl CleanStream {
    /// Takes the next piece; `sink` gets what is clean. When it breaks, all that came and was not given on is
    /// forgotten.
    pub fn push(
        &mut self,
        sanitiser: &Sanitiser,
        piece: &str,
        sink: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut rest = piece;
        loop {
            let (fits, more) = lossy_prefix(rest, BLOCK_BYTES.saturating_sub(self.block.len()));
            self.block.push_str(fits);
            rest = more;
            if rest.is_empty() {
                return ControlFlow::Continue(());
            }
            // A full block has more than is ever held; all of it goes on before none of it does.
            let is_suspect = sanitiser.is_suspect(&self.block);
            let settled = Some(sanitiser.settled_bytes(&self.block, is_suspect)).filter(|bytes| *bytes > 0);
            let held = self.block.split_off(settled.unwrap_or(self.block.len()));
            let ready = std::mem::replace(&mut self.block, held);
            // No part of a text that holds nothing holds anything.
            let taken = if is_suspect { self.clean(sanitiser, ready, sink) } else { sink(&ready) };
            if taken.is_break() {
                self.block.clear();
                return taken;
            }
        }
    }

    /// Cleans what is left; returns how many pieces were taken out of all.
    pub fn finish(mut self, sanitiser: &Sanitiser, sink: &mut dyn FnMut(&str) -> ControlFlow<()>) -> usize {
        let rest = std::mem::take(&mut self.block);
        let _ = self.clean(sanitiser, rest, sink);
        self.removed
    }

    fn clean(
        &mut self,
        sanitiser: &Sanitiser,
        text: String,
        sink: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (clean, removed) = sanitiser.clean(text);
        self.removed += removed;
        if clean.is_empty() { ControlFlow::Continue(()) } else { sink(&clean) }
    }
}

impl Sanitiser {
    /// How many bytes at the start of a text can be cleaned without knowing what comes behind it; whether the text
    /// itself [is suspect](Self::is_suspect) spares most of the search.
    fn settled_bytes(&self, text: &str, is_suspect: bool) -> usize {
        let begun_line = |end: u8| memchr::memrchr(end, text.as_bytes()).map_or(0, |at| at + 1);
        // The patterns of a host may hold blanks; that they hold line ends is not supported here.
        let mut settled = match self.has_own_patterns {
            true => begun_line(b'\n'),
            false => begun_word(text),
        };
        for secret in &self.broken_secrets {
            let begun = (1..secret.len().min(text.len() + 1))
                .rev()
                .find(|bytes| secret.is_char_boundary(*bytes) && text.ends_with(&secret[..*bytes]));
            settled = settled.min(text.len() - begun.unwrap_or(0));
        }
        // Forwards first: that search is many times as fast, and nearly always enough.
        if memchr::memmem::find(text.as_bytes(), KEY_DASHES.as_bytes()).is_some() {
            settled = settled.min(open_key(text).unwrap_or(text.len()));
        }
        if is_suspect {
            settled = settled.min(unfinished_sequence(text).unwrap_or(text.len()));
            // What begins in an earlier word and is complete; each turn goes back.
            while let Some(begins_at) = self.secret_around(text, settled) {
                settled = begins_at;
            }
        }
        if text.len() - settled > HELD_BYTES_MAX { self.uncut(text) } else { settled }
    }

    /// Whether no secret can begin in these last bytes: they are digits and signs, and not those of an exact value.
    fn begins_nothing(&self, rest: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_digit() || (byte.is_ascii_punctuation() && byte != b'-');
        let begins = |secret: &[u8]| (1..secret.len()).any(|bytes| rest.as_bytes().ends_with(&secret[..bytes]));
        !self.has_own_patterns
            && rest.bytes().all(is_plain)
            && !self.secrets.iter().any(|secret| begins(secret.needle()))
    }

    /// A place near the end of a text without blanks at which no secret is cut.
    fn uncut(&self, text: &str) -> usize {
        let cut = text.floor_char_boundary(text.len() - UNBROKEN_SECRET_BYTES_MAX);
        let from = text.floor_char_boundary(cut.saturating_sub(UNBROKEN_SECRET_BYTES_MAX));
        self.secret_around(&text[from..], cut - from).map_or(cut, |begins_at| from + begins_at)
    }
}

/// Where a private key begins whose end has not come yet.
fn open_key(text: &str) -> Option<usize> {
    match text.rfind(KEY_BEGINS) {
        Some(at) if !text[at..].contains(KEY_ENDS) => Some(at),
        begins_at => {
            let ends_at = text.rfind(KEY_ENDS)?;
            let is_open = !text[ends_at + KEY_ENDS.len()..].contains(KEY_DASHES);
            is_open.then_some(begins_at.unwrap_or(ends_at))
        }
    }
}

/// Where the last word begins: behind a blank, or behind a letter beyond ASCII, which no token has.
fn begun_word(text: &str) -> usize {
    let blank = text.rfind(|c: char| c.is_ascii_whitespace()).map_or(0, |at| at + 1);
    let word = &text[blank..];
    if word.contains("://") {
        // A password may have such letters.
        return blank;
    }
    let letter = word.char_indices().rev().find(|(_, c)| !c.is_ascii() && c.is_alphanumeric());
    blank + letter.map_or(0, |(at, c)| at + c.len_utf8())
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use proptest::collection::vec;
    use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

    use super::super::Sanitiser;
    use toolwarden_tools::context::DeltaStreams;
    use toolwarden_tools::effects::processes::Stream;

    use super::{BLOCK_BYTES, CleanStream, HELD_BYTES_MAX, Held, HeldOutput};

    fn sanitiser() -> Sanitiser {
        Sanitiser::new(vec!["zz9-plural-z".into(), "two words of it".into()], &[]).unwrap()
    }

    fn key() -> String {
        format!("sk-ant-{}", "a1B2".repeat(6))
    }

    fn private_key() -> String {
        format!("-----BEGIN RSA PRIVATE KEY-----\n{}-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA7\n".repeat(40))
    }

    /// What onlookers see of a text that comes in these pieces.
    fn shown(sanitiser: &Sanitiser, pieces: &[&str]) -> String {
        let mut held = Held::default();
        let mut shown: Vec<String> = pieces.iter().filter_map(|piece| held.push(sanitiser, piece)).collect();
        shown.extend(held.finish());
        shown.into_iter().map(|part| sanitiser.clean(part).0).collect()
    }

    fn cleaned(sanitiser: &Sanitiser, pieces: &[&str]) -> String {
        let (mut stream, mut clean) = (CleanStream::default(), String::new());
        let mut take = |part: &str| {
            clean.push_str(part);
            ControlFlow::Continue(())
        };
        for piece in pieces {
            assert!(stream.push(sanitiser, piece, &mut take).is_continue());
        }
        stream.finish(sanitiser, &mut take);
        clean
    }

    #[test]
    fn a_secret_that_is_cut_in_two_is_still_one() {
        let sanitiser = sanitiser();
        for secret in [key(), private_key(), "zz9-plural-z".into(), "two words of it".into(), "https://me:pass@".into()]
        {
            let text = format!("before {secret} behind\nmore");
            let expected = sanitiser.clean(text.clone()).0;
            for cut in 0..=text.len() {
                let pieces = [&text[..cut], &text[cut..]];
                assert_eq!(shown(&sanitiser, &pieces), expected, "cut at {cut}");
            }
            let single: Vec<&str> = text.split_inclusive(|_: char| true).collect();
            assert_eq!(shown(&sanitiser, &single), expected);
        }
    }

    #[test]
    fn what_can_be_no_secret_goes_on_at_once() {
        let (sanitiser, mut held) = (sanitiser(), Held::default());
        assert_eq!(held.push(&sanitiser, "one two"), Some("one ".to_owned()));
        assert_eq!(held.push(&sanitiser, " two"), Some("two ".to_owned()), "what may be a value's beginning waits");
        assert_eq!(held.push(&sanitiser, " thr\n"), Some("two thr\n".to_owned()));
        assert_eq!(held.finish(), None);
        for piece in ["12", "34", "…那里", "没有空格", "%"] {
            assert_eq!(held.push(&sanitiser, piece), Some(piece.to_owned()));
        }
        assert_eq!(held.push(&sanitiser, "https://me:pä"), None);
        assert_eq!(held.push(&sanitiser, "ss@host "), Some("https://me:päss@host ".to_owned()));
        let pin = Sanitiser::new(vec!["123456".into()], &[]).unwrap();
        assert_eq!(shown(&pin, &["7123", "456 8"]), "7[redacted] 8");
    }

    #[test]
    fn a_control_sequence_that_is_cut_hides_no_secret() {
        let text = format!("key {}\u{1b}[0m{} end", &key()[..15], &key()[15..]);
        for cut in text.char_indices().map(|(at, _)| at) {
            assert_eq!(shown(&sanitiser(), &[&text[..cut], &text[cut..]]), "key [redacted] end");
        }
    }

    #[test]
    fn the_patterns_of_a_host_may_hold_blanks() {
        let sanitiser = Sanitiser::new(Vec::new(), &["ticket [0-9]+".into()]).unwrap();
        assert_eq!(shown(&sanitiser, &["see tic", "ket ", "4", "2!\n"]), "see [redacted]!\n");
    }

    #[test]
    fn text_without_a_blank_is_held_no_longer_than_said() {
        let (sanitiser, mut held) = (sanitiser(), Held::default());
        let mut shown = String::new();
        let text = format!("{}{}{}", "x".repeat(50_000), key(), "y:".repeat(20_000));
        for piece in text.as_bytes().chunks(1000) {
            shown
                .extend(held.push(&sanitiser, std::str::from_utf8(piece).unwrap()).map(|part| sanitiser.clean(part).0));
            assert!(held.text.len() <= HELD_BYTES_MAX);
        }
        let in_blocks = cleaned(&sanitiser, &[&text.replacen('x', ":", 50_000)]);
        assert!(in_blocks.contains(":[redacted]:") || in_blocks.contains(":[redacted]y"), "{}", in_blocks.len());
    }

    #[test]
    fn a_private_key_without_end_does_not_hold_for_ever() {
        let text = format!("{}\n{}", &private_key()[..100], "ordinary words, (quite) many of them\n".repeat(3000));
        let (sanitiser, mut held) = (sanitiser(), Held::default());
        let mut went = 0;
        for piece in text.as_bytes().chunks(500) {
            went += held.push(&sanitiser, std::str::from_utf8(piece).unwrap()).map_or(0, |part| part.len());
        }
        assert!(went > text.len() - HELD_BYTES_MAX - 1024);
    }

    fn mixed() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just(key()),
            Just("zz9-plural-z".to_owned()),
            Just("two words of it".to_owned()),
            Just("\u{1b}[1m".to_owned()),
            Just("https://u:p@h/".to_owned()),
            Just(private_key()),
            Just(" ".to_owned()),
            Just("\n".to_owned()),
            "\\PC{0,20}",
            Just("plain words ".repeat(700)),
        ];
        // Parted, for a secret that begins inside of a word is none.
        vec(part, 0..40).prop_map(|parts| parts.join(","))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn blocks_are_cleaned_the_same_in_any_pieces(text in mixed(), steps in vec(1_usize..30_000, 1..4)) {
            let sanitiser = sanitiser();
            let (mut pieces, mut rest, mut steps) = (Vec::new(), text.as_str(), steps.iter().cycle());
            while !rest.is_empty() {
                let (piece, more) = rest.split_at(rest.ceil_char_boundary(*steps.next().unwrap()));
                pieces.push(piece);
                rest = more;
            }
            let clean = cleaned(&sanitiser, &pieces);
            prop_assert_eq!(&clean, &cleaned(&sanitiser, &[&text]));
            if text.len() < BLOCK_BYTES {
                prop_assert_eq!(&clean, &sanitiser.clean(text).0);
            }
            prop_assert!(!clean.contains("zz9-plural-z") && !clean.contains(&key()) && !clean.contains("MIIEpAIBAAKCAQEA7"));
        }

        #[test]
        fn onlookers_see_no_secret_whatever_the_pieces(text in mixed(), cuts in vec(any::<u16>(), 0..12)) {
            let sanitiser = sanitiser();
            let mut at: Vec<usize> =
                cuts.iter().map(|cut| text.floor_char_boundary(usize::from(*cut) % (text.len() + 1))).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces: Vec<&str> = at.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
            let shown = shown(&sanitiser, &pieces);
            prop_assert!(!shown.contains("zz9-plural-z") && !shown.contains(&key()) && !shown.contains("MIIEpAIBAAKCAQEA7"));
            prop_assert!(!shown.contains("two words of it") && !shown.contains('\u{1b}'), "shown");
        }
    }

    // A secret may also be cut where the other stream speaks in between.
    #[test]
    fn each_stream_waits_for_its_own_secrets() {
        let (sanitiser, mut held) = (sanitiser(), HeldOutput::default());
        let mut push = |text: &str, streams: DeltaStreams| held.push(&sanitiser, text, Some(&streams));
        assert_eq!(
            push("plain\n", DeltaStreams::One(Stream::Err)),
            Some(("plain\n".to_owned(), Some(DeltaStreams::One(Stream::Err))))
        );
        assert_eq!(push("https://me:pä", DeltaStreams::One(Stream::Out)), None);
        let both = DeltaStreams::Both { out: "ss@host ".into(), err: "aside\n".into() };
        let whole = DeltaStreams::Both { out: "https://me:päss@host ".into(), err: "aside\n".into() };
        assert_eq!(push("ss@host aside\n", both), Some(("https://me:päss@host aside\n".to_owned(), Some(whole))));
        assert_eq!(held.finish(), None);
    }
}
