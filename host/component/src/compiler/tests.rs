#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use std::fs;

/// A shell that does as it is told, in place of a compiler.
fn shell(script: &str) -> ChildCompiler {
    let arguments = ["-c", script, "sh"].map(OsString::from).to_vec();
    ChildCompiler {
        limits: CompileLimits {
            memory: 1 << 30,
            cpu: Duration::from_secs(1),
            wall: Duration::from_secs(20),
            output: 1000,
        },
        ..ChildCompiler::new("/bin/sh".into(), arguments)
    }
}

fn run(compiler: &ChildCompiler, bytes: &[u8]) -> Result<Vec<u8>, ComponentError> {
    let job = Job {
        module: "mine",
        bytes,
        clock: Clock::Time,
        engine: "0123",
    };
    compiler.compile(&Gate::default(), &job)
}

#[track_caller]
fn fails(script: &str, bytes: &[u8], label: &str, words: &str) {
    let error = run(&shell(script), bytes).unwrap_err();
    assert_eq!(error.label(), label, "{error}");
    let text = error.to_string();
    assert!(text.contains("mine") && text.contains(words), "{text}");
}

#[test]
fn what_the_child_says_comes_back() {
    let bytes = vec![b'x'; 300_000];
    let answer = run(&shell("wc -c; printf '%s ' \"$@\""), &bytes).unwrap();
    let text = String::from_utf8(answer).unwrap();
    let words: Vec<_> = text.split_whitespace().collect();
    assert_eq!(words, ["300000", "time", "0123", "1073741824", "1", "1000"]);
}

#[test]
fn limits_hold_before_the_child_sets_its_own() {
    // What comes on standard input comes after the limits.
    let script = "cat; ulimit -v; ulimit -t; ulimit -c; ulimit -n; ulimit -f; env";
    let answer = run(&shell(script), b"").unwrap();
    let text = String::from_utf8(answer).unwrap();
    let lines: Vec<_> = text.lines().collect();
    // Kibibytes of memory, seconds, no core dumps, files, blocks; then what the shell sets itself.
    assert_eq!(lines[..5], ["1048576", "1", "0", "16", "0"]);
    assert!(
        lines[5..].iter().all(|line| line.starts_with("PWD=")),
        "{text}"
    );
}

#[test]
fn every_end_has_its_words() {
    fails(
        "cat >/dev/null; echo 'bad br' >&2; exit 2",
        b"x",
        "compile",
        "cannot be compiled: bad br",
    );
    fails(
        "echo lost >&2; exit 7",
        b"",
        "compile_ended",
        "(exit status: 7): lost",
    );
    fails(
        "while :; do :; done",
        b"",
        "compile_cpu",
        "more than 1 s of processor time",
    );
    fails("exit 3", b"", "compile_output", "MiB of code");
    fails("yes", &vec![0; 1 << 20], "compile_output", "MiB of code");
    let words = "memory allocation of 64 bytes failed";
    let script = format!("echo '{words}' >&2; kill -ABRT $$");
    fails(
        &script,
        b"",
        "compile_memory",
        "more than 1024 MiB of memory",
    );
    fails("kill -SEGV $$", b"", "compile_ended", "SIGSEGV");
    let missing = ChildCompiler::new("/no/such/program".into(), Vec::new());
    assert_eq!(run(&missing, b"").unwrap_err().label(), "compile_start");
}

#[test]
fn a_child_that_takes_too_long_ends_with_all_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    // No file may be written: the number of the grandchild comes by standard error's only reader, which is gone.
    let fifo = file.display().to_string();
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let script = format!("sleep 1000 & echo $! >{fifo}; sleep 1000");
    let compiler = ChildCompiler {
        limits: CompileLimits {
            wall: Duration::from_millis(300),
            ..shell("").limits
        },
        ..shell(&script)
    };
    let reading = std::thread::spawn(move || fs::read_to_string(fifo).unwrap());
    // More than a pipe holds, to a child that reads none of it.
    let error = run(&compiler, &vec![0; 1 << 20]).unwrap_err();
    assert_eq!(error.label(), "compile_wall", "{error}");
    let grandchild = reading.join().unwrap();
    let alive = |pid: &str| {
        // A process that nobody waited for yet is a zombie.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    for _ in 0..500 {
        if !alive(grandchild.trim()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{grandchild} lives");
}

#[test]
fn few_at_once() {
    let gate = Gate::default();
    let first = gate.pass(2);
    let second = gate.pass(2);
    std::thread::scope(|scope| {
        let third = scope.spawn(|| drop(gate.pass(2)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!third.is_finished());
        drop(first);
        third.join().unwrap();
    });
    drop(second);
    assert_eq!(*gate.running.lock().unwrap(), 0);
}
