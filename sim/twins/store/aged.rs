//! A snapshot as an older version of this program would have written it.
//!
//! The form is the documented one: `TWSNAP`, a zero and a line end, then little-endian version (4 bytes), length of the
//! head (4), length of the body (8) and CRC-32 of everything but these four (4); then head and body as JSON. What older
//! versions kept otherwise is undone step by step. A state that an older version could not have held stays as it is.

use serde_json::Value;

/// Where the checksum stands.
const CHECK_AT: usize = 24;
/// Length of what stands before the head, in bytes.
const FIXED_BYTES: usize = 28;

/// The snapshot as this version would have written it; none when that version could not have held it.
pub(super) fn aged(bytes: &[u8], version: u32) -> Option<Vec<u8>> {
    let head_bytes = usize::try_from(u32::from_le_bytes(bytes.get(12..16)?.try_into().ok()?)).ok()?;
    let head = bytes.get(FIXED_BYTES..FIXED_BYTES.checked_add(head_bytes)?)?;
    let mut body: Value = serde_json::from_slice(bytes.get(FIXED_BYTES + head_bytes..)?).ok()?;
    let state = body.as_object_mut()?;
    if version < 5 {
        // Version 4 counted no child runs, and not what they used.
        let runs = state.remove("child_runs")?;
        let known = state.get("children")?.as_object()?.len();
        let used = state.remove("children_used")?;
        if runs.as_u64() != u64::try_from(known).ok() || used.as_object()?.values().any(|used| used != 0) {
            return None;
        }
    }
    if version < 4 {
        // Version 3 knew of no tasks in the background.
        let reports = state.remove("task_reports")?;
        if reports.as_array().is_none_or(|reports| !reports.is_empty()) {
            return None;
        }
    }
    if version < 3 {
        // Version 2 knew of no verification.
        let reports = state.remove("verification_reports")?;
        if reports.as_array().is_none_or(|reports| !reports.is_empty()) {
            return None;
        }
    }
    if version < 2 {
        // Version 1 did not count calls, and kept artifacts in one text.
        let calls = state.remove("calls")?;
        let results = state.get("messages")?.as_array()?.iter();
        let results: usize = results.filter_map(|message| message.get("results")?.as_array()).map(Vec::len).sum();
        if calls.as_u64() != u64::try_from(results).ok() {
            return None;
        }
        let artifacts = state.get("artifacts")?.as_array()?.iter().filter_map(Value::as_str);
        let artifacts = artifacts.collect::<Vec<_>>().join(" ");
        state.insert("artifacts".to_owned(), Value::String(artifacts));
    }
    let body = serde_json::to_vec(&body).ok()?;
    let mut aged = bytes.get(..FIXED_BYTES + head_bytes)?.to_vec();
    aged[8..12].copy_from_slice(&version.to_le_bytes());
    aged[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
    aged[FIXED_BYTES..].copy_from_slice(head);
    aged.extend_from_slice(&body);
    let mut check = crc32fast::Hasher::new();
    check.update(&aged[..CHECK_AT]);
    check.update(&aged[FIXED_BYTES..]);
    aged[CHECK_AT..FIXED_BYTES].copy_from_slice(&check.finalize().to_le_bytes());
    Some(aged)
}

#[cfg(test)]
mod tests {
    use toolwarden::facts::state::State;
    use toolwarden::snapshot::{Snapshot, encode};

    use super::aged;

    #[test]
    fn an_aged_snapshot_comes_to_the_same_state() {
        let state = State::default();
        let bytes = encode(&"s".into(), &state, 1).unwrap();
        for version in [1, 2, 3, 4] {
            let old = aged(&bytes, version).unwrap();
            let read = Snapshot::read(old, &"s".into()).unwrap();
            assert_eq!(read.state().unwrap(), state, "version {version}");
        }
        assert_eq!(aged(&bytes[..20], 1), None);
    }
}
