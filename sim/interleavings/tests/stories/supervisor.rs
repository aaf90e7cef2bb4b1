//! A supervisor of three workers, one of which breaks, at its start, in a restart and in the shutdown.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use toolwarden_interleavings::child::Life;
use toolwarden_interleavings::child_spec::ChildSpec;
use toolwarden_interleavings::restart_intensity::RestartIntensity;
use toolwarden_interleavings::slot::Slot;
use toolwarden_interleavings::supervision::{Strategy, SupervisorError, SupervisorFlags};
use toolwarden_interleavings::supervision_report::{Ending, Report};
use toolwarden_interleavings::supervisor::{SupervisorRef, SupervisorSpec, child_spec, start};

use crate::play;

/// In the order in which they are started.
const NAMES: [&str; 3] = ["first", "second", "third"];
/// The one that breaks.
const BREAKS: usize = 1;
/// How often is looked for the worker that is to be broken.
const LOOKS: usize = 60;
/// Longer than any story: no time passes in them.
const LONG: Duration = Duration::from_secs(60);

/// The lives of the workers.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<Lives>>);

#[derive(Default)]
struct Lives {
    /// Lives of each worker that are not over.
    alive: [usize; 3],
    /// How often a worker broke.
    broke: u32,
    ending: Option<Ending>,
}

impl Book {
    fn read<T>(&self, look: impl FnOnce(&mut Lives) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    fn begins(&self, number: usize) -> Living {
        self.read(|lives| {
            assert_eq!(lives.alive[number], 0, "{} begins a second life beside its first", NAMES[number]);
            let later = lives.alive[number + 1..].iter().sum::<usize>();
            assert_eq!(later, 0, "{} begins while what stands on it is alive", NAMES[number]);
            lives.alive[number] += 1;
        });
        Living { book: self.clone(), number, over: false }
    }

    fn is_over(&self) -> bool {
        self.read(|lives| lives.alive == [0; 3])
    }
}

/// One life of a worker.
struct Living {
    book: Book,
    number: usize,
    over: bool,
}

impl Living {
    /// It ends by itself or breaks.
    fn ends(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            self.book.read(|lives| lives.alive[self.number] -= 1);
        }
    }

    /// It was stopped, so what stands on it was before.
    fn stops(&mut self) {
        let (number, over) = (self.number, self.over);
        self.book.read(|lives| {
            let later = lives.alive[number + 1..].iter().sum::<usize>();
            assert!(over || later == 0, "{} stops before what stands on it", NAMES[number]);
        });
        self.ends();
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.ends();
    }
}

struct Worker;

impl Actor for Worker {
    type Msg = ();
    type State = Living;
    type Arguments = (Book, usize);

    async fn pre_start(&self, _: ActorRef<()>, (book, number): (Book, usize)) -> Result<Living, ActorProcessingErr> {
        let life = book.begins(number);
        // A start takes a moment.
        tokio::task::yield_now().await;
        Ok(life)
    }

    async fn handle(&self, _: ActorRef<()>, (): (), life: &mut Living) -> Result<(), ActorProcessingErr> {
        life.ends();
        life.book.read(|lives| lives.broke += 1);
        Err("broken on purpose".into())
    }

    async fn post_stop(&self, _: ActorRef<()>, life: &mut Living) -> Result<(), ActorProcessingErr> {
        life.stops();
        Ok(())
    }
}

/// A supervisor that restarts so often, and the way to the worker that breaks.
fn spec(book: &Book, restarts_max: u32) -> (SupervisorSpec, Slot<()>) {
    let slots = [Slot::new(), Slot::new(), Slot::new()];
    let children = (0..NAMES.len()).map(|number| {
        let book = book.clone();
        ChildSpec::actor(NAMES[number], &slots[number], move || (Worker, (book.clone(), number)))
    });
    let intensity = RestartIntensity::new(restarts_max, LONG).unwrap();
    let flags = SupervisorFlags { strategy: Strategy::RestForOne, intensity, ..SupervisorFlags::default() };
    let told = book.clone();
    let reports = Arc::new(move |report: &Report| {
        if let Report::Ended { ending } = report {
            told.read(|lives| lives.ending = Some(ending.clone()));
        }
    });
    let spec = SupervisorSpec { flags, children: children.collect(), reports: Some(reports) };
    (spec, slots[BREAKS].clone())
}

