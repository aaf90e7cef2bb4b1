//! Splits text into the terms that ranking counts, by one rule for files and for queries.
//!
//! Identifiers fall into their words (`getUserName`, `max_len`, `utf8`), English words lose their usual endings,
//! scripts without blanks give pairs of characters. Folding makes one character of its wide and narrow forms. What a
//! stem drops is only ever an ending: a stem stands in the text as it is, so a text without any of a query's stems
//! can be skipped unread.

/// Longest term that is kept, in bytes; longer ones are hashes and the like.
pub const TERM_BYTES_MAX: usize = 64;

/// Which terms of scripts without blanks are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Pairs and single characters: whatever a query could ask for.
    Text,
    /// Pairs; a single character only where it stands alone.
    Query,
}

/// Calls `take` with every term of `text`, in order.
pub fn split(text: &str, form: Form, take: &mut dyn FnMut(&str)) {
    let mut word: Vec<char> = Vec::new();
    let mut dense: Vec<char> = Vec::new();
    let mut chars = text.chars().peekable();
    let mut term = String::new();
    while let Some(raw) = chars.next() {
        let (c, joined) = fold(raw, chars.peek().copied());
        if joined {
            chars.next();
        }
        let kind = kind_of(c);
        if kind != Kind::Word && !word.is_empty() {
            give_word(&word, &mut term, take);
            word.clear();
        }
        if kind != Kind::Dense && !dense.is_empty() {
            give_dense(&dense, form, &mut term, take);
            dense.clear();
        }
        match kind {
            Kind::Word => word.push(c),
            Kind::Dense => dense.push(c),
            Kind::Gap => {}
        }
    }
    if !word.is_empty() {
        give_word(&word, &mut term, take);
    }
    if !dense.is_empty() {
        give_dense(&dense, form, &mut term, take);
    }
}

/// As [`split`], for one run of ASCII letters and digits.
pub fn split_run(run: &[u8], take: &mut dyn FnMut(&str)) {
    let mut start = 0;
    for at in 1..=run.len() {
        let borders = at < run.len() && is_run_border(run, at);
        if at < run.len() && !borders {
            continue;
        }
        give_run(&run[start..at], take);
        if start > 0 && at == run.len() {
            give_run(run, take);
        }
        start = at;
    }
}

fn is_run_border(run: &[u8], at: usize) -> bool {
    let (before, here) = (run[at - 1], run[at]);
    if before.is_ascii_digit() != here.is_ascii_digit() {
        return true;
    }
    here.is_ascii_uppercase() && (!before.is_ascii_uppercase() || run.get(at + 1).is_some_and(u8::is_ascii_lowercase))
}

fn give_run(word: &[u8], take: &mut dyn FnMut(&str)) {
    let mut term = [0; TERM_BYTES_MAX];
    let Some(term) = term.get_mut(..word.len()) else { return };
    term.copy_from_slice(word);
    term.make_ascii_lowercase();
    if let Ok(term) = std::str::from_utf8(term) {
        take(stem(term));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    /// Of a script that is written without blanks, or in which words are built up without them.
    Dense,
    Gap,
}

fn kind_of(c: char) -> Kind {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' => Kind::Word,
        '\0'..='\x7f' => Kind::Gap,
        // Thai to Burmese and Khmer, kana, Han, Hangul.
        '\u{e00}'..='\u{109f}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{3005}'..='\u{3007}'
        | '\u{3041}'..='\u{30fa}'
        | '\u{30fc}'..='\u{318f}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}' => Kind::Dense,
        c if c.is_alphanumeric() => Kind::Word,
        _ => Kind::Gap,
    }
}

/// Full forms of the narrow kana from U+FF65 on.
const NARROW: &str = "・ヲァィゥェォャュョッーアイウエオカキクケコサシスセソタチツテトナニヌネノハヒフヘホマミムメモヤユヨラリルレロワン゛゜";

/// A character in its usual width; also whether the voice mark behind it went into it.
fn fold(c: char, next: Option<char>) -> (char, bool) {
    match c {
        '\u{ff01}'..='\u{ff5e}' => (char::from_u32(c as u32 - 0xfee0).unwrap_or(c), false),
        '\u{3000}' => (' ', false),
        '\u{ff65}'..='\u{ff9f}' => {
            let full = NARROW.chars().nth(c as usize - 0xff65).unwrap_or(c);
            // The voiced form follows its plain one, and the half-voiced one that.
            let step = match next {
                Some('\u{ff9e}') if matches!(full, 'カ'..='ト' | 'ハ'..='ホ') => 1,
                Some('\u{ff9e}') if full == 'ウ' => 'ヴ' as u32 - 'ウ' as u32,
                Some('\u{ff9f}') if matches!(full, 'ハ'..='ホ') => 2,
                _ => return (full, false),
            };
            (char::from_u32(full as u32 + step).unwrap_or(full), true)
        }
        _ => (c, false),
    }
}

/// Gives the words of an identifier, and the identifier as a whole when it has several.
fn give_word(word: &[char], term: &mut String, take: &mut dyn FnMut(&str)) {
    let mut start = 0;
    for at in 1..=word.len() {
        if at == word.len() || is_border(word, at) {
            give(&word[start..at], term, take);
            if start > 0 && at == word.len() {
                give(word, term, take);
            }
            start = at;
        }
    }
}

/// Whether a new word begins at `at`: `aB`, `ABc` before `B`, letters beside digits.
fn is_border(word: &[char], at: usize) -> bool {
    let (before, here) = (word[at - 1], word[at]);
    if before.is_numeric() != here.is_numeric() {
        return true;
    }
    if !here.is_uppercase() {
        return false;
    }
    !before.is_uppercase() || word.get(at + 1).is_some_and(|next| next.is_lowercase())
}

