//! What each file becomes, worked out in memory before anything is written.
//!
//! Everything that a diff can be refused for is found here: a file that is not there or there already, a change that
//! this session has not seen, a hunk that belongs nowhere. What is planned is then made as one.

use super::diff::{Fate, Hunk, Section};
use super::intent::Intent;
use super::splice::{Spliced, SplicedHunk, splice};
use crate::builtin::reach::{self, Step, Stop, wrong};
use crate::builtin::target::{CHANGED_BYTES_MAX, Content, Target};
use crate::effects::files::together::{FileChange, is_taken};
use crate::effects::files::{Expected, FileKind, Links};
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::text::{DecodedText, Encoding, TextError, seems_broken_utf8};
use crate::workspace_path::WorkspacePath;

/// Most bytes of all contents, old and new, that one call holds.
pub(super) const HELD_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// UTF-8's byte-order mark, as a model may copy it.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// What becomes of one file.
pub(super) struct Planned {
    pub(super) fate: Fate,
    /// The file that is there; for a new one, where it goes.
    pub(super) target: Target,
    /// Where a file goes that is renamed or copied.
    pub(super) to: Option<Target>,
    /// What it holds.
    pub(super) old: Option<Content>,
    /// What it is to hold; none when it goes, or moves as it is.
    pub(super) new: Option<Vec<u8>>,
    pub(super) mode: Option<u32>,
    /// How its bytes are read.
    pub(super) encoding: Option<Encoding>,
    pub(super) hunks: Vec<SplicedHunk>,
}

impl Planned {
    /// Its path once the change is made; the one that goes for a file that goes.
    pub(super) fn path(&self) -> &WorkspacePath {
        self.to.as_ref().unwrap_or(&self.target).path()
    }

    fn old_bytes(&self) -> &[u8] {
        self.old.as_ref().and_then(|old| old.bytes.as_deref()).unwrap_or_default()
    }

    /// Whether nothing would be another one than before.
    pub(super) fn is_unchanged(&self) -> bool {
        self.fate == Fate::Stays && self.mode.is_none() && self.new.as_deref() == Some(self.old_bytes())
    }

    /// The changes that make it so.
    pub(super) fn changes(&self) -> Vec<FileChange<'_>> {
        let path = || self.target.canonical().clone();
        let expected = || self.old.as_ref().map_or(Expected::Absent, |old| Expected::Content(old.digest.clone()));
        let new = |to: &Target, bytes| {
            let (path, mode) = (to.canonical().clone(), self.mode);
            FileChange::Put { path, bytes, expected: Expected::Absent, mode }
        };
        match (self.fate, &self.to, &self.new) {
            (Fate::Goes, ..) => vec![FileChange::Remove { path: path(), expected: expected() }],
            (Fate::Renamed, Some(to), None) => {
                vec![FileChange::Move { from: path(), to: to.canonical().clone(), expected: expected() }]
            }
            (Fate::Renamed, Some(to), Some(bytes)) => {
                vec![new(to, bytes), FileChange::Remove { path: path(), expected: expected() }]
            }
            (Fate::Copied, Some(to), Some(bytes)) => vec![new(to, bytes)],
            (_, _, Some(bytes)) => {
                vec![FileChange::Put { path: path(), bytes, expected: expected(), mode: self.mode }]
            }
            _ => Vec::new(),
        }
    }
}

/// A plan that is being made.
pub(super) struct Planning<'p> {
    pub(super) strict: bool,
    pub(super) stop: &'p Stop,
    /// Bytes held so far.
    pub(super) held_bytes: u64,
}

