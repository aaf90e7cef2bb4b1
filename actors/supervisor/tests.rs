//! The mounted supervisor on paused time, rule by rule as OTP documents them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorCell};
use tokio::time::Instant;

use super::{SupervisorRef, SupervisorSpec, child_spec, start};
use crate::child::{ChildCount, Life};
use crate::child_spec::{AutoShutdown, ChildSpec, Restart, Shutdown, StartError};
use crate::probe::{Probe, Probes, Record, Tell};
use crate::restart_intensity::RestartIntensity;
use crate::supervision::{Strategy, SupervisorError, SupervisorFlags};

const LONG: Duration = Duration::from_secs(600);

fn flags(strategy: Strategy, restarts_max: u32) -> SupervisorFlags {
    let intensity = RestartIntensity::new(restarts_max, Duration::from_secs(5)).unwrap();
    SupervisorFlags { strategy, intensity, auto_shutdown: AutoShutdown::Never }
}

fn spec(strategy: Strategy, restarts_max: u32, children: Vec<ChildSpec>) -> SupervisorSpec {
    SupervisorSpec { flags: flags(strategy, restarts_max), children, reports: None }
}

/// The supervisor's own cell, to look at its end from outside.
fn cell(supervisor: &SupervisorRef) -> ActorCell {
    supervisor.slot.get().unwrap().get_cell()
}

fn lives(children: &[crate::child::ChildView]) -> Vec<(&str, bool)> {
    children.iter().map(|child| (child.terms.id.as_str(), matches!(child.life, Life::Running(_)))).collect()
}

