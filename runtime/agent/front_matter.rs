//! The head of a Markdown file: settings between two lines of `---`, each with its line.
//!
//! It reads the part of YAML that people write there and nothing else: a text, a list and one level of settings below a
//! setting. Whatever it does not know is a fault with its line and never a guess: no anchors, no types, no `yes` that
//! means true.

/// Deepest nesting: a setting below a setting.
const DEPTH_MAX: usize = 2;

/// Most entries of a head, lists and settings below settings included.
const ENTRIES_MAX: usize = 1024;

/// A file in its two parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FrontMatter<'a> {
    /// The settings in the order they stand in.
    pub(super) entries: Vec<Entry>,
    /// What stands behind them.
    pub(super) body: &'a str,
    /// The line at which that begins, counted from 1.
    pub(super) body_line: usize,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its name.
    pub(super) key: String,
    /// Its line, counted from 1.
    pub(super) line: usize,
    /// What it is set to.
    pub(super) value: Value,
}

/// What a setting is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A text; empty when nothing stands there.
    Text(String),
    /// Texts with their lines.
    List(Vec<(String, usize)>),
    /// Settings below this one.
    Table(Vec<Entry>),
}

/// What is wrong, and at which line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// The line, counted from 1.
    pub(super) line: usize,
    /// What is wrong and what would be right.
    pub(super) message: String,
}

/// A line of the head.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

impl<'a> FrontMatter<'a> {
    /// Reads a file.
    ///
    /// # Errors
    /// Every fault of the head; the one fault that there is no head.
    pub(super) fn read(text: &'a str) -> Result<Self, Vec<Fault>> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let fault = |line, message: &str| Fault { line, message: message.to_owned() };
        let mut at = 0;
        let mut lines = Vec::new();
        let mut faults = Vec::new();
        for (index, whole) in text.split_inclusive('\n').enumerate() {
            at += whole.len();
            let line = whole.trim_end();
            if index == 0 {
                if line != "---" {
                    let message =
                        "the file begins with a line of three hyphens, then its settings, then another such line";
                    return Err(vec![fault(1, message)]);
                }
                continue;
            }
            if line == "---" {
                let mut reader = Reader { lines, next: 0, entries: 0, faults };
                let entries = reader.table(0, 1);
                return match reader.faults.is_empty() {
                    true => Ok(Self { entries, body: &text[at..], body_line: index + 2 }),
                    false => Err(reader.faults),
                };
            }
            let text = line.trim_start_matches(' ');
            if text.starts_with('\t') {
                faults.push(fault(index + 1, "a tab stands in front; indent by spaces"));
            }
            lines.push(Line { number: index + 1, indent: line.len() - text.len(), text });
        }
        Err(vec![fault(1, "the settings have no end; close them with a line of three hyphens")])
    }
}

struct Reader<'a> {
    lines: Vec<Line<'a>>,
    next: usize,
    entries: usize,
    faults: Vec<Fault>,
}

impl<'a> Reader<'a> {
    fn fault(&mut self, line: usize, message: impl Into<String>) {
        self.faults.push(Fault { line, message: message.into() });
    }

