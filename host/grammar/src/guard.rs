//! Work on a client's grammar, where it can neither overflow a stack, nor end a thread of ours, nor keep anyone waiting.

use crate::GrammarError;
use llguidance::{CancellationHandle, TokenParser};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Deep recursion over a source of the largest allowed size fits. Only touched pages are memory.
const STACK_BYTES: usize = 512 << 20;

/// Lets so many compile at once. Whoever gives up waiting leaves its work running, which still counts.
pub(crate) struct Gate {
    running: Mutex<usize>,
    freed: Condvar,
    limit: usize,
}

/// Counted out when dropped.
struct Pass(Arc<Gate>);

impl Drop for Pass {
    fn drop(&mut self) {
        *self.0.running() -= 1;
        self.0.freed.notify_one();
    }
}

/// Ends work on parsers that nobody waits for any more.
#[derive(Clone, Default)]
pub(crate) struct Cancel(Arc<Mutex<Cancelling>>);

#[derive(Default)]
struct Cancelling {
    cancelled: bool,
    parser: Option<CancellationHandle>,
}

impl Cancel {
    fn state(&self) -> std::sync::MutexGuard<'_, Cancelling> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parser that is worked on now.
    pub(crate) fn adopt(&self, parser: &mut TokenParser) {
        let handle = parser.enable_cancellation();
        let mut state = self.state();
        if state.cancelled {
            handle.cancel();
        }
        state.parser = Some(handle);
    }

    fn cancel(&self) {
        let mut state = self.state();
        state.cancelled = true;
        if let Some(handle) = &state.parser {
            handle.cancel();
        }
    }
}

impl Gate {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            running: Mutex::new(0),
            freed: Condvar::new(),
            limit,
        })
    }

    fn running(&self) -> std::sync::MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>, within: Duration) -> Option<Pass> {
        let waited = self
            .freed
            .wait_timeout_while(self.running(), within, |running| *running >= self.limit);
        let (mut running, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && *running >= self.limit {
            return None;
        }
        *running += 1;
        Some(Pass(Arc::clone(self)))
    }

    /// Runs `work` on a thread of its own and waits for it, both together no longer than `within`.
    pub(crate) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        within: Duration,
        work: impl FnOnce(&Cancel) -> Result<T, GrammarError> + Send + 'static,
    ) -> Result<T, GrammarError> {
        let slow = GrammarError::Slow {
            millis: within.as_millis(),
        };
        let start = Instant::now();
        let Some(pass) = self.enter(within) else {
            return Err(slow);
        };
        let cancel = Cancel::default();
        let cancelled = cancel.clone();
        let (answer, answers) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("grammar".into())
            .stack_size(STACK_BYTES);
        thread
            .spawn(move || {
                let _pass = pass;
                let result = caught(|| Ok(work(&cancelled)));
                let result = result.unwrap_or_else(|cause| Err(GrammarError::whole(cause)));
                // Nobody may be waiting any more.
                let _ = answer.send(result);
            })
            .map_err(|e| GrammarError::whole(format!("no thread to compile it on: {e}")))?;
        let answer = answers.recv_timeout(within.saturating_sub(start.elapsed()));
        answer.unwrap_or_else(|_| {
            cancel.cancel();
            Err(slow)
        })
    }
}

/// Runs code of the matcher, which may panic where a grammar is odd; the text of what went wrong.
pub(crate) fn caught<T>(work: impl FnOnce() -> anyhow::Result<T>) -> Result<T, String> {
    llguidance::panic_utils::catch_unwind(std::panic::AssertUnwindSafe(work))
        .map_err(|error| told(&format!("{error:#}")))
}

/// A message without the parts that are meant for the matcher's own developers.
pub(crate) fn told(message: &str) -> String {
    let end = ["\n<backtrace>", "\n<state>", "\n<non-verbose/>"]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min()
        .unwrap_or(message.len());
    message[..end].trim_end().to_owned()
}
