//! Lines of files as tool outputs show them: `path:line:text`, ranked passages, numbered reads.
//!
//! An output may have been cut anywhere on its way (a projection, a child's bound), so a line is believed only where
//! its file and number are certain: numbers must go on one by one under a header, and whatever is neither header nor
//! numbered line ends the header's reign. A line that cannot be placed is dropped; a wrong place would be cited.

use std::collections::{BTreeMap, BTreeSet};

use super::term::terms;

/// Most of one output that is looked at, in bytes.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// Most lines that are kept.
const LINES_MAX: usize = 20_000;
/// Longest text of a line that is kept, in bytes.
const LINE_BYTES_MAX: usize = 400;
/// Most terms of one line that are looked at.
const LINE_TERMS_MAX: usize = 64;
/// Longest path that is believed, in bytes.
const PATH_BYTES_MAX: usize = 4096;
/// Most places in one line of a search where its path may end.
const SPLITS_MAX: usize = 16;

/// What is known of the files of a workspace.
#[derive(Debug, Default)]
pub(super) struct Listing {
    files: BTreeMap<String, KnownFile>,
    lines: usize,
}

/// What is known of one file.
#[derive(Debug, Default)]
pub(super) struct KnownFile {
    /// Lines by number, from 1.
    pub(super) lines: BTreeMap<usize, String>,
    /// The terms of each line, for they are compared many times.
    pub(super) terms: BTreeMap<usize, BTreeSet<String>>,
    /// Best place in a ranked search, from 0.
    pub(super) rank: Option<usize>,
}

impl Listing {
    /// The files, by path.
    pub(super) fn files(&self) -> &BTreeMap<String, KnownFile> {
        &self.files
    }

    /// Takes the output of an exact search with contents: `path:line:text`, and `path-line-text` around it.
    pub(super) fn take_matches(&mut self, output: &str) {
        let output = bounded(output);
        let paths: BTreeSet<&str> = output.lines().filter_map(first_match).collect();
        for line in output.lines() {
            // The earliest end that gives a known path: names hold such separators rarely, texts often.
            let place = splits(line).find(|(path, _, _)| paths.contains(path));
            if let Some((path, number, text)) = place {
                self.put(path, number, text);
            }
        }
    }

    /// Takes the output of a ranked search: `path:start-end (score 1.234)`, then numbered lines.
    pub(super) fn take_ranked(&mut self, output: &str) {
        let mut rank = 0;
        let mut under: Option<(&str, usize, usize)> = None;
        for line in bounded(output).lines() {
            if let Some((path, start, end)) = ranked_header(line) {
                let file = self.files.entry(path.to_owned()).or_default();
                file.rank = Some(file.rank.map_or(rank, |held| held.min(rank)));
                rank += 1;
                under = Some((path, start, end));
                continue;
            }
            under = match (under, numbered(line)) {
                (Some((path, next, end)), Some((number, text))) if number == next && number <= end => {
                    self.put(path, number, text);
                    Some((path, next + 1, end))
                }
                _ => None,
            };
        }
        self.files.retain(|_, file| !file.lines.is_empty());
    }

    /// Takes the output of a read of several files: `=== path ===`, then numbered lines.
    pub(super) fn take_read(&mut self, output: &str) {
        let mut under: Option<(&str, Option<usize>)> = None;
        for line in bounded(output).lines() {
            if let Some(path) = line.strip_prefix("=== ").and_then(|rest| rest.strip_suffix(" ===")) {
                under = is_path(path).then_some((path, None));
                continue;
            }
            under = match (under, numbered(line)) {
                (Some((path, expected)), Some((number, text))) if expected.is_none_or(|next| next == number) => {
                    // A read shows a line from its start; a search may show the middle of a long one.
                    self.note(path, number, text, |held, fresh| !held.starts_with(fresh));
                    Some((path, Some(number + 1)))
                }
                _ => None,
            };
        }
    }

    /// Notes one line; a longer text of the same line wins.
    pub(super) fn put(&mut self, path: &str, number: usize, text: &str) {
        self.note(path, number, text, |held, fresh| held.len() < fresh.len());
    }

