//! An HTTP port for tests: gives prepared answers in order and keeps what was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{self, StreamExt as _};
use serde_json::Value;
use toolwarden_tools::effects::http::{Http, HttpError, HttpHeaders, HttpRequest, HttpResponse};

/// Gives prepared answers.
#[derive(Debug, Default)]
pub(crate) struct CannedHttp {
    answers: Mutex<VecDeque<Canned>>,
    asked: Mutex<Vec<HttpRequest>>,
}

/// What happens to one request.
#[derive(Debug, Clone)]
pub(crate) enum Canned {
    Answer { status: u16, headers: Vec<(String, String)>, steps: Vec<Step> },
    Fail(HttpError),
    Silence,
}

/// What happens to a body.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Bytes(Vec<u8>),
    Wait(Duration),
    Fail(HttpError),
    Silence,
}

impl Canned {
    /// A streamed answer in these pieces.
    pub(crate) fn stream<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Self::steps(pieces.into_iter().map(|piece| Step::Bytes(piece.to_vec())))
    }

    pub(crate) fn steps(steps: impl IntoIterator<Item = Step>) -> Self {
        let headers = vec![("content-type".to_owned(), "text/event-stream; charset=utf-8".to_owned())];
        Self::Answer { status: 200, headers, steps: steps.into_iter().collect() }
    }

    pub(crate) fn with(status: u16, headers: &[(&str, &str)], body: &str) -> Self {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self::Answer { status, headers, steps: vec![Step::Bytes(body.into())] }
    }

    pub(crate) fn json(body: &Value) -> Self {
        Self::with(200, &[("content-type", "application/json")], &body.to_string())
    }
}

impl CannedHttp {
    pub(crate) fn new(answers: impl IntoIterator<Item = Canned>) -> Arc<Self> {
        let answers = Mutex::new(answers.into_iter().collect());
        Arc::new(Self { answers, asked: Mutex::default() })
    }

    pub(crate) fn asked(&self) -> Vec<HttpRequest> {
        self.asked.lock().unwrap().clone()
    }
}

impl Http for CannedHttp {
    fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
        self.asked.lock().unwrap().push(request);
        let answer = self.answers.lock().unwrap().pop_front().expect("one more answer");
        async move {
            match answer {
                Canned::Answer { status, headers, steps } => {
                    let pieces = stream::iter(steps).filter_map(|step| async move {
                        match step {
                            Step::Bytes(bytes) => Some(Ok(Bytes::from(bytes))),
                            Step::Fail(error) => Some(Err(error)),
                            Step::Wait(span) => {
                                tokio::time::sleep(span).await;
                                None
                            }
                            Step::Silence => std::future::pending().await,
                        }
                    });
                    let headers: HttpHeaders = headers.into_iter().collect();
                    Ok(HttpResponse { status, headers, peer: None, body: pieces.boxed() })
                }
                Canned::Fail(error) => Err(error),
                Canned::Silence => std::future::pending().await,
            }
        }
        .boxed()
    }
}