#[tokio::test(start_paused = true)]
async fn children_start_in_order_and_stop_in_reverse_start_order() {
    let probes = Probes::new(["a", "b", "c"]);
    // The first takes longest to stop, so that only a strict order gives this record.
    let children = vec![
        probes.spec_stopping_in("a", Duration::from_millis(1)),
        probes.spec_stopping_in("b", Duration::from_millis(20)),
        probes.spec_stopping_in("c", Duration::from_millis(300)),
    ];
    let supervisor = start(spec(Strategy::OneForOne, 1, children)).await.unwrap();
    assert_eq!(lives(&supervisor.which_children().await.unwrap()), [("a", true), ("b", true), ("c", true)]);
    supervisor.shutdown(LONG).await.unwrap();
    assert_eq!(probes.record.lines(), ["+a", "+b", "+c", "-c", "-b", "-a"]);
    assert_eq!(supervisor.count_children().await, Err(SupervisorError::NotRunning));
    supervisor.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn if_one_child_does_not_start_the_others_are_stopped_in_reverse_and_the_supervisor_fails() {
    let probes = Probes::new(["a", "b", "z"]);
    let broken = ChildSpec::new("broken", |_| async { Err(StartError::failed("no disk")) });
    let children = vec![probes.spec("a"), probes.spec("b"), broken, probes.spec("z")];
    let error = start(spec(Strategy::OneForOne, 9, children)).await.unwrap_err();
    assert_eq!(error, StartError::Child { id: "broken".into(), source: Box::new(StartError::failed("no disk")) });
    assert_eq!(probes.record.lines(), ["+a", "+b", "-b", "-a"], "nothing was retried, nothing is left");
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_below_fails_the_whole_tree_and_names_the_path() {
    let probes = Probes::new(["a", "b"]);
    let broken = ChildSpec::new("broken", |_| async { panic!("factory is mad") });
    let (inner, handle) = child_spec("inner", spec(Strategy::OneForOne, 9, vec![probes.spec("b"), broken]));
    let error = start(spec(Strategy::OneForOne, 9, vec![probes.spec("a"), inner])).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "its child inner failed: its child broken failed: its start panicked: factory is mad"
    );
    assert_eq!(probes.record.lines(), ["+a", "+b", "-b", "-a"]);
    assert_eq!(handle.count_children().await, Err(SupervisorError::NotRunning));
}

#[tokio::test(start_paused = true)]
async fn specifications_that_contradict_themselves_start_nothing() {
    let probes = Probes::new(["a"]);
    let twice = vec![probes.spec("a"), probes.spec("a")];
    assert!(matches!(start(spec(Strategy::OneForOne, 1, twice)).await, Err(StartError::Spec(_))));
    let significant = vec![probes.spec("a").restart(Restart::Transient).significant()];
    assert!(matches!(start(spec(Strategy::OneForOne, 1, significant)).await, Err(StartError::Spec(_))));
    assert!(probes.record.lines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_permanent_child_is_restarted_however_it_ends_and_its_slot_follows() {
    let probes = Probes::new(["a", "b"]);
    let children = vec![probes.spec("a"), probes.spec("b")];
    let supervisor = start(spec(Strategy::OneForOne, 4, children)).await.unwrap();
    for (times, tell) in [(2, Tell::Fail), (3, Tell::Panic), (4, Tell::End)] {
        let before = probes.actor("a");
        probes.tell("a", tell);
        probes.record.until("+a", times).await;
        before.wait(None).await.unwrap();
        assert_ne!(probes.actor("a"), before);
    }
    let before = probes.actor("a");
    before.kill();
    probes.record.until("+a", 5).await;
    assert_ne!(probes.actor("a"), before);
    assert_eq!(probes.record.lines().iter().filter(|line| *line == "+b").count(), 1, "b was left alone");
    supervisor.shutdown(LONG).await.unwrap();
}

// Case C184: a child's normal end stops the supervisor.
#[tokio::test(start_paused = true)]
async fn a_childs_normal_end_never_stops_its_supervisor() {
    let probes = Probes::new(["once", "maybe", "a"]);
    let children = vec![
        probes.spec("once").restart(Restart::Temporary),
        probes.spec("maybe").restart(Restart::Transient),
        probes.spec("a"),
    ];
    let supervisor = start(spec(Strategy::OneForOne, 0, children)).await.unwrap();
    probes.tell("once", Tell::End);
    probes.record.until("-once", 1).await;
    probes.tell("maybe", Tell::End);
    probes.record.until("-maybe", 1).await;
    // The temporary child's specification goes with it, the transient one's stays.
    assert_eq!(lives(&supervisor.which_children().await.unwrap()), [("maybe", false), ("a", true)]);
    let count = ChildCount { specs: 2, active: 1, supervisors: 0, workers: 2 };
    assert_eq!(supervisor.count_children().await, Ok(count));
    supervisor.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_transient_child_is_restarted_after_every_abnormal_end_and_no_other() {
    let probes = Probes::new(["a"]);
    let child = probes.spec("a").restart(Restart::Transient);
    let supervisor = start(spec(Strategy::OneForOne, 9, vec![child])).await.unwrap();
    probes.actor("a").kill();
    probes.record.until("+a", 2).await;
    probes.tell("a", Tell::Fail);
    probes.record.until("+a", 3).await;
    probes.tell("a", Tell::Panic);
    probes.record.until("+a", 4).await;
    for (times, reason) in [(1, None), (2, Some("enough".to_owned()))] {
        let child = probes.actor("a");
        child.stop(reason);
        child.wait(None).await.unwrap();
        assert_eq!(lives(&supervisor.which_children().await.unwrap()), [("a", false)]);
        assert_eq!(probes.record.lines().iter().filter(|line| *line == "-a").count(), times);
        supervisor.restart_child(&"a".into()).await.unwrap();
    }
    supervisor.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_child_that_does_not_stop_is_killed_when_its_time_is_up() {
    let probes = Probes::new(["a", "deaf", "c"]);
    let deaf = probes.spec("deaf").shutdown(Shutdown::Timeout(Duration::from_millis(700)));
    let mut children = spec(Strategy::OneForOne, 1, vec![probes.spec("a"), deaf, probes.spec("c")]);
    children.reports = Some(probes.record.sink());
    let supervisor = start(children).await.unwrap();
    probes.tell("deaf", Tell::Hang);
    tokio::task::yield_now().await;
    probes.record.take();
    let asked_at = Instant::now();
    supervisor.shutdown(LONG).await.unwrap();
    assert_eq!(asked_at.elapsed().as_millis(), 700);
    let overdue = "child deaf did not stop in its time and is killed";
    assert_eq!(probes.record.lines(), ["-c", overdue, "-a", "the supervisor ends: shutdown"]);
}

#[tokio::test(start_paused = true)]
async fn brutal_kill_does_not_ask() {
    let probes = Probes::new(["a", "b"]);
    let children = vec![probes.spec("a"), probes.spec("b").shutdown(Shutdown::BrutalKill)];
    let supervisor = start(spec(Strategy::OneForOne, 1, children)).await.unwrap();
    supervisor.shutdown(LONG).await.unwrap();
    assert_eq!(probes.record.lines(), ["+a", "+b", "-a"]);
    assert!(!probes.is_running("b"));
}

#[tokio::test(start_paused = true)]
async fn infinity_waits_as_long_as_it_takes() {
    let probes = Probes::new(["slow"]);
    let day = Duration::from_secs(86_400);
    let slow = probes.spec_stopping_in("slow", day).shutdown(Shutdown::Infinity);
    let supervisor = start(spec(Strategy::OneForOne, 1, vec![slow])).await.unwrap();
    let timeout = Duration::from_secs(1);
    assert_eq!(supervisor.shutdown(timeout).await, Err(SupervisorError::TimedOut { timeout }));
    supervisor.shutdown(day * 2).await.unwrap();
    assert_eq!(probes.record.lines(), ["+slow", "-slow"]);
}

#[tokio::test(start_paused = true)]
async fn one_for_all_stops_the_others_in_reverse_and_starts_all_in_order() {
    let probes = Probes::new(["a", "b", "c", "once"]);
    let once = probes.spec("once").restart(Restart::Temporary);
    let children = vec![probes.spec("a"), once, probes.spec("b"), probes.spec("c")];
    let supervisor = start(spec(Strategy::OneForAll, 1, children)).await.unwrap();
    probes.record.take();
    probes.tell("b", Tell::Fail);
    probes.record.until("+c", 1).await;
    // A temporary child is stopped with the others and does not come back.
    assert_eq!(probes.record.lines(), ["-c", "-once", "-a", "+a", "+b", "+c"]);
    supervisor.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rest_for_one_restarts_exactly_the_later_children_in_order() {
    let probes = Probes::new(["a", "b", "c", "d"]);
    let children = ["a", "b", "c", "d"].map(|name| probes.spec(name)).to_vec();
    let supervisor = start(spec(Strategy::RestForOne, 1, children)).await.unwrap();
    let first = probes.actor("a");
    probes.record.take();
    probes.tell("b", Tell::Panic);
    probes.record.until("+d", 1).await;
    assert_eq!(probes.record.lines(), ["-d", "-c", "+b", "+c", "+d"]);
    assert_eq!(probes.actor("a"), first);
    supervisor.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reaching_the_intensity_ends_all_children_and_escalates_through_two_levels() {
    let probes = Probes::new(["x", "y", "side"]);
    let inner = spec(Strategy::OneForOne, 1, vec![probes.spec("x"), probes.spec("y")]);
    let (inner, inner_handle) = child_spec("inner", inner);
    let mut outer = spec(Strategy::OneForOne, 1, vec![probes.spec("side"), inner]);
    outer.reports = Some(probes.record.sink());
    let supervisor = start(outer).await.unwrap();
    let (outer_cell, inner_cell) = (cell(&supervisor), cell(&inner_handle));

    // Two failures of x within the period are one too many for the inner supervisor: the outer one restarts it.
    for times in [2, 3] {
        probes.tell("x", Tell::Fail);
        probes.record.until("+x", times).await;
    }
    probes.record.until("+y", 2).await;
    inner_cell.wait(None).await.unwrap();
    assert_ne!(cell(&inner_handle), inner_cell);
    let reached = "restart intensity reached: child x would be restarted more than 1 times in 5s";
    let lines = probes.record.take();
    assert!(lines.contains(&format!("child inner ended: failed ({reached})")), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "-y").count(), 1, "y was stopped, not killed");

    // The inner supervisor fails once more: one too many for the outer one, which ends the side child too.
    probes.tell("x", Tell::Fail);
    probes.record.until("+x", 1).await;
    probes.tell("x", Tell::Fail);
    outer_cell.wait(None).await.unwrap();
    let lines = probes.record.lines();
    let tail: Vec<_> = lines.iter().skip_while(|line| !line.starts_with("child inner ended")).skip(1).collect();
    let ends = "the supervisor ends: restart intensity reached: child inner would be restarted more than 1 times in 5s";
    assert_eq!(tail, ["-side", ends]);
    assert!(!probes.is_running("x") && !probes.is_running("y") && !probes.is_running("side"));
}

#[tokio::test(start_paused = true)]
async fn failures_further_apart_than_the_period_are_restarted_for_ever() {
    let probes = Probes::new(["a"]);
    let supervisor = start(spec(Strategy::OneForOne, 1, vec![probes.spec("a")])).await.unwrap();
    for times in 2..30 {
        tokio::time::advance(Duration::from_millis(5_001)).await;
        probes.tell("a", Tell::Fail);
        probes.record.until("+a", times).await;
    }
    supervisor.shutdown(LONG).await.unwrap();
}

/// Starts a probe, but fails at these attempts (counted from 0).
fn flaky(name: &'static str, record: &Record, fails: std::ops::Range<usize>) -> (ChildSpec, Arc<AtomicUsize>) {
    let attempts = Arc::new(AtomicUsize::new(0));
    let (counter, record) = (Arc::clone(&attempts), record.clone());
    let child = ChildSpec::new(name, move |supervisor: ActorCell| {
        let attempt = counter.fetch_add(1, Ordering::SeqCst);
        let (record, fails) = (record.clone(), fails.contains(&attempt));
        async move {
            if fails {
                return Err(StartError::failed("not yet"));
            }
            Ok(supervisor.spawn_linked(None, Probe::new(name, &record), ()).await?.0.get_cell())
        }
    });
    (child, attempts)
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_fails_to_start_is_tried_again_under_the_intensity() {
    let record = Record::new();
    let (child, attempts) = flaky("a", &record, 1..4);
    let supervisor = start(spec(Strategy::OneForOne, 4, vec![child])).await.unwrap();
    let first = cell(&supervisor).get_children();
    first[0].kill();
    record.until("+a", 2).await;
    assert_eq!(attempts.load(Ordering::SeqCst), 5, "one start, three failures, one success");
    assert_eq!(supervisor.count_children().await.unwrap().active, 1);
    supervisor.shutdown(LONG).await.unwrap();

    // With one attempt less allowed the supervisor gives up.
    let record = Record::new();
    let (child, attempts) = flaky("a", &record, 1..usize::MAX);
    let mut giving_up = spec(Strategy::OneForOne, 3, vec![child]);
    giving_up.reports = Some(record.sink());
    let supervisor = start(giving_up).await.unwrap();
    cell(&supervisor).get_children()[0].kill();
    supervisor.ended().await;
    assert_eq!(attempts.load(Ordering::SeqCst), 4, "one start and three restarts");
    let last = record.lines().pop().unwrap();
    assert!(last.starts_with("the supervisor ends: restart intensity reached"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_significant_child_that_ends_by_itself_shuts_the_supervisor_down() {
    let probes = Probes::new(["main", "aid"]);
    let main = probes.spec("main").restart(Restart::Transient).significant();
    let mut inner = spec(Strategy::OneForOne, 3, vec![probes.spec("aid"), main]);
    inner.flags.auto_shutdown = AutoShutdown::AnySignificant;
    // As OTP advises: the supervisor that ends itself is a transient child, so it is not restarted.
    let (inner, handle) = child_spec("inner", inner);
    let mut outer = spec(Strategy::OneForOne, 0, vec![inner.restart(Restart::Transient)]);
    outer.reports = Some(probes.record.sink());
    let supervisor = start(outer).await.unwrap();
    let inner = cell(&handle);

    // An abnormal end is restarted and shuts nothing down.
    probes.tell("main", Tell::Fail);
    probes.record.until("+main", 2).await;
    assert!(probes.is_running("aid"));

    probes.tell("main", Tell::End);
    inner.wait(None).await.unwrap();
    let ended = "child inner ended: shutdown (shutdown, as the significant child main ended)";
    probes.record.until(ended, 1).await;
    assert!(!probes.is_running("aid"));
    assert_eq!(supervisor.count_children().await.unwrap().active, 0);
    supervisor.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn terminate_restart_and_delete_child_with_their_documented_errors() {
    let probes = Probes::new(["a", "b", "once"]);
    let children = vec![probes.spec("a"), probes.spec("once").restart(Restart::Temporary)];
    let supervisor = start(spec(Strategy::OneForOne, 1, children)).await.unwrap();
    let (a, b, once) = ("a".into(), "b".into(), "once".into());

    assert_eq!(supervisor.restart_child(&a).await, Err(SupervisorError::Running { id: "a".into() }));
    assert_eq!(supervisor.delete_child(&a).await, Err(SupervisorError::Running { id: "a".into() }));
    for answer in [
        supervisor.terminate_child(&b).await,
        supervisor.delete_child(&b).await,
        supervisor.restart_child(&b).await.map(drop),
    ] {
        assert_eq!(answer, Err(SupervisorError::NotFound { id: "b".into() }));
    }

    // A stopped child is not restarted, stays known, and can be started again.
    supervisor.terminate_child(&a).await.unwrap();
    assert!(!probes.is_running("a"));
    supervisor.terminate_child(&a).await.unwrap();
    assert_eq!(supervisor.start_child(probes.spec("a")).await, Err(SupervisorError::AlreadyPresent { id: "a".into() }));
    let again = supervisor.restart_child(&a).await.unwrap();
    assert_eq!(again, probes.actor("a").get_cell());
    assert_eq!(supervisor.start_child(probes.spec("a")).await, Err(SupervisorError::AlreadyStarted { id: "a".into() }));

    // A temporary child is forgotten at once.
    supervisor.terminate_child(&once).await.unwrap();
    assert_eq!(supervisor.delete_child(&once).await, Err(SupervisorError::NotFound { id: "once".into() }));

    // A new child comes last, and so stops first.
    let added = supervisor.start_child(probes.spec("b")).await.unwrap();
    assert_eq!(added, probes.actor("b").get_cell());
    supervisor.terminate_child(&a).await.unwrap();
    supervisor.delete_child(&a).await.unwrap();
    assert_eq!(lives(&supervisor.which_children().await.unwrap()), [("b", true)]);

    // One that does not start is not kept.
    let broken = ChildSpec::new("broken", |_| async { Err(StartError::failed("no")) });
    let refused = supervisor.start_child(broken).await;
    assert_eq!(refused, Err(SupervisorError::Start { id: "broken".into(), source: StartError::failed("no") }));
    assert_eq!(supervisor.count_children().await.unwrap().specs, 1);
    supervisor.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_are_answered_while_a_child_takes_its_time_to_stop() {
    let probes = Probes::new(["a", "slow"]);
    let slow = probes.spec_stopping_in("slow", Duration::from_secs(60)).shutdown(Shutdown::Timeout(LONG));
    let supervisor = start(spec(Strategy::OneForOne, 1, vec![probes.spec("a"), slow])).await.unwrap();
    let hasty = supervisor.with_timeout(Duration::from_millis(10));
    let timeout = Duration::from_millis(10);
    assert_eq!(hasty.terminate_child(&"slow".into()).await, Err(SupervisorError::TimedOut { timeout }));
    let asked_at = Instant::now();
    let views = supervisor.which_children().await.unwrap();
    assert!(matches!(views[1].life, Life::Stopping(..)));
    assert_eq!(asked_at.elapsed(), Duration::ZERO);
    // Calls that change children wait for their turn.
    let patient = supervisor.with_timeout(LONG);
    patient.delete_child(&"slow".into()).await.unwrap();
    assert_eq!(probes.record.lines(), ["+a", "+slow", "-slow"]);
    supervisor.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_is_heard_while_a_child_hangs_in_its_start() {
    let probes = Probes::new(["a"]);
    let supervisor = start(spec(Strategy::OneForOne, 1, vec![probes.spec("a")])).await.unwrap();
    let stuck = ChildSpec::new("stuck", |_| std::future::pending()).shutdown(Shutdown::Infinity);
    let caller = tokio::spawn({
        let supervisor = supervisor.with_timeout(LONG);
        async move { supervisor.start_child(stuck).await }
    });
    tokio::task::yield_now().await;
    let asked_at = Instant::now();
    supervisor.shutdown(LONG).await.unwrap();
    assert_eq!(asked_at.elapsed(), Duration::ZERO);
    assert_eq!(caller.await.unwrap(), Err(SupervisorError::ShuttingDown));
    assert_eq!(probes.record.lines(), ["+a", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_reaches_a_supervisor_whose_own_child_hangs_in_its_start() {
    let probes = Probes::new(["a", "b"]);
    let stuck = ChildSpec::new("stuck", |_| std::future::pending());
    let (inner, _) = child_spec("inner", spec(Strategy::OneForOne, 1, vec![probes.spec("b"), stuck]));
    let supervisor = start(spec(Strategy::OneForOne, 1, vec![probes.spec("a")])).await.unwrap();
    let caller = tokio::spawn({
        let supervisor = supervisor.with_timeout(LONG);
        async move { supervisor.start_child(inner).await }
    });
    probes.record.until("+b", 1).await;
    supervisor.shutdown(LONG).await.unwrap();
    assert_eq!(caller.await.unwrap(), Err(SupervisorError::ShuttingDown));
    assert_eq!(probes.record.lines(), ["+a", "+b", "-b", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_starting_a_supervisor_leaves_nothing_behind() {
    let probes = Probes::new(["a"]);
    let stuck = ChildSpec::new("stuck", |_| std::future::pending());
    let starting = start(spec(Strategy::OneForOne, 1, vec![probes.spec("a"), stuck]));
    assert!(tokio::time::timeout(Duration::from_millis(5), starting).await.is_err());
    probes.record.until("-a", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_ended_before_its_start_returned_is_not_missed() {
    let record = Record::new();
    let writer = record.clone();
    let quick = ChildSpec::new("quick", move |supervisor: ActorCell| {
        let probe = Probe::new("quick", &writer);
        async move {
            let (child, _) = supervisor.spawn_linked(None, probe, ()).await?;
            child.stop(None);
            child.wait(None).await.map_err(StartError::failed)?;
            Ok(child.get_cell())
        }
    });
    let supervisor = start(SupervisorSpec::default()).await.unwrap();
    supervisor.start_child(quick.clone().restart(Restart::Temporary)).await.unwrap();
    assert_eq!(supervisor.count_children().await.unwrap().specs, 0, "its end was seen after its start");

    // A permanent one is restarted until the intensity is reached: its ends are counted, too.
    let supervisor_cell = cell(&supervisor);
    record.take();
    let _ = supervisor.start_child(quick).await;
    supervisor_cell.wait(None).await.unwrap();
    assert_eq!(record.lines(), ["+quick", "-quick", "+quick", "-quick"]);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_its_start_did_not_link_is_supervised_nevertheless() {
    let record = Record::new();
    let writer = record.clone();
    let unlinked = ChildSpec::new("loose", move |_| {
        let probe = Probe::new("loose", &writer);
        async move { Ok(Actor::spawn(None, probe, ()).await?.0.get_cell()) }
    });
    let reports = Some(record.sink());
    let supervisor = start(SupervisorSpec { reports, ..SupervisorSpec::default() }).await.unwrap();
    let child = supervisor.start_child(unlinked).await.unwrap();
    child.kill();
    record.until("child loose is up", 2).await;
    supervisor.shutdown(LONG).await.unwrap();
    let lines = record.lines();
    assert_eq!(lines[1..4], ["+loose", "child loose is up", "child loose ended: killed"]);
    assert!(lines.contains(&"-loose".to_owned()));

    // One that is dead already sends no event, so it is found lost.
    let dead = ChildSpec::new("dead", move |_| {
        let probe = Probe::new("dead", &record);
        async move {
            let (child, _) = Actor::spawn(None, probe, ()).await?;
            child.kill_and_wait(None).await.map_err(StartError::failed)?;
            Ok(child.get_cell())
        }
    });
    let lost = Record::new();
    let spec = SupervisorSpec { reports: Some(lost.sink()), ..SupervisorSpec::default() };
    let supervisor = start(spec).await.unwrap();
    supervisor.start_child(dead.restart(Restart::Temporary)).await.unwrap();
    lost.until("child dead ended: lost", 1).await;
    supervisor.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_cancelled_after_its_spawn_leaves_no_stray() {
    let record = Record::new();
    let writer = record.clone();
    let (spawned, mut spawns) = tokio::sync::mpsc::channel(1);
    let late = ChildSpec::new("late", move |supervisor: ActorCell| {
        let (probe, spawned) = (Probe::new("late", &writer), spawned.clone());
        async move {
            let (child, _) = supervisor.spawn_linked(None, probe, ()).await?;
            let _ = spawned.send(child.get_cell()).await;
            std::future::pending().await
        }
    });
    let supervisor = start(SupervisorSpec::default()).await.unwrap();
    let caller = tokio::spawn({
        let supervisor = supervisor.with_timeout(LONG);
        async move { supervisor.start_child(late).await }
    });
    let stray = spawns.recv().await.unwrap();
    supervisor.shutdown(LONG).await.unwrap();
    stray.wait(Some(LONG)).await.unwrap();
    assert_eq!(caller.await.unwrap(), Err(SupervisorError::ShuttingDown));
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_shut_down_from_its_leaves() {
    let probes = Probes::new(["a", "b1", "b2", "c"]);
    let mut inner = spec(Strategy::OneForOne, 1, vec![probes.spec("b1"), probes.spec("b2")]);
    let reports = Record::new();
    inner.reports = Some(reports.sink());
    let (inner, handle) = child_spec("inner", inner);
    let supervisor =
        start(spec(Strategy::RestForOne, 1, vec![probes.spec("a"), inner, probes.spec("c")])).await.unwrap();
    let count = ChildCount { specs: 3, active: 3, supervisors: 1, workers: 2 };
    assert_eq!(supervisor.count_children().await, Ok(count));
    supervisor.shutdown(LONG).await.unwrap();
    assert_eq!(probes.record.lines(), ["+a", "+b1", "+b2", "+c", "-c", "-b2", "-b1", "-a"]);
    assert_eq!(reports.lines().pop().unwrap(), "the supervisor ends: shutdown", "it was asked by its own message");
    assert_eq!(handle.count_children().await, Err(SupervisorError::NotRunning));
}

#[tokio::test(start_paused = true)]
async fn even_ractors_own_stop_shuts_the_children_down_in_order() {
    let probes = Probes::new(["a", "b", "deaf"]);
    let children = vec![probes.spec("a"), probes.spec("b"), probes.spec("deaf")];
    let supervisor = start(spec(Strategy::OneForOne, 1, children)).await.unwrap();
    probes.tell("deaf", Tell::Hang);
    tokio::task::yield_now().await;
    let supervisor = cell(&supervisor);
    supervisor.stop(None);
    supervisor.wait(Some(LONG)).await.unwrap();
    assert_eq!(probes.record.lines(), ["+a", "+b", "+deaf", "-b", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_child_can_end_by_a_message_of_its_own() {
    let probes = Probes::new(["a"]);
    let by_message = probes.spec("a").asked_by(|cell| drop(cell.send_message(Tell::End)));
    let mut with_reports = spec(Strategy::OneForOne, 1, vec![by_message]);
    with_reports.reports = Some(probes.record.sink());
    let supervisor = start(with_reports).await.unwrap();
    supervisor.shutdown(LONG).await.unwrap();
    let expected = ["+a", "child a is up", "all children are up", "-a", "the supervisor ends: shutdown"];
    assert_eq!(probes.record.lines(), expected);
}
