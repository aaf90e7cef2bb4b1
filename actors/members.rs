//! Runs the members of a fan-out: carries out what [`FanOut`] decides.
//!
//! A member is a future that some node beneath stands behind (an invocation, a child session), made when it is
//! its turn and given the fan-out's node. Cancel reaches the members through the tree itself; here a member that
//! is to end early is told through [`Member::cancel`]. The futures of members are polled in this one task.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::Instant;
use toolwarden_tools::cancellation::CancelReason;

use crate::fan_out::{Effect, Event, FanOut, FanOutEnd, FanOutPlan, MemberEnd};
use crate::node::NodeHandle;
