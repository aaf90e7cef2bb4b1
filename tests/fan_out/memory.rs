//! Counts the bytes that are allocated and not freed, for tests that ask whether memory comes back.
//!
//! It counts for the whole process, so who asks runs in a process of its own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

/// The system's allocator, with a count of the bytes that are out.
struct Counting;

static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[expect(unsafe_code, reason = "counting what is allocated needs an allocator, and its trait is unsafe")]
// SAFETY: every call goes to the system's allocator unchanged; the count touches no memory of anybody's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(signed(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller keeps the trait's contract, which is the same for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(signed(layout.size()), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that are out now.
pub(crate) fn live_bytes() -> i64 {
    LIVE_BYTES.load(Ordering::Relaxed)
}