fn give(word: &[char], term: &mut String, take: &mut dyn FnMut(&str)) {
    term.clear();
    term.extend(word.iter().flat_map(|c| c.to_lowercase()));
    if term.len() <= TERM_BYTES_MAX {
        take(stem(term));
    }
}

fn give_dense(run: &[char], form: Form, term: &mut String, take: &mut dyn FnMut(&str)) {
    if form == Form::Text || run.len() == 1 {
        for c in run {
            term.clear();
            term.push(*c);
            take(term);
        }
    }
    for pair in run.windows(2) {
        term.clear();
        term.extend(pair);
        take(term);
    }
}

/// An English word without its usual endings; always a prefix of the word.
pub fn stem(word: &str) -> &str {
    if word.len() < 4 || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return word;
    }
    let singular = match word {
        _ if word.ends_with("ies") && word.len() > 4 => &word[..word.len() - 3],
        _ if ["sses", "xes", "zes", "ches", "shes"].iter().any(|end| word.ends_with(end)) => &word[..word.len() - 2],
        _ if word.ends_with('s') && !["ss", "us", "is"].iter().any(|end| word.ends_with(end)) => {
            &word[..word.len() - 1]
        }
        _ => word,
    };
    // An ending goes when enough is left of the word to tell it by.
    let endings = [("ation", 4), ("ator", 4), ("ating", 4), ("ated", 4), ("ate", 5), ("ing", 3), ("ion", 4), ("ed", 3)];
    let mut root = singular;
    for (ending, left) in endings.into_iter().chain([("er", 4), ("or", 4)]) {
        if let Some(rest) = singular.strip_suffix(ending)
            && rest.len() >= left
            && rest.bytes().any(|byte| b"aeiouy".contains(&byte))
        {
            root = rest;
            break;
        }
    }
    let bytes = root.as_bytes();
    match bytes {
        // running, stopped: the doubled letter goes too.
        [.., one, two] if one == two && root.len() > 3 && root.len() < singular.len() && !b"aeiou".contains(two) => {
            &root[..root.len() - 1]
        }
        [.., before, b'y'] if root.len() > 3 && !b"aeiou".contains(before) => &root[..root.len() - 1],
        [.., b'e'] if root.len() > 3 => &root[..root.len() - 1],
        _ => root,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Form, split, stem};

    fn terms(text: &str, form: Form) -> Vec<String> {
        let mut out = Vec::new();
        split(text, form, &mut |term| out.push(term.to_owned()));
        out
    }

    #[test]
    fn identifiers_fall_into_words() {
        assert_eq!(terms("getUserName", Form::Query), ["get", "user", "nam", "getusernam"]);
        assert_eq!(
            terms("HTTPServer max_len utf8", Form::Query),
            ["http", "serv", "httpserv", "max", "len", "utf", "8", "utf8"]
        );
        assert_eq!(terms("--- … !", Form::Query), Vec::<String>::new());
    }

    #[test]
    fn forms_of_a_word_share_a_stem() {
        for forms in [
            &["cache", "caches", "cached", "caching"][..],
            &["retry", "retries", "retrying"],
            &["validate", "validation", "validating", "validated"],
            &["allocate", "allocator", "allocation", "allocates"],
            &["cancel", "cancels", "cancelled", "cancelling", "cancellation"],
            &["parse", "parser", "parsing", "parses"],
            &["run", "running", "runs"],
            &["match", "matches", "matched", "matching"],
            &["query", "queries"],
            &["class", "classes"],
        ] {
            let stems: Vec<&str> = forms.iter().map(|form| stem(form)).collect();
            assert!(stems.windows(2).all(|pair| pair[0] == pair[1]), "{forms:?} {stems:?}");
        }
    }

    // Case C085: scripts without blanks.
    #[test]
    fn dense_scripts_give_pairs() {
        assert_eq!(terms("缓存", Form::Query), ["缓存"]);
        assert_eq!(terms("存", Form::Query), ["存"]);
        let text = terms("缓存服务读取Redis配置", Form::Text);
        for wanted in ["缓存", "存", "redis", "配置"] {
            assert!(text.iter().any(|term| term == wanted), "{wanted}: {text:?}");
        }
        assert_eq!(terms("ﾃｽﾄ", Form::Query), terms("テスト", Form::Query));
        assert_eq!(terms("ﾊﾞｯﾌｧ ﾎﾟｰﾄ ｳﾞ ｶﾞ", Form::Query), terms("バッファ ポート ヴ ガ", Form::Query));
        assert_eq!(terms("ＡＢ１", Form::Query), terms("AB1", Form::Query));
    }

    proptest! {
        #[test]
        fn a_run_is_split_as_any_text_is(run in "[a-zA-Z0-9]{1,80}") {
            let mut quick = Vec::new();
            super::split_run(run.as_bytes(), &mut |term| quick.push(term.to_owned()));
            prop_assert_eq!(quick, terms(&run, Form::Text));
        }

        #[test]
        fn a_text_holds_every_term_that_the_same_query_asks_for(text in "\\PC{0,40}") {
            let all = terms(&text, Form::Text);
            for term in terms(&text, Form::Query) {
                prop_assert!(all.contains(&term), "{term}");
            }
        }

        #[test]
        fn a_stem_is_a_prefix(word in "[a-z]{1,14}") {
            prop_assert!(word.starts_with(stem(&word)));
        }
    }
}
