//! Asks the person at the terminal whether a call may run.
//!
//! The question goes to the terminal itself and so does the answer, whatever standard input and output are. There
//! is a terminal when standard error is one and the system gives us ours; without it, nobody can be asked. What was
//! typed before a question is no answer to it. A question that is dropped takes its reader along.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::AsFd as _;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{FlushArg, tcflush};
use serde_json::Value;
use tokio::sync::oneshot;
use toolwarden_actors::open_questions::Reply;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::{InvocationId, ToolName};

/// The person's terminal.
const TERMINAL: &str = "/dev/tty";
/// How often a person may answer with something else than an answer.
const ATTEMPTS_MAX: usize = 3;
/// Longest answer, in bytes; a terminal gives no longer line.
const ANSWER_BYTES_MAX: usize = 4096;
/// Most of one argument's text that is shown, in characters.
const SHOWN_CHARS_MAX: usize = 2000;
/// Most lines of one argument's text that are shown.
const SHOWN_LINES_MAX: usize = 30;

/// What a person is asked.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// The call.
    pub(crate) call: InvocationId,
    /// Its tool.
    pub(crate) tool: ToolName,
    /// The arguments that will run.
    pub(crate) arguments: Value,
    /// What the answer is bound to.
    pub(crate) digest: Digest,
    /// Why there is a question.
    pub(crate) reason: String,
}

impl Question {
    /// As a person reads it: nothing that a terminal would obey, and nothing hidden.
    fn text(&self) -> String {
        let mut text = format!("\nMay {} run? ({})\n", in_a_line(self.tool.as_str()), in_a_line(&self.reason));
        match &self.arguments {
            Value::Object(arguments) => {
                for (name, value) in arguments {
                    let value = match value {
                        Value::String(text) => shown(text),
                        other => shown(&other.to_string()),
                    };
                    text.push_str(&format!("  {}: {value}\n", in_a_line(name)));
                }
            }
            other => text.push_str(&format!("  {}\n", shown(&other.to_string()))),
        }
        text
    }
}

/// A text for the terminal; what is left out is told.
fn shown(text: &str) -> String {
    let clean = visible(text);
    let mut kept: String = clean.chars().take(SHOWN_CHARS_MAX).collect();
    if let Some((end, _)) = kept.match_indices('\n').nth(SHOWN_LINES_MAX - 1) {
        kept.truncate(end);
    }
    let left_out = clean.len() - kept.len();
    let indented = kept.trim_end_matches('\n').replace('\n', "\n    ");
    match left_out {
        0 => indented,
        bytes => format!("{indented}\n    [… {bytes} more bytes are not shown]"),
    }
}

/// The text with control characters, and those that reorder or vanish, written out: a person must see all that
/// they say yes to.
fn visible(text: &str) -> String {
    let mut seen = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => seen.push(c),
            c if c.is_control() => seen.extend(c.escape_default()),
            c if is_hidden(c) => seen.extend(c.escape_unicode()),
            c => seen.push(c),
        }
    }
    seen
}

