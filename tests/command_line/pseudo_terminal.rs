//! The program on a terminal: `script` of util-linux gives it one of its own, and the test sits at the other end.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use crate::program::{PATIENCE, Workspace, program};

/// The program on a terminal.
pub(crate) struct Terminal {
    child: Child,
    keyboard: ChildStdin,
    pieces: Receiver<Vec<u8>>,
    shown: Vec<u8>,
}

impl Terminal {
    pub(crate) fn start(workspace: &Workspace, args: &[&str]) -> Self {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        let words = std::iter::once(program().display().to_string()).chain(args.iter().map(|arg| (*arg).to_owned()));
        let line = words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" ");
        let mut child = Command::new("script")
            // exec: the program itself is what the terminal's signals reach, and whose exit code counts.
            .args(["--quiet", "--flush", "--return", "--command", &format!("stty cols 200; exec {line}"), "/dev/null"])
            .current_dir(workspace.path())
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("`script` of util-linux is needed: {error}"));
        let mut screen = child.stdout.take().unwrap();
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                // The test may have ended.
                let _ = sender.send(bytes[..count].to_vec());
            }
        });
        Self { keyboard: child.stdin.take().unwrap(), child, pieces, shown: Vec::new() }
    }

    /// Waits until this is on the screen.
    pub(crate) fn shows(&mut self, text: &str) {
        while !self.screen().contains(text) {
            match self.pieces.recv_timeout(PATIENCE) {
                Ok(piece) => self.shown.extend(piece),
                Err(error) => panic!("{text:?} was not shown ({error}): {}", self.screen()),
            }
        }
    }

    pub(crate) fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// Waits for the end: all that was shown, and the exit code.
    pub(crate) fn ended(mut self) -> (String, i32) {
        loop {
            match self.pieces.recv_timeout(PATIENCE) {
                Ok(piece) => self.shown.extend(piece),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.child.kill().unwrap();
                    panic!("the program did not end: {}", self.screen());
                }
            }
        }
        let code = self.child.wait().unwrap().code().unwrap();
        (self.screen(), code)
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }
}
