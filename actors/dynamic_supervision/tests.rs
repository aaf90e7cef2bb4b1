//! The decisions alone, on single steps and on schedules that nobody would think of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{DynamicFlags, DynamicSupervision, DynamicSupervisorError, Effect, Event, TERMINATE_WAITERS_MAX};
use crate::child::{ChildEvent, Exit, Incarnation, Order, StopStage};
use crate::child_spec::{ChildKind, ChildTerms, Restart, Shutdown, SpecError, StartError};
use crate::restart_intensity::RestartIntensity;
use crate::supervision_report::{Ending, Report};

type Name = &'static str;

fn flags(max_children: usize, restarts_max: u32) -> DynamicFlags {
    DynamicFlags { max_children, intensity: RestartIntensity::new(restarts_max, Duration::from_secs(5)).unwrap() }
}

fn terms(name: Name, restart: Restart) -> ChildTerms {
    let shutdown = Shutdown::Timeout(Duration::from_millis(100));
    ChildTerms { id: name.into(), restart, significant: false, shutdown, kind: ChildKind::Worker }
}

struct Hand(DynamicSupervision<Name, u32, u32>);

impl Hand {
    fn new(max_children: usize, restarts_max: u32) -> Self {
        Self(DynamicSupervision::new(flags(max_children, restarts_max)))
    }

    /// Steps and drops the reports.
    fn step(&mut self, event: Event<Name, u32, u32>) -> Vec<Effect<Name, u32, u32>> {
        let mut effects = self.0.step(Duration::ZERO, event);
        effects.retain(|effect| !matches!(effect, Effect::Report(_)));
        effects
    }

    fn start(&mut self, name: Name, restart: Restart, reply: u32) -> Vec<Effect<Name, u32, u32>> {
        self.step(Event::StartChild { terms: terms(name, restart), work: name, reply })
    }

    fn running(&mut self, name: Name, restart: Restart, of: u64) {
        assert_eq!(self.start(name, restart, 0), [start(of, name)]);
        let answer = Ok(Incarnation(of));
        assert_eq!(self.started(of), [Effect::Started { to: 0, answer }]);
    }

    fn started(&mut self, of: u64) -> Vec<Effect<Name, u32, u32>> {
        self.step(Event::Child(ChildEvent::Started { incarnation: Incarnation(of) }))
    }

    fn failed(&mut self, of: u64, error: StartError) -> Vec<Effect<Name, u32, u32>> {
        self.step(Event::Child(ChildEvent::StartFailed { incarnation: Incarnation(of), error }))
    }

    fn exited(&mut self, of: u64, exit: Exit) -> Vec<Effect<Name, u32, u32>> {
        self.step(Event::Child(ChildEvent::Exited { incarnation: Incarnation(of), exit }))
    }
}

fn start(of: u64, work: Name) -> Effect<Name, u32, u32> {
    Effect::Child(Order::Start { incarnation: Incarnation(of), work })
}

fn ask(of: u64) -> [Effect<Name, u32, u32>; 2] {
    let incarnation = Incarnation(of);
    let watch = Order::Watch { incarnation, stage: StopStage::Asked, after: Duration::from_millis(100) };
    [Effect::Child(Order::Ask { incarnation }), Effect::Child(watch)]
}

fn failure() -> Exit {
    Exit::Failed { message: "told to".into() }
}

#[test]
fn restart_types_by_exit() {
    let shutdown = Exit::Shutdown { reason: "done".into() };
    for (restart, exit, is_restarted) in [
        (Restart::Permanent, Exit::Normal, true),
        (Restart::Permanent, shutdown.clone(), true),
        (Restart::Permanent, failure(), true),
        (Restart::Transient, Exit::Normal, false),
        (Restart::Transient, shutdown.clone(), false),
        (Restart::Transient, Exit::Killed, true),
        (Restart::Transient, failure(), true),
        (Restart::Temporary, Exit::Normal, false),
        (Restart::Temporary, shutdown, false),
        (Restart::Temporary, failure(), false),
    ] {
        let mut hand = Hand::new(9, 1);
        hand.running("other", Restart::Permanent, 0);
        hand.running("a", restart, 1);
        let effects = hand.exited(1, exit.clone());
        let expected = if is_restarted { vec![start(2, "a")] } else { Vec::new() };
        assert_eq!(effects, expected, "{restart:?} {exit:?}");
        assert_eq!(hand.0.count_children().specs, if is_restarted { 2 } else { 1 });
    }
}

