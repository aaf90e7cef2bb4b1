//! Puts the calls of a turn together from the pieces in which their arguments arrive.
//!
//! Pieces are appended as they came, equal ones too, and parsed once, when the turn is whole. Which call a piece belongs
//! to follows from rules, for providers leave out, repeat and reuse both index and id:
//! 1. a piece belongs to the last call at its index; where there is no index, to the call with its id;
//! 2. another id at an index in use begins a new call when the arguments so far are whole, and else changes nothing;
//! 3. a piece with neither belongs to the last call; with no call there, it makes one that cannot run;
//! 4. a name stays as it was first given.
//!
//! What must stay true: no call is lost, none is made of the pieces of two, and none is larger than
//! [`ARGUMENTS_BYTES_MAX`].

use serde::de::IgnoredAny;
use toolwarden_tools::ids::ToolName;

use super::{CallArguments, MALFORMED_BYTES_MAX, ModelCall};

/// Largest arguments of one call, in bytes.
pub const ARGUMENTS_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most calls of one turn.
pub const CALLS_MAX: usize = 4096;

/// The calls of a turn while they arrive.
#[derive(Debug, Default)]
pub struct CallAssembly {
    calls: Vec<PartialCall>,
    left_out: usize,
}

/// A call while it arrives.
#[derive(Debug, Default)]
struct PartialCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    /// Bytes that came, those beyond [`ARGUMENTS_BYTES_MAX`] included.
    bytes: usize,
}

/// A piece of a call.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallPiece<'a> {
    /// Its place in the turn, where the provider says.
    pub index: Option<u64>,
    /// The provider's id of the call; empty when it says none.
    pub id: &'a str,
    /// The tool's name; empty when it says none.
    pub name: &'a str,
    /// A part of the arguments' text.
    pub arguments: &'a str,
}

impl CallAssembly {
    /// Takes a piece; gives the place of its call among the turn's calls.
    pub fn push(&mut self, piece: CallPiece<'_>) -> usize {
        let place = self.place_of(&piece).unwrap_or_else(|| {
            if self.calls.len() >= CALLS_MAX {
                self.left_out += 1;
                return self.calls.len() - 1;
            }
            self.calls.push(PartialCall { index: piece.index, ..PartialCall::default() });
            self.calls.len() - 1
        });
        if self.left_out > 0 {
            return place;
        }
        let call = &mut self.calls[place];
        if call.id.is_empty() {
            piece.id.clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            piece.name.clone_into(&mut call.name);
        }
        call.append(piece.arguments);
        place
    }

    /// The id and the tool's name of the call at a place, as far as they are known.
    pub fn name_at(&self, place: usize) -> (&str, &str) {
        self.calls.get(place).map_or(("", ""), |call| (call.id.as_str(), call.name.as_str()))
    }

    /// Puts the whole text of a call's arguments in the place of what was put together.
    pub fn replace_arguments(&mut self, place: usize, arguments: &str) {
        if let Some(call) = self.calls.get_mut(place) {
            (call.arguments, call.bytes) = (String::new(), 0);
            call.append(arguments);
        }
    }

    /// Whether there is no call.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// How many calls came beyond [`CALLS_MAX`].
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The calls, in the order they began.
    pub fn finish(self) -> Vec<ModelCall> {
        self.calls.into_iter().map(PartialCall::finish).collect()
    }

    fn place_of(&self, piece: &CallPiece<'_>) -> Option<usize> {
        let place = match (piece.index, piece.id) {
            (Some(_), _) => self.calls.iter().rposition(|call| call.index == piece.index),
            (None, "") => self.calls.len().checked_sub(1),
            (None, id) => {
                let known = self.calls.iter().rposition(|call| call.id == id);
                return known.or_else(|| self.calls.iter().rposition(|call| call.id.is_empty() && !call.is_whole()));
            }
        }?;
        (!self.calls[place].begins_another(piece)).then_some(place)
    }
}

impl PartialCall {
    /// Whether a piece at this call's place is the beginning of the next one.
    fn begins_another(&self, piece: &CallPiece<'_>) -> bool {
        let other_id = !piece.id.is_empty() && !self.id.is_empty() && piece.id != self.id;
        let other_name = piece.id.is_empty() && !piece.name.is_empty() && !self.name.is_empty();
        (other_id && (self.is_whole() || self.arguments.is_empty()))
            || (other_name && self.is_whole() && (piece.name != self.name || !piece.arguments.is_empty()))
    }

    /// Whether the arguments so far are one JSON value.
    fn is_whole(&self) -> bool {
        self.arguments.ends_with(['}', ']', '"', 'l']) && serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok()
    }

    fn append(&mut self, text: &str) {
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes <= ARGUMENTS_BYTES_MAX {
            self.arguments.push_str(text);
        } else {
            let end = self.arguments.floor_char_boundary(MALFORMED_BYTES_MAX);
            self.arguments.truncate(end);
        }
    }