    /// The next line that says something; not taken yet.
    fn peek(&mut self) -> Option<Line<'a>> {
        while let Some(line) = self.lines.get(self.next) {
            if !line.text.is_empty() && !line.text.starts_with('#') {
                return Some(*line);
            }
            self.next += 1;
        }
        None
    }

    /// Counts one more; false beyond [`ENTRIES_MAX`], told once.
    fn counts(&mut self, line: usize) -> bool {
        self.entries += 1;
        if self.entries == ENTRIES_MAX + 1 {
            self.fault(line, format!("the settings have more than {ENTRIES_MAX} entries"));
        }
        self.entries <= ENTRIES_MAX
    }

    /// Settings that are indented by `indent`.
    fn table(&mut self, indent: usize, depth: usize) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        while let Some(line) = self.peek() {
            if line.indent < indent {
                break;
            }
            self.next += 1;
            if line.indent > indent {
                self.fault(line.number, "this line is indented further than the one it belongs to");
                continue;
            }
            let Some((key, rest)) = line.text.split_once(':').filter(|(key, _)| is_key(key)) else {
                self.fault(line.number, "this is no setting; write `name: value`");
                continue;
            };
            if !rest.is_empty() && !rest.starts_with(' ') {
                self.fault(line.number, format!("a space is missing behind `{key}:`"));
                continue;
            }
            if !self.counts(line.number) {
                break;
            }
            if entries.iter().any(|entry| entry.key == key) {
                self.fault(line.number, format!("{key} is set twice"));
            }
            let value = self.value(line, rest.trim(), depth);
            entries.push(Entry { key: key.to_owned(), line: line.number, value });
        }
        entries
    }

    fn value(&mut self, line: Line<'a>, rest: &'a str, depth: usize) -> Value {
        match rest.chars().next() {
            None | Some('#') => self.below(line, depth),
            Some('[') => Value::List(self.list_in_line(line.number, rest)),
            Some('|' | '>') => self.block(line, rest),
            Some('{' | '&' | '*' | '!' | '%' | '@' | '`') => {
                self.fault(line.number, "this begins with a sign that is not known here; put the text in quotes");
                Value::Text(String::new())
            }
            Some(_) => Value::Text(self.scalar(line.number, rest)),
        }
    }

    /// What stands indented below a setting: a list, or settings.
    fn below(&mut self, above: Line<'a>, depth: usize) -> Value {
        let Some(first) = self.peek() else { return Value::Text(String::new()) };
        let is_item = |line: Line<'_>| line.text == "-" || line.text.starts_with("- ");
        if is_item(first) && first.indent >= above.indent {
            let mut list = Vec::new();
            while let Some(line) = self.peek().filter(|line| line.indent == first.indent && is_item(*line)) {
                self.next += 1;
                if !self.counts(line.number) {
                    break;
                }
                let text = self.scalar(line.number, line.text[1..].trim());
                list.push((text, line.number));
            }
            return Value::List(list);
        }
        if first.indent <= above.indent {
            return Value::Text(String::new());
        }
        if depth == DEPTH_MAX {
            self.fault(first.number, "settings stand below a setting, and not deeper");
            while self.peek().is_some_and(|line| line.indent > above.indent) {
                self.next += 1;
            }
            return Value::Text(String::new());
        }
        Value::Table(self.table(first.indent, depth + 1))
    }

    /// `[a, "b, c", d(e, f)]` on one line.
    fn list_in_line(&mut self, number: usize, rest: &str) -> Vec<(String, usize)> {
        let Some(inside) = uncommented(rest).strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
            self.fault(
                number,
                "the list has no end on its line; close it with `]`, or write an entry a line behind `- `",
            );
            return Vec::new();
        };
        let mut list = Vec::new();
        for item in split_list(inside) {
            if !self.counts(number) {
                break;
            }
            let text = self.scalar(number, item);
            list.push((text, number));
        }
        list
    }

    /// A text over several lines: `|` keeps their ends, `>` makes one line of them.
    fn block(&mut self, above: Line<'a>, sign: &str) -> Value {
        let keeps = sign.starts_with('|');
        if !matches!(uncommented(sign), "|" | ">" | "|-" | ">-") {
            self.fault(above.number, "a text over several lines begins with `|` or `>` alone");
        }
        let mut text = String::new();
        let mut margin = None;
        while let Some(line) = self.lines.get(self.next).copied() {
            if !line.text.is_empty() && line.indent <= above.indent {
                break;
            }
            self.next += 1;
            let margin = *margin.get_or_insert(line.indent);
            if !text.is_empty() {
                text.push(if keeps || line.text.is_empty() { '\n' } else { ' ' });
            }
            text.extend(std::iter::repeat_n(' ', if keeps { line.indent.saturating_sub(margin) } else { 0 }));
            text.push_str(line.text);
        }
        Value::Text(text.trim_end().to_owned())
    }

    fn scalar(&mut self, number: usize, text: &str) -> String {
        let Some(quote) = text.chars().next().filter(|first| matches!(first, '"' | '\'')) else {
            return uncommented(text).to_owned();
        };
        let mut out = String::new();
        let mut rest = text[1..].chars();
        while let Some(c) = rest.next() {
            match c {
                '\'' if quote == '\'' && rest.as_str().starts_with('\'') => {
                    rest.next();
                    out.push('\'');
                }
                c if c == quote => {
                    if !uncommented(rest.as_str()).is_empty() {
                        self.fault(number, "something stands behind the closing quote");
                    }
                    return out;
                }
                '\\' if quote == '"' => match rest.next() {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some(c @ ('"' | '\\' | '/')) => out.push(c),
                    _ => self.fault(
                        number,
                        "in double quotes there are \\n, \\t, \\\" and \\\\; use single quotes for the rest",
                    ),
                },
                c => out.push(c),
            }
        }
        self.fault(number, "a quote is not closed on its line");
        out
    }
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// A text without the comment behind it.
fn uncommented(text: &str) -> &str {
    let comment = text.match_indices('#').find(|(at, _)| *at == 0 || text[..*at].ends_with(' '));
    comment.map_or(text, |(at, _)| &text[..at]).trim()
}

