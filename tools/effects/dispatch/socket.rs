//! Child runs in another process of this machine: contracts and answers as lines of JSON over a Unix socket.
//!
//! One connection carries one contract. The side that asks says `{"take": CONTRACT}` and maybe `{"cancel": REASON}`; the
//! side that takes says `{"taken": KEY}`, then `"alive"` again and again, and at last `{"ended": ANSWER}` or
//! `{"refused": WORDS}`. What must stay true: no line is longer than [`CONTRACT_BYTES_MAX`]; silence is bounded on both
//! sides; a connection that ends, ends the work behind it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, timeout};

use super::{CONTRACT_BYTES_MAX, ChildAnswer, ChildContract, Dispatch, DispatchError};
use crate::cancellation::{CancelReason, Cancellation};
use crate::ids::TaskId;

/// How often the side that works says so.
const ALIVE_EVERY: Duration = Duration::from_secs(2);

/// The pause before the next connection is accepted while there is no room for one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How long the side that asks waits for whatever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketTimes {
    /// For the connection, and for the contract to be taken.
    pub taken: Duration,
    /// For the next word of the other side.
    pub silence: Duration,
    /// For the answer, from the cancel on.
    pub settle: Duration,
}

impl Default for SocketTimes {
    fn default() -> Self {
        Self { taken: Duration::from_secs(10), silence: ALIVE_EVERY * 5, settle: Duration::from_secs(12) }
    }
}

/// Child runs are carried by whoever listens at a socket.
#[derive(Debug, Clone)]
pub struct SocketDispatch {
    path: PathBuf,
    times: SocketTimes,
}

/// What the side that asks says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    Take(Box<ChildContract>),
    Cancel(CancelReason),
}

/// What the side that takes says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Tell {
    Taken(TaskId),
    Alive,
    Ended(Box<ChildAnswer>),
    Refused(String),
}

impl SocketDispatch {
    /// Child runs go to whoever listens at this path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), times: SocketTimes::default() }
    }

    /// The same with other patience.
    #[must_use]
    pub fn patient(self, times: SocketTimes) -> Self {
        Self { times, ..self }
    }

    async fn connect(&self) -> Result<UnixStream, DispatchError> {
        let unreachable =
            |message: String| DispatchError::Unreachable { place: self.path.display().to_string(), message };
        match timeout(self.times.taken, UnixStream::connect(&self.path)).await {
            Ok(connected) => connected.map_err(|error| unreachable(error.to_string())),
            Err(_) => Err(unreachable("it does not answer".to_owned())),
        }
    }

    async fn ask(&self, contract: ChildContract, cancel: Cancellation) -> Result<ChildAnswer, DispatchError> {
        if let Some(reason) = cancel.reason() {
            return Err(DispatchError::Cancelled { reason: reason.clone() });
        }
        let key = contract.idempotency_key.clone();
        let line = line_of(&Ask::Take(Box::new(contract)))?;
        let (from, mut to) = self.connect().await?.into_split();
        let mut from = Lines::new(from);
        send(&mut to, &line, self.times.taken).await.map_err(gone)?;
        let mut taken = false;
        let mut told: Option<(CancelReason, Instant)> = None;
        loop {
            let patience = if taken { self.times.silence } else { self.times.taken };
            let until = Instant::now() + patience;
            let until = told.as_ref().map_or(until, |(_, settles_by)| until.min(*settles_by));
            let heard = tokio::select! {
                biased;
                heard = tokio::time::timeout_at(until, from.next::<Tell>()) => heard,
                reason = cancel.cancelled(), if told.is_none() => {
                    // What cannot be said any more is said by the end of the connection.
                    let _ = send(&mut to, &line_of(&Ask::Cancel(reason.clone()))?, self.times.taken).await;
                    told = Some((reason, Instant::now() + self.times.settle));
                    continue;
                }
            };
            match (heard, &told) {
                (Err(_), Some((reason, settles_by))) if Instant::now() >= *settles_by => {
                    return Err(DispatchError::Cancelled { reason: reason.clone() });
                }
                (Err(_), _) => {
                    return Err(gone(io::Error::other(format!("nothing was heard for {} ms", patience.as_millis()))));
                }
                (Ok(heard), _) => match heard? {
                    Tell::Taken(of) if of == key && !taken => taken = true,
                    Tell::Taken(of) => {
                        return Err(malformed(format!("it says that it took {of}, and was given {key}")));
                    }
                    Tell::Alive => {}
                    Tell::Ended(answer) if taken => return Ok(*answer),
                    Tell::Ended(_) => return Err(malformed("an answer to what was not taken".to_owned())),
                    Tell::Refused(message) => return Err(DispatchError::Refused { message }),
                },
            }
        }
    }
}

