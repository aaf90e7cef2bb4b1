//! A file that was downloaded is one version of what its server offers, to the byte; and it takes no place that was taken,
//! unless that was asked for.

use std::time::Duration;

use serde_json::Value;
use toolwarden::event::EventKind;

use super::must;
use crate::play::{Offer, Play};
use crate::sight::{Sight, Watcher};
use crate::twins::http::offer::{VERSIONS_MAX, content};

/// What servers offer.
#[derive(Debug)]
pub struct Downloads {
    offers: Vec<Offer>,
    may_overwrite: bool,
}

impl Downloads {
    /// For the files that this play offers.
    pub fn new(play: &Play) -> Self {
        Self { offers: play.offers.clone(), may_overwrite: false }
    }

    fn is_offered(&self, bytes: &[u8]) -> bool {
        let fits = self.offers.iter().filter(|offer| offer.leads_to.is_none() && offer.bytes == bytes.len());
        let mut versions = fits.flat_map(|offer| (0..VERSIONS_MAX).map(move |version| (offer, version)));
        versions.any(|(offer, version)| content(offer, version) == bytes)
    }
}

impl Watcher for Downloads {
    fn name(&self) -> &'static str {
        "downloads"
    }

    fn promise(&self) -> &'static str {
        "a downloaded file is whole and right, and takes nobody's place"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => {
                if let EventKind::ToolExecutionStart { args, .. } = &entry.event.kind {
                    self.may_overwrite |= args.get("overwrite").and_then(Value::as_bool).unwrap_or(false);
                }
                Ok(())
            }
            Sight::Landed { path, bytes, replaces } => {
                must(!replaces || self.may_overwrite, || format!("{path} took the place of a file that was there"))?;
                must(self.is_offered(bytes), || {
                    format!("{path} has {} bytes that are no version of any file on offer", bytes.len())
                })
            }
            _ => Ok(()),
        }
    }
}
