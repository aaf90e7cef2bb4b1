//! The mounted dynamic supervisor on paused time.

use std::time::Duration;

use ractor::ActorCell;
use tokio::time::Instant;

use super::{DynamicSupervisorRef, child_spec, start};
use crate::child::{ChildCount, Life};
use crate::child_spec::{ChildSpec, Restart, Shutdown, StartError};
use crate::dynamic_supervision::{DynamicFlags, DynamicSupervisorError};
use crate::probe::{Probe, Probes, Record, Tell};
use crate::restart_intensity::RestartIntensity;
use crate::supervisor::{self, SupervisorSpec};

const LONG: Duration = Duration::from_secs(600);

async fn supervisor(restarts_max: u32) -> DynamicSupervisorRef {
    let intensity = RestartIntensity::new(restarts_max, Duration::from_secs(5)).unwrap();
    start(DynamicFlags { max_children: 3, intensity }, None).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn children_come_and_go() {
    let probes = Probes::new(["a", "b", "c", "d"]);
    let supervisor = supervisor(1).await;
    for name in ["b", "a", "c"] {
        let cell = supervisor.start_child(probes.spec(name).restart(Restart::Temporary)).await.unwrap();
        assert_eq!(cell, probes.actor(name).get_cell());
    }
    let full = Err(DynamicSupervisorError::MaxChildren { max_children: 3 });
    assert_eq!(supervisor.start_child(probes.spec("d")).await, full);
    let views = supervisor.which_children().await.unwrap();
    assert_eq!(views.iter().map(|view| view.terms.id.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);

    supervisor.terminate_child(&"b".into()).await.unwrap();
    let not_found = Err(DynamicSupervisorError::NotFound { id: "b".into() });
    assert_eq!(supervisor.terminate_child(&"b".into()).await, not_found);
    // Case C184: a child's normal end stops the supervisor.
    probes.tell("a", Tell::End);
    probes.record.until("-a", 1).await;
    let count = ChildCount { specs: 1, active: 1, supervisors: 0, workers: 1 };
    assert_eq!(supervisor.count_children().await, Ok(count));
    supervisor.shutdown(LONG).await.unwrap();
    assert_eq!(supervisor.count_children().await, Err(DynamicSupervisorError::NotRunning));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_stops_all_at_once_each_within_its_own_time() {
    let probes = Probes::new(["deaf", "patient", "quick"]);
    let supervisor = supervisor(1).await;
    let ms = Duration::from_millis;
    let deaf = probes.spec("deaf").shutdown(Shutdown::Timeout(ms(200)));
    let patient = probes.spec_stopping_in("patient", ms(900)).shutdown(Shutdown::Timeout(ms(1_000)));
    let quick = probes.spec_stopping_in("quick", ms(10));
    for child in [deaf, patient, quick] {
        supervisor.start_child(child).await.unwrap();
    }
    probes.tell("deaf", Tell::Hang);
    tokio::task::yield_now().await;
    let deaf = probes.actor("deaf");
    probes.record.take();
    let asked_at = Instant::now();
    let killed_at = tokio::spawn(async move {
        deaf.wait(None).await.unwrap();
        asked_at.elapsed()
    });
    supervisor.shutdown(LONG).await.unwrap();
    assert_eq!(asked_at.elapsed().as_millis(), 900);
    assert_eq!(killed_at.await.unwrap().as_millis(), 200);
    assert_eq!(probes.record.lines(), ["-quick", "-patient"]);
}

#[tokio::test(start_paused = true)]
async fn failed_children_are_restarted_alone() {
    let probes = Probes::new(["a", "b"]);
    let supervisor = supervisor(2).await;
    supervisor.start_child(probes.spec("a")).await.unwrap();
    supervisor.start_child(probes.spec("b").restart(Restart::Transient)).await.unwrap();
    probes.tell("a", Tell::End);
    probes.record.until("+a", 2).await;
    probes.tell("b", Tell::Panic);
    probes.record.until("+b", 2).await;
    assert_eq!(probes.record.lines(), ["+a", "+b", "-a", "+a", "+b"]);
    supervisor.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reaching_the_intensity_escalates_and_the_handle_follows_the_new_supervisor() {
    let probes = Probes::new(["a", "b"]);
    let intensity = RestartIntensity::new(0, Duration::from_secs(5)).unwrap();
    let told = Record::new();
    let (inner, handle) = child_spec("inner", DynamicFlags { max_children: 9, intensity }, Some(told.sink()));
    let reports = Some(probes.record.sink());
    let outer = SupervisorSpec { children: vec![inner], reports, ..SupervisorSpec::default() };
    let outer = supervisor::start(outer).await.unwrap();
    handle.start_child(probes.spec("a")).await.unwrap();
    handle.start_child(probes.spec("b")).await.unwrap();
    probes.tell("a", Tell::Fail);
    probes.record.until("child inner is up", 2).await;
    assert!(probes.record.lines().contains(&"-b".to_owned()), "b was stopped, not killed");
    // The new one starts without children.
    assert_eq!(handle.count_children().await, Ok(ChildCount::default()));
    handle.start_child(probes.spec("a")).await.unwrap();
    outer.shutdown(LONG).await.unwrap();
    assert_eq!(told.lines().pop().unwrap(), "the supervisor ends: shutdown", "it was asked by its own message");
    assert_eq!(handle.start_child(probes.spec("b")).await, Err(DynamicSupervisorError::NotRunning));
    assert!(!probes.is_running("a"));
}

#[tokio::test(start_paused = true)]
async fn calls_are_answered_while_children_hang_in_start_and_stop() {
    let probes = Probes::new(["slow", "b"]);
    let supervisor = supervisor(1).await;
    let patient = supervisor.with_timeout(LONG);
    let stuck = ChildSpec::new("stuck", |_| std::future::pending());
    let starting = tokio::spawn({
        let patient = patient.clone();
        async move { patient.start_child(stuck).await }
    });
    let slow = probes.spec_stopping_in("slow", Duration::from_secs(50)).shutdown(Shutdown::Infinity);
    supervisor.start_child(slow).await.unwrap();
    let stopping = tokio::spawn({
        let patient = patient.clone();
        async move { patient.terminate_child(&"slow".into()).await }
    });
    tokio::task::yield_now().await;
    let asked_at = Instant::now();
    let views = supervisor.which_children().await.unwrap();
    assert!(matches!(views[0].life, Life::Stopping(..)) && matches!(views[1].life, Life::Starting(_)));
    supervisor.start_child(probes.spec("b")).await.unwrap();
    supervisor.terminate_child(&"stuck".into()).await.unwrap();
    assert_eq!(asked_at.elapsed(), Duration::ZERO);
    let cancelled = DynamicSupervisorError::Start { id: "stuck".into(), source: StartError::Cancelled };
    assert_eq!(starting.await.unwrap(), Err(cancelled));
    stopping.await.unwrap().unwrap();
    supervisor.shutdown(LONG).await.unwrap();
    assert_eq!(probes.record.lines(), ["+slow", "+b", "-slow", "-b"]);
}

#[tokio::test(start_paused = true)]
async fn even_ractors_own_stop_lets_the_children_stop() {
    let probes = Probes::new(["a", "b", "deaf"]);
    let supervisor = supervisor(1).await;
    let takes = Duration::from_millis(500);
    for child in [probes.spec_stopping_in("a", takes), probes.spec_stopping_in("b", takes), probes.spec("deaf")] {
        supervisor.start_child(child.shutdown(Shutdown::Timeout(takes * 2))).await.unwrap();
    }
    probes.tell("deaf", Tell::Hang);
    tokio::task::yield_now().await;
    probes.record.take();
    let cell = supervisor.slot.get().unwrap();
    let asked_at = Instant::now();
    cell.stop(None);
    cell.wait(Some(LONG)).await.unwrap();
    assert_eq!(asked_at.elapsed(), takes * 2);
    assert_eq!(probes.record.lines().len(), 2);
}

/// Real threads: what comes and goes at once on two of them is neither lost nor counted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_that_end_at_once_on_other_threads_are_not_missed() {
    const CHILDREN: usize = 300;
    let intensity = RestartIntensity::new(9_000, Duration::from_secs(5)).unwrap();
    let supervisor = start(DynamicFlags { max_children: CHILDREN, intensity }, None).await.unwrap();
    let supervisor = supervisor.with_timeout(LONG);
    let record = Record::new();
    let mut starts = tokio::task::JoinSet::new();
    for at in 0..CHILDREN {
        let (supervisor, record) = (supervisor.clone(), record.clone());
        let spec = ChildSpec::new(format!("child-{at}"), move |above: ActorCell| {
            let probe = Probe::new("x", &record);
            async move {
                let (child, _) = above.spawn_linked(None, probe, ()).await?;
                child.stop(None);
                Ok(child.get_cell())
            }
        });
        starts.spawn(async move { supervisor.start_child(spec.restart(Restart::Temporary)).await.map(drop) });
    }
    while let Some(started) = starts.join_next().await {
        assert_eq!(started.unwrap(), Ok(()));
    }
    tokio::time::timeout(LONG, async {
        while supervisor.count_children().await.unwrap().specs > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(record.lines().len(), 2 * CHILDREN);
    supervisor.shutdown(LONG).await.unwrap();
}
