//! Mutants of what is asked and written down: stages left out, questions kept open, records told before they are kept.

use toolwarden_actors::journal::{JournalError, JournalMachine, Moment};
use toolwarden_actors::open_questions::{AskId, OpenQuestions};

use crate::message::AskWaiter;
use crate::tamper::{Slip, Tamper};

use super::{Mutant, machine, slip};

/// All of them.
pub(super) const ENTRIES: [Mutant; 14] = [
    machine("question-kept", "a withdrawn question stays open", || Box::new(QuestionKept), "wide", "questions", 200),
    slip("questions-forgotten", "a desk that fails denies nobody", Slip::ForgetsTheQuestions, "races", "questions", 60),
    slip("no-heard-as-yes", "a call runs after a no", Slip::HearsNoAsYes, "races", "governed", 20),
    slip("confirmation-skipped", "nobody is asked", Slip::SkipsConfirmation, "races", "governed", 5),
    slip("budget-skipped", "nothing is reserved", Slip::SkipsBudget, "wide", "governed", 5),
    slip("admission-skipped", "no slot is asked for", Slip::SkipsAdmission, "wide", "governed", 5),
    slip("record-skipped", "a tool starts before its record", Slip::StartsBeforeRecord, "wide", "governed", 5),
    slip(
        "told-before-sync",
        "a record is told before it is synced",
        Slip::AcknowledgesBeforeSync,
        "wide",
        "governed",
        20,
    ),
    slip("retry-after-effects", "a broken tool starts again", Slip::RetriesAfterEffects, "wide", "governed", 60),
    machine("journal-gap", "a number is left out", || Box::new(JournalGap), "wide", "journal", 5),
    machine("time-goes-back", "an entry is older than the one before", || Box::new(OldEntry), "wide", "journal", 20),
    slip("ending-said-twice", "body and epilogue both say it", Slip::SaysEndingsTwice, "wide", "journal", 200),
    slip("causes-forgotten", "an ending overtakes its opening", Slip::ForgetsCauses, "wide", "journal", 200),
    machine("ending-lost", "an ending is not written", || Box::new(EndingLost), "wide", "journal", 20),
];

/// Machines as they are, in a mount that slips.
pub(super) struct OneSlip(pub(super) Slip);

impl Tamper for OneSlip {
    fn slips(&self, slip: Slip) -> bool {
        slip == self.0
    }
}

struct QuestionKept;

impl Tamper for QuestionKept {
    fn withdraw(&mut self, _: &mut OpenQuestions<AskWaiter>, _: AskId) {}
}

struct JournalGap;

impl Tamper for JournalGap {
    fn admit(&mut self, journal: &mut JournalMachine, unix_ms: u64, moment: Moment<'_>) -> Admitted {
        if matches!(moment, Moment::Ends(_)) {
            journal.admit(unix_ms, Moment::Other)?;
        }
        journal.admit(unix_ms, moment)
    }
}

type Admitted = Result<(u64, u64), JournalError>;

struct OldEntry;

impl Tamper for OldEntry {
    fn admit(&mut self, journal: &mut JournalMachine, unix_ms: u64, moment: Moment<'_>) -> Admitted {
        journal.admit(unix_ms, moment).map(|(sequence, unix_ms)| (sequence, unix_ms ^ 1))
    }
}

/// The journal counts it, and nobody will ever read it.
struct EndingLost;

impl Tamper for EndingLost {
    fn admit(&mut self, journal: &mut JournalMachine, unix_ms: u64, moment: Moment<'_>) -> Admitted {
        match moment {
            Moment::Ends(_) => journal.admit(unix_ms, Moment::Other),
            other => journal.admit(unix_ms, other),
        }
    }
}
