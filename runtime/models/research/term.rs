//! Terms: what a text is compared by.
//!
//! A term is a lower-case word with its English ending taken off; identifiers fall apart at case changes, digits
//! and underscores; runs of Chinese, Japanese and Korean fall apart into pairs of characters, for they have no
//! blanks. Question and passage go through the same function, so what matters is only that it is the same, not
//! that a stem is a dictionary's.

/// Longest word that is looked at, in bytes; the rest of it is dropped.
const WORD_BYTES_MAX: usize = 64;
/// Shortest word whose ending is taken off, in bytes.
const STEM_BYTES_MIN: usize = 5;

/// The scripts that matter for taking a text apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    /// Chinese characters, and the signs that repeat or stand for one.
    Han,
    /// Japanese syllables for endings and particles.
    Hiragana,
    /// Japanese syllables for loan words, full and half width.
    Katakana,
    /// Korean syllables.
    Hangul,
    /// Any other letter or digit.
    Letter,
    /// Everything else.
    Other,
}

impl Script {
    /// The script of a character.
    pub(super) fn of(character: char) -> Self {
        match character {
            '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{3ffff}'
            | '々'
            | '〇' => Self::Han,
            '\u{3041}'..='\u{3096}' | '\u{309d}' | '\u{309e}' => Self::Hiragana,
            '\u{30a1}'..='\u{30fa}' | '\u{30fc}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' | '\u{ff66}'..='\u{ff9f}' => {
                Self::Katakana
            }
            '\u{1100}'..='\u{11ff}' | '\u{3130}'..='\u{318f}' | '\u{ac00}'..='\u{d7a3}' => Self::Hangul,
            other if other.is_alphanumeric() => Self::Letter,
            _ => Self::Other,
        }
    }

    /// Whether words of this script have no blanks between them, or carry their particles.
    pub(super) fn is_cjk(self) -> bool {
        matches!(self, Self::Han | Self::Hiragana | Self::Katakana | Self::Hangul)
    }
}

/// The terms of a text in their order, repeated as they are repeated; at most `terms_max`.
pub(super) fn terms(text: &str, terms_max: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut run: Vec<char> = Vec::new();
    let mut previous = ' ';
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        if found.len() >= terms_max {
            break;
        }
        let script = Script::of(character);
        if script.is_cjk() {
            flush_word(&mut word, &mut found);
            run.push(character);
        } else {
            flush_run(&mut run, &mut found);
            let follows_lower = character.is_uppercase() && (previous.is_lowercase() || previous.is_numeric());
            let ends_acronym = character.is_uppercase()
                && previous.is_uppercase()
                && rest.peek().is_some_and(|next| next.is_lowercase());
            if script == Script::Other || follows_lower || ends_acronym {
                flush_word(&mut word, &mut found);
            }
            if script == Script::Letter && word.len() < WORD_BYTES_MAX {
                word.extend(character.to_lowercase());
            }
        }
        previous = character;
    }
    flush_word(&mut word, &mut found);
    flush_run(&mut run, &mut found);
    found.truncate(terms_max);
    found
}

fn flush_word(word: &mut String, found: &mut Vec<String>) {
    if !word.is_empty() {
        found.push(stem(word));
        word.clear();
    }
}

fn flush_run(run: &mut Vec<char>, found: &mut Vec<String>) {
    match run.as_slice() {
        [] => {}
        [single] => found.push(single.to_string()),
        many => found.extend(many.windows(2).map(|pair| pair.iter().collect::<String>())),
    }
    run.clear();
}

/// Takes common English endings off a lower-case word.
pub(super) fn stem(word: &str) -> String {
    let word = singular(word);
    if !word.is_ascii() || word.len() < STEM_BYTES_MIN {
        return word.to_owned();
    }
    for ending in ["ation", "ing", "ied", "ed", "ion", "er", "or", "ly", "ment"] {
        if let Some(start) = word.strip_suffix(ending)
            && start.len() >= 4
            && start.bytes().any(|letter| b"aeiouy".contains(&letter))
        {
            return undouble(start).trim_end_matches(['e', 'y', 'i']).to_owned();
        }
    }
    let start = word.trim_end_matches(['e', 'y', 'i']);
    if start.len() >= 3 { start.to_owned() } else { word.to_owned() }
}

/// Takes a plural ending off.
fn singular(word: &str) -> &str {
    if word.len() < 4 || !word.is_ascii() {
        return word;
    }
    if word.ends_with("ss") || word.ends_with("us") || word.ends_with("is") {
        return word;
    }
    for (ending, kept) in [("ies", 1), ("sses", 2), ("shes", 2), ("ches", 2), ("xes", 1), ("s", 0)] {
        if word.ends_with(ending) {
            return &word[..word.len() - ending.len() + kept];
        }
    }
    word
}

/// `stopp` to `stop`; `call` stays.
fn undouble(word: &str) -> &str {
    let bytes = word.as_bytes();
    match bytes {
        [.., before, last] if before == last && !b"lsz".contains(last) => &word[..word.len() - 1],
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use super::{stem, terms};

    #[test]
    fn identifiers_fall_apart_at_case_digits_and_underscores() {
        assert_eq!(terms("RestartIntensity", 9), ["restart", "intensit"]);
        assert_eq!(terms("restart_intensity", 9), ["restart", "intensit"]);
        assert_eq!(terms("HTTPServer2Go a::b-c", 9), ["http", "server2", "go", "a", "b", "c"]);
    }

    #[test]
    fn forms_of_a_word_meet() {
        for forms in [
            ["restart", "restarts", "restarted"],
            ["decide", "decides", "decided"],
            ["supervise", "supervisor", "supervising"],
            ["reservation", "reserve", "reserved"],
            ["policy", "policies", "policy"],
            ["stop", "stops", "stopping"],
            ["lane", "lanes", "lane"],
            ["cache", "caches", "cached"],
        ] {
            assert_eq!(stem(forms[0]), stem(forms[1]), "{forms:?}");
            assert_eq!(stem(forms[0]), stem(forms[2]), "{forms:?}");
        }
        assert_eq!(stem("class"), "class");
        assert_eq!(stem("bus"), "bus");
    }

    #[test]
    fn chinese_and_japanese_become_pairs_and_latin_stays_whole() {
        assert_eq!(terms("缓存服务读取Redis配置", 20), ["缓存", "存服", "服务", "务读", "读取", "redis", "配置"]);
        assert_eq!(terms("ﾃｽﾄ", 9), ["ﾃｽ", "ｽﾄ"]);
        assert_eq!(terms("中", 9), ["中"]);
    }

    #[test]
    fn hostile_text_stays_bounded() {
        assert!(terms(&"a".repeat(1 << 20), 9)[0].len() <= 64);
        assert_eq!(terms(&"a ".repeat(1 << 20), 9).len(), 9);
        assert!(terms(" \u{0}\u{202e}🎉--", 9).is_empty());
    }
}
