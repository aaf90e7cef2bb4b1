//! Many calls side by side with random cancels: afterwards the process is as it was before.

use futures_util::StreamExt as _;
use futures_util::stream;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::processes::Processes as _;

use crate::command::{Heard, guarded, spec};
use crate::trace;

/// How many calls run at a time.
const WIDTH: usize = 16;
/// How much more memory may be resident afterwards, in KiB.
const GROWTH_KIB_MAX: u64 = 16 * 1024;

/// Runs `count` calls.
pub(crate) fn calls(count: u64) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mark, own) = (trace::unique_mark(), std::process::id());
    tokio.block_on(async {
        let processes = guarded();
        let call = |number: u64| {
            let (processes, mark) = (processes.clone(), &mark);
            async move {
                // A different one each time, and the same in every run.
                let drawn = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
                let line = match drawn % 4 {
                    0 => "true",
                    1 => "sleep 0.01 & setsid sleep 600 & echo hi",
                    2 => "setsid -f sleep 600; seq 10000",
                    _ => "trap '' TERM; (sleep 600; :) & sleep 600",
                };
                let stop = Cancellation::new();
                let running = processes.run(spec(line, mark), Heard::new(), stop.clone());
                // Cancelled at some point of its life, or dropped, or left alone.
                let turns = drawn * 4;
                let break_in = async {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                };
                match drawn % 3 {
                    0 => {
                        tokio::select! { biased;
                            () = break_in => {}
                            _ = running => {}
                        }
                    }
                    1 if drawn % 4 != 3 => {
                        running.await.unwrap();
                    }
                    _ => {
                        let (end, ()) = tokio::join!(running, async {
                            break_in.await;
                            stop.cancel(CancelReason::Requested);
                        });
                        assert_eq!(end.unwrap().survivors, Vec::<u32>::new());
                    }
                }
            }
        };
        // As wide as it will be, so that what is kept for reuse is there.
        stream::iter(0..64).map(call).buffer_unordered(WIDTH).for_each(|()| async {}).await;
        trace::vanishes(|| trace::living(&mark)).expect("left behind");
        let (descriptors, resident_kib) = (trace::descriptors(own), trace::resident_kib(own));
        stream::iter(0..count).map(call).buffer_unordered(WIDTH).for_each(|()| async {}).await;
        trace::vanishes(|| trace::living(&mark)).expect("left behind");
        let more = || trace::descriptors(own).checked_sub(descriptors).filter(|more| *more > 0).into_iter().collect();
        trace::vanishes(more).expect("more descriptors than before");
        trace::vanishes(trace::zombies).expect("zombies");
        let grown_kib = trace::resident_kib(own).saturating_sub(resident_kib);
        assert!(grown_kib < GROWTH_KIB_MAX, "{grown_kib} KiB more");
        println!("  {count} calls, {grown_kib} KiB more");
        drop(processes);
        trace::vanishes(|| trace::children(own, "toolwarden").into_iter().collect()).expect("the shim is still there");
    });
}
