//! The last step: what was got is compared with what was meant, made durable, and gets its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Destination, DownloadError, Got};
use crate::cancellation::{CancelReason, Cancellation};
use crate::effects::blocking::{Lost, off_thread};
use crate::effects::files::{Expected, FileError};

pub(super) async fn promote(
    to: &Destination,
    got: &Got,
    expected_sha256: Option<&str>,
    expected: Expected,
    cancel: &Cancellation,
) -> Result<(), DownloadError> {
    let actual = got.digest.hex();
    if let Some(wanted) = expected_sha256.filter(|wanted| !wanted.eq_ignore_ascii_case(actual)) {
        return Err(DownloadError::Digest { expected: wanted.to_ascii_lowercase(), actual: actual.to_owned() });
    }
    let caller_gone = Gone::default();
    let (file, alive, cancel) = (Arc::clone(&to.file), to.alive.clone(), cancel.clone());
    let gone = Arc::clone(&caller_gone.0);
    let put = off_thread(move || {
        let _alive = alive;
        let goes_on = || match cancel.reason() {
            Some(reason) => Err(reason.clone()),
            None if gone.load(Ordering::Relaxed) => Err(CancelReason::CallerGone),
            None => Ok(()),
        };
        file.put(&expected, &goes_on)
    });
    match put.await {
        Ok(put) => Ok(put.map(|_stat| ())?),
        // A bug stays a bug, whichever thread it shows on.
        Err(Lost::Panicked(panic)) => std::panic::resume_unwind(panic),
        Err(Lost::Ended) => {
            let (op, path, reason) = ("write", String::new(), CancelReason::Shutdown);
            Err(FileError::Stopped { op, path, reason }.into())
        }
    }
}

/// Tells the blocking step that nobody waits for it any more.
#[derive(Default)]
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