/// The entries of a list, parted by commas that stand in no quotes and no parentheses; empty ones are left out.
pub(super) fn split_list(text: &str) -> Vec<&str> {
    let (mut items, mut from, mut open, mut quote) = (Vec::new(), 0, 0_usize, None);
    for (at, c) in text.char_indices() {
        match (c, quote) {
            (c, Some(closing)) if c == closing => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(c),
            ('(', None) => open += 1,
            (')', None) => open = open.saturating_sub(1),
            (',', None) if open == 0 => {
                items.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    items.push(&text[from..]);
    items.into_iter().map(str::trim).filter(|item| !item.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Entry, FrontMatter, Value, split_list};

    fn text(entries: &[Entry], key: &str) -> String {
        match &entries.iter().find(|entry| entry.key == key).unwrap().value {
            Value::Text(text) => text.clone(),
            other => panic!("{key}: {other:?}"),
        }
    }

    #[test]
    fn texts_lists_and_settings_below_settings_are_read_with_their_lines() {
        let file = "\u{feff}---\r\nname: a  # a comment\nwhat: \"b # c\\n\"\nhow: 'it''s'\n\nlist: [x, \"y, z\", w(1, 2)]\n\
                    more:\n- one\n- two # two\nlimits:\n  calls: 3\n  # nothing\n  bytes: 4\nlong: >\n  folded\n  text\n\
                    raw: |\n  kept\n    further\nempty:\n---\nThe body.\n";
        let read = FrontMatter::read(file).unwrap();
        let entries = &read.entries;
        assert_eq!((text(entries, "name"), text(entries, "what")), ("a".into(), "b # c\n".into()));
        assert_eq!((text(entries, "how"), text(entries, "empty")), ("it's".into(), String::new()));
        assert_eq!((text(entries, "long"), text(entries, "raw")), ("folded text".into(), "kept\n  further".into()));
        let list =
            |items: &[(&str, usize)]| Value::List(items.iter().map(|(text, at)| ((*text).into(), *at)).collect());
        assert_eq!(entries[3].value, list(&[("x", 6), ("y, z", 6), ("w(1, 2)", 6)]));
        assert_eq!(entries[4].value, list(&[("one", 8), ("two", 9)]));
        let Value::Table(limits) = &entries[5].value else { panic!("{:?}", entries[5]) };
        assert_eq!((limits[1].key.as_str(), limits[1].line), ("bytes", 13));
        assert_eq!((read.body, read.body_line), ("The body.\n", 22));
    }

    #[test]
    fn each_fault_has_its_line() {
        for (file, line, word) in [
            ("name: a", 1, "three hyphens"),
            ("---\nname: a\n", 1, "no end"),
            ("---\nname a\n---\n", 2, "no setting"),
            ("---\na: 1\na: 2\n---\n", 3, "twice"),
            ("---\na:1\n---\n", 2, "space"),
            ("---\n\ta: 1\n---\n", 2, "tab"),
            ("---\na: 1\n  b: 2\n---\n", 3, "indented"),
            ("---\na: \"x\n---\n", 2, "not closed"),
            ("---\na: 'x' y\n---\n", 2, "behind the closing"),
            ("---\na: [x, y\n---\n", 2, "no end on its line"),
            ("---\na: &x y\n---\n", 2, "quotes"),
            ("---\na:\n  b:\n    c: 1\n---\n", 4, "not deeper"),
            ("---\na: \"\\q\"\n---\n", 2, "single quotes"),
        ] {
            let faults = FrontMatter::read(file).unwrap_err();
            let fault = faults.first().unwrap();
            assert!(fault.line == line && fault.message.contains(word), "{file:?}: {faults:?}");
        }
        let many = format!("---\na: [{}]\n---\n", "x,".repeat(5000));
        assert_eq!(FrontMatter::read(&many).unwrap_err().len(), 1);
    }

    /// Nothing makes the reader panic or run on.
    #[test]
    fn any_text_is_read_or_refused() {
        let pieces =
            ["---", "\n", "a", ": ", "- ", "  ", "[", "]", "\"", "'", "#", "|", ">", "\\", ",", "(", "\u{20ac}", "\t"];
        let mut number = 12_345_u64;
        for _ in 0..3_000 {
            let mut file = "---\n".to_owned();
            for _ in 0..40 {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                file.push_str(pieces[usize::try_from(number >> 33).unwrap() % pieces.len()]);
            }
            file.push_str("\n---\nbody");
            let _ = FrontMatter::read(&file);
        }
    }

    #[test]
    fn commas_in_quotes_and_parentheses_part_nothing() {
        assert_eq!(split_list("read, bash(git, log),, 'a,b' "), ["read", "bash(git, log)", "'a,b'"]);
    }
}