    /// Notes a line if it is new, or its text better than the one held.
    fn note(&mut self, path: &str, number: usize, text: &str, is_better: impl Fn(&str, &str) -> bool) {
        if number == 0 || !is_path(path) || self.lines >= LINES_MAX {
            return;
        }
        let kept = &text[..text.floor_char_boundary(LINE_BYTES_MAX)];
        let file = self.files.entry(path.to_owned()).or_default();
        match file.lines.get_mut(&number) {
            Some(held) if is_better(held, kept) => kept.clone_into(held),
            Some(_) => return,
            None => {
                file.lines.insert(number, kept.to_owned());
                self.lines += 1;
            }
        }
        file.terms.insert(number, terms(kept, LINE_TERMS_MAX).into_iter().collect());
    }
}

impl KnownFile {
    /// The unbroken run of known lines around a number that is known, at most this far to each side.
    pub(super) fn around(&self, number: usize, before: usize, after: usize) -> std::ops::RangeInclusive<usize> {
        let mut start = number;
        while start > 1 && number - start < before && self.lines.contains_key(&(start - 1)) {
            start -= 1;
        }
        let mut end = number;
        while end - number < after && self.lines.contains_key(&(end + 1)) {
            end += 1;
        }
        start..=end
    }
}

fn bounded(output: &str) -> &str {
    &output[..output.floor_char_boundary(OUTPUT_BYTES_MAX)]
}

fn is_path(path: &str) -> bool {
    !path.trim().is_empty() && path.len() <= PATH_BYTES_MAX && !path.chars().any(char::is_control)
}

/// The path of a match line by its first `:number:`.
fn first_match(line: &str) -> Option<&str> {
    splits(line).find(|(path, _, _)| line.as_bytes().get(path.len()) == Some(&b':')).map(|(path, _, _)| path)
}

/// The ways in which a line of a search falls into path, number and text, from the left.
fn splits(line: &str) -> impl Iterator<Item = (&str, usize, &str)> {
    let candidate = move |(at, separator): (usize, &str)| {
        let rest = &line[at + 1..];
        let digits = rest.len() - rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
        let text = rest[digits..].strip_prefix(separator)?;
        let number = rest[..digits].parse().ok()?;
        is_path(&line[..at]).then_some((&line[..at], number, text))
    };
    line.match_indices([':', '-']).filter_map(candidate).take(SPLITS_MAX)
}

fn ranked_header(line: &str) -> Option<(&str, usize, usize)> {
    let (place, score) = line.strip_suffix(')')?.rsplit_once(" (score ")?;
    score.parse::<f64>().ok()?;
    let (path, range) = place.rsplit_once(':')?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (start.parse().ok()?, end.parse().ok()?);
    (is_path(path) && start > 0 && start <= end).then_some((path, start, end))
}

/// `    12\ttext`.
fn numbered(line: &str) -> Option<(usize, &str)> {
    let (number, text) = line.split_once('\t')?;
    let digits = number.trim_start_matches(' ');
    if digits.is_empty() || number.len() < 6 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    Some((digits.parse().ok()?, text))
}

#[cfg(test)]
mod tests {
    use super::{LINE_BYTES_MAX, LINES_MAX, Listing};

    fn known(listing: &Listing) -> Vec<(String, usize, String)> {
        let rows = |(path, file): (&String, &super::KnownFile)| {
            file.lines.iter().map(|(number, text)| (path.clone(), *number, text.clone())).collect::<Vec<_>>()
        };
        listing.files().iter().flat_map(rows).collect()
    }

    fn row(path: &str, number: usize, text: &str) -> (String, usize, String) {
        (path.to_owned(), number, text.to_owned())
    }

    #[test]
    fn matches_and_their_context_are_placed() {
        let mut listing = Listing::default();
        listing.take_matches(
            "src/a.rs-9-before\nsrc/a.rs:10:let x = \"b.rs:7:no\";\nsrc/a.rs-11-after:12:x\n--\n\
             docs/2024-01-02-note.md-3-above\ndocs/2024-01-02-note.md:4:hit-5-x\n\n2 match(es) in 2 file(s)\n",
        );
        assert_eq!(
            known(&listing),
            [
                row("docs/2024-01-02-note.md", 3, "above"),
                row("docs/2024-01-02-note.md", 4, "hit-5-x"),
                row("src/a.rs", 9, "before"),
                row("src/a.rs", 10, "let x = \"b.rs:7:no\";"),
                row("src/a.rs", 11, "after:12:x"),
            ]
        );
    }

