//! The texts of plays, read once for all the worlds of a thread that have them.
//!
//! A search plays one play thousands of times, and to read its script and its policies each time cost more than a tenth
//! of a small world. What is read is never changed, so worlds may share it.

use std::cell::RefCell;
use std::sync::Arc;

use toolwarden::models::scripted::{ScriptError, ScriptedModel};
use toolwarden::policy::{PermissionPolicy, PolicyError};

/// How many texts of each kind a thread remembers.
const TEXTS_MAX: usize = 8;
/// What a model without a script says.
const SILENT: &str = "{\"text\": \"done\", \"repeat\": true}";

thread_local! {
    static SCRIPTS: RefCell<Vec<(String, Arc<ScriptedModel>)>> = const { RefCell::new(Vec::new()) };
    static POLICIES: RefCell<Vec<(String, PermissionPolicy)>> = const { RefCell::new(Vec::new()) };
}

/// The script of a play's turns.
///
/// # Errors
/// [`ScriptError`], with the line.
pub(super) fn script(turns: &str) -> Result<Arc<ScriptedModel>, ScriptError> {
    let turns = if turns.trim().is_empty() { SILENT } else { turns };
    SCRIPTS.with_borrow_mut(|known| remembered(known, turns, |text| ScriptedModel::load(text, "play").map(Arc::new)))
}

/// A policy of a play; where there is none everything runs.
///
/// # Errors
/// [`PolicyError`], with the line.
pub(super) fn policy(text: &str) -> Result<PermissionPolicy, PolicyError> {
    if text.trim().is_empty() {
        return Ok(PermissionPolicy { enabled: false, ..PermissionPolicy::default() });
    }
    POLICIES.with_borrow_mut(|known| remembered(known, text, |text| PermissionPolicy::from_toml(text, "play")))
}

/// What was made of this text before, or is made now; the oldest text is forgotten.
fn remembered<T: Clone, E>(
    known: &mut Vec<(String, T)>,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, E> {
    if let Some((_, found)) = known.iter().find(|(known, _)| known == text) {
        return Ok(found.clone());
    }
    let made = read(text)?;
    if known.len() >= TEXTS_MAX {
        known.remove(0);
    }
    known.push((text.to_owned(), made.clone()));
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::{TEXTS_MAX, remembered};

    #[test]
    fn a_text_is_read_once_and_the_oldest_is_forgotten() {
        let (mut known, mut reads) = (Vec::new(), 0);
        let mut read = |text: &str| {
            remembered(&mut known, text, |text| {
                reads += 1;
                if text.is_empty() { Err("nothing") } else { Ok(text.len()) }
            })
        };
        assert_eq!((read("abc"), read("abc"), read("")), (Ok(3), Ok(3), Err("nothing")));
        for more in 0..TEXTS_MAX {
            assert!(read(&"x".repeat(more + 10)).is_ok());
        }
        assert_eq!(read("abc"), Ok(3));
        // Three texts were read at first, one of them again, and eight in between.
        assert_eq!(reads, 2 + TEXTS_MAX + 1);
    }
}
