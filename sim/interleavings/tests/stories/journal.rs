//! A journal with a sink, three writers of whom two end the same call, and a reader.

use std::io;
use std::sync::{Arc, Mutex};

use toolwarden_interleavings::journal::{
    Entry, Journal, JournalError, JournalEvent, JournalSink, Moment, Reading, shut_down, start,
};
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::ids::{InvocationId, SessionId};

use crate::{play, root};

#[derive(Debug)]
struct Event {
    session: SessionId,
    call: InvocationId,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Opens,
    Ends,
    Other,
}

impl JournalEvent for Event {
    fn root_session(&self) -> &SessionId {
        &self.session
    }

    fn moment(&self) -> Moment<'_> {
        match self.what {
            What::Opens => Moment::Opens(&self.call),
            What::Ends => Moment::Ends(&self.call),
            What::Other => Moment::Other,
        }
    }
}

fn event(what: What) -> Event {
    Event { session: "s".into(), call: "c".into(), what }
}

struct Still;

impl Clock for Still {
    fn monotonic(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }

    fn unix_ms(&self) -> u64 {
        1
    }
}

/// The numbers that the sink has.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u64>>>);

impl JournalSink<Event> for Sink {
    fn append(&mut self, entry: &Entry<Event>) -> io::Result<()> {
        // To be written takes a moment in which anybody may go first.
        tokio::switch();
        self.0.lock().unwrap().push(entry.sequence);
        Ok(())
    }
}

impl Sink {
    fn has(&self, sequence: u64) -> bool {
        self.0.lock().unwrap().contains(&sequence)
    }
}

pub fn three_writers() {
    play(0, async {
        let (journal, sink, root) = (Journal::<Event>::new(), Sink::default(), root().await);
        let cell = start(&journal, root.clone(), Arc::new(Still), Some(Box::new(sink.clone()))).await.unwrap();
        let mut reader = journal.subscribe(None).await.unwrap();
        assert_eq!(journal.append(event(What::Opens)).await, Ok(1));
        let write = |what: [What; 2]| {
            let (journal, sink) = (journal.clone(), sink.clone());
            tokio::spawn(async move {
                let mut refused = 0;
                for what in what {
                    match journal.append(event(what)).await {
                        Ok(sequence) => assert!(sink.has(sequence), "{sequence} was told and is not stored"),
                        Err(JournalError::SecondEnding { .. }) => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                refused
            })
        };
        let writers = [write([What::Other, What::Ends]), write([What::Ends, What::Other]), write([What::Other; 2])];
        let stored = sink.clone();
        let reading = tokio::spawn(async move {
            let mut last = 0;
            while let Some(Reading::Entry(entry)) = reader.next().await {
                assert_eq!(entry.sequence, last + 1, "a gap");
                assert!(stored.has(entry.sequence), "{} is shown and is not stored", entry.sequence);
                last = entry.sequence;
            }
            last
        });
        let mut refused = 0;
        for writer in writers {
            refused += writer.await.unwrap();
        }
        assert_eq!(refused, 1, "a call ends once");
        shut_down(&cell);
        let _ = cell.wait(None).await;
        drop(journal);
        root.stop(None);
        let _ = root.wait(None).await;
        assert_eq!(reading.await.unwrap(), 6);
    });
}
