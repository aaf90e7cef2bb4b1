//! The answer for people: quoted passages under the parts of the question, each with the place where it stands.
//!
//! Nothing is said that is not quoted, and nothing is quoted that the evidence does not hold at that place. What was
//! not found is said as plainly as what was.

use super::evidence::{Evidence, cut};
use super::focus::Focus;
use super::judge::{Hit, Judge, is_comment, is_document};

/// Most statements, unless the question has more parts.
const STATEMENTS_MAX: usize = 6;
/// Most statements for one part.
const PART_STATEMENTS_MAX: usize = 4;
/// Most candidates for each part.
const CANDIDATES_MAX: usize = 16;
/// Most lines of a quote.
const QUOTE_LINES_MAX: usize = 5;
/// Quotes of one file so close together, in lines, would show the same place twice.
const APART_LINES_MIN: usize = 4;
/// Longest quoted line, in bytes.
const QUOTE_LINE_BYTES_MAX: usize = 180;
/// Most places named for one statement.
const SOURCES_MAX: usize = 3;
/// A further statement has at least this share of the points of its part's best, in percent.
const WORTH_PERCENT: usize = 60;

/// The first line of every answer.
pub(super) const HONEST: &str =
    "Extractive answer (no language model): passages found in the workspace, quoted as they stand, best first.";

/// What is said when a question holds nothing to look for.
pub(super) const NOTHING_ASKED: &str = "No language model is at work here, only search, and this question names nothing to search for. Name a thing, a \
     \"quoted text\" or an identifier, for example: where is the restart intensity decided?";

/// One quoted passage.
struct Statement {
    part: usize,
    path: String,
    start: usize,
    end: usize,
    verb: &'static str,
    lines: Vec<String>,
    also: Vec<String>,
}

/// Writes the answer.
pub(super) fn write(evidence: &Evidence, judge: &Judge, focuses: &[Focus]) -> String {
    let agreement = |path: &str, line: usize| evidence.agreement(path, line);
    let hits: Vec<Vec<Hit>> =
        (0..focuses.len()).map(|part| judge.hits(&evidence.listing, part, CANDIDATES_MAX, &agreement)).collect();
    let mut statements: Vec<Statement> = Vec::new();
    let mut elsewhere: Vec<Option<usize>> = vec![None; focuses.len()];
    let room = STATEMENTS_MAX.max(focuses.len());
    for place in 0..CANDIDATES_MAX {
        for (part, hits) in hits.iter().enumerate() {
            let (Some(hit), Some(best)) = (hits.get(place), hits.first()) else { continue };
            let own = statements.iter().filter(|statement| statement.part == part).count();
            let is_worth_it = hit.score * 100 >= best.score * WORTH_PERCENT;
            if !hit.whole || (own > 0 && !is_worth_it) || own >= PART_STATEMENTS_MAX || statements.len() >= room {
                continue;
            }
            let Some(statement) = quote(evidence, judge, part, hit) else { continue };
            match place_of(&mut statements, &statement) {
                Some(index) if statements[index].part != part => elsewhere[part] = elsewhere[part].or(Some(index)),
                Some(_) => {}
                None => statements.push(statement),
            }
        }
    }
    compose(evidence, focuses, &hits, statements, &elsewhere)
}

/// The statement that says the same already; a copy of its text elsewhere becomes a further source.
fn place_of(statements: &mut [Statement], fresh: &Statement) -> Option<usize> {
    let index = statements.iter().position(|held| {
        let is_near = held.start < fresh.end + APART_LINES_MIN && fresh.start < held.end + APART_LINES_MIN;
        (held.path == fresh.path && is_near) || held.lines == fresh.lines
    })?;
    let held = &mut statements[index];
    if held.path != fresh.path && held.also.len() + 1 < SOURCES_MAX {
        held.also.push(source(fresh));
    }
    Some(index)
}

/// A short quote around a hit: the comment it stands in, the head of what it defines, or the lines beside it.
fn quote(evidence: &Evidence, judge: &Judge, part: usize, hit: &Hit) -> Option<Statement> {
    let file = evidence.listing.files().get(&hit.path)?;
    let text = |line: usize| file.lines.get(&line).map_or("", String::as_str);
    let is_prose = |line: usize| is_comment(text(line)) || is_document(&hit.path);
    let definition = judge.definition(part, &hit.path, file, hit.line);
    let line = definition.unwrap_or(hit.line);
    let prose = is_prose(line);
    let (verb, before, after) = match (definition, prose) {
        (Some(_), _) => ("defines it", QUOTE_LINES_MAX - 2, 1),
        (None, true) => ("says", 1, 2),
        (None, false) => ("has", 1, 1),
    };
    // Above a definition only its own comment and attributes count; a comment ends where code begins.
    let says_something = |line: usize| text(line).chars().any(char::is_alphanumeric);
    let leads = |line: usize| is_prose(line) || (definition.is_some() && is_attribute(text(line)));
    let around = file.around(line, before, after);
    let (mut start, mut end) = (line, line);
    while start > *around.start() && says_something(start - 1) && (verb == "has" || leads(start - 1)) {
        start -= 1;
    }
    while end < *around.end() && says_something(end + 1) && (!prose || is_prose(end + 1)) {
        end += 1;
    }
    let lines = dedent((start..=end).map(|line| clean(text(line))).collect());
    Some(Statement { part, path: hit.path.clone(), start, end, verb, lines, also: Vec::new() })
}

fn is_attribute(text: &str) -> bool {
    text.trim_start().starts_with(['#', '@'])
}

