//! What a line defines: the name that follows a word such as `fn` or `class`, or the words of a heading.

/// Words that come before the name of what is defined.
const DEFINING: [&str; 22] = [
    "fn",
    "struct",
    "enum",
    "trait",
    "impl",
    "mod",
    "type",
    "const",
    "static",
    "union",
    "macro_rules",
    "class",
    "def",
    "function",
    "interface",
    "func",
    "module",
    "package",
    "namespace",
    "object",
    "protocol",
    "record",
];
/// How far into a line such a word may stand, in words: `pub(crate) async unsafe extern "C" fn`.
const DEFINING_WORDS_MAX: usize = 7;

/// The name that a line defines, or its heading in prose.
pub(crate) fn defined_name(line: &str, prose: bool) -> Option<&str> {
    let line = line.trim_start();
    if prose {
        return line.starts_with('#').then(|| line.trim_start_matches('#'));
    }
    if ["//", "#", "*", "--", ";"].iter().any(|comment| line.starts_with(comment)) {
        return None;
    }
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let before = words.by_ref().take(DEFINING_WORDS_MAX).find(|word| DEFINING.contains(word));
    before.and_then(|_| words.find(|word| !DEFINING.contains(word)))
}

/// Whether a path is that of a text whose headings are its names.
pub(crate) fn is_prose(path: &str) -> bool {
    [".md", ".markdown", ".rst", ".adoc", ".txt"].iter().any(|end| path.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::defined_name;

    #[test]
    fn names_are_told_from_what_stands_around_them() {
        assert_eq!(defined_name("    pub(crate) async fn open_file(", false), Some("open_file"));
        assert_eq!(defined_name("export default class Foo extends", false), Some("Foo"));
        assert_eq!(defined_name("// fn nothing", false), None);
        assert_eq!(defined_name("## How it works", true), Some(" How it works"));
    }
}
