//! The raw output of commands, for a host that wants more than the model's text: byte by byte, by stream.
//!
//! It stands between the tool and the port, so it sees exactly what the command wrote, control sequences and secrets
//! included, in order of arrival, whatever is kept, cut or shown of it later.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::processes::{
    CommandSpec, Left, Leftover, OutputSink, ProcessEnd, ProcessError, Processes, Stream,
};
use toolwarden_tools::ids::InvocationId;

/// Sees what commands write.
pub trait CommandOutput: Send + Sync {
    /// One chunk of a command of this call; must not block.
    fn output(&self, call: &InvocationId, stream: Stream, bytes: &[u8]);
}

/// A processes port with an observer.
pub(crate) struct ObservedProcesses {
    port: Arc<dyn Processes>,
    observer: Arc<dyn CommandOutput>,
    call: InvocationId,
}

impl ObservedProcesses {
    /// The port with the observer, or as it is where there is none.
    pub(crate) fn over(
        port: &Arc<dyn Processes>,
        observer: Option<&Arc<dyn CommandOutput>>,
        call: &InvocationId,
    ) -> Arc<dyn Processes> {
        match observer {
            None => Arc::clone(port),
            Some(observer) => {
                Arc::new(Self { port: Arc::clone(port), observer: Arc::clone(observer), call: call.clone() })
            }
        }
    }
}

impl Processes for ObservedProcesses {
    fn run(
        &self,
        command: CommandSpec,
        sink: Arc<dyn OutputSink>,
        stop: Cancellation,
    ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
        let sink = ObservedSink { sink, observer: Arc::clone(&self.observer), call: self.call.clone() };
        self.port.run(command, Arc::new(sink), stop)
    }
}

struct ObservedSink {
    sink: Arc<dyn OutputSink>,
    observer: Arc<dyn CommandOutput>,
    call: InvocationId,
}

impl OutputSink for ObservedSink {
    fn push(&self, stream: Stream, bytes: &[u8]) {
        self.observer.output(&self.call, stream, bytes);
        self.sink.push(stream, bytes);
    }

    fn left(&self, left: &Left) -> Leftover {
        self.sink.left(left)
    }
}
