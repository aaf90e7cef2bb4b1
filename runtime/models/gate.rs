//! The gate to models: how a request gets its slot, when it is sent again, and when a model is left alone.
//!
//! Whoever asks a model asks here, so that there is one place for it: a slot for each attempt and never for a wait, of the
//! model's own first and then of the lane of all models, so that a slow model keeps no other one waiting; a circuit breaker
//! for each model; and retries of what may help later. What must stay true: of an attempt
//! that failed nothing is left in the turn (what was shown of it is called back), every wait ends at once with a
//! cancel, and how often is tried is bounded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolwarden_actors::bulkhead::Bulkhead;
use toolwarden_actors::circuit_breaker::{BreakerLimits, CallHealth, CircuitBreaker, Pass};
use toolwarden_actors::permit_pool::Shed;
use toolwarden_actors::waiting_line::Holder;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::entropy::Entropy;

use super::{CallDelta, Model, ModelError, ModelRequest, ModelTurn, TurnSink};

/// Most models whose health is remembered.
const MODELS_MAX: usize = 256;
/// How many requests there may be to one model beside each other, when it says nothing else.
pub const MODEL_PERMITS: usize = 32;
/// How many may wait for a slot of one model.
pub const MODEL_QUEUE_MAX: usize = 1024;
/// When whoever found too many waiting may try again, in milliseconds.
const QUEUE_RETRY_MS: u64 = 1000;

/// When a request is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How often a request is sent at most; 0 counts as 1.
    pub attempts_max: u32,
    /// The wait before the second attempt, which doubles from there.
    pub wait_min: Duration,
    /// The longest wait that doubling makes.
    pub wait_max: Duration,
    /// The longest wait that a provider may ask for; one that asks for more is told to whoever asked.
    pub asked_wait_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 4,
            wait_min: Duration::from_millis(500),
            wait_max: Duration::from_secs(8),
            asked_wait_max: Duration::from_secs(120),
        }
    }
}

impl RetryPolicy {
    /// How long to wait after the `attempt`-th attempt failed, counted from 1; none when it was the last.
    fn wait(&self, attempt: u32, error: &ModelError, entropy: &dyn Entropy) -> Option<Duration> {
        if !error.is_retryable() || attempt >= self.attempts_max {
            return None;
        }
        // A tenth more or less, so that those who failed together do not come again together.
        let tenth = |span: Duration| span / 10 * u32::try_from(entropy.random_u128() % 1000).unwrap_or(0) / 1000;
        if let Some(asked) = error.retry_after_ms().map(Duration::from_millis) {
            return (asked <= self.asked_wait_max).then(|| asked + tenth(asked.max(self.wait_min)));
        }
        let doubled = self.wait_min.saturating_mul(1 << (attempt - 1).min(20)).min(self.wait_max);
        Some(doubled - tenth(doubled) * 2)
    }
}

/// The way to models.
pub struct ModelGate {
    lane: Option<Bulkhead>,
    breakers: Mutex<BTreeMap<String, CircuitBreaker>>,
    doors: Mutex<BTreeMap<String, Arc<Door>>>,
    effects: Effects,
    policy: RetryPolicy,
}

/// What is asked of whom, and for whom.
pub struct Asking<'a> {
    /// Who answers.
    pub model: &'a dyn Model,
    /// What is asked.
    pub request: &'a ModelRequest,
    /// Who watches.
    pub sink: &'a dyn TurnSink,
    /// Who the slot is for.
    pub holder: Holder,
    /// Ends it.
    pub cancel: &'a Cancellation,
}