impl Dispatch for SocketDispatch {
    fn carry_out(
        &self,
        contract: ChildContract,
        cancel: Cancellation,
    ) -> BoxFuture<'_, Result<ChildAnswer, DispatchError>> {
        Box::pin(self.ask(contract, cancel))
    }
}

/// Takes contracts at a socket; the file of the socket goes with it.
pub struct DispatchListener {
    listener: UnixListener,
    path: PathBuf,
}

impl DispatchListener {
    /// Listens at this path, where nothing may be yet.
    ///
    /// # Errors
    /// What the system says, such as [`io::ErrorKind::AddrInUse`].
    pub fn bind(path: &Path) -> io::Result<Self> {
        Ok(Self { listener: UnixListener::bind(path)?, path: path.to_owned() })
    }

    /// The next connection; its contract is still to be read. While the system has no room for one, it waits.
    ///
    /// # Errors
    /// What the system says, when that does not pass.
    pub async fn next(&self) -> io::Result<Incoming> {
        let (from, to) = accepted(|| self.listener.accept()).await?.0.into_split();
        Ok(Incoming { from: Lines::new(from), to })
    }
}

impl Drop for DispatchListener {
    #[expect(clippy::disallowed_methods, reason = "the real side of the dispatch port")]
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Accepts until that works, or fails for good: a lack of descriptors or memory passes, and who hung up is nobody's fault.
async fn accepted<T, F: Future<Output = io::Result<T>>>(mut accept: impl FnMut() -> F) -> io::Result<T> {
    use rustix::io::Errno;
    loop {
        let error = match accept().await {
            Ok(accepted) => return Ok(accepted),
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                tracing::warn!(%error, "no child run can be taken for now");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Some(Errno::CONNABORTED | Errno::INTR) => {}
            _ => return Err(error),
        }
    }
}

/// A connection whose contract is still to be read.
pub struct Incoming {
    from: Lines<OwnedReadHalf>,
    to: OwnedWriteHalf,
}

impl Incoming {
    /// Reads the contract.
    ///
    /// # Errors
    /// [`DispatchError::Malformed`] and [`DispatchError::PeerGone`]; the other side was told then.
    pub async fn contract(mut self) -> Result<(ChildContract, Taken), DispatchError> {
        let heard = timeout(SocketTimes::default().taken, self.from.next::<Ask>()).await;
        let heard = heard.unwrap_or_else(|_| Err(gone(io::Error::other("no contract came"))));
        let wrong = match heard {
            Ok(Ask::Take(contract)) => return Ok((*contract, Taken { from: self.from, to: self.to })),
            Ok(Ask::Cancel(_)) => malformed("a cancel before a contract".to_owned()),
            Err(error) => error,
        };
        let taken = Taken { from: self.from, to: self.to };
        taken.refuse(&wrong.to_string()).await;
        Err(wrong)
    }
}

/// A contract that was read, and the way back.
pub struct Taken {
    from: Lines<OwnedReadHalf>,
    to: OwnedWriteHalf,
}

impl Taken {
    /// Says that the contract is not taken, and why.
    pub async fn refuse(mut self, why: &str) {
        if let Ok(line) = line_of(&Tell::Refused(why.to_owned())) {
            // Whoever is gone needs no answer.
            let _ = send(&mut self.to, &line, ALIVE_EVERY).await;
        }
    }

    /// Does the work and answers. `cancel` is given when the other side says so or is gone.
    ///
    /// # Errors
    /// [`DispatchError`] when the answer did not come through.
    pub async fn answer(
        mut self,
        key: &TaskId,
        cancel: &Cancellation,
        work: impl Future<Output = ChildAnswer>,
    ) -> Result<(), DispatchError> {
        let mut to = self.to;
        send(&mut to, &line_of(&Tell::Taken(key.clone()))?, ALIVE_EVERY).await.map_err(gone)?;
        let mut work = std::pin::pin!(work);
        let mut alive = tokio::time::interval(ALIVE_EVERY);
        let mut listens = true;
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut work => break answer,
                asked = self.from.next::<Ask>(), if listens => {
                    listens = false;
                    cancel.cancel(match asked {
                        Ok(Ask::Cancel(reason)) => reason,
                        // Whoever asked went away, or says what makes no sense.
                        _ => CancelReason::CallerGone,
                    });
                }
                _ = alive.tick() => {
                    if send(&mut to, &line_of(&Tell::Alive)?, ALIVE_EVERY).await.is_err() {
                        cancel.cancel(CancelReason::CallerGone);
                    }
                }
            }
        };
        send(&mut to, &line_of(&Tell::Ended(Box::new(answer)))?, ALIVE_EVERY).await.map_err(gone)
    }
}

/// Lines of JSON, none longer than [`CONTRACT_BYTES_MAX`].
struct Lines<R> {
    from: BufReader<R>,
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(from: R) -> Self {
        Self { from: BufReader::new(from), line: Vec::new() }
    }

