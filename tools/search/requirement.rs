//! Which grams a text must hold for a pattern to match in it.
//!
//! The pattern is read with the same flags as the matcher and taken apart from the inside out: what a part can look
//! like as a whole, how it begins and ends, and what stands in it in any case. Whatever grows too large or is not
//! understood requires nothing, so a requirement may let too many files through and never one too few.

use std::collections::BTreeSet;

use regex_syntax::hir::{Class, Hir, HirKind};

use crate::search::gram::{CLASSES, GRAM_CLASSES, gram_of};

/// Most texts that a part is followed as.
const TEXTS_MAX: usize = 64;
/// Most characters of a class that are followed one by one.
const CLASS_CHARACTERS_MAX: u64 = 128;
/// Longest text that is followed, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// How much of a text is kept at its ends, one less than a gram.
const END_CLASSES: usize = GRAM_CLASSES - 1;
/// Most copies that a repetition is written out as.
const COPIES_MAX: u32 = 4;
/// Deepest nesting that is followed.
const DEPTH_MAX: usize = 200;
/// Most parts of a requirement.
const PARTS_MAX: usize = 4096;

/// What a text must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    /// Nothing.
    Nothing,
    /// This gram.
    Gram(u32),
    /// All of these.
    All(Vec<Requirement>),
    /// One of these at least.
    One(Vec<Requirement>),
}

impl Requirement {
    /// What a pattern requires that is read with these flags; multi-line and with bytes, as lines are searched.
    pub fn of(pattern: &str, case_sensitive: bool) -> Self {
        let parsed = regex_syntax::ParserBuilder::new()
            .utf8(false)
            .multi_line(true)
            .case_insensitive(!case_sensitive)
            .build()
            .parse(pattern);
        let Ok(hir) = parsed else { return Self::Nothing };
        let required = match part_of(&hir, 0) {
            Part::Whole(texts) => of_texts(&texts),
            Part::Ends { inside, .. } => inside,
        };
        if required.parts() > PARTS_MAX { Self::Nothing } else { required }
    }

    /// Whether nothing is required.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Whether a text with these grams, sorted, fulfils it.
    pub fn is_fulfilled(&self, grams: &[u32]) -> bool {
        match self {
            Self::Nothing => true,
            Self::Gram(gram) => grams.binary_search(gram).is_ok(),
            Self::All(parts) => parts.iter().all(|part| part.is_fulfilled(grams)),
            Self::One(parts) => parts.iter().any(|part| part.is_fulfilled(grams)),
        }
    }

    fn parts(&self) -> usize {
        match self {
            Self::Nothing | Self::Gram(_) => 1,
            Self::All(parts) | Self::One(parts) => 1 + parts.iter().map(Self::parts).sum::<usize>(),
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, one) | (one, Self::Nothing) => one,
            (Self::All(mut parts), Self::All(more)) => {
                parts.extend(more);
                Self::All(parts)
            }
            (Self::All(mut parts), one) | (one, Self::All(mut parts)) => {
                parts.push(one);
                Self::All(parts)
            }
            (one, two) => Self::All(vec![one, two]),
        }
    }

    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Nothing) => Self::Nothing,
            (Self::One(mut parts), one) | (one, Self::One(mut parts)) => {
                parts.push(one);
                Self::One(parts)
            }
            (one, two) => Self::One(vec![one, two]),
        }
    }
}

/// Texts in classes of bytes.
type Texts = BTreeSet<Vec<u8>>;

/// What is known of a part of a pattern.
#[derive(Clone)]
enum Part {
    /// It looks like one of these, and nothing else.
    Whole(Texts),
    /// It begins with one of these, ends with one of those, and this stands in it.
    Ends { begins: Texts, ends: Texts, inside: Requirement },
}

/// One text without a character: no knowledge of how something begins or ends, or something that is empty.
fn blank() -> Texts {
    Texts::from([Vec::new()])
}

impl Part {
    fn unknown() -> Self {
        Self::Ends { begins: blank(), ends: blank(), inside: Requirement::Nothing }
    }

    /// What is left to know when the whole texts are given up.
    fn into_ends(self) -> (Texts, Texts, Requirement) {
        match self {
            Self::Whole(texts) => {
                let inside = of_texts(&texts);
                (heads(&texts), tails(&texts), inside)
            }
            Self::Ends { begins, ends, inside } => (begins, ends, inside),
        }
    }

