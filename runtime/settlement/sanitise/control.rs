//! Characters that no text needs: control sequences of terminals, marks that turn its direction, and marks that
//! nobody sees.
//!
//! They can drive a terminal, make text read otherwise than it is, or stand inside of a secret so that it is not
//! known as one. Joiners stay where scripts and pictures need them: behind a character that is not ASCII.

/// How many bytes are looked at before the search may end.
const BLOCK_BYTES: usize = 1024;
/// First byte of the control characters beyond ASCII (C1), as UTF-8 has them.
const C1_LEADS: u8 = 0xc2;

/// Whether a text holds anything that [`without_controls`] takes out.
pub(super) fn has_control(text: &str) -> bool {
    // By blocks and without a branch, so that a block is searched many bytes at a time.
    let bytes = text.as_bytes();
    let mut begins_at = 0;
    for block in bytes.chunks(BLOCK_BYTES) {
        if block.iter().fold(false, |any, byte| any | is_control(*byte)) {
            return true;
        }
        if !block.is_ascii() && block.iter().fold(false, |any, byte| any | begins_suspect(*byte)) {
            let from = text.floor_char_boundary(begins_at);
            let to = text.ceil_char_boundary(begins_at + block.len());
            let mut before = text[..from].chars().next_back();
            for c in text[from..to].chars() {
                if goes(c, before) {
                    return true;
                }
                before = Some(c);
            }
        }
        begins_at += block.len();
    }
    false
}

/// Control bytes that no text needs: everything below a blank but tab, newline and carriage return, and DEL.
fn is_control(byte: u8) -> bool {
    matches!(byte, 0..=8 | 11 | 12 | 14..=31 | 127)
}

/// First bytes of the characters beyond ASCII of which some go.
fn begins_suspect(byte: u8) -> bool {
    matches!(byte, 0xc2 | 0xd8 | 0xe1 | 0xe2 | 0xef | 0xf3)
}

/// Whether a character goes that follows `before`; one that begins a control sequence takes more with it.
fn goes(c: char, before: Option<char>) -> bool {
    match c {
        '\0'..='\x7f' => is_control(c as u8),
        '\u{80}'..='\u{9f}' => true,
        // Zero-width joiner and non-joiner.
        '\u{200c}' | '\u{200d}' => before.is_none_or(|before| before.is_ascii()),
        // Direction: marks, embeddings, overrides, isolates.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' => true,
        // Not seen: soft hyphen, vowel separator, zero-width space, joiners and operators, byte-order mark,
        // annotations, tags, supplementary variation selectors.
        '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' => true,
        '\u{e0000}'..='\u{e01ef}' => true,
        _ => false,
    }
}

