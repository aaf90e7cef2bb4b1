//! Head and tail of a text that comes piece by piece, in bounded memory.
//!
//! What fits is kept whole; of what does not, the first and the last bytes, cut between characters. The pieces may
//! be cut anywhere, together they are text.

/// The beginning and the end of a text.
#[derive(Debug, Clone)]
pub(super) struct Excerpt {
    front: Vec<u8>,
    front_bytes_max: usize,
    /// What came behind the front: at least its last `back_bytes_max` bytes.
    back: Vec<u8>,
    back_bytes_max: usize,
    total_bytes: usize,
}

impl Excerpt {
    /// Keeps this much of the beginning and of the end.
    pub(super) fn new(front_bytes_max: usize, back_bytes_max: usize) -> Self {
        Self { front: Vec::new(), front_bytes_max, back: Vec::new(), back_bytes_max, total_bytes: 0 }
    }

    /// Takes the next piece.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.total_bytes = self.total_bytes.saturating_add(piece.len());
        let (first, rest) = piece.split_at(piece.len().min(self.front_bytes_max - self.front.len()));
        self.front.extend_from_slice(first);
        if rest.len() >= self.back_bytes_max {
            self.back.clear();
        }
        self.back.extend_from_slice(&rest[rest.len().saturating_sub(self.back_bytes_max)..]);
        // Moved together only now and then, so that each byte is copied a bounded number of times.
        if self.back.len() > 2 * self.back_bytes_max {
            self.back.drain(..self.back.len() - self.back_bytes_max);
        }
    }

    /// Takes another excerpt of the same bounds as the next piece; what that one let go is only counted.
    pub(super) fn push_excerpt(&mut self, piece: &Self) {
        self.push(&piece.front);
        let gap_bytes = piece.total_bytes - piece.front.len() - piece.back.len();
        if gap_bytes > 0 {
            // The front of the piece has filled our own, and its back is as much as we keep.
            self.total_bytes = self.total_bytes.saturating_add(gap_bytes);
            self.back.clear();
        }
        self.push(&piece.back);
    }

    /// Bytes of the whole text.
    pub(super) fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    /// Whether all of it fitted.
    pub(super) fn is_whole(&self) -> bool {
        self.total_bytes == self.front.len()
    }

    /// All of it; what is kept of its beginning when it did not fit.
    pub(super) fn into_front(self) -> String {
        text(self.front)
    }

    /// The longest head and tail of whole characters up to these lengths, which together are less than the text.
    pub(super) fn into_head_and_tail(mut self, head_bytes_max: usize, tail_bytes_max: usize) -> (String, String) {
        let short = tail_bytes_max.saturating_sub(self.back.len()).min(self.front.len());
        let mut tail = self.front[self.front.len() - short..].to_vec();
        tail.extend_from_slice(&self.back[self.back.len().saturating_sub(tail_bytes_max)..]);
        let begins_at = tail.iter().position(|byte| !is_continuation(*byte)).unwrap_or(tail.len());
        tail.drain(..begins_at);
        let head_bytes = head_bytes_max.min(self.front.len());
        self.front.truncate(head_bytes - unfinished_bytes(&self.front[..head_bytes]));
        (text(self.front), text(tail))
    }
}

/// Cuts were made between characters, so nothing is replaced, and nothing is copied.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// How many bytes at the end of well-formed text are a character without its end: 0 to 3.
fn unfinished_bytes(bytes: &[u8]) -> usize {
    let back = bytes.iter().rev().take(3).take_while(|byte| is_continuation(**byte)).count() + 1;
    let Some(first) = bytes.len().checked_sub(back).map(|at| bytes[at]) else { return 0 };
    let length = match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
        _ => 1,
    };
    if length > back { back } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::Excerpt;

    proptest! {
        #[test]
        fn it_equals_the_ends_of_the_whole(
            text in "\\PC{0,80}", step in 1_usize..9, front in 0_usize..40, head in 0_usize..40, tail in 0_usize..40,
        ) {
            let mut excerpt = Excerpt::new(front, tail);
            for piece in text.as_bytes().chunks(step) {
                excerpt.push(piece);
            }
            prop_assert_eq!(excerpt.total_bytes(), text.len());
            let (head_max, tail_max) = (head.min(front), tail);
            if text.len() > front {
                prop_assert!(!excerpt.is_whole());
                let (head, tail) = excerpt.into_head_and_tail(head_max, tail_max);
                prop_assert_eq!(head, &text[..text.floor_char_boundary(head_max)]);
                let begins_at = text.ceil_char_boundary(text.len().saturating_sub(tail_max));
                prop_assert_eq!(tail, &text[begins_at..]);
            } else {
                prop_assert!(excerpt.is_whole());
                prop_assert_eq!(excerpt.into_front(), text);
            }
        }

        #[test]
        fn excerpts_of_parts_make_the_excerpt_of_the_whole(one in "[a-é]{0,60}", other in "[a-é]{0,60}") {
            let of = |parts: &[&str]| {
                let mut excerpt = Excerpt::new(20, 8);
                parts.iter().for_each(|part| excerpt.push(part.as_bytes()));
                excerpt
            };
            let mut joined = Excerpt::new(20, 8);
            joined.push_excerpt(&of(&[&one]));
            joined.push_excerpt(&of(&[&other]));
            let whole = of(&[&one, &other]);
            prop_assert_eq!(joined.total_bytes(), whole.total_bytes());
            prop_assert_eq!(joined.is_whole(), whole.is_whole());
            prop_assert_eq!(joined.clone().into_head_and_tail(12, 8), whole.clone().into_head_and_tail(12, 8));
            prop_assert_eq!(joined.into_front(), whole.into_front());
        }
    }
}