/// Why there is no turn.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TurnFailure {
    /// It was cancelled.
    #[error("{0}")]
    Cancelled(CancelReason),
    /// There was no slot.
    #[error("{0}")]
    Shed(Shed),
    /// The model gave none.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl ModelGate {
    /// A gate in front of this lane; without one, nothing bounds how many ask.
    pub fn new(lane: Option<Bulkhead>, effects: Effects, policy: RetryPolicy) -> Self {
        Self { lane, breakers: Mutex::default(), doors: Mutex::default(), effects, policy }
    }

    /// Takes a turn, by as many attempts as it needs.
    ///
    /// # Errors
    /// [`TurnFailure`].
    pub async fn turn(&self, asking: Asking<'_>) -> Result<ModelTurn, TurnFailure> {
        let watch = Watch { sink: asking.sink, has_shown: AtomicBool::new(false) };
        let mut attempt = 1;
        loop {
            let error = match self.attempt(&asking, &watch, attempt).await? {
                Ok(turn) => return Ok(turn),
                Err(error) => error,
            };
            let left_alone = match &error {
                ModelError::LeftAlone { retry_after_ms, .. } if attempt > 1 && attempt < self.policy.attempts_max => {
                    Some(Duration::from_millis(*retry_after_ms)).filter(|span| *span <= self.policy.asked_wait_max)
                }
                _ => None,
            };
            let Some(wait) = left_alone.or_else(|| self.policy.wait(attempt, &error, &*self.effects.entropy)) else {
                return Err(error.into());
            };
            tracing::debug!(model = asking.model.name(), %error, ?wait, attempt, "a model is asked again");
            tokio::select! {
                biased;
                reason = asking.cancel.cancelled() => return Err(TurnFailure::Cancelled(reason)),
                () = tokio::time::sleep(wait) => {}
            }
            attempt += 1;
        }
    }

    /// One attempt: the outer error ends it all, the inner one is the model's.
    async fn attempt(
        &self,
        asking: &Asking<'_>,
        watch: &Watch<'_>,
        attempt: u32,
    ) -> Result<Result<ModelTurn, ModelError>, TurnFailure> {
        let own = self.door(asking.model).enter(asking.cancel).await?;
        let permit = match &self.lane {
            Some(lane) => match lane.acquire(asking.holder.clone(), asking.cancel).await {
                Ok(permit) => Some(permit),
                Err(Shed::Cancelled(reason)) => return Err(TurnFailure::Cancelled(reason)),
                Err(shed) => return Err(TurnFailure::Shed(shed)),
            },
            None => None,
        };
        let pass = match self.admit(asking.model.name()) {
            Ok(pass) => pass,
            Err(error) => return Ok(Err(error)),
        };
        match attempt {
            1 => watch.sink.begun(),
            _ if watch.has_shown.swap(false, Ordering::Relaxed) => watch.sink.restarted(),
            _ => {}
        }
        let answer = tokio::select! {
            biased;
            reason = asking.cancel.cancelled() => return Err(TurnFailure::Cancelled(reason)),
            answer = asking.model.turn(asking.request, watch) => answer,
        };
        let health = match &answer {
            Ok(_) => CallHealth::Succeeded,
            Err(error) if error.is_outage() => CallHealth::Failed,
            Err(_) => CallHealth::Neutral,
        };
        pass.report(health);
        if let Some(permit) = permit {
            permit.settle(health);
        }
        drop(own);
        Ok(answer)
    }

    /// The door of a model: its own slots.
    fn door(&self, model: &dyn Model) -> Arc<Door> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(door) = doors.get(model.name()) {
            return Arc::clone(door);
        }
        if doors.len() >= MODELS_MAX {
            // Those that somebody stands in stay.
            doors.retain(|_, door| Arc::strong_count(door) > 1);
        }
        let door = Arc::new(Door::new(model.concurrency_max().unwrap_or(MODEL_PERMITS).max(1)));
        doors.insert(model.name().to_owned(), Arc::clone(&door));
        door
    }

    fn admit(&self, model: &str) -> Result<Admission<'_>, ModelError> {
        let now = self.effects.clock.monotonic();
        let mut breakers = self.breakers();
        if !breakers.contains_key(model) && breakers.len() >= MODELS_MAX {
            breakers.pop_first();
        }
        let breaker = breakers.entry(model.to_owned()).or_insert_with(|| CircuitBreaker::new(BreakerLimits::default()));
        match breaker.admit(now) {
            Ok(pass) => Ok(Admission { gate: self, model: model.to_owned(), pass: Some(pass) }),
            Err(span) => Err(ModelError::LeftAlone {
                model: model.to_owned(),
                retry_after_ms: u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1),
            }),
        }
    }

    fn report(&self, model: &str, pass: Pass, health: CallHealth) {
        let now = self.effects.clock.monotonic();
        if let Some(breaker) = self.breakers().get_mut(model) {
            breaker.report(pass, health, now);
        }
    }

    fn breakers(&self) -> MutexGuard<'_, BTreeMap<String, CircuitBreaker>> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slots of one model, and the line before them; first come, first served.
struct Door {
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Door {
    fn new(permits: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(permits)), waiting: AtomicUsize::new(0) }
    }

    /// Waits for a slot; it goes home when what is given is dropped.
    async fn enter(self: Arc<Self>, cancel: &Cancellation) -> Result<Slot, TurnFailure> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok(Slot { _permit: permit, _door: self });
        }
        let place = Place::take(&self.waiting)?;
        let permit = tokio::select! {
            biased;
            reason = cancel.cancelled() => return Err(TurnFailure::Cancelled(reason)),
            permit = Arc::clone(&self.permits).acquire_owned() => permit,
        };
        drop(place);
        // The slots are never closed.
        let permit = permit.map_err(|_| TurnFailure::Shed(Shed::NotRunning))?;
        Ok(Slot { _permit: permit, _door: self })
    }
}

/// A slot of one model. It holds the door, so that its model is not forgotten meanwhile.
struct Slot {
    _permit: OwnedSemaphorePermit,
    _door: Arc<Door>,
}

/// A place in the line before a door.
struct Place<'a> {
    waiting: &'a AtomicUsize,
}

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize) -> Result<Self, TurnFailure> {
        let queued = waiting.fetch_add(1, Ordering::AcqRel);
        let place = Self { waiting };
        if queued >= MODEL_QUEUE_MAX {
            return Err(TurnFailure::Shed(Shed::QueueFull { queued, retry_after_ms: QUEUE_RETRY_MS }));
        }
        Ok(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Leave to ask a model once. Dropped without a report it says nothing about the model's health.
struct Admission<'a> {
    gate: &'a ModelGate,
    model: String,
    pass: Option<Pass>,
}

impl Admission<'_> {
    fn report(mut self, health: CallHealth) {
        if let Some(pass) = self.pass.take() {
            self.gate.report(&self.model, pass, health);
        }
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.gate.report(&self.model, pass, CallHealth::Neutral);
        }
    }
}

/// Notices whether anything of an attempt was shown.
struct Watch<'a> {
    sink: &'a dyn TurnSink,
    has_shown: AtomicBool,
}

impl TurnSink for Watch<'_> {
    fn text_delta(&self, text: &str) {
        self.has_shown.store(true, Ordering::Relaxed);
        self.sink.text_delta(text);
    }

    fn reasoning_delta(&self, text: &str) {
        self.has_shown.store(true, Ordering::Relaxed);
        self.sink.reasoning_delta(text);
    }

    fn call_delta(&self, delta: CallDelta<'_>) {
        self.has_shown.store(true, Ordering::Relaxed);
        self.sink.call_delta(delta);
    }
}

#[cfg(test)]
mod tests;
