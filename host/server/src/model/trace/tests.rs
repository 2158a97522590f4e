#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use guesthouse_engine::{Choice, Choices};

/// Takes the second candidate of each row.
struct Second;

impl Chooser for Second {
    fn module(&self) -> &str {
        "second"
    }

    fn choose(&mut self, rows: Rows, reply: Reply) {
        let Content::Candidates { n, tokens, .. } = rows.content else {
            return;
        };
        let choice = |row: usize| Choice {
            row: row as u32,
            token: tokens[row * n as usize + 1],
            next: Next::Finish,
            score: row as f32,
        };
        let branches = (0..rows.branches.len()).map(choice).collect();
        reply.send(Ok(Answer::Choices(Choices { branches })));
    }

    fn select(&mut self, _: Finished, reply: Reply) {
        reply.send(Ok(Answer::Selected(vec![1, 0])));
    }
}

#[derive(Default)]
struct Inbox(Mutex<Vec<Result<Answer, ChooserError>>>);

impl Answers for Inbox {
    fn put(&self, _: RequestId, answer: Result<Answer, ChooserError>) {
        self.0.lock().unwrap().push(answer);
    }
}

fn rows() -> Rows {
    Rows {
        branches: vec![7, 9],
        choices: vec![0, 1],
        last: vec![1, 2],
        lengths: vec![3, 3],
        uniform: vec![0.5, 0.5],
        random: Vec::new(),
        content: Content::Candidates {
            n: 3,
            tokens: vec![10, 11, 12, 20, 21, 0],
            // Probabilities 1/2, 1/3, 1/6; 3/4, 1/4.
            logits: vec![3f32.ln(), 2f32.ln(), 0.0, 3f32.ln(), 0.0, f32::NEG_INFINITY],
            log_sum_exp: vec![6f32.ln(), 4f32.ln()],
            entropy: vec![1.0114, 0.5623],
        },
        hidden: Vec::new(),
    }
}

#[test]
fn what_a_guest_sees_and_chooses_is_told_and_goes_on() {
    let told: Arc<Mutex<Vec<Traced>>> = Arc::default();
    let list = Arc::clone(&told);
    let mut chooser = TracedChooser {
        inner: Box::new(Second),
        tell: Arc::new(move |event| list.lock().unwrap().push(event)),
        step: 0,
    };
    let inbox = Arc::new(Inbox::default());
    let to: Arc<dyn Answers> = inbox.clone();
    chooser.choose(rows(), Reply::new(RequestId(1), Arc::clone(&to)));
    let finished = Finished {
        branches: vec![7, 9],
        scores: vec![0.5, 1.5],
        lengths: vec![4, 4],
        wanted: 2,
    };
    chooser.select(finished, Reply::new(RequestId(1), to));
    let told = told.lock().unwrap();
    let Traced::Row {
        branch, candidates, ..
    } = &told[1]
    else {
        panic!("{told:?}");
    };
    let seen: Vec<(u32, f32)> = candidates
        .iter()
        .map(|c| (c.token, (c.probability * 1000.0).round()))
        .collect();
    assert_eq!((*branch, seen), (9, vec![(20, 750.0), (21, 250.0)]));
    assert_eq!(
        told[3],
        Traced::Choice {
            step: 0,
            row: 1,
            token: 21,
            next: "finish",
            score: 1.0
        }
    );
    assert_eq!(
        told[4],
        Traced::Selected {
            branches: vec![9, 7],
            scores: vec![1.5, 0.5]
        }
    );
    assert_eq!(inbox.0.lock().unwrap().len(), 2);
}

/// A guest that drops its reply has failed, and the engine is told so.
#[test]
fn a_lost_answer_is_told_and_goes_on() {
    struct Silent;
    impl Chooser for Silent {
        fn module(&self) -> &str {
            "silent"
        }
        fn choose(&mut self, _: Rows, _: Reply) {}
        fn select(&mut self, _: Finished, _: Reply) {}
    }
    let told: Arc<Mutex<Vec<Traced>>> = Arc::default();
    let list = Arc::clone(&told);
    let mut chooser = TracedChooser {
        inner: Box::new(Silent),
        tell: Arc::new(move |event| list.lock().unwrap().push(event)),
        step: 0,
    };
    let inbox = Arc::new(Inbox::default());
    chooser.choose(rows(), Reply::new(RequestId(1), inbox.clone()));
    assert!(matches!(
        told.lock().unwrap().last(),
        Some(Traced::Failed { .. })
    ));
    assert!(inbox.0.lock().unwrap()[0].is_err());
}

#[test]
fn whole_rows_are_told_by_their_best() {
    let content = Content::Logits(vec![0.0, 2f32.ln(), 0.0, 0.0]);
    let told = candidates(&content, 0, 1);
    assert_eq!(told[0].token, 1);
    assert!((told[0].probability - 0.4).abs() < 1e-6);
    assert_eq!(told.len(), 4);
}
