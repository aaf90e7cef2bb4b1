//! The names of simulated calls, sessions and accounts: written once a thread, and handed out after that.
//!
//! Machines know calls and sessions by texts. In the simulation these are numbers in words, the same in every run, and
//! writing them anew for each look-up cost more than the look-up. What must stay true: a name depends on its number
//! alone, so it makes no difference which run of a thread wrote it.

use std::cell::RefCell;

use toolwarden_actors::accounts::AccountId;
use toolwarden_actors::node_machine::NodeId;
use toolwarden_tools::ids::{Id, InvocationId, SessionId};

/// Most names of a kind that a thread keeps; those of larger numbers are written anew.
const KEPT_MAX: u64 = 4_096;

/// The number under which the account above all sessions is reported.
pub(super) const WHOLE: u64 = u64::MAX;

#[derive(Default)]
struct Names {
    calls: Vec<InvocationId>,
    sessions: Vec<SessionId>,
    accounts: Vec<AccountId>,
}

thread_local! {
    static NAMES: RefCell<Names> = RefCell::default();
}

/// The id under which the journal and the desk know an invocation's node.
pub(super) fn call(node: NodeId) -> InvocationId {
    NAMES.with_borrow_mut(|names| kept(&mut names.calls, "call", node.0))
}

/// The id under which the lane and the desk know a session.
pub(super) fn session(node: NodeId) -> SessionId {
    NAMES.with_borrow_mut(|names| kept(&mut names.sessions, "session", node.0))
}

/// The id under which the ledger knows an account.
pub(super) fn account(account: u64) -> AccountId {
    match account {
        WHOLE => "whole".into(),
        session => NAMES.with_borrow_mut(|names| kept(&mut names.accounts, "session", session)),
    }
}

fn kept<K>(names: &mut Vec<Id<K>>, word: &str, number: u64) -> Id<K> {
    let name = |number: u64| Id::from(format!("{word}-{number}"));
    if number >= KEPT_MAX {
        return name(number);
    }
    names.extend((names.len() as u64..=number).map(name));
    usize::try_from(number).ok().and_then(|at| names.get(at)).cloned().unwrap_or_else(|| name(number))
}

#[cfg(test)]
mod tests {
    use toolwarden_actors::node_machine::NodeId;

    use super::{KEPT_MAX, WHOLE, account, call, session};

    #[test]
    fn a_name_depends_on_its_number_alone() {
        for number in [7, 3, 7, KEPT_MAX - 1, KEPT_MAX, KEPT_MAX + 9, 0] {
            assert_eq!(call(NodeId(number)).as_str(), format!("call-{number}"));
            assert_eq!(session(NodeId(number)).as_str(), format!("session-{number}"));
            assert_eq!(account(number).as_str(), format!("session-{number}"));
        }
        assert_eq!(account(WHOLE).as_str(), "whole");
    }
}
