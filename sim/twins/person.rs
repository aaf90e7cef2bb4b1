//! The twin of a person: reads what is asked of them, and answers as people do.
//!
//! Faults: they are slow, late (after the question was rejected) or absent; they answer about something else than they
//! were shown, say yes and then no, or the same thing twice; sometimes they allow a thing for good.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use toolwarden::event::{Event, EventKind};
use toolwarden::session::Session;
use toolwarden_actors::journal::{Entry, Reader, Reading};
use toolwarden_actors::open_questions::Reply;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::InvocationId;

use crate::fate::Fate;
use crate::sight::Sight;

/// Spans that a person usually takes, in milliseconds.
const THINKS_MS: [u64; 3] = [300, 0, 5_000];
/// When a late answer comes.
const LATE: Duration = Duration::from_secs(45);

/// Reads the events of a session and answers its questions, until the events end. What they read is seen.
pub async fn attend(fate: Fate, session: Session, mut events: Reader<Event>, faulty: bool) {
    while let Some(reading) = events.next().await {
        let Reading::Entry(entry) = reading else { continue };
        fate.see(&Sight::Shown { sequence: entry.sequence });
        if let EventKind::ConfirmationRequired { .. } = &entry.event.kind {
            // Answers of one person to several questions do not wait for each other.
            tokio::spawn(answer(fate.clone(), session.clone(), entry, faulty));
        }
    }
}

async fn answer(fate: Fate, session: Session, entry: Arc<Entry<Event>>, faulty: bool) {
    let EventKind::ConfirmationRequired { tool_id, digest, .. } = &entry.event.kind else { return };
    sleep(Duration::from_millis(THINKS_MS[fate.usual(THINKS_MS.len())])).await;
    let shown = digest;
    let say = async |reply: Reply, digest: Option<Digest>| {
        // Only a word about what was shown counts.
        let approved = !matches!(reply, Reply::Reject(_)) && digest.as_ref() == Some(shown);
        tell(&fate, &session, tool_id, digest, reply, approved).await;
    };
    let no = || Reply::Reject(Some("no".to_owned()));
    match if faulty { fate.rare(6) } else { None } {
        None => match fate.usual(3) {
            0 => say(Reply::Approve, Some(shown.clone())).await,
            1 => say(no(), Some(shown.clone())).await,
            _ => say(Reply::ApproveAlways, Some(shown.clone())).await,
        },
        Some(0) => {
            fate.met("a late answer");
            sleep(LATE).await;
            say(Reply::Approve, Some(shown.clone())).await;
        }
        Some(1) => fate.met("nobody to answer"),
        Some(2) => {
            fate.met("yes and then no");
            say(Reply::Approve, Some(shown.clone())).await;
            say(no(), Some(shown.clone())).await;
        }
        Some(3) => {
            fate.met("no and then yes");
            say(no(), Some(shown.clone())).await;
            say(Reply::Approve, Some(shown.clone())).await;
        }
        Some(4) => {
            fate.met("an answer given twice");
            say(Reply::Approve, Some(shown.clone())).await;
            say(Reply::Approve, Some(shown.clone())).await;
        }
        Some(_) => {
            fate.met("an answer to something else");
            say(Reply::Approve, Some(Digest::of(b"something else"))).await;
            say(no(), Some(shown.clone())).await;
        }
    }
}

/// The answer is seen before it is given: what follows from it comes after it.
async fn tell(
    fate: &Fate,
    session: &Session,
    call: &InvocationId,
    digest: Option<Digest>,
    reply: Reply,
    approved: bool,
) {
    fate.see(&Sight::Answered { invocation: call, approved, taken: false });
    if session.confirm(call.clone(), digest, reply).await {
        fate.see(&Sight::Answered { invocation: call, approved, taken: true });
    }
}