    #[test]
    fn ranked_passages_are_placed_and_ranked() {
        let mut listing = Listing::default();
        listing.take_ranked(
            "src/a.rs:3-5 (score 4.125)\n     3\tone\n     4\t\n     5\tthree\n\nb c.md:1-1 (score 2.000)\n     1\thead\n\n\
             warning: some files were left out\n",
        );
        assert_eq!(
            known(&listing),
            [row("b c.md", 1, "head"), row("src/a.rs", 3, "one"), row("src/a.rs", 4, ""), row("src/a.rs", 5, "three"),]
        );
        assert_eq!(listing.files()["src/a.rs"].rank, Some(0));
        assert_eq!(listing.files()["b c.md"].rank, Some(1));
    }

    #[test]
    fn reads_are_placed_and_a_cut_output_never_gives_a_wrong_place() {
        let mut listing = Listing::default();
        listing.take_read(
            "=== a.rs ===\n     1\tone\n     2\ttwo\n[900 bytes left out]\n    70\tof another file\n\n=== gone.rs ===\n\
             not found: gone.rs\n\n=== b.rs ===\n    11\televen\n    13\tthirteen\n    14\tfourteen\n",
        );
        assert_eq!(known(&listing), [row("a.rs", 1, "one"), row("a.rs", 2, "two"), row("b.rs", 11, "eleven")]);

        let mut ranked = Listing::default();
        ranked.take_ranked("a.rs:1-2 (score 1.000)\n     1\tone\n[cut]\n     2\tof b.rs\n     3\tpast the end\n");
        assert_eq!(known(&ranked), [row("a.rs", 1, "one")]);
    }

    #[test]
    fn a_longer_text_of_the_same_line_wins_and_a_read_over_a_search() {
        let mut listing = Listing::default();
        listing.take_matches("b.rs:1:…the middle of a long line, shown for its match…\n");
        listing.take_read("=== b.rs ===\n     1\tfrom its start\n");
        assert_eq!(known(&listing), [row("b.rs", 1, "from its start")]);
        let mut listing = Listing::default();
        listing.take_matches("a.rs:1:short of it\n");
        listing.take_read("=== a.rs ===\n     1\tshort of it, and the rest\n");
        listing.take_matches("a.rs:1:short\n");
        assert_eq!(known(&listing), [row("a.rs", 1, "short of it, and the rest")]);
    }

    #[test]
    fn garbage_gives_nothing_and_floods_stay_bounded() {
        let mut listing = Listing::default();
        for garbage in
            ["", "\n\n\n", ":::", "a:1", "-1-", ":1:x", "=== ===", "===  ===\n     1\tx", "x:0-0 (score nan)"]
        {
            listing.take_matches(garbage);
            listing.take_ranked(garbage);
            listing.take_read(garbage);
        }
        listing.take_matches(&format!("a.rs:99999999999999999999999:x\n{}", "-1".repeat(100_000)));
        assert!(listing.files().is_empty(), "{listing:?}");
        listing.take_matches(&format!("a.rs:1:{}\n", "界".repeat(9999)));
        assert!(listing.files()["a.rs"].lines[&1].len() <= LINE_BYTES_MAX);
        for file in 0..40 {
            let mut flood = String::from("=== f ===\n").replace('f', &format!("f{file}"));
            (1..2000).for_each(|number| flood.push_str(&format!("{number:>6}\tx\n")));
            listing.take_read(&flood);
        }
        assert!(known(&listing).len() <= LINES_MAX);
    }

    #[test]
    fn the_lines_around_stop_at_a_gap() {
        let mut listing = Listing::default();
        [1, 2, 3, 5].into_iter().for_each(|number| listing.put("a", number, "x"));
        let file = &listing.files()["a"];
        assert_eq!((file.around(2, 5, 5), file.around(2, 0, 1), file.around(5, 9, 9)), (1..=3, 2..=3, 5..=5));
    }
}