    /// The next line. Dropped half-way it goes on with what it has.
    async fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T, DispatchError> {
        loop {
            let left = CONTRACT_BYTES_MAX.saturating_sub(self.line.len());
            if left == 0 {
                return Err(malformed(format!("a line is longer than {CONTRACT_BYTES_MAX} bytes")));
            }
            let most = u64::try_from(left).unwrap_or(u64::MAX);
            let read = (&mut self.from).take(most).read_until(b'\n', &mut self.line).await.map_err(gone)?;
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                return serde_json::from_slice(&line).map_err(|error| malformed(error.to_string()));
            }
            if read == 0 {
                return Err(gone(io::Error::other("it closed the connection")));
            }
        }
    }
}

fn line_of(words: &impl Serialize) -> Result<Vec<u8>, DispatchError> {
    let mut line = serde_json::to_vec(words).map_err(|error| malformed(error.to_string()))?;
    line.push(b'\n');
    if line.len() > CONTRACT_BYTES_MAX {
        return Err(DispatchError::TooLarge { bytes: line.len() });
    }
    Ok(line)
}

async fn send(to: &mut OwnedWriteHalf, line: &[u8], patience: Duration) -> io::Result<()> {
    match timeout(patience, to.write_all(line)).await {
        Ok(sent) => sent,
        Err(_) => Err(io::Error::other("it reads nothing")),
    }
}

fn gone(error: io::Error) -> DispatchError {
    DispatchError::PeerGone { message: error.to_string() }
}

