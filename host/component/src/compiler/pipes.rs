//! What goes to a child and comes from it, within time and size.

use std::io::{self, Read, Write as _};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};

use super::WORDS;

/// What came.
pub(super) enum Said {
    /// Everything; both of its pipes are closed.
    All {
        /// Standard output.
        code: Vec<u8>,
        /// The beginning of standard error.
        words: String,
    },
    /// It took too long.
    Late,
    /// More code than it may hand over.
    TooMuch,
}

/// Writes `bytes` to the child's standard input while reading its output. Afterwards the child must be ended: only
/// then do the threads that hold its pipes end.
pub(super) fn converse(
    child: &mut Child,
    bytes: &[u8],
    most: u64,
    end: Instant,
) -> io::Result<Said> {
    let closed = || io::Error::other("a pipe to the compiler is missing");
    let mut input = child.stdin.take().ok_or_else(closed)?;
    let code = reader(
        child.stdout.take().ok_or_else(closed)?,
        most.saturating_add(1),
    )?;
    let words = reader(child.stderr.take().ok_or_else(closed)?, WORDS as u64)?;
    std::thread::scope(|scope| {
        let writing = Builder::new().name("compiler-input".into());
        let writing = writing.spawn_scoped(scope, move || {
            // A child that ends early says why itself.
            drop(input.write_all(bytes));
        })?;
        let said = read(&code, &words, most, end);
        if !matches!(said, Ok(Said::All { .. })) {
            // The writer waits for a child that does not read.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        }
        drop(writing);
        said
    })
}

fn read(
    code: &Receiver<io::Result<Vec<u8>>>,
    words: &Receiver<io::Result<Vec<u8>>>,
    most: u64,
    end: Instant,
) -> io::Result<Said> {
    let left = || end.saturating_duration_since(Instant::now());
    let code = match code.recv_timeout(left()) {
        Ok(code) => code?,
        Err(RecvTimeoutError::Timeout) => return Ok(Said::Late),
        Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("a reader ended")),
    };
    if code.len() as u64 > most {
        return Ok(Said::TooMuch);
    }
    let words = match words.recv_timeout(left()) {
        Ok(words) => words?,
        Err(_) => return Ok(Said::Late),
    };
    let words = String::from_utf8_lossy(&words).trim().to_owned();
    Ok(Said::All { code, words })
}

/// Reads at most `most` bytes on a thread of its own; what follows is thrown away as long as the pipe is open.
fn reader(
    mut from: impl Read + Send + 'static,
    most: u64,
) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (send, receive) = channel();
    let run = move || {
        let mut bytes = Vec::new();
        let read = from.by_ref().take(most).read_to_end(&mut bytes);
        // Nobody waits any more when it came too late.
        drop(send.send(read.map(|_| bytes)));
        drop(io::copy(&mut from, &mut io::sink()));
    };
    Builder::new().name("compiler-output".into()).spawn(run)?;
    Ok(receive)
}