    fn then(self, next: Self) -> Self {
        if let (Self::Whole(one), Self::Whole(two)) = (&self, &next)
            && let Some(texts) = product(one, two)
        {
            return Self::Whole(texts);
        }
        // A side that is known whole reaches through to the other side's end.
        let (begins, left_ends, left) = match &self {
            Self::Whole(texts) => (None, texts.clone(), of_texts(texts)),
            Self::Ends { begins, ends, inside } => (Some(begins.clone()), ends.clone(), inside.clone()),
        };
        let (right_begins, ends, right) = match &next {
            Self::Whole(texts) => (texts.clone(), None, of_texts(texts)),
            Self::Ends { begins, ends, inside } => (begins.clone(), Some(ends.clone()), inside.clone()),
        };
        let joint = product(&left_ends, &right_begins);
        let between = joint.as_ref().map_or(Requirement::Nothing, of_texts);
        let begins = begins.unwrap_or_else(|| joint.as_ref().map_or_else(|| heads(&left_ends), heads));
        let ends = ends.unwrap_or_else(|| joint.as_ref().map_or_else(|| tails(&right_begins), tails));
        Self::Ends { begins, ends, inside: left.and(right).and(between) }
    }

    fn or(self, other: Self) -> Self {
        if let (Self::Whole(one), Self::Whole(two)) = (&self, &other)
            && one.len() + two.len() <= TEXTS_MAX
        {
            return Self::Whole(one.union(two).cloned().collect());
        }
        let ((begins, ends, inside), (more_begins, more_ends, more_inside)) = (self.into_ends(), other.into_ends());
        let join = |one: Texts, two: Texts| {
            if one.len() + two.len() > TEXTS_MAX { blank() } else { one.union(&two).cloned().collect() }
        };
        Self::Ends { begins: join(begins, more_begins), ends: join(ends, more_ends), inside: inside.or(more_inside) }
    }
}

fn part_of(hir: &Hir, depth: usize) -> Part {
    if depth > DEPTH_MAX {
        return Part::unknown();
    }
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Part::Whole(blank()),
        HirKind::Literal(literal) => {
            let classes: Vec<u8> = literal.0.iter().map(|byte| CLASSES[usize::from(*byte)]).collect();
            if classes.len() <= TEXT_BYTES_MAX {
                return Part::Whole(Texts::from([classes]));
            }
            let (begin, end) = (&classes[..END_CLASSES], &classes[classes.len() - END_CLASSES..]);
            let (begins, ends) = (Texts::from([begin.to_vec()]), Texts::from([end.to_vec()]));
            Part::Ends { begins, ends, inside: of_text(&classes) }
        }
        HirKind::Class(class) => class_texts(class).map_or_else(Part::unknown, Part::Whole),
        HirKind::Capture(capture) => part_of(&capture.sub, depth + 1),
        HirKind::Concat(parts) => {
            parts.iter().map(|part| part_of(part, depth + 1)).reduce(Part::then).unwrap_or_else(|| Part::Whole(blank()))
        }
        HirKind::Alternation(parts) => {
            parts.iter().map(|part| part_of(part, depth + 1)).reduce(Part::or).unwrap_or_else(Part::unknown)
        }
        HirKind::Repetition(repetition) => {
            let once = part_of(&repetition.sub, depth + 1);
            match (repetition.min, repetition.max) {
                (0, Some(0)) => Part::Whole(blank()),
                (0, Some(1)) => once.or(Part::Whole(blank())),
                (0, _) => Part::unknown(),
                (min, max) => {
                    let copies = min.min(COPIES_MAX);
                    let mut all = once.clone();
                    for _ in 1..copies {
                        all = all.then(once.clone());
                    }
                    if max == Some(copies) && min == copies {
                        return all;
                    }
                    // More may follow, and what follows ends as each copy ends.
                    let (begins, _, inside) = all.into_ends();
                    let (_, ends, _) = once.into_ends();
                    Part::Ends { begins, ends, inside }
                }
            }
        }
    }
}

/// What a class of characters can look like; none when that is too much.
fn class_texts(class: &Class) -> Option<Texts> {
    let mut texts = Texts::new();
    match class {
        Class::Unicode(class) => {
            let size: u64 = class.iter().map(|range| u64::from(range.end() as u32 - range.start() as u32) + 1).sum();
            if size > CLASS_CHARACTERS_MAX {
                return None;
            }
            for character in class.iter().flat_map(|range| range.start()..=range.end()) {
                let mut bytes = [0; 4];
                let bytes = character.encode_utf8(&mut bytes).as_bytes();
                texts.insert(bytes.iter().map(|byte| CLASSES[usize::from(*byte)]).collect());
            }
        }
        Class::Bytes(class) => {
            let size: u64 = class.iter().map(|range| u64::from(range.end() - range.start()) + 1).sum();
            if size > CLASS_CHARACTERS_MAX {
                return None;
            }
            let bytes = class.iter().flat_map(|range| range.start()..=range.end());
            texts.extend(bytes.map(|byte| vec![CLASSES[usize::from(byte)]]));
        }
    }
    // A class that nothing is in matches nowhere; that it requires nothing is true as well.
    (!texts.is_empty() && texts.len() <= TEXTS_MAX).then_some(texts)
}