/// As [`visible`], on one line: what is a name could look like other lines of the question else.
fn in_a_line(text: &str) -> String {
    visible(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Whether a character takes no room of its own, or changes where others stand: those that Unicode lets programs ignore,
/// with its marks and separators of lines.
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// What a typed line means; none when it is no answer.
fn reply_of(line: &str) -> Option<Reply> {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match (word.to_ascii_lowercase().as_str(), rest.trim()) {
        ("y" | "yes", "") => Some(Reply::Approve),
        ("a" | "always", "") => Some(Reply::ApproveAlways),
        ("" | "n" | "no", "") => Some(Reply::Reject(None)),
        ("n" | "no", why) => Some(Reply::Reject(Some(why.to_owned()))),
        _ => None,
    }
}

/// A way to the person at the terminal.
pub(crate) struct Asker {
    terminal: File,
}

impl Asker {
    /// Opens the terminal that this program runs on; none when it runs on none.
    #[expect(clippy::disallowed_methods, reason = "the person's terminal is no file of the workspace")]
    pub(crate) fn open() -> Option<Self> {
        let terminal = OpenOptions::new().read(true).write(true).open(TERMINAL).ok()?;
        Some(Self { terminal })
    }

    /// Asks. Dropping what is returned takes the question back.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub(crate) fn ask(&self, question: Question) -> io::Result<Prompt> {
        let (withdrawn, holder) = pipe()?;
        let terminal = self.terminal.try_clone()?;
        let (reply, answer) = oneshot::channel();
        let text = question.text();
        tokio::task::spawn_blocking(move || {
            // Whoever asked may have taken the question back.
            let _ = reply.send(converse(terminal, &withdrawn, &text));
        });
        Ok(Prompt { question, answer, _holder: holder })
    }
}

/// An open question.
pub(crate) struct Prompt {
    /// What was asked.
    pub(crate) question: Question,
    answer: oneshot::Receiver<Reply>,
    /// Its end tells the reader that nobody wants the answer any more.
    _holder: PipeWriter,
}

impl Prompt {
    /// The answer; no, when the terminal is gone.
    pub(crate) async fn answer(&mut self) -> Reply {
        let gone = || Reply::Reject(Some("the terminal went away".to_owned()));
        (&mut self.answer).await.unwrap_or_else(|_| gone())
    }
}

fn converse(mut terminal: File, withdrawn: &PipeReader, text: &str) -> Reply {
    // Fails where there is nothing to forget.
    let _ = tcflush(&terminal, FlushArg::TCIFLUSH);
    let mut asking = format!("{text}[y]es once, [a]lways in this session, [n]o (and why)? ");
    for _ in 0..ATTEMPTS_MAX {
        if terminal.write_all(asking.as_bytes()).is_err() {
            break;
        }
        match read_line(&mut terminal, withdrawn) {
            Line::Typed(line) => match reply_of(&line) {
                Some(reply) => return reply,
                None => asking = "please answer y, a or n: ".to_owned(),
            },
            Line::Withdrawn => {
                let _ = terminal.write_all(b"\n");
                return Reply::Reject(None);
            }
            Line::Ended => {
                let _ = terminal.write_all(b"\n");
                break;
            }
        }
    }
    Reply::Reject(Some("the person gave no answer".to_owned()))
}

enum Line {
    Typed(String),
    Ended,
    Withdrawn,
}

/// One line, or the news that nobody wants it any more.
fn read_line(terminal: &mut File, withdrawn: &PipeReader) -> Line {
    let mut line = Vec::new();
    while line.len() < ANSWER_BYTES_MAX {
        let mut waited =
            [PollFd::new(withdrawn.as_fd(), PollFlags::POLLIN), PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waited, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(_) => return Line::Ended,
        }
        // The end of the pipe counts as news too.
        if waited[0].any().unwrap_or(true) {
            return Line::Withdrawn;
        }
        let mut bytes = [0; 256];
        match terminal.read(&mut bytes) {
            Ok(0) if line.is_empty() => return Line::Ended,
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Line::Ended,
        }
        if line.ends_with(b"\n") {
            break;
        }
    }
    Line::Typed(String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwarden_actors::open_questions::Reply;
    use toolwarden_tools::digest::Digest;

    use super::{Question, reply_of, shown};

    #[test]
    fn only_a_clear_yes_approves() {
        assert_eq!(reply_of("y\n"), Some(Reply::Approve));
        assert_eq!(reply_of(" YES "), Some(Reply::Approve));
        assert_eq!(reply_of("a"), Some(Reply::ApproveAlways));
        for no in ["\n", "n", "No"] {
            assert_eq!(reply_of(no), Some(Reply::Reject(None)), "{no:?}");
        }
        assert_eq!(reply_of("n use cargo check\n"), Some(Reply::Reject(Some("use cargo check".into()))));
        for unclear in ["yep", "y but slowly", "always not", "1", "ny"] {
            assert_eq!(reply_of(unclear), None, "{unclear:?}");
        }
    }

    #[test]
    fn a_question_shows_what_will_run_and_obeys_nothing_in_it() {
        let question = Question {
            call: "c".into(),
            tool: "bash".into(),
            arguments: json!({"command": "rm -rf x #\r\u{1b}[2Kecho a\nls \u{202e}", "timeout": 5}),
            digest: Digest::of(b""),
            reason: "no rule covers it".into(),
        };
        assert_eq!(
            question.text(),
            "\nMay bash run? (no rule covers it)\n  command: rm -rf x #\\r\\u{1b}[2Kecho a\n    ls \\u{202e}\n  \
             timeout: 5\n"
        );
    }

    // Found in a review: instructions in characters that no terminal shows, and a name that looks like another argument.
    #[test]
    fn nothing_hides_in_a_question_or_looks_like_another_line_of_it() {
        let question = Question {
            call: "c".into(),
            tool: "x\n  safe: yes".into(),
            arguments: json!({"a\n  command: ls": "v\u{e0041}\u{61c}\u{2028}\u{ad}w"}),
            digest: Digest::of(b""),
            reason: "why\n  n: 1".into(),
        };
        assert_eq!(
            question.text(),
            "\nMay x\\n  safe: yes run? (why\\n  n: 1)\n  a\\n  command: ls: \
             v\\u{e0041}\\u{61c}\\u{2028}\\u{ad}w\n"
        );
    }

    #[test]
    fn what_is_left_out_is_told() {
        assert!(shown(&"x".repeat(3000)).ends_with("[… 1000 more bytes are not shown]"));
        let lines = shown(&"line\n".repeat(100));
        assert!(lines.contains("more bytes") && lines.lines().count() == 31, "{lines}");
    }
}
