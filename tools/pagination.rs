//! Pages of a list: `limit` and `cursor` as callers write them, and what a result says of the page it holds.
//!
//! A cursor is opaque to callers: they hand back the one they were given. Inside it is the decimal offset of the
//! first item of the next page, so that a page needs no state between calls.

use std::ops::Range;

use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;

/// Items of a page when no limit is asked for.
pub const PAGE_LIMIT_DEFAULT: usize = 200;
/// Most items of a page; a larger limit is lowered to it, and the result says so.
pub const PAGE_LIMIT_MAX: usize = 1000;
/// Longest cursor that is taken, in bytes.
const CURSOR_BYTES_MAX: usize = 20;

/// Which page is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// How many items come before it.
    pub offset: usize,
    /// The limit as it was asked for.
    pub requested_limit: u64,
    /// The limit that holds.
    pub applied_limit: usize,
}

/// Why a page cannot be told from the arguments.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PageError {
    /// The limit is no positive whole number.
    #[error("limit must be a whole number from 1; {PAGE_LIMIT_MAX} is the most that one page holds")]
    Limit,
    /// The cursor was never given out.
    #[error("cursor must be the next_cursor of an earlier page, unchanged; leave it out for the first page")]
    Cursor,
    /// The list has become shorter than the cursor says.
    #[error("cursor {offset} lies behind the end: there are {total} items; start again without a cursor")]
    BehindTheEnd {
        /// Where the page would start.
        offset: usize,
        /// How many items there are.
        total: usize,
    },
}

/// What a result says of the page it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageFacts {
    /// How many items come before it.
    pub offset: usize,
    /// The limit as it was asked for.
    pub requested_limit: u64,
    /// The limit that held.
    pub applied_limit: usize,
    /// How many items it holds.
    pub returned_items: usize,
    /// How many items there are, when that is known.
    pub total_items: Option<usize>,
    /// What to hand back for the next page; none on the last.
    pub next_cursor: Option<String>,
    /// Whether there are items behind it.
    pub truncated: bool,
    /// Whether the asked limit was lowered.
    pub limit_clamped: bool,
}

impl PageRequest {
    /// Reads `limit` and `cursor` of the arguments of a call; both may be left out, null, or (the cursor) empty.
    ///
    /// # Errors
    /// [`PageError::Limit`] and [`PageError::Cursor`].
    pub fn from_arguments(arguments: &Value) -> Result<Self, PageError> {
        let requested_limit = match arguments.get("limit") {
            None | Some(Value::Null) => PAGE_LIMIT_DEFAULT as u64,
            Some(limit) => limit.as_u64().filter(|limit| *limit > 0).ok_or(PageError::Limit)?,
        };
        let offset = match arguments.get("cursor") {
            None | Some(Value::Null) => 0,
            Some(Value::String(cursor)) if cursor.is_empty() => 0,
            Some(Value::String(cursor)) => {
                let decimal = cursor.len() <= CURSOR_BYTES_MAX && cursor.bytes().all(|byte| byte.is_ascii_digit());
                decimal.then(|| cursor.parse().ok()).flatten().ok_or(PageError::Cursor)?
            }
            Some(_) => return Err(PageError::Cursor),
        };
        let applied_limit = usize::try_from(requested_limit).map_or(PAGE_LIMIT_MAX, |limit| limit.min(PAGE_LIMIT_MAX));
        Ok(Self { offset, requested_limit, applied_limit })
    }

    /// Which of `total` items the page holds.
    ///
    /// # Errors
    /// [`PageError::BehindTheEnd`] for a cursor beyond the last item.
    pub fn range(&self, total: usize) -> Result<Range<usize>, PageError> {
        if self.offset > total {
            return Err(PageError::BehindTheEnd { offset: self.offset, total });
        }
        Ok(self.offset..total.min(self.offset.saturating_add(self.applied_limit)))
    }

    /// What the result says when all `total` items are known.
    pub fn facts(&self, returned_items: usize, total: usize) -> PageFacts {
        let more = self.offset.saturating_add(returned_items) < total;
        PageFacts { total_items: Some(total), ..self.facts_of_part(returned_items, more) }
    }

    /// What the result says when it is only known whether there are `more` items behind the page.
    pub fn facts_of_part(&self, returned_items: usize, more: bool) -> PageFacts {
        PageFacts {
            offset: self.offset,
            requested_limit: self.requested_limit,
            applied_limit: self.applied_limit,
            returned_items,
            total_items: None,
            next_cursor: more.then(|| self.offset.saturating_add(returned_items).to_string()),
            truncated: more,
            limit_clamped: self.requested_limit > self.applied_limit as u64,
        }
    }
}

impl PageFacts {
    /// As it stands in a result's metadata.
    pub fn to_value(&self) -> Value {
        json!(self)
    }
}

/// The schema of `limit`.
pub fn limit_schema() -> Value {
    json!({
        "type": "integer", "minimum": 1, "default": PAGE_LIMIT_DEFAULT,
        "description": format!("Most items to return; lowered to {PAGE_LIMIT_MAX} when larger."),
    })
}

/// The schema of `cursor`.
pub fn cursor_schema() -> Value {
    json!({
        "type": "string", "maxLength": CURSOR_BYTES_MAX,
        "description": "The next_cursor of the page before; leave out for the first page.",
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{PageError, PageRequest};

    #[test]
    fn limits_are_lowered_and_cursors_checked() {
        let page = PageRequest::from_arguments(&json!({})).unwrap();
        assert_eq!((page.offset, page.applied_limit), (0, 200));
        let page = PageRequest::from_arguments(&json!({"limit": 5000, "cursor": "40"})).unwrap();
        assert_eq!((page.offset, page.applied_limit), (40, 1000));
        assert!(page.facts(10, 50).limit_clamped);
        assert_eq!(PageRequest::from_arguments(&json!({"limit": 0})), Err(PageError::Limit));
        for cursor in [json!("-1"), json!("x"), json!(3), json!("99999999999999999999"), json!("1 ")] {
            assert_eq!(PageRequest::from_arguments(&json!({"cursor": cursor})), Err(PageError::Cursor), "{cursor}");
        }
    }

    #[test]
    fn following_the_cursors_gives_every_item_once() {
        let items: Vec<usize> = (0..23).collect();
        let (mut got, mut cursor) = (Vec::new(), Some(String::new()));
        while let Some(now) = cursor {
            let page = PageRequest::from_arguments(&json!({"limit": 5, "cursor": now})).unwrap();
            let range = page.range(items.len()).unwrap();
            got.extend_from_slice(&items[range.clone()]);
            let facts = page.facts(range.len(), items.len());
            assert_eq!(facts.truncated, facts.next_cursor.is_some());
            cursor = facts.next_cursor;
        }
        assert_eq!(got, items);
        let behind = PageRequest::from_arguments(&json!({"cursor": "24"})).unwrap();
        assert_eq!(behind.range(23), Err(PageError::BehindTheEnd { offset: 24, total: 23 }));
        assert_eq!(behind.facts_of_part(3, true).to_value()["total_items"], json!(null));
    }
}
