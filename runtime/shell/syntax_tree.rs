//! The second opinion: what tree-sitter's bash grammar finds in one text.
//!
//! It sees nested commands as part of the outer text, so one walk finds all of them. Where it marks an error the
//! text is in doubt, but what it could read still counts: a deny looks at everything that was found.

use std::borrow::Cow;
use std::ops::ControlFlow;

use tree_sitter::{Node, ParseOptions, ParseState, Parser};

use super::bash_parser::is_descriptor;
use super::word::{Word, scan};
use super::wrapper::{assigned_name, decides_what_runs};
use super::{Doubt, Found, Redirection, RedirectionKind, SimpleCommand};

/// Most times that the parser may report progress (it does every 100 steps) before it is stopped.
const PROGRESS_REPORTS_MAX: u32 = 20_000;

/// Reads one text, with everything nested in it.
pub(super) fn read(text: &str) -> Found {
    let mut found = Found::default();
    let mut parser = Parser::new();
    let mut reports = 0u32;
    let mut progress = |_: &ParseState| {
        reports += 1;
        if reports > PROGRESS_REPORTS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let tame = tame(text);
    let mut input = |at: usize, _| tame.as_bytes().get(at..).unwrap_or_default();
    let tree = parser.set_language(&tree_sitter_bash::LANGUAGE.into()).ok().and_then(|()| {
        parser.parse_with_options(&mut input, None, Some(ParseOptions::new().progress_callback(&mut progress)))
    });
    let Some(tree) = tree else {
        found.doubts.push(Doubt::Unreadable);
        return found;
    };
    if tree.root_node().has_error() {
        found.doubts.push(Doubt::Unreadable);
    }
    let mut cursor = tree.walk();
    loop {
        visit(text, cursor.node(), &mut found);
        if cursor.goto_first_child() {
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return found;
            }
        }
    }
}

/// The text with every character beyond Latin-1 written as so many `%` as it has bytes, so that places stay the same.
///
/// The grammar's scanner asks C's `isdigit` about any character, and that looks into a table of 256: a character far
/// behind its end ends the process. `%` is a letter of words as those characters are, and of no name.
fn tame(text: &str) -> Cow<'_, str> {
    let is_wild = |character: char| character > '\u{ff}';
    if !text.contains(is_wild) {
        return Cow::Borrowed(text);
    }
    let mut tame = String::with_capacity(text.len());
    for character in text.chars() {
        match is_wild(character) {
            true => tame.extend(std::iter::repeat_n('%', character.len_utf8())),
            false => tame.push(character),
        }
    }
    Cow::Owned(tame)
}

fn visit(text: &str, node: Node<'_>, found: &mut Found) {
    match node.kind() {
        "command" | "declaration_command" | "unset_command" => {
            let command = simple(text, node);
            if !command.words.is_empty() {
                found.commands.push(command);
            }
        }
        "variable_assignment" => {
            if let Some(name) = assigned_name(source(text, node)).filter(|name| decides_what_runs(name)) {
                found.doubts.push(Doubt::Environment { name: name.to_owned() });
            }
        }
        "function_definition" => {
            let name = node.child_by_field_name("name").map_or("", |name| source(text, name));
            found.doubts.push(Doubt::Definition { name: name.to_owned() });
        }
        "file_redirect" => found.redirections.extend(redirection(text, node)),
        _ => {}
    }
}

fn simple(text: &str, node: Node<'_>) -> SimpleCommand {
    let mut command = SimpleCommand::default();
    let mut cursor = node.walk();
    for child in node.children(&mut cursor) {
        match child.kind() {
            "file_redirect" | "herestring_redirect" | "heredoc_redirect" | "subshell" => {}
            "variable_assignment" if command.words.is_empty() => {
                let name = assigned_name(source(text, child)).unwrap_or_default();
                command.assignments.push(name.to_owned());
            }
            "process_substitution" => command.words.push(Word::anything("<(…)")),
            _ => command.words.push(scan(source(text, child)).word),
        }
    }
    command
}

fn redirection(text: &str, node: Node<'_>) -> Option<Redirection> {
    let target = source(text, node.child_by_field_name("destination")?);
    let mut cursor = node.walk();
    let operator = node.children(&mut cursor).find(|child| !child.is_named()).map_or("", |child| child.kind());
    let kind = match operator {
        "<" | "<&" => RedirectionKind::Read,
        ">>" | "&>>" => RedirectionKind::Append,
        _ => RedirectionKind::Write,
    };
    let duplicates = matches!(operator, ">&" | "<&") && is_descriptor(target);
    (!duplicates).then(|| Redirection { target: scan(target).word, kind })
}

fn source<'a>(text: &'a str, node: Node<'_>) -> &'a str {
    text.get(node.byte_range()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{read, tame};

    // Found by random text: the scanner of the grammar read far behind a table of C's.
    #[test]
    fn no_character_reaches_the_tables_of_the_scanner() {
        for wild in ['\u{100}', '\u{fffd}', '\u{1f600}', '\u{e0001}', '\u{10ffff}'] {
            for line in
                [format!("echo {{1{wild}"), format!("echo {{1..2{wild}}}"), format!("a 1{wild}>x {{7{wild},8}}")]
            {
                let tame = tame(&line);
                assert!(tame.len() == line.len() && tame.chars().all(|character| character <= '\u{ff}'), "{tame}");
                assert!(!read(&line).commands.is_empty(), "{line}");
            }
        }
    }

    #[test]
    fn words_are_those_of_the_text_itself() {
        let found = read("echo \u{754c}\u{1f600} > \u{3000}x; ls \u{e9}");
        let words: Vec<_> = found.commands.iter().map(|command| command.words.len()).collect();
        assert_eq!(words, [2, 2]);
        assert_eq!(found.redirections.len(), 1);
        assert!(found.doubts.is_empty(), "{:?}", found.doubts);
    }
}