impl Planning<'_> {
    /// Plans one file.
    pub(super) fn file(
        &mut self,
        section: &Section<'_>,
        intent: &Intent,
        target: Target,
        to: Option<Target>,
    ) -> Step<Planned> {
        let mut fate = intent.fate;
        let only_moves = fate == Fate::Renamed && section.hunks.is_empty() && section.mode.is_none();
        let mut old = match fate {
            Fate::New => None,
            // A file that only gets another name may be of any size.
            _ => {
                if fate != Fate::Renamed || !section.hunks.is_empty() {
                    target.refuse_large()?;
                }
                target.content(self.stop)?
            }
        };
        if let Some(content) = &mut old {
            let bytes = content.bytes.as_ref().map_or(0, Vec::len) as u64;
            match only_moves && self.held_bytes + bytes > HELD_BYTES_MAX {
                // Its digest is all that is needed.
                true => content.bytes = None,
                false => self.hold(bytes)?,
            }
        }
        if fate == Fate::Stays && old.is_none() && only_adds(&section.hunks) {
            // A new file whose diff does not name the null device.
            fate = Fate::New;
        }
        let new_place = match fate {
            Fate::New => Some(&target),
            _ => to.as_ref(),
        };
        if let Some(place) = new_place {
            refuse_taken(place)?;
        }
        let old = match (fate, old) {
            (Fate::New, _) => None,
            (_, None) => {
                let path = target.path();
                let text = format!("no such file: {path}; for a new file the diff needs --- /dev/null and {HINT}");
                return Err(Box::new(ToolOutcome::error(ToolErrorKind::NotFound { path: path.to_string() }, text)));
            }
            (_, Some(old)) => {
                target.check_seen(&old)?;
                Some(old)
            }
        };
        if matches!(fate, Fate::Goes | Fate::Renamed) {
            refuse_link(&target)?;
        }
        let mode = self.mode(section, fate, &target)?;
        let mut planned = Planned { fate, target, to, old, new: None, mode, encoding: None, hunks: Vec::new() };
        if only_moves {
            return Ok(planned);
        }
        self.content(section, &mut planned)?;
        Ok(planned)
    }

    /// Counts bytes that are held until the change is made.
    fn hold(&mut self, bytes: u64) -> Step<()> {
        self.held_bytes += bytes;
        match self.held_bytes > HELD_BYTES_MAX {
            true => Err(wrong(format!(
                "the files of this diff have more than {HELD_BYTES_MAX} bytes together; nothing was written. Send it \
                 in parts"
            ))),
            false => Ok(()),
        }
    }

    /// The mode that is to be set; none where the usual one is right.
    fn mode(&self, section: &Section<'_>, fate: Fate, target: &Target) -> Step<Option<u32>> {
        if fate == Fate::New || fate == Fate::Goes {
            return Ok(section.mode.filter(|_| fate == Fate::New));
        }
        let stat = target.files().stat(target.canonical(), Links::Follow).map_err(|error| reach::fault(&error))?;
        // Git knows two modes: what it says is whether a file can be run.
        let wanted = section.mode.map_or(stat.mode, |mode| match mode & 0o111 {
            0 => stat.mode & !0o111,
            _ => stat.mode | (stat.mode & 0o444) >> 2,
        });
        Ok((matches!(fate, Fate::Renamed | Fate::Copied) || wanted != stat.mode).then_some(wanted))
    }

    /// The new content.
    fn content(&mut self, section: &Section<'_>, planned: &mut Planned) -> Step<()> {
        let path = planned.target.path().clone();
        let old_bytes = match &planned.old {
            None => &[][..],
            Some(Content { bytes: Some(bytes), .. }) => bytes,
            Some(large) => {
                let size = large.size_bytes;
                return Err(unsupported(format!("{path} has {size} bytes; patch takes up to {CHANGED_BYTES_MAX}")));
            }
        };
        let decoded = decode(&path, old_bytes)?;
        let text = decoded.as_ref().map_or(old_bytes, |decoded| decoded.text.as_bytes());
        let marked = decoded.as_ref().is_some_and(|decoded| !decoded.encoding.mark().is_empty());
        let spliced = self.spliced(section, text, marked, &path)?;
        if planned.fate == Fate::Goes {
            if !spliced.bytes.is_empty() {
                let left = spliced.bytes.split_inclusive(|byte| *byte == b'\n').count();
                return Err(wrong(format!(
                    "{path}: the diff deletes it but {left} of its lines would stay; nothing was written. Read it \
                     again: to delete a file its whole content must be in the diff"
                )));
            }
            planned.hunks = spliced.hunks;
            return Ok(());
        }
        let bytes = match &decoded {
            None => spliced.bytes,
            Some(decoded) => {
                // Lines of UTF-8 put together are UTF-8.
                let text = String::from_utf8(spliced.bytes)
                    .map_err(|error| unsupported(format!("{path}: {error}; nothing was written")))?;
                let new = DecodedText { text, encoding: decoded.encoding };
                new.to_bytes().map_err(|error| unsupported(format!("{path}: {error}; nothing was written")))?
            }
        };
        self.hold(bytes.len() as u64)?;
        planned.encoding = decoded.map(|decoded| decoded.encoding);
        planned.hunks = spliced.hunks;
        planned.new = Some(bytes);
        Ok(())
    }

    fn spliced(&self, section: &Section<'_>, text: &[u8], marked: bool, path: &WorkspacePath) -> Step<Spliced> {
        let most = usize::try_from(CHANGED_BYTES_MAX).unwrap_or(usize::MAX);
        let bare;
        let hunks = if marked {
            bare = without_mark(&section.hunks);
            &bare
        } else {
            &section.hunks
        };
        splice(text, hunks, self.strict, most).map_err(|error| wrong(format!("{path}: {error}; nothing was written")))
    }
}