/// Looks so often at the most whether the worker is there, and breaks it then, so many times.
async fn breaks(slot: Slot<()>, times: usize) {
    let mut left = times;
    for _ in 0..LOOKS {
        if let Ok(worker) = slot.get() {
            drop(worker.cast(()));
            left -= 1;
        }
        if left == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Waits until this is so; no time passes.
async fn settles(mut so: impl AsyncFnMut() -> bool) {
    while !so().await {
        tokio::task::yield_now().await;
    }
}

async fn shut_down(supervisor: SupervisorRef, book: Book) {
    supervisor.shutdown(LONG).await.unwrap();
    supervisor.ended().await;
    while !book.is_over() {
        tokio::task::yield_now().await;
    }
}

pub fn broken_while_it_shuts_down() {
    play(0, async {
        let book = Book::default();
        let (spec, slot) = spec(&book, 9);
        let breaks = tokio::spawn(breaks(slot, 2));
        let supervisor = start(spec).await.unwrap();
        let shutdown = tokio::spawn(shut_down(supervisor, book.clone()));
        shutdown.await.unwrap();
        breaks.await.unwrap();
        assert!(book.is_over());
        assert_eq!(book.read(|lives| lives.ending.clone()), Some(Ending::Shutdown));
    });
}

pub fn broken_again() {
    play(0, async {
        let book = Book::default();
        let (spec, slot) = spec(&book, 1);
        let breaks = tokio::spawn(breaks(slot, 3));
        let started = start(spec).await;
        breaks.await.unwrap();
        let broke = || book.read(|lives| lives.broke);
        match started {
            // It may be broken so often already that its first start comes to nothing.
            Err(_) => assert!(broke() > 1, "it broke {} times, and did not start", broke()),
            Ok(supervisor) => {
                let runs = |life: &Life| matches!(life, Life::Running(_));
                settles(async || match supervisor.which_children().await {
                    Ok(children) => {
                        let all = children.iter().all(|child| runs(&child.life));
                        let is_up = all && book.read(|lives| lives.alive == [1; 3]);
                        assert!(!is_up || broke() <= 1, "it was restarted {} times", broke());
                        is_up
                    }
                    Err(_) => book.read(|lives| lives.ending.is_some()),
                })
                .await;
                // The next break may be on its way.
                shut_down(supervisor, book.clone()).await;
                match book.read(|lives| lives.ending.clone()) {
                    Some(Ending::IntensityReached { .. }) => assert!(broke() > 1, "it broke {} times", broke()),
                    ending => assert_eq!(ending, Some(Ending::Shutdown)),
                }
            }
        }
        settles(async || book.is_over()).await;
    });
}

/// A supervisor is started below another one, which is shut down meanwhile: once that has ended, nothing is alive below.
pub fn shut_down_while_one_starts_below() {
    play(0, async {
        let book = Book::default();
        let above = start(SupervisorSpec::default()).await.unwrap();
        let (spec, slot) = spec(&book, 9);
        let (child, _) = child_spec("below", spec);
        let one = above.clone();
        let starts = tokio::spawn(async move { one.start_child(child).await });
        let breaks = tokio::spawn(breaks(slot, 2));
        let (one, told) = (above.clone(), book.clone());
        let shutdown = tokio::spawn(async move {
            one.shutdown(LONG).await.unwrap();
            assert!(told.is_over(), "the supervisor above has ended, and workers are alive");
        });
        shutdown.await.unwrap();
        match starts.await.unwrap() {
            Ok(_)
            | Err(SupervisorError::ShuttingDown | SupervisorError::NotRunning | SupervisorError::Start { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        breaks.await.unwrap();
        assert!(book.is_over());
    });
}