#[test]
fn children_beyond_the_limit_are_refused_until_one_is_gone() {
    let mut hand = Hand::new(2, 1);
    hand.running("a", Restart::Temporary, 0);
    hand.start("b", Restart::Temporary, 1);
    let full = Err(DynamicSupervisorError::MaxChildren { max_children: 2 });
    // One that is still starting or stopping counts.
    assert_eq!(hand.start("c", Restart::Temporary, 2), [Effect::Started { to: 2, answer: full.clone() }]);
    hand.step(Event::TerminateChild { id: "a".into(), reply: 3 });
    assert_eq!(hand.start("c", Restart::Temporary, 4), [Effect::Started { to: 4, answer: full }]);
    hand.exited(0, Exit::Normal);
    assert_eq!(hand.start("c", Restart::Temporary, 5), [start(2, "c")]);
}

#[test]
fn ids_are_unique_and_terms_are_checked() {
    let mut hand = Hand::new(9, 1);
    hand.start("a", Restart::Temporary, 1);
    let taken = Err(DynamicSupervisorError::AlreadyStarted { id: "a".into() });
    assert_eq!(hand.start("a", Restart::Temporary, 2), [Effect::Started { to: 2, answer: taken }]);
    let terms = ChildTerms { significant: true, ..terms("b", Restart::Temporary) };
    let refused = SpecError::SignificantWithoutAutoShutdown { id: "b".into() };
    let answer = Err(DynamicSupervisorError::Spec(refused));
    assert_eq!(hand.step(Event::StartChild { terms, work: "b", reply: 3 }), [Effect::Started { to: 3, answer }]);
}

#[test]
fn a_child_that_does_not_start_is_not_kept() {
    let mut hand = Hand::new(9, 1);
    hand.start("a", Restart::Permanent, 1);
    let answer = Err(DynamicSupervisorError::Start { id: "a".into(), source: StartError::Died });
    assert_eq!(hand.failed(0, StartError::Died), [Effect::Started { to: 1, answer }]);
    assert_eq!(hand.0.count_children().specs, 0);
}

#[test]
fn children_start_at_the_same_time() {
    let mut hand = Hand::new(9, 1);
    assert_eq!(hand.start("a", Restart::Permanent, 1), [start(0, "a")]);
    assert_eq!(hand.start("b", Restart::Permanent, 2), [start(1, "b")]);
    assert_eq!(hand.started(1), [Effect::Started { to: 2, answer: Ok(Incarnation(1)) }]);
}

#[test]
fn a_terminated_child_is_forgotten_whatever_its_restart_type() {
    let mut hand = Hand::new(9, 1);
    hand.running("a", Restart::Permanent, 0);
    assert_eq!(hand.step(Event::TerminateChild { id: "a".into(), reply: 1 }), ask(0));
    assert!(hand.step(Event::TerminateChild { id: "a".into(), reply: 2 }).is_empty());
    let answers = [1, 2].map(|to| Effect::Terminated { to, answer: Ok(()) });
    assert_eq!(hand.exited(0, failure()), answers);
    let answer = Err(DynamicSupervisorError::NotFound { id: "a".into() });
    assert_eq!(hand.step(Event::TerminateChild { id: "a".into(), reply: 3 }), [Effect::Terminated { to: 3, answer }]);
}

#[test]
fn a_child_terminated_while_it_starts_answers_both_callers() {
    let mut hand = Hand::new(9, 1);
    hand.start("a", Restart::Permanent, 1);
    assert_eq!(hand.step(Event::TerminateChild { id: "a".into(), reply: 2 }), ask(0));
    let source = StartError::Cancelled;
    let answer = Err(DynamicSupervisorError::Start { id: "a".into(), source: source.clone() });
    assert_eq!(
        hand.failed(0, source),
        [Effect::Started { to: 1, answer }, Effect::Terminated { to: 2, answer: Ok(()) }]
    );
}

#[test]
fn the_number_of_waiters_is_bounded() {
    let mut hand = Hand::new(9, 1);
    hand.running("a", Restart::Permanent, 0);
    let terminate = |reply| Event::TerminateChild { id: "a".into(), reply };
    for reply in 0..u32::try_from(TERMINATE_WAITERS_MAX).unwrap() {
        hand.step(terminate(reply));
    }
    let answer = Err(DynamicSupervisorError::Busy { id: "a".into() });
    assert_eq!(hand.step(terminate(99)), [Effect::Terminated { to: 99, answer }]);
}

