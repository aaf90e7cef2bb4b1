//! The keeper of questions, two askers of whom one is cancelled, and two people who both answer.

use serde_json::json;
use toolwarden_interleavings::confirmations::Confirmations;
use toolwarden_interleavings::open_questions::{Answer, Patience, Question, Reply};
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::digest::Digest;

use crate::{end, play, root, until};

fn question(call: &str) -> Question {
    Question {
        id: call.into(),
        session: "s".into(),
        tool: "bash".into(),
        arguments: json!({ "command": call }),
        digest: Digest::of(call.as_bytes()),
        reason: "a rule asks".to_owned(),
        patience: Patience::Park,
    }
}

/// One who asks; its answer, and whether it had been told to end by then.
async fn ask(desk: Confirmations, call: &'static str, stop: Cancellation) -> (Answer, bool) {
    let answer = desk.request(question(call), &stop).await;
    (answer, stop.is_cancelled())
}

pub fn two_people() {
    play(0, async {
        let (desk, root) = (Confirmations::new(), root().await);
        let actor = desk.start(root.clone()).await.unwrap();
        let stop = Cancellation::new();
        let kept = tokio::spawn(ask(desk.clone(), "kept", Cancellation::new()));
        let ended = tokio::spawn(ask(desk.clone(), "ended", stop.clone()));
        let person = |call: &'static str, reply: Reply, until_taken: bool| {
            let desk = desk.clone();
            tokio::spawn(async move {
                let mut taken = desk.answer(call.into(), None, reply.clone()).await;
                while until_taken && !taken {
                    tokio::task::yield_now().await;
                    taken = desk.answer(call.into(), None, reply.clone()).await;
                }
                taken
            })
        };
        let people = [
            person("kept", Reply::Approve, true),
            person("kept", Reply::Reject(None), false),
            person("ended", Reply::Approve, false),
        ];
        let cancel = tokio::spawn(async move { stop.cancel(CancelReason::Requested) });
        cancel.await.unwrap();
        let ((kept, _), (ended, was_cancelled)) = (kept.await.unwrap(), ended.await.unwrap());
        let mut taken = Vec::new();
        // Who asked and was rejected is not asked again: the first person gives up with them.
        if kept != Answer::Approved {
            people[0].abort();
        }
        for (at, person) in people.into_iter().enumerate() {
            let given_up = at == 0 && kept != Answer::Approved;
            taken.push(if given_up { false } else { person.await.unwrap() });
        }
        match kept {
            Answer::Approved => assert!(taken[0] && !taken[1], "{taken:?}"),
            Answer::Rejected { .. } => assert!(taken[1] && !taken[0], "{taken:?}"),
            other => panic!("{other:?}"),
        }
        match ended {
            Answer::Approved => assert!(taken[2]),
            Answer::Cancelled(CancelReason::Requested) => assert!(was_cancelled),
            other => panic!("{other:?}"),
        }
        until(async || desk.pending("s".into()).await.unwrap().is_empty()).await;
        end(root, [actor]).await;
    });
}