fn malformed(message: String) -> DispatchError {
    DispatchError::Malformed { message }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::sync::Notify;

    use super::super::{
        CONTRACT_VERSION, ChildAnswer, ChildContract, ContractAgent, ContractBudget, ContractUse, Dispatch as _,
        DispatchError,
    };
    use super::{DispatchListener, SocketDispatch, SocketTimes, accepted};
    use crate::cancellation::{CancelReason, Cancellation};

    fn contract() -> ChildContract {
        ChildContract {
            version: CONTRACT_VERSION,
            idempotency_key: "task-1".into(),
            session: "task-run-1".into(),
            parent_session: "s".into(),
            agent: ContractAgent {
                name: "explore".into(),
                purpose: "looks".into(),
                instructions: "look".into(),
                tools: vec!["read".into()],
                rounds_max: 3,
            },
            prompt: "where?".into(),
            policies: Vec::new(),
            budget: ContractBudget { calls: Some(4), ..ContractBudget::default() },
            timeout_ms: Some(1000),
        }
    }

    fn answer(output: &str) -> ChildAnswer {
        ChildAnswer {
            success: true,
            output: output.into(),
            source_anchors: vec!["a".into()],
            used: ContractUse::default(),
        }
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        (folder, path)
    }

    fn patient(path: &Path, silence: Duration) -> SocketDispatch {
        let taken = Duration::from_secs(20);
        SocketDispatch::new(path).patient(SocketTimes { taken, silence, settle: Duration::from_millis(100) })
    }

    #[tokio::test]
    async fn a_contract_comes_to_its_answer_and_a_cancel_is_heard() {
        let (_folder, path) = place();
        let listener = DispatchListener::bind(&path).unwrap();
        assert!(DispatchListener::bind(&path).is_err(), "one listens there already");
        let (begun, cancel) = (Notify::new(), Cancellation::new());
        let serves = async {
            for round in 0..2 {
                let (read, taken) = listener.next().await.unwrap().contract().await.unwrap();
                assert_eq!(read, contract());
                let heard = Cancellation::new();
                let work = async {
                    begun.notify_one();
                    match round {
                        0 => answer("there"),
                        _ => answer(&heard.cancelled().await.to_string()),
                    }
                };
                taken.answer(&read.idempotency_key, &heard, work).await.unwrap();
            }
        };
        let dispatch = SocketDispatch::new(&path);
        let asks = async {
            assert_eq!(dispatch.carry_out(contract(), Cancellation::new()).await.unwrap(), answer("there"));
            begun.notified().await;
            let stops = async {
                begun.notified().await;
                cancel.cancel(CancelReason::Requested);
            };
            let (answered, ()) = tokio::join!(dispatch.carry_out(contract(), cancel.clone()), stops);
            assert_eq!(answered.unwrap().output, "cancelled on request");
        };
        tokio::join!(serves, asks);
        let late = dispatch.carry_out(contract(), cancel.clone()).await;
        assert_eq!(late, Err(DispatchError::Cancelled { reason: CancelReason::Requested }), "it is not even sent");
        drop(listener);
        assert!(!path.exists(), "the file goes with its listener");
    }

    #[tokio::test]
    async fn nobody_there_a_dead_peer_a_silent_one_and_nonsense_are_told_apart() {
        let (_folder, path) = place();
        let (dispatch, hasty) = (patient(&path, Duration::from_secs(20)), patient(&path, Duration::from_millis(50)));
        let ask = || dispatch.carry_out(contract(), Cancellation::new());
        assert!(matches!(ask().await, Err(DispatchError::Unreachable { .. })));
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let says = async |words: Option<&str>, holds: bool| {
            let (stream, _) = listener.accept().await.unwrap();
            let (from, mut to) = stream.into_split();
            let mut from = BufReader::new(from);
            let mut line = String::new();
            from.read_line(&mut line).await.unwrap();
            assert!(line.starts_with("{\"take\":"), "{line}");
            if let Some(words) = words {
                to.write_all(words.as_bytes()).await.unwrap();
            }
            holds.then_some((from, to))
        };
        let gone = |heard: Result<ChildAnswer, DispatchError>| matches!(heard, Err(DispatchError::PeerGone { .. }));
        let malformed =
            |heard: Result<ChildAnswer, DispatchError>| matches!(heard, Err(DispatchError::Malformed { .. }));
        assert!(gone(tokio::join!(ask(), says(None, false)).0), "it closed the connection");
        let stopped = hasty.carry_out(contract(), Cancellation::new());
        let (heard, _held) = tokio::join!(stopped, says(Some("{\"taken\":\"task-1\"}\n"), true));
        assert!(gone(heard), "it stopped saying anything");
        for words in [
            "nonsense\n",
            "{\"taken\":\"task-2\"}\n",
            "{\"taken\":\"task-1\"}\n{\"ended\":{\"success\":true}}\n",
            "{}\n",
        ] {
            assert!(malformed(tokio::join!(ask(), says(Some(words), true)).0), "{words}");
        }
        let early = format!("{{\"ended\":{}}}\n", serde_json::to_string(&answer("x")).unwrap());
        assert!(malformed(tokio::join!(ask(), says(Some(&early), true)).0), "what was not taken has no answer");
        let (heard, _) = tokio::join!(ask(), says(Some("{\"refused\":\"full\"}\n"), true));
        assert_eq!(heard, Err(DispatchError::Refused { message: "full".into() }));
    }

    #[tokio::test]
    async fn after_a_cancel_a_silent_peer_is_waited_for_a_while_and_no_longer() {
        let (_folder, path) = place();
        let dispatch = patient(&path, Duration::from_secs(20));
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let cancel = Cancellation::new();
        let peer = async {
            let (stream, _) = listener.accept().await.unwrap();
            let (from, mut to) = stream.into_split();
            let mut lines = BufReader::new(from).lines();
            lines.next_line().await.unwrap();
            to.write_all(b"{\"taken\":\"task-1\"}\n").await.unwrap();
            cancel.cancel(CancelReason::Requested);
            let heard = lines.next_line().await.unwrap().unwrap();
            assert_eq!(heard, "{\"cancel\":{\"cancel\":\"requested\"}}");
            // It goes on saying that it lives, and never answers.
            let mut alive = tokio::time::interval(Duration::from_millis(20));
            while to.write_all(b"\"alive\"\n").await.is_ok() {
                alive.tick().await;
            }
        };
        let (heard, ()) = tokio::join!(dispatch.carry_out(contract(), cancel.clone()), peer);
        assert_eq!(heard, Err(DispatchError::Cancelled { reason: CancelReason::Requested }));
    }

    #[tokio::test]
    async fn what_is_too_long_is_not_sent_and_not_read() {
        let (_folder, path) = place();
        let long = ChildContract { prompt: "x".repeat(super::CONTRACT_BYTES_MAX), ..contract() };
        let heard = SocketDispatch::new(&path).carry_out(long, Cancellation::new()).await;
        assert!(matches!(heard, Err(DispatchError::TooLarge { .. })));
        let line = vec![b'x'; super::CONTRACT_BYTES_MAX + 10];
        let read = super::Lines::new(&line[..]).next::<String>().await;
        assert!(matches!(read, Err(DispatchError::Malformed { .. })), "{read:?}");
    }

    // Found in a review: a host that had no descriptor left for a moment took no child runs any more.
    #[tokio::test(start_paused = true)]
    async fn what_passes_does_not_end_a_listener() {
        use rustix::io::Errno;
        let from = |errnos: Vec<Errno>| {
            let mut errnos = errnos.into_iter();
            move || std::future::ready(errnos.next().map_or(Ok("taken"), |errno| Err(std::io::Error::from(errno))))
        };
        let passing = vec![Errno::MFILE, Errno::CONNABORTED, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::INTR];
        assert_eq!(accepted(from(passing)).await.unwrap(), "taken");
        let error = accepted(from(vec![Errno::MFILE, Errno::BADF])).await.unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::BADF));
    }
}