#[test]
fn a_failed_restart_is_tried_again_under_the_intensity() {
    let mut hand = Hand::new(9, 2);
    hand.running("a", Restart::Permanent, 0);
    hand.running("b", Restart::Permanent, 1);
    assert_eq!(hand.exited(0, failure()), [start(2, "a")]);
    assert_eq!(hand.failed(2, StartError::Died), [start(3, "a")]);
    assert_eq!(hand.failed(3, StartError::Died), ask(1));
    let (restarts_max, period) = (2, Duration::from_secs(5));
    let ending = Ending::IntensityReached { id: "a".into(), restarts_max, period };
    assert_eq!(hand.exited(1, Exit::Normal), [Effect::End(ending)]);
}

#[test]
fn a_shutdown_asks_all_at_once_and_waits_for_all() {
    let mut hand = Hand::new(9, 2);
    hand.running("a", Restart::Permanent, 0);
    hand.running("b", Restart::Permanent, 1);
    hand.start("c", Restart::Permanent, 7);
    let expected: Vec<_> = (0..3).flat_map(ask).collect();
    assert_eq!(hand.step(Event::Shutdown), expected);
    let refused = |to| Effect::Started { to, answer: Err(DynamicSupervisorError::ShuttingDown) };
    assert_eq!(hand.start("d", Restart::Permanent, 8), [refused(8)]);
    assert!(hand.exited(1, failure()).is_empty());
    assert!(hand.exited(0, Exit::Normal).is_empty());
    assert_eq!(hand.failed(2, StartError::Cancelled), [refused(7), Effect::End(Ending::Shutdown)]);
    assert!(hand.step(Event::Shutdown).is_empty());
}

#[test]
fn a_shutdown_without_children_ends_at_once() {
    assert_eq!(Hand::new(1, 1).step(Event::Shutdown), [Effect::End(Ending::Shutdown)]);
}

#[test]
fn a_child_that_cannot_be_killed_is_given_up_and_reported() {
    let mut hand = Hand::new(9, 2);
    hand.running("a", Restart::Permanent, 0);
    hand.step(Event::Shutdown);
    let incarnation = Incarnation(0);
    hand.step(Event::Child(ChildEvent::Overdue { incarnation, stage: StopStage::Asked }));
    let overdue = Event::Child(ChildEvent::Overdue { incarnation, stage: StopStage::Killed });
    assert_eq!(
        hand.0.step(Duration::ZERO, overdue),
        [
            Effect::Report(Report::Abandoned { id: "a".into() }),
            Effect::Child(Order::Abandon { incarnation }),
            Effect::Report(Report::Ended { ending: Ending::Shutdown }),
            Effect::End(Ending::Shutdown),
        ]
    );
}

/// A reproducible source of choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).unwrap()
    }
}

const NAMES: [Name; 6] = ["a", "b", "c", "d", "e", "f"];
const MAX_CHILDREN: usize = 4;

/// A hostile world: starts and stops take any time and end in any way, in any order.
struct Hostile {
    machine: DynamicSupervision<Name, u32, u32>,
    choices: Choices,
    now: Duration,
    /// Name, whether it is up, whether it was asked or killed.
    alive: BTreeMap<Incarnation, (Name, bool, Option<StopStage>)>,
    watched: Vec<(Incarnation, StopStage)>,
    open: BTreeSet<u32>,
    calls: u32,
    end: Option<Ending>,
    seen: BTreeSet<&'static str>,
}

impl Hostile {
    fn feed(&mut self, event: Event<Name, u32, u32>) {
        assert_eq!(self.end, None, "nothing is heard after the end");
        for effect in self.machine.step(self.now, event) {
            assert_eq!(self.end, None, "the end is the last effect");
            match effect {
                Effect::Child(order) => self.order(order),
                Effect::Report(_) => {}
                Effect::Started { to, answer } => {
                    assert!(self.open.remove(&to), "answered twice");
                    if let Ok(incarnation) = answer {
                        assert!(self.alive[&incarnation].1, "answered with a child that is not there");
                    }
                }
                Effect::Terminated { to, .. } => assert!(self.open.remove(&to), "answered twice"),
                Effect::End(ending) => {
                    assert!(self.alive.is_empty(), "ended above living children {:?}", self.alive);
                    assert!(self.open.is_empty(), "ended without answering");
                    assert!(self.machine.ids.is_empty(), "an incarnation was not forgotten");
                    self.seen.insert(if ending == Ending::Shutdown { "shutdown" } else { "intensity" });
                    self.end = Some(ending);
                }
            }
        }
        assert!(self.alive.len() <= MAX_CHILDREN);
    }