/// Takes out terminal control sequences (CSI, OSC and their like) as wholes, and what else goes one by one.
pub(super) fn without_controls(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let sequence = sequence_bytes(rest);
        if sequence > 0 {
            rest = &rest[sequence..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        if !goes(c, clean.chars().next_back()) {
            clean.push(c);
        }
    }
    clean
}

/// Where a control sequence begins whose end has not come yet; nothing when there is none.
pub(super) fn unfinished_sequence(text: &str) -> Option<usize> {
    let begins_at = last_introducer(text.as_bytes())?;
    let rest = &text[begins_at..];
    (sequence_bytes(rest) == rest.len() && !is_finished(rest)).then_some(begins_at)
}

/// Where the last character stands that begins a control sequence: ESC, or one of C1.
fn last_introducer(bytes: &[u8]) -> Option<usize> {
    let mut end = bytes.len();
    while let Some(at) = memchr::memrchr2(0x1b, C1_LEADS, &bytes[..end]) {
        let is_one = bytes[at] == 0x1b || matches!(bytes.get(at + 1), Some(0x90 | 0x98 | 0x9b | 0x9d..=0x9f));
        if is_one {
            return Some(at);
        }
        end = at;
    }
    None
}

/// How long the control sequence at the start of a text is; 0 when none stands there.
fn sequence_bytes(text: &str) -> usize {
    let mut chars = text.chars();
    let rest = match chars.next() {
        Some('\u{1b}') => match chars.next() {
            Some('[') => return text.len() - after_csi(chars.as_str()).len(),
            Some(']' | 'P' | '^' | '_' | 'X') => chars.as_str(),
            // Two characters.
            Some('\u{20}'..='\u{7e}') => return 2,
            _ => return 1,
        },
        Some('\u{9b}') => return text.len() - after_csi(chars.as_str()).len(),
        Some('\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}') => chars.as_str(),
        _ => return 0,
    };
    text.len() - after_string(rest).len()
}

/// What follows parameters and the final letter of a CSI.
fn after_csi(rest: &str) -> &str {
    let after = rest.trim_start_matches(|c| matches!(c, '\u{20}'..='\u{3f}'));
    after.strip_prefix(|c| matches!(c, '\u{40}'..='\u{7e}')).unwrap_or(after)
}

/// What follows a string for the terminal (a title, a link); one that is not ended ends with its line.
fn after_string(rest: &str) -> &str {
    let end = rest.find(['\u{7}', '\u{9c}', '\n', '\u{1b}']).unwrap_or(rest.len());
    let after = &rest[end..];
    after.strip_prefix("\u{1b}\\").or_else(|| after.strip_prefix(['\u{7}', '\u{9c}', '\u{1b}'])).unwrap_or(after)
}

/// Whether a text that is one control sequence has its end.
fn is_finished(sequence: &str) -> bool {
    let opening = 1 + usize::from(sequence.starts_with('\u{1b}'));
    let has_more = sequence.chars().nth(opening).is_some();
    let last = sequence.chars().next_back();
    match sequence.chars().nth(opening - 1) {
        None => false,
        Some('[' | '\u{9b}') => has_more && matches!(last, Some('\u{40}'..='\u{7e}')),
        Some(']' | 'P' | '^' | '_' | 'X' | '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}') => {
            has_more && (matches!(last, Some('\u{7}' | '\u{9c}')) || sequence.ends_with("\u{1b}\\"))
        }
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{has_control, unfinished_sequence, without_controls};

    #[test]
    fn the_last_introducer_is_found_among_letters_that_begin_alike() {
        for (text, at) in [
            ("", None),
            ("plain é §", None),
            ("\u{1b}[31", Some(0)),
            ("a\u{9b}31 §", Some(1)),
            ("\u{1b}[0mé\u{9d}t §", Some(6)),
        ] {
            assert_eq!(super::last_introducer(text.as_bytes()), at, "{text:?}");
        }
    }

    #[test]
    fn sequences_go_as_wholes() {
        for (text, expected) in [
            ("\u{1b}[31mred\u{1b}[0m\u{1b}]0;title\u{7}!", "red!"),
            ("a\u{0}b\u{8}c\u{7f}", "abc"),
            ("\u{1b}]never ends\nnext", "\nnext"),
            ("\u{1b}]8;;http://a\u{1b}\\link", "link"),
            ("\u{9b}1mbold\u{9d}title\u{9c}!\u{85}", "bold!"),
            ("\u{1b}", ""),
            ("\u{1b}c\u{1b}7x", "x"),
        ] {
            assert!(has_control(text));
            assert_eq!(without_controls(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_turns_or_hides_text_goes() {
        for hidden in [
            '\u{202e}',
            '\u{2066}',
            '\u{200f}',
            '\u{61c}',
            '\u{200b}',
            '\u{2060}',
            '\u{feff}',
            '\u{ad}',
            '\u{180e}',
            '\u{e0041}',
            '\u{e0101}',
            '\u{200d}',
        ] {
            let text = format!("{}ab{hidden}cd", " ".repeat(1021));
            assert!(has_control(&text), "{hidden:?}");
            assert_eq!(without_controls(&text).trim_start(), "abcd", "{hidden:?}");
        }
    }

    #[test]
    fn joiners_stay_where_they_are_needed() {
        for text in
            ["👩\u{200d}👩\u{200d}👧", "می\u{200c}خواهم", "❤\u{fe0f}", "“quoted” — é 界 e\u{301}", "tab\tcr\r\n"]
        {
            assert!(!has_control(text), "{text}");
            assert_eq!(without_controls(text), text);
        }
    }

    #[test]
    fn a_sequence_without_its_end_is_found() {
        for (text, begins_at) in [
            ("ab\u{1b}", Some(2)),
            ("ab\u{1b}[", Some(2)),
            ("ab\u{1b}[31", Some(2)),
            ("ab\u{1b}[31m", None),
            ("\u{1b}]0;a title", Some(0)),
            ("\u{1b}]0;a title\u{7}", None),
            ("\u{1b}]0;t\u{1b}", Some(4)),
            ("\u{1b}[31mred", None),
            ("plain", None),
            ("\u{1b}c", None),
            ("\u{9b}1", Some(0)),
        ] {
            let found = unfinished_sequence(text);
            let expected = if text == "\u{1b}]0;t\u{1b}" { Some(text.len() - 1) } else { begins_at };
            assert_eq!(found, expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn the_search_and_the_cleaning_agree(text in any::<String>(), before in 0_usize..1030) {
            let text = format!("{}{text}", "界".repeat(before / 3));
            let clean = without_controls(&text);
            prop_assert_eq!(has_control(&text), clean != text);
            prop_assert!(!has_control(&clean));
        }
    }
}
