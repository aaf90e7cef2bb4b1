//! Identities: one generic newtype, so that a session's id can never be passed for an invocation's.
//!
//! An id is cheap to clone (one reference count) and orders by its text. Ids are made by the runtime from the
//! [`crate::effects::entropy::Entropy`] port or from counters; a tool never makes one.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The identity of one thing of kind `K`: a short text, unique within its runtime.
pub struct Id<K> {
    text: Arc<str>,
    kind: PhantomData<fn() -> K>,
}

/// Marker of [`SessionId`].
pub enum Session {}
/// Marker of [`RunId`].
pub enum Run {}
/// Marker of [`InvocationId`].
pub enum Invocation {}
/// Marker of [`TaskId`].
pub enum Task {}
/// Marker of [`BackgroundId`].
pub enum Background {}
/// Marker of [`ToolName`].
pub enum Tool {}

/// One conversation with one workspace and one budget.
pub type SessionId = Id<Session>;
/// One prompt carried to its answer inside a session.
pub type RunId = Id<Run>;
/// One tool call on its way through the route; unique in a runtime, whoever proposed the call.
pub type InvocationId = Id<Invocation>;
/// One item of a `task` fan-out.
pub type TaskId = Id<Task>;
/// A background process of a session: `bg-1`, `bg-2`, …; unique within its session.
pub type BackgroundId = Id<Background>;
/// The name of a tool: `[A-Za-z0-9_-]{1,128}`.
pub type ToolName = Id<Tool>;

impl<K> Id<K> {
    /// Wraps a text; the caller vouches for its being unique.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), kind: PhantomData }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        Self { text: Arc::clone(&self.text), kind: PhantomData }
    }
}

impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<K> Eq for Id<K> {}

impl<K> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl<K> Hash for Id<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl<K> Borrow<str> for Id<K> {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl<K> fmt::Debug for Id<K> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl<K> fmt::Display for Id<K> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl<K> From<&str> for Id<K> {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl<K> From<String> for Id<K> {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl<K> Serialize for Id<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de, K> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}
