//! A ledger, an account with a limit, two below it, and four calls that settle, release or stop waiting.

use std::pin::pin;
use std::task::Poll;

use toolwarden_interleavings::accounts::LedgerError;
use toolwarden_interleavings::budget::{Amount, BudgetLimits};
use toolwarden_interleavings::budget_ledger::{Account, BudgetLedger};

use crate::{end, play, root, until};

/// Calls that the account above all allows.
const CALLS_MAX: u64 = 2;

fn calls(calls: u64) -> Amount {
    Amount { calls, ..Amount::default() }
}

/// What a call does with what it asked for.
#[derive(Clone, Copy)]
enum Manner {
    Settles,
    Releases,
    /// Asks, and is gone before the answer.
    Leaves,
}

/// Calls that it used.
async fn call(ledger: BudgetLedger, top: Account, account: Account, manner: Manner) -> u64 {
    if matches!(manner, Manner::Leaves) {
        let mut asked = pin!(ledger.reserve(&account, calls(1)));
        // Once: the question is on its way, and whatever comes back is dropped with its asker.
        std::future::poll_fn(|cx| Poll::Ready(asked.as_mut().poll(cx).is_ready())).await;
        return 0;
    }
    let reservation = match ledger.reserve(&account, calls(1)).await {
        Ok(reservation) => reservation,
        Err(LedgerError::Refused(_)) => return 0,
        Err(error) => panic!("{error}"),
    };
    let status = ledger.status(top.id().clone()).await.unwrap();
    assert!(status.spent.calls + status.reserved.calls <= CALLS_MAX, "{status:?}");
    assert!(status.reserved.calls > 0, "what this call holds is in the books: {status:?}");
    match manner {
        Manner::Settles => {
            reservation.settle(calls(1));
            1
        }
        Manner::Releases | Manner::Leaves => 0,
    }
}

pub fn shared() {
    play(0, async {
        let (ledger, root) = (BudgetLedger::new(), root().await);
        let actor = ledger.start(root.clone()).await.unwrap();
        let limits = BudgetLimits { calls: Some(CALLS_MAX), ..BudgetLimits::default() };
        let top = Account::new("top".into(), limits);
        let below = ["one", "other"].map(|id| top.child(id.into(), BudgetLimits::default()));
        ledger.open_account(&top).await.unwrap();
        for account in &below {
            ledger.open_account(account).await.unwrap();
        }
        let manners = [Manner::Settles, Manner::Settles, Manner::Releases, Manner::Leaves];
        let tasks: Vec<_> = manners
            .into_iter()
            .enumerate()
            .map(|(at, manner)| {
                let account = below[at % below.len()].clone();
                tokio::spawn(call(ledger.clone(), top.clone(), account, manner))
            })
            .collect();
        let mut used = 0;
        for task in tasks {
            used += task.await.unwrap();
        }
        until(async || ledger.status(top.id().clone()).await.unwrap().reserved.calls == 0).await;
        let status = ledger.status(top.id().clone()).await.unwrap();
        assert_eq!(status.spent.calls, used, "what was used is in the books, once");
        end(root, [actor]).await;
    });
}