    fn finish(self) -> ModelCall {
        let arguments = if self.name.is_empty() {
            CallArguments::Malformed { text: self.arguments, error: "the call names no tool".to_owned() }
        } else if self.bytes > ARGUMENTS_BYTES_MAX {
            let error = format!("{} bytes; at most {ARGUMENTS_BYTES_MAX} are taken", self.bytes);
            CallArguments::Malformed { text: self.arguments, error }
        } else {
            CallArguments::parse(&self.arguments)
        };
        ModelCall { id: self.id, tool: ToolName::from(self.name.as_str()), arguments }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ARGUMENTS_BYTES_MAX, CALLS_MAX, CallAssembly, CallPiece};
    use crate::models::CallArguments;

    fn piece<'a>(index: Option<u64>, id: &'a str, name: &'a str, arguments: &'a str) -> CallPiece<'a> {
        CallPiece { index, id, name, arguments }
    }

    fn assembled(pieces: &[CallPiece<'_>]) -> Vec<(String, String, String)> {
        let mut assembly = CallAssembly::default();
        for piece in pieces {
            assembly.push(*piece);
        }
        let text = |arguments| match arguments {
            CallArguments::Parsed(value) => value.to_string(),
            CallArguments::Malformed { text, error } => format!("{error}: {text}"),
        };
        assembly.finish().into_iter().map(|call| (call.id, call.tool.to_string(), text(call.arguments))).collect()
    }

    fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.to_owned(), name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn calls_that_share_or_lack_an_index_stay_apart() {
        // Case C126.
        let both = [call("a", "f", r#"{"p":1}"#), call("b", "f", r#"{"p":2}"#)];
        for index in [Some(0), None] {
            let pieces = [piece(index, "a", "f", r#"{"p":1}"#), piece(index, "b", "f", r#"{"p":2}"#)];
            assert_eq!(assembled(&pieces), both, "{index:?}");
            let pieces = [
                piece(index, "a", "f", r#"{"p""#),
                piece(index, "", "", ":1}"),
                piece(index, "b", "f", ""),
                piece(index, "", "", r#"{"p":2}"#),
            ];
            assert_eq!(assembled(&pieces), both, "{index:?}");
        }
    }

    #[test]
    fn interleaved_pieces_go_to_their_own_calls() {
        let pieces = [
            piece(Some(0), "a", "f", ""),
            piece(Some(1), "b", "g", "{"),
            piece(Some(0), "", "", r#"{"x":"#),
            piece(Some(1), "", "", "}"),
            piece(Some(0), "", "", "1}"),
        ];
        assert_eq!(assembled(&pieces), [call("a", "f", r#"{"x":1}"#), call("b", "g", "{}")]);
    }

    #[test]
    fn equal_ids_at_two_places_are_two_calls_and_repeated_heads_are_one() {
        // Case C139.
        let pieces = [piece(Some(0), "t:1", "f", "{}"), piece(Some(1), "t:1", "f", "{}")];
        assert_eq!(assembled(&pieces), [call("t:1", "f", "{}"), call("t:1", "f", "{}")]);
        // Some servers repeat id and name with every piece, or change the id in the middle.
        let pieces =
            [piece(Some(0), "a", "f", r#"{"x":"#), piece(Some(0), "a", "f", "1"), piece(Some(0), "other", "f", "}")];
        assert_eq!(assembled(&pieces), [call("a", "f", r#"{"x":1}"#)]);
    }

    #[test]
    fn equal_pieces_are_appended() {
        // Case C128.
        let pieces = ["{\"n\":\"", "5", "5", "5", "4", "\"}"].map(|text| piece(Some(0), "a", "f", text));
        assert_eq!(assembled(&pieces), [call("a", "f", r#"{"n":"5554"}"#)]);
    }

    #[test]
    fn what_cannot_run_is_told_and_not_guessed() {
        let found = assembled(&[piece(Some(0), "", "", "{}")]);
        assert_eq!(found, [call("", "", "the call names no tool: {}")]);
        let cut = assembled(&[piece(Some(0), "a", "write", r#"{"path":"a","content":"abc"#)]);
        assert!(cut[0].2.starts_with("not JSON"), "{cut:?}");
        let huge = "x".repeat(ARGUMENTS_BYTES_MAX / 2 + 1);
        let found =
            assembled(&[piece(Some(0), "a", "f", &huge), piece(Some(0), "", "", &huge), piece(Some(0), "", "", "}")]);
        assert!(found[0].2.contains("bytes; at most"), "{}", &found[0].2[..80]);
    }

    #[test]
    fn the_whole_text_wins_over_its_pieces() {
        // Case C134.
        let mut assembly = CallAssembly::default();
        let place = assembly.push(piece(Some(3), "a", "f", r#"{"half"#));
        assembly.replace_arguments(place, r#"{"x":1}"#);
        let calls = assembly.finish();
        assert_eq!(calls[0].arguments, CallArguments::Parsed(json!({"x": 1})));
    }

    #[test]
    fn calls_are_bounded() {
        let mut assembly = CallAssembly::default();
        for index in 0..(CALLS_MAX as u64 + 5) {
            assembly.push(piece(Some(index), "", "f", "{}"));
        }
        assert_eq!((assembly.left_out(), assembly.finish().len()), (5, CALLS_MAX));
    }
}
