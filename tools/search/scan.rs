//! Examines the files of a walk on two threads and hands over the results in path order.
//!
//! Files go out in chunks, in turns, and results come back in the same turns: the order never depends on which
//! thread was faster. At most [`CHUNKS_AHEAD`] chunks a thread are under way, so memory does not grow with the tree.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope};

use crate::search::stop::Stop;

/// Files handed to a thread at once.
pub const CHUNK_FILES: usize = 64;
/// Chunks that wait for a thread or for delivery, for each thread.
pub const CHUNKS_AHEAD: usize = 4;
/// Threads beside the one that walks.
const THREADS: usize = 2;

/// Examines every entry of `walk` with a worker of its own for each thread, and delivers the results in the order
/// of the walk. Ends early when `deliver` breaks or `stop` is given. A tree of one chunk is done without threads.
pub fn scan<E, R, W, D>(
    walk: &mut dyn Iterator<Item = E>,
    stop: &Stop,
    new_worker: &(dyn Fn() -> W + Sync),
    mut deliver: D,
) where
    E: Send,
    R: Send,
    W: FnMut(&E) -> R,
    D: FnMut(R) -> ControlFlow<()>,
{
    let first = next_chunk(walk, stop);
    if first.len() < CHUNK_FILES {
        let _ended = examine_here(&first, stop, new_worker(), &mut deliver);
        return;
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<Thread<E, R>> =
            (0..THREADS).filter_map(|_| Thread::start(scope, stop, &done, new_worker)).collect();
        if threads.is_empty() {
            // No thread to be had: slower, but the same result.
            let mut worker = new_worker();
            let mut chunk = first;
            while !chunk.is_empty() && examine_here(&chunk, stop, &mut worker, &mut deliver).is_continue() {
                chunk = next_chunk(walk, stop);
            }
            return;
        }
        drive(&threads, first, || next_chunk(walk, stop), &mut deliver);
        done.store(true, Ordering::Relaxed);
    });
}

/// Sends chunks out in turns and takes results back in the same turns.
fn drive<E, R>(
    threads: &[Thread<E, R>],
    first: Vec<E>,
    mut next: impl FnMut() -> Vec<E>,
    deliver: &mut impl FnMut(R) -> ControlFlow<()>,
) {
    let (mut sent, mut taken) = (0_usize, 0_usize);
    let mut chunk = first;
    loop {
        while !chunk.is_empty() && sent - taken < CHUNKS_AHEAD * threads.len() {
            if threads[sent % threads.len()].jobs.send(chunk).is_err() {
                return;
            }
            sent += 1;
            chunk = next();
        }
        if sent == taken {
            return;
        }
        // A thread that panicked sends nothing more; the scope passes the panic on.
        let Ok(results) = threads[taken % threads.len()].results.recv() else { return };
        taken += 1;
        for result in results {
            if deliver(result).is_break() {
                return;
            }
        }
    }
}

/// A thread with its two queues, each with room for all that is ever under way: sending never waits.
struct Thread<E, R> {
    jobs: SyncSender<Vec<E>>,
    results: Receiver<Vec<R>>,
}

impl<E: Send, R: Send> Thread<E, R> {
    fn start<'scope, 'env: 'scope, W>(
        scope: &'scope Scope<'scope, 'env>,
        stop: &'scope Stop,
        done: &'scope AtomicBool,
        new_worker: &'scope (dyn Fn() -> W + Sync),
    ) -> Option<Self>
    where
        E: 'scope,
        R: 'scope,
        W: FnMut(&E) -> R + 'scope,
    {
        let (jobs, todo) = sync_channel::<Vec<E>>(CHUNKS_AHEAD * THREADS);
        let (finished, results) = sync_channel(CHUNKS_AHEAD * THREADS);
        let work = move || {
            let mut worker = new_worker();
            for chunk in todo {
                let mut out = Vec::with_capacity(chunk.len());
                for entry in &chunk {
                    if stop.is_given() || done.load(Ordering::Relaxed) {
                        return;
                    }
                    out.push(worker(entry));
                }
                if finished.send(out).is_err() {
                    return;
                }
            }
        };
        Builder::new().name("search".to_owned()).spawn_scoped(scope, work).ok()?;
        Some(Self { jobs, results })
    }
}

fn examine_here<E, R>(
    chunk: &[E],
    stop: &Stop,
    mut worker: impl FnMut(&E) -> R,
    deliver: &mut impl FnMut(R) -> ControlFlow<()>,
) -> ControlFlow<()> {
    for entry in chunk {
        if stop.is_given() {
            return ControlFlow::Break(());
        }
        deliver(worker(entry))?;
    }
    ControlFlow::Continue(())
}

fn next_chunk<E>(walk: &mut dyn Iterator<Item = E>, stop: &Stop) -> Vec<E> {
    let mut chunk = Vec::with_capacity(CHUNK_FILES);
    while chunk.len() < CHUNK_FILES && !stop.is_given() {
        let Some(entry) = walk.next() else { break };
        chunk.push(entry);
    }
    chunk
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::{CHUNK_FILES, scan};
    use crate::effects::files::{FileKind, FolderEntry};
    use crate::search::stop::Stop;
    use crate::search::twin::at;

    fn entries(count: usize) -> impl Iterator<Item = FolderEntry> {
        (0..count).map(|n| FolderEntry { path: at(&format!("{n:06}")), kind: FileKind::File })
    }

    #[test]
    fn order_is_kept_whatever_the_threads_do() {
        for count in [0, 1, CHUNK_FILES, CHUNK_FILES * 25 + 7] {
            let mut got = Vec::new();
            let worker = || |entry: &FolderEntry| entry.path.to_string();
            scan(&mut entries(count), &Stop::default(), &worker, |path| {
                got.push(path);
                ControlFlow::Continue(())
            });
            let expected: Vec<String> = entries(count).map(|entry| entry.path.to_string()).collect();
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn breaking_ends_the_scan() {
        let mut walked = 0;
        let mut walk = entries(100_000).inspect(|_| walked += 1);
        let mut got = 0;
        scan(&mut walk, &Stop::default(), &|| |_: &FolderEntry| (), |()| {
            got += 1;
            if got == 70 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(got, 70);
        assert!(walked < 2000, "{walked}");
    }

    #[test]
    fn a_stop_half_way_ends_the_walk() {
        let (stop, guard) = Stop::new(crate::cancellation::Cancellation::new());
        let mut guard = Some(guard);
        let mut walked = 0;
        let mut walk = entries(100_000).inspect(|_| {
            walked += 1;
            if walked == 1000 {
                guard.take();
            }
        });
        scan(&mut walk, &stop, &|| |_: &FolderEntry| (), |()| ControlFlow::Continue(()));
        assert_eq!(walked, 1000);
    }
}
