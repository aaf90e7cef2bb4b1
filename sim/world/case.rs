//! One world out of many, as a word: what a failing test prints and [`super::World::replay`] takes.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::{Error, StrDeserializer};
use thiserror::Error as ErrorOf;

use crate::play::Act;

/// One world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// As it is meant to go.
    Plain,
    /// Something is done at a step.
    At {
        /// What.
        act: Act,
        /// When.
        step: u64,
    },
    /// What happens is drawn from a seed.
    Seed(u64),
}

/// There is no such world.
#[derive(Debug, Clone, PartialEq, Eq, ErrorOf)]
#[error("there is no case {word:?}: take the word that the failing test printed, such as cancel_run@17 or seed:42")]
pub(super) struct UnknownCase {
    word: String,
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => out.write_str("plain"),
            Self::Seed(seed) => write!(out, "seed:{seed}"),
            Self::At { act, step } => {
                // The word of the play's own format.
                let word = serde_json::to_value(act).ok();
                let word = word.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default();
                write!(out, "{word}@{step}")
            }
        }
    }
}

impl FromStr for Case {
    type Err = UnknownCase;

    fn from_str(word: &str) -> Result<Self, UnknownCase> {
        let unknown = || UnknownCase { word: word.to_owned() };
        if word == "plain" {
            return Ok(Self::Plain);
        }
        if let Some(seed) = word.strip_prefix("seed:") {
            return seed.parse().map(Self::Seed).map_err(|_| unknown());
        }
        let (act, step) = word.split_once('@').ok_or_else(unknown)?;
        let act: StrDeserializer<'_, Error> = act.into_deserializer();
        let act = Act::deserialize(act).map_err(|_| unknown())?;
        Ok(Self::At { act, step: step.parse().map_err(|_| unknown())? })
    }
}

#[cfg(test)]
mod tests {
    use super::Case;
    use crate::play::Act;

    #[test]
    fn a_case_is_a_word_and_back() {
        let at = Case::At { act: Act::ShutDown, step: 12 };
        assert_eq!(at.to_string(), "shut_down@12");
        for case in [Case::Plain, at, Case::Seed(u64::MAX)] {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        for word in ["", "seed:", "seed:x", "cancel_run", "cancel_run@", "nothing@3"] {
            let error = word.parse::<Case>().unwrap_err();
            assert!(error.to_string().contains("cancel_run@17"), "{error}");
        }
    }
}