    fn order(&mut self, order: Order<Name>) {
        match order {
            Order::Start { incarnation, work } => {
                assert!(self.alive.values().all(|(name, ..)| *name != work), "{work} is there twice");
                self.alive.insert(incarnation, (work, false, None));
            }
            Order::Ask { incarnation } => self.alive.get_mut(&incarnation).unwrap().2 = Some(StopStage::Asked),
            Order::Kill { incarnation } => self.alive.get_mut(&incarnation).unwrap().2 = Some(StopStage::Killed),
            Order::Watch { incarnation, stage, .. } => self.watched.push((incarnation, stage)),
            Order::Abandon { incarnation } => {
                self.seen.insert("abandoned");
                assert_eq!(self.alive.remove(&incarnation).unwrap().2, Some(StopStage::Killed));
            }
        }
    }

    fn happen(&mut self, is_kind: bool) {
        self.now += Duration::from_millis(self.choices.below(2_000) as u64);
        match self.choices.below(if is_kind { 2 } else { 6 }) {
            0 | 1 if !self.alive.is_empty() => self.child_acts(is_kind),
            2 if !self.watched.is_empty() => {
                let at = self.choices.below(self.watched.len());
                let (incarnation, stage) = self.watched.swap_remove(at);
                self.feed(Event::Child(ChildEvent::Overdue { incarnation, stage }));
            }
            3 | 4 => self.call(),
            5 if self.choices.below(20) == 0 => self.feed(Event::Shutdown),
            _ => {}
        }
    }

    fn child_acts(&mut self, is_kind: bool) {
        let at = self.choices.below(self.alive.len());
        let (incarnation, (_, is_up, told)) = self.alive.iter().nth(at).map(|(of, body)| (*of, *body)).unwrap();
        if !is_up {
            if self.choices.below(3) == 0 {
                self.alive.remove(&incarnation);
                let error = StartError::Died;
                self.feed(Event::Child(ChildEvent::StartFailed { incarnation, error }));
            } else {
                if told.is_some() {
                    self.seen.insert("came up while being stopped");
                }
                self.alive.get_mut(&incarnation).unwrap().1 = true;
                self.feed(Event::Child(ChildEvent::Started { incarnation }));
            }
        } else if if is_kind { told.is_some() } else { self.choices.below(3) == 0 } {
            let exit = [Exit::Normal, failure(), Exit::Killed, Exit::Lost][self.choices.below(4)].clone();
            self.alive.remove(&incarnation);
            self.feed(Event::Child(ChildEvent::Exited { incarnation, exit }));
        }
    }

    fn call(&mut self) {
        self.calls += 1;
        let reply = self.calls;
        self.open.insert(reply);
        let name = NAMES[self.choices.below(NAMES.len())];
        let event = if self.choices.below(3) == 0 {
            Event::TerminateChild { id: name.into(), reply }
        } else {
            let restart = [Restart::Permanent, Restart::Transient, Restart::Temporary][self.choices.below(3)];
            let span = Shutdown::Timeout(Duration::from_millis(1));
            let shutdown = [Shutdown::BrutalKill, span, Shutdown::Infinity][self.choices.below(3)];
            Event::StartChild { terms: ChildTerms { shutdown, ..terms(name, restart) }, work: name, reply }
        };
        self.feed(event);
    }

    fn run(seed: u64) -> BTreeSet<&'static str> {
        let mut choices = Choices(seed);
        let restarts_max = u32::try_from(choices.below(6)).unwrap();
        let mut world = Self {
            machine: DynamicSupervision::new(flags(MAX_CHILDREN, restarts_max)),
            choices,
            now: Duration::ZERO,
            alive: BTreeMap::new(),
            watched: Vec::new(),
            open: BTreeSet::new(),
            calls: 0,
            end: None,
            seen: BTreeSet::new(),
        };
        let hostile_steps = world.choices.below(150);
        for step in 0..hostile_steps + 500 {
            if step == hostile_steps && world.end.is_none() {
                world.feed(Event::Shutdown);
            }
            if world.end.is_some() {
                return world.seen;
            }
            world.happen(step >= hostile_steps);
        }
        panic!("seed {seed}: never ended, alive {:?}", world.alive);
    }
}

#[test]
fn no_schedule_breaks_the_rules() {
    let mut seen = BTreeSet::new();
    for seed in 0..20_000 {
        match std::panic::catch_unwind(|| Hostile::run(seed)) {
            Ok(things) => seen.extend(things),
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    // A schedule that never meets the rare cases would prove nothing.
    let rare = ["abandoned", "came up while being stopped", "intensity", "shutdown"];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), rare);
}
