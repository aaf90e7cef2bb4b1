//! Models: scripts written in place, and models that misbehave.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::watch;
use toolwarden::models::scripted::ScriptedModel;
use toolwarden::models::{Model, ModelError, ModelRequest, ModelTurn, TurnSink};

use super::WAIT_MAX;

/// A script of these turns, in the documented format.
pub(crate) fn script(turns: &[Value]) -> Arc<ScriptedModel> {
    let lines: Vec<String> = turns.iter().map(Value::to_string).collect();
    Arc::new(ScriptedModel::load(&lines.join("\n"), "in place").unwrap())
}

/// Never answers.
pub(crate) struct Silent {
    asked: watch::Sender<usize>,
}

impl Silent {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { asked: watch::Sender::new(0) })
    }

    /// Waits until it was asked so often.
    pub(crate) async fn asked(&self, count: usize) {
        let mut asked = self.asked.subscribe();
        let waited = tokio::time::timeout(WAIT_MAX, asked.wait_for(|asked| *asked >= count)).await;
        assert!(matches!(waited, Ok(Ok(_))), "the model was asked {} times only", *self.asked.borrow());
    }
}

impl Model for Silent {
    fn name(&self) -> &'static str {
        "silent"
    }

    fn turn<'a>(
        &'a self,
        _request: &'a ModelRequest,
        _sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        self.asked.send_modify(|asked| *asked += 1);
        Box::pin(std::future::pending())
    }
}

/// A model that is a function of what it is asked.
pub(crate) struct Answering<F>(pub(crate) F);

impl<F> Model for Answering<F>
where
    F: Fn(&ModelRequest) -> Result<ModelTurn, ModelError> + Send + Sync,
{
    fn name(&self) -> &'static str {
        "answering"
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        _sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        Box::pin(async move { (self.0)(request) })
    }
}