/// Every text of one followed by every text of the other; none when that is too much.
fn product(one: &Texts, two: &Texts) -> Option<Texts> {
    if one.len() * two.len() > TEXTS_MAX {
        return None;
    }
    let mut texts = Texts::new();
    for begin in one {
        for end in two {
            if begin.len() + end.len() > TEXT_BYTES_MAX {
                return None;
            }
            texts.insert([begin.as_slice(), end].concat());
        }
    }
    Some(texts)
}

fn heads(texts: &Texts) -> Texts {
    texts.iter().map(|text| text[..text.len().min(END_CLASSES)].to_vec()).collect()
}

fn tails(texts: &Texts) -> Texts {
    texts.iter().map(|text| text[text.len().saturating_sub(END_CLASSES)..].to_vec()).collect()
}

/// What follows from holding one of these texts.
fn of_texts(texts: &Texts) -> Requirement {
    texts.iter().map(|text| of_text(text)).reduce(Requirement::or).unwrap_or(Requirement::Nothing)
}

fn of_text(text: &[u8]) -> Requirement {
    let grams: BTreeSet<u32> =
        text.windows(GRAM_CLASSES).filter_map(|three| gram_of([three[0], three[1], three[2]])).collect();
    grams.into_iter().map(Requirement::Gram).reduce(Requirement::and).unwrap_or(Requirement::Nothing)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Requirement;
    use crate::search::gram::grams_of;

    fn lets_through(pattern: &str, text: &str) -> bool {
        Requirement::of(pattern, true).is_fulfilled(&grams_of(text.as_bytes()))
    }

    #[test]
    fn required_texts_are_found_wherever_they_stand() {
        for (pattern, yes, no) in [
            ("needle", "a NEEDLE b", "a nee dle b"),
            ("foo.*bar", "foo bar", "foo baz"),
            ("(foo|bar)baz", "xbarbaz", "foo baz"),
            ("fo+bar", "foooobar", "fo ar"),
            ("[a-c]xyz", "bxyz", "xy z"),
            ("(?i)straße", "STRASSE straße", "stra"),
            ("fn\\s+open_\\w+\\(", "fn open_file(", "fn close_file("),
            ("a(bcd)?e", "ae", ""),
            ("(abc){2,}", "abcabcabc", "abc xyz"),
            ("^use std::(fs|io)::", "use std::io::x", "use std::env::x"),
            ("\\bunwrap\\b", "x.unwrap()", "x.wrap()"),
        ] {
            assert!(lets_through(pattern, yes), "{pattern} {yes}");
            assert!(no.is_empty() || !lets_through(pattern, no), "{pattern} {no}");
        }
    }

    #[test]
    fn what_has_no_fixed_text_requires_nothing() {
        for pattern in [".*", "a", "\\w+", "(foo)?", "foo|b", "[^a]", "x*", "a.b.c", "(", "foo|.{3}"] {
            assert!(Requirement::of(pattern, true).is_nothing(), "{pattern}");
        }
    }

    // Letters whose other case is no ASCII, with case ignored.
    #[test]
    fn case_beyond_ascii_is_followed() {
        for (pattern, text) in [("kelvin", "\u{212a}elvin"), ("strass", "\u{17f}trass"), ("äther", "ÄTHER")] {
            let required = Requirement::of(pattern, false);
            assert!(required.is_fulfilled(&grams_of(text.as_bytes())), "{pattern} {text}: {required:?}");
        }
    }

    /// Patterns of few letters, so that they match often.
    fn patterns() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            "[abk_ä]{1,4}",
            Just(".".to_owned()),
            Just("[ab]".to_owned()),
            Just("[^a]".to_owned()),
            Just("\\w".to_owned()),
            Just("\\s".to_owned()),
            Just("^".to_owned()),
            Just("$".to_owned()),
            Just("\\b".to_owned()),
            Just("(?i:k)".to_owned()),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
                prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| format!("({})", parts.join("|"))),
                (inner, prop_oneof![Just("*"), Just("+"), Just("?"), Just("{2}"), Just("{1,3}"), Just("{0,2}")])
                    .prop_map(|(part, times)| format!("(?:{part}){times}")),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_text_that_matches_fulfils_what_is_required(
            pattern in patterns(), text in "[abkKB_äÄ \u{212a}]{0,16}", case_sensitive in any::<bool>(),
        ) {
            let built = regex::RegexBuilder::new(&pattern).multi_line(true).case_insensitive(!case_sensitive).build();
            if let Ok(regex) = built && regex.is_match(&text) {
                let required = Requirement::of(&pattern, case_sensitive);
                prop_assert!(required.is_fulfilled(&grams_of(text.as_bytes())), "{required:?}");
            }
        }
    }
}
