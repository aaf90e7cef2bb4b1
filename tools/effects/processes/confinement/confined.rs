//! The processes port of a session that confines its commands: each goes on to the port behind with the confinement.
//!
//! What must stay true: no command passes without it, and an end without it is an error and no result.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Confinement, ConfinementError};
use crate::cancellation::Cancellation;
use crate::effects::processes::{CommandSpec, OutputSink, ProcessEnd, ProcessError, Processes};

/// Runs commands of another port, confined.
pub struct ConfinedProcesses {
    port: Arc<dyn Processes>,
    confinement: Arc<Confinement>,
}

impl ConfinedProcesses {
    /// Confines the commands of `port` so, with this folder as their workspace. Paths are looked at now, and must lead
    /// to the same places when commands start.
    pub fn new(port: Arc<dyn Processes>, confinement: Confinement, workspace: impl Into<PathBuf>) -> Self {
        Self { port, confinement: Arc::new(confinement.within(workspace).pinned()) }
    }
}

impl Processes for ConfinedProcesses {
    fn run(
        &self,
        command: CommandSpec,
        sink: Arc<dyn OutputSink>,
        stop: Cancellation,
    ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
        let confinement = Some(Arc::clone(&self.confinement));
        let program = command.program.clone();
        let running = self.port.run(CommandSpec { confinement: confinement.clone(), ..command }, sink, stop);
        Box::pin(async move {
            let end = running.await?;
            if end.confinement != confinement {
                return Err(ProcessError::Unconfined { program, source: ConfinementError::Ignored });
            }
            Ok(end)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::future::BoxFuture;

    use super::ConfinedProcesses;
    use crate::cancellation::Cancellation;
    use crate::effects::processes::confinement::{Confinement, ConfinementError, FileAccess};
    use crate::effects::processes::system::SystemProcesses;
    use crate::effects::processes::{
        CommandSpec, OutputSink, ProcessEnd, ProcessError, ProcessStatus, Processes, Stream,
    };

    struct Deaf;

    impl OutputSink for Deaf {
        fn push(&self, _stream: Stream, _bytes: &[u8]) {}
    }

    /// A runner that does not know what a confinement is.
    struct Ignorant;

    impl Processes for Ignorant {
        fn run(
            &self,
            _command: CommandSpec,
            _sink: Arc<dyn OutputSink>,
            _stop: Cancellation,
        ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
            let end = ProcessEnd::group(ProcessStatus::Exited { code: 0 }, None, false, false);
            Box::pin(std::future::ready(Ok(end)))
        }
    }

    async fn refused(port: Arc<dyn Processes>, confinement: Confinement) -> ConfinementError {
        let command = CommandSpec {
            program: "true".into(),
            arguments: Vec::new(),
            environment: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
            folder: "/".into(),
            stdin: None,
            grace: std::time::Duration::ZERO,
            drain: std::time::Duration::ZERO,
            confinement: None,
        };
        let confined = ConfinedProcesses::new(port, confinement, "/");
        match confined.run(command, Arc::new(Deaf), Cancellation::new()).await {
            Err(ProcessError::Unconfined { source, .. }) => source,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_runner_that_cannot_confine_gives_no_result() {
        let read_only = Confinement::new(FileAccess::ReadOnly);
        let error = refused(Arc::new(Ignorant), read_only.clone()).await;
        assert!(matches!(error, ConfinementError::Ignored), "{error}");
        for confinement in [read_only, Confinement::new(FileAccess::Off).without_network()] {
            let error = refused(Arc::new(SystemProcesses), confinement).await;
            assert!(matches!(error, ConfinementError::NeedsShim), "{error}");
            assert!(error.to_string().contains("with_shim"), "{error}");
        }
    }
}