/// What a diff of a new file says of its old side.
const HINT: &str = "only lines with +";

fn only_adds(hunks: &[Hunk<'_>]) -> bool {
    !hunks.is_empty() && hunks.iter().all(|hunk| hunk.counts().0 == 0)
}

/// The text of a file; none for one whose bytes are best left as they are. Binary files are refused.
fn decode(path: &WorkspacePath, bytes: &[u8]) -> Step<Option<DecodedText>> {
    match DecodedText::from_bytes(bytes) {
        // Patched by bytes: what is broken stays as it is, and what is UTF-8 fits.
        Ok(decoded) if matches!(decoded.encoding, Encoding::Legacy(_)) && seems_broken_utf8(bytes) => Ok(None),
        Ok(decoded) => Ok(Some(decoded)),
        Err(TextError::Malformed { .. })
            if !matches!(Encoding::detect(bytes, true), Encoding::Utf16Le | Encoding::Utf16Be) =>
        {
            Ok(None)
        }
        Err(error) => Err(unsupported(format!("{path}: {error}; nothing was written"))),
    }
}

/// The hunks without a byte-order mark before the first line, which the text of a file has not either.
fn without_mark<'d>(hunks: &[Hunk<'d>]) -> Vec<Hunk<'d>> {
    let mut hunks = hunks.to_vec();
    for line in hunks.first_mut().into_iter().flat_map(|hunk| hunk.lines.iter_mut().take(2)) {
        line.text = line.text.strip_prefix(MARK).unwrap_or(line.text);
    }
    hunks
}

/// Refuses a new file where something is, a link that leads nowhere too.
fn refuse_taken(place: &Target) -> Step<()> {
    let path = place.path();
    match is_taken(place.files(), path) {
        Ok(false) => Ok(()),
        Ok(true) => {
            let text = format!(
                "{path} exists already; nothing was written. Make a diff against what it holds, or take another name"
            );
            let kind =
                ToolErrorKind::VersionConflict { path: path.to_string(), expected: "absent".into(), actual: None };
            Err(Box::new(ToolOutcome::error(kind, text)))
        }
        Err(error) => Err(reach::fault(&error)),
    }
}

/// Refuses to remove or rename what a link leads to.
fn refuse_link(target: &Target) -> Step<()> {
    let stat = target.files().stat(target.path(), Links::Stay).map_err(|error| reach::fault(&error))?;
    if stat.kind == FileKind::Link {
        let path = target.path();
        return Err(wrong(format!(
            "{path} is a link; a diff deletes and renames plain files only: name the file itself"
        )));
    }
    Ok(())
}

fn unsupported(message: String) -> Box<ToolOutcome> {
    Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message))
}
