//! Counts what opens something in a command line, before a parser that recurses sees it.
//!
//! The counts are upper bounds: quoted text counts as well, so that no trick with quotes hides a level.

/// Most openers of one kind of a text that is parsed at all.
pub(super) const OPENERS_MAX: usize = 256;

/// Most openers of a text that is parsed on the caller's stack: at 21 KB a level (debug build) they take a third
/// of a 2 MiB stack.
const OPENERS_ANY_STACK_MAX: usize = 32;

/// Most pipes of a text: the second parser's time grows with their square.
const PIPES_MAX: usize = 1024;

/// Most here-documents of a text: the second parser's time grows with their square.
const HERE_DOCUMENTS_MAX: usize = 64;

/// Words that open a compound command, or that a parser recurses on.
pub(super) const KEYWORDS: [&str; 14] =
    ["if", "then", "elif", "else", "while", "until", "for", "case", "select", "coproc", "function", "{", "[[", "!"];

/// Whether the text has few enough parts to be parsed in bounded time.
pub(super) fn few_enough(text: &str) -> bool {
    expansions(text) <= OPENERS_MAX
        && text.bytes().filter(|byte| *byte == b'|').count() <= PIPES_MAX
        && text.matches("<<").count() <= HERE_DOCUMENTS_MAX
}

/// Whether the text can be parsed on whatever stack the caller has.
pub(super) fn fit_any_stack(text: &str) -> bool {
    let parens = text.bytes().filter(|byte| *byte == b'(').count();
    let keywords = text.split(|c: char| c.is_whitespace() || matches!(c, ';' | '&' | '|' | '(' | ')'));
    let keywords = keywords.filter(|word| KEYWORDS.contains(word)).count();
    expansions(text) + parens + keywords <= OPENERS_ANY_STACK_MAX
}

/// The deepest nesting of brackets, taking every bracket for one whether it is quoted or not.
pub(super) fn nesting_levels(text: &str) -> usize {
    let mut depth = 0usize;
    let mut deepest = 0;
    for byte in text.bytes() {
        match byte {
            b'(' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Whether a `#` may stand inside an arithmetic expression, where it begins no comment although a parser drops
/// what follows it.
pub(super) fn may_hide_behind_a_comment(text: &str) -> bool {
    let arithmetic = text.contains("((") || text.contains("$[");
    let after = |at: usize| text.as_bytes()[..at].last().is_none_or(|byte| !byte.is_ascii_alphanumeric());
    arithmetic && text.match_indices('#').any(|(at, _)| after(at))
}

/// How many `$(`, `${` and `$[` there are: the tokenizer recurses on each.
fn expansions(text: &str) -> usize {
    text.as_bytes().windows(2).filter(|pair| pair[0] == b'$' && matches!(pair[1], b'(' | b'{' | b'[')).count()
}

#[cfg(test)]
mod tests {
    use super::{few_enough, fit_any_stack, may_hide_behind_a_comment, nesting_levels};

    #[test]
    fn comments_do_not_mix_with_arithmetic() {
        assert!(may_hide_behind_a_comment("a $((#$(b)\n1))"));
        assert!(!may_hide_behind_a_comment("a $((16#ff)) b"));
        assert!(!may_hide_behind_a_comment("a # b"));
    }

    #[test]
    fn counts_quoted_openers_too() {
        assert_eq!(nesting_levels("a $(b \"$(c)\")"), 2);
        assert_eq!(nesting_levels("'((('"), 3);
        assert!(fit_any_stack("if a; then b; fi; $(c)"));
        assert!(!fit_any_stack(&"if a; then b; fi;".repeat(20)));
        assert!(!few_enough(&"$(a)".repeat(300)));
        assert!(!few_enough(&"a|".repeat(1025)));
    }
}
