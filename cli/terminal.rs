//! The terminal: answers on standard output, everything else on standard error.
//!
//! Progress is drawn only where a person looks: on a terminal that can move its cursor. Nothing here panics when
//! an end of the line is gone: a reader that has read enough ends the output quietly, and a terminal that went away
//! has nobody to be told.

pub(crate) mod board;

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use thiserror::Error;
use toolwarden_tools::screen_text::settled;
use tracing_subscriber::fmt::MakeWriter;

use self::board::Board;

/// Most lines of progress.
const LINES_MAX: usize = 16;
/// How often progress is drawn.
pub(crate) const REDRAW: Duration = Duration::from_millis(100);
/// Draws a second that are let through: each line is drawn by itself, and a line that is held back shows the past.
const DRAWS_HZ: u8 = 255;

/// Standard error, as far as people look at it; clones share it.
#[derive(Clone)]
pub(crate) struct Screen {
    bars: MultiProgress,
    is_terminal: bool,
    can_draw: bool,
}

/// Standard output cannot be written.
#[derive(Debug, Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct OutputError(io::Error);

impl Screen {
    /// Looks at standard error; `can_draw` says whether its terminal, if it is one, can move its cursor.
    pub(crate) fn new(can_draw: bool) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let can_draw = is_terminal && can_draw;
        let target = if can_draw { ProgressDrawTarget::stderr_with_hz(DRAWS_HZ) } else { ProgressDrawTarget::hidden() };
        Self { bars: MultiProgress::with_draw_target(target), is_terminal, can_draw }
    }

    /// Whether a person looks at standard error.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// A line that counts work, drawn where a person looks; without a total it counts for ever.
    pub(crate) fn counter(&self, total: Option<u64>, style: ProgressStyle) -> ProgressBar {
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        self.bars.add(bar.with_style(style))
    }

    /// Says something to the person, on a line of its own above the progress.
    pub(crate) fn say(&self, text: &str) {
        let (name, reset) = (Style::new().fg_color(Some(AnsiColor::Cyan.into())), anstyle::Reset);
        self.write(format!("{name}toolwarden{reset}: {}\n", settled(text)).as_bytes());
    }

    /// Says what went wrong.
    pub(crate) fn complain(&self, text: &str) {
        let (name, reset) = (Style::new().fg_color(Some(AnsiColor::Red.into())).bold(), anstyle::Reset);
        self.write(format!("{name}toolwarden{reset}: {}\n", settled(text)).as_bytes());
    }

    fn write(&self, bytes: &[u8]) {
        self.bars.suspend(|| {
            // A terminal that is gone has nobody to be told.
            let _ = anstream::stderr().write_all(bytes);
        });
    }
}

impl<'a> MakeWriter<'a> for Screen {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Lines of the log go above the progress.
impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::write(self, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines of progress on the terminal.
pub(crate) struct Progress {
    screen: Screen,
    lines: Vec<(ProgressBar, String)>,
}

impl Progress {
    /// Nothing drawn yet.
    pub(crate) fn new(screen: Screen) -> Self {
        Self { screen, lines: Vec::new() }
    }

    /// Whether there is somewhere to draw.
    pub(crate) fn is_shown(&self) -> bool {
        self.screen.can_draw
    }

    /// Draws the board anew.
    pub(crate) fn draw(&mut self, board: &Board, now: Duration) {
        if !self.is_shown() {
            return;
        }
        let texts = board.lines(now, LINES_MAX);
        while self.lines.len() > texts.len() {
            self.take_last_away();
        }
        for (at, text) in texts.into_iter().enumerate() {
            match self.lines.get_mut(at) {
                Some((_, shown)) if *shown == text => {}
                Some((line, shown)) => {
                    line.set_message(text.clone());
                    *shown = text;
                }
                None => {
                    let line = self.screen.bars.add(ProgressBar::new_spinner().with_style(line_style()));
                    line.set_message(text.clone());
                    self.lines.push((line, text));
                }
            }
        }
    }

    /// Takes all lines away.
    pub(crate) fn clear(&mut self) {
        while !self.lines.is_empty() {
            self.take_last_away();
        }
    }

    fn take_last_away(&mut self) {
        if let Some((line, _)) = self.lines.pop() {
            line.finish_and_clear();
            self.screen.bars.remove(&line);
        }
    }
}

/// Writes the answer to standard output, with an end of line. A reader that has gone away has read enough.
///
/// # Errors
/// [`OutputError`] when the text cannot be kept, as on a full disk.
pub(crate) fn print(text: &str) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    // A file may hold commands to a terminal; a pipe gets every byte.
    let shown = if stdout.is_terminal() { settled(text) } else { text.into() };
    let end = if shown.is_empty() || shown.ends_with('\n') { "" } else { "\n" };
    let written = stdout.write_all(shown.as_bytes()).and_then(|()| stdout.write_all(end.as_bytes()));
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(OutputError(error)),
        _ => Ok(()),
    }
}

/// Writes bytes to standard output as they are; false when the reader has gone away, and has read enough.
///
/// # Errors
/// [`OutputError`] when they cannot be kept, as on a full disk.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<bool, OutputError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(OutputError(error)),
    }
}

/// A line that is cut at the terminal's edge.
fn line_style() -> ProgressStyle {
    ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner())
}
