//! `fork`: a new session that goes on from where another one stands; the other stays as it is.

use clap::Args;
use toolwarden_tools::ids::SessionId;

use super::{CommandError, End};
use crate::assembly::{AssemblyError, Parts, StoreArgs, Surroundings, start_runtime};
use crate::terminal::print;

/// Most forks of one session that get their names by themselves.
const FORKS_MAX: u32 = 10_000;

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 the new session is there and its id is printed, 1 it cannot be stored, 2 there \
                        is no such session, or one of the new name exists already.")]
pub(crate) struct ForkArgs {
    /// The session, as `sessions` lists it; it may be open elsewhere
    #[arg(value_name = "ID")]
    session: String,

    /// The new session's id; the old one's with a number, when not said
    #[arg(long = "as", value_name = "NEW")]
    new: Option<String>,

    #[command(flatten)]
    store: StoreArgs,
}

/// Makes the fork and prints its id.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn fork(args: ForkArgs, with: &Surroundings) -> Result<End, CommandError> {
    let parts = Parts { store: Some(args.store.named(&with.environment)?), ..Parts::default() };
    let runtime = start_runtime(parts, None, with).await?;
    let from = SessionId::from(args.session.as_str());
    let forked = async {
        let to = match args.new {
            Some(new) => SessionId::from(new),
            None => {
                let known = runtime.kept_sessions().await?;
                let names = (1..FORKS_MAX).map(|number| SessionId::from(format!("{from}.{number}")));
                let free = names.into_iter().find(|name| !known.contains(name));
                free.unwrap_or_else(|| from.clone())
            }
        };
        runtime.fork(&from, &to).await?;
        Ok::<SessionId, AssemblyError>(to)
    };
    let forked = forked.await;
    runtime.shut_down().await;
    print(forked?.as_str())?;
    Ok(End::Done)
}