fn compose(
    evidence: &Evidence,
    focuses: &[Focus],
    hits: &[Vec<Hit>],
    statements: Vec<Statement>,
    elsewhere: &[Option<usize>],
) -> String {
    let mut text = String::from(HONEST);
    text.push('\n');
    // Statements are numbered as they are shown: part by part.
    let mut order: Vec<usize> = (0..statements.len()).collect();
    order.sort_by_key(|index| statements[*index].part);
    let number_of = |index: usize| order.iter().position(|shown| *shown == index).map_or(0, |place| place + 1);
    let mut missing = Vec::new();
    for (part, focus) in focuses.iter().enumerate() {
        let own: Vec<usize> = order.iter().copied().filter(|index| statements[*index].part == part).collect();
        match (own.is_empty(), elsewhere[part]) {
            (true, Some(index)) => text.push_str(&format!("\n{}: see {}\n", focus.text, number_of(index))),
            (true, None) => missing.push((focus, hits[part].first())),
            (false, _) => {
                text.push_str(&format!("\n{}\n", focus.text));
                own.into_iter().for_each(|index| show(&mut text, number_of(index), &statements[index]));
            }
        }
    }
    for (focus, closest) in missing {
        text.push_str(&format!("\nNot found: {:?}", focus.text));
        if let Some((hit, line)) = closest.and_then(|hit| Some((hit, line_of(evidence, hit)?))) {
            text.push_str(&format!("; the closest is {}:{}: {}", hit.path, hit.line, clean(line).trim()));
        }
        text.push('\n');
    }
    if !evidence.failures.is_empty() {
        text.push_str(&format!("\nNot complete, for some calls failed: {}\n", evidence.failures.join("; ")));
    }
    text
}

fn line_of<'a>(evidence: &'a Evidence, hit: &Hit) -> Option<&'a str> {
    evidence.listing.files().get(&hit.path)?.lines.get(&hit.line).map(String::as_str)
}

fn show(text: &mut String, number: usize, statement: &Statement) {
    let also = if statement.also.is_empty() { String::new() } else { format!(" (and {})", statement.also.join(", ")) };
    text.push_str(&format!("{number}. {}{also} {}:\n", source(statement), statement.verb));
    for line in &statement.lines {
        text.push_str(&format!("     {line}\n"));
    }
}

fn source(statement: &Statement) -> String {
    if statement.start == statement.end {
        format!("{}:{}", statement.path, statement.start)
    } else {
        format!("{}:{}-{}", statement.path, statement.start, statement.end)
    }
}

/// A line fit for a terminal: tabs become blanks, other control characters a mark.
fn clean(text: &str) -> String {
    let shown = |character: char| match character {
        '\t' => "    ".to_owned(),
        other if other.is_control() => '\u{fffd}'.to_string(),
        other => other.to_string(),
    };
    cut(text.trim_end(), QUOTE_LINE_BYTES_MAX).chars().map(shown).collect()
}

/// Takes off the blanks that all lines begin with.
fn dedent(lines: Vec<String>) -> Vec<String> {
    let blanks = |line: &String| line.len() - line.trim_start_matches(' ').len();
    let common = lines.iter().filter(|line| !line.is_empty()).map(blanks).min().unwrap_or(0);
    lines.into_iter().map(|line| line.get(common..).unwrap_or_default().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Evidence, HONEST, Judge, write};
    use crate::models::research::question::Question;

    fn answer(question: &str, lines: &[(&str, usize, &str)]) -> String {
        let mut evidence = Evidence::default();
        lines.iter().for_each(|(path, number, text)| evidence.listing.put(path, *number, text));
        evidence.note_failure("search: the pattern is not valid");
        let question = Question::split(question);
        let focuses = question.focuses.clone();
        write(&evidence, &Judge::new(&focuses, question), &focuses)
    }

    #[test]
    fn statements_stand_under_their_parts_with_their_places() {
        let text = answer(
            "where are the restart intensity, `Lane` and the moon base?",
            &[
                ("a.rs", 7, "    let x = 1;"),
                ("a.rs", 8, "    /// How often."),
                ("a.rs", 9, "    pub struct RestartIntensity {"),
                ("a.rs", 10, "        most: u32,"),
                ("b.rs", 3, "pub enum Lane {"),
                ("c.rs", 3, "pub enum Lane {"),
                ("d.md", 1, "The base of all."),
            ],
        );
        let wanted = format!(
            "{HONEST}\n\nrestart intensity\n1. a.rs:8-10 defines it:\n     /// How often.\n     pub struct RestartIntensity {{\n         \
             most: u32,\n\nLane\n2. b.rs:3 (and c.rs:3) defines it:\n     pub enum Lane {{\n\nNot found: \"moon base\"; \
             the closest is d.md:1: The base of all.\n\nNot complete, for some calls failed: search: the pattern is not \
             valid\n"
        );
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_passage_that_answers_two_parts_is_quoted_once() {
        let text = answer("session budget, permit lease", &[("a.md", 4, "The session budget holds a permit lease.")]);
        assert!(text.contains("\nsession budget\n1. a.md:4 says:\n"), "{text}");
        assert!(text.contains("\npermit lease: see 1\n"), "{text}");
    }

    #[test]
    fn statements_are_few_and_hostile_lines_are_tamed() {
        let lines: Vec<(String, usize, String)> = (0..50)
            .map(|file| (format!("f{file:02}.rs"), 1, format!("\u{1b}[0m lane {file} \t{}", "界".repeat(999))))
            .collect();
        let borrowed: Vec<(&str, usize, &str)> =
            lines.iter().map(|(path, line, text)| (path.as_str(), *line, text.as_str())).collect();
        let text = answer("lane", &borrowed);
        assert!(!text.contains('\u{1b}') && !text.contains('\t'));
        assert!(text.contains("\n4. f03.rs:1 has:\n") && !text.contains("\n5. "), "{text}");
        assert!(text.len() < 4000);
    }
}
