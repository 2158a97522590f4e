//! Guests choose among what a grammar leaves.

use super::super::grammars::{Automaton, by_hand, ids, stopping};
use super::*;

fn constrained(bench: &mut Bench, request: Request, chooser: Box<dyn Chooser>) -> Outcome {
    let (sender, receiver) = channel();
    let attachments = Attachments {
        chooser: Some(chooser),
        constraint: Some(Box::new(Automaton::forcing(6))),
        ..Attachments::from(Box::new(sender))
    };
    let n = request.params.n;
    bench.engine.submit(request, attachments).unwrap();
    run(&mut bench.engine);
    Outcome::of(n, &receiver)
}

#[test]
fn candidates_and_rows_are_masked() {
    let plain = stopping(3, vec![5, 6, 7], 1, 40, Draw::Greedy);
    let expected = by_hand(&plain, 0, Automaton::forcing(6));
    assert!(expected.len() > 10);
    for draw in [
        Draw::Candidates(asked(8, Branching::Choices)),
        Draw::Row(asked(1, Branching::Choices)),
    ] {
        let mut bench = Bench::small();
        let chooser = bench.prompt(greedy);
        let outcome = constrained(&mut bench, asking(draw, plain.clone()), chooser);
        assert_eq!(outcome.error, None);
        assert_eq!(outcome.ids(0), ids(&expected));
        // A guest sees every token.
        assert_eq!(bench.engine.stats().forced_tokens, 0);
    }
}

#[test]
fn a_guest_that_chooses_what_the_grammar_forbids_ends_its_request() {
    let plain = stopping(3, vec![5, 6, 7], 1, 40, Draw::Greedy);
    let allowed = Automaton::forcing(6).allowed();
    let forbidden = (0..97).find(|token| !allowed.contains(token)).unwrap();
    let mut bench = Bench::small();
    let chooser = bench.prompt(move |_| {
        let branches = vec![go_on(0, forbidden)];
        Ok(Answer::Choices(Choices { branches }))
    });
    let draw = Draw::Row(asked(1, Branching::Choices));
    let outcome = constrained(&mut bench, asking(draw, plain), chooser);
    assert_eq!(outcome.tokens, [Vec::new()]);
    assert_eq!(
        outcome.error,
        Some(EngineError::Constraint {
            choice: 0,
            message: format!("token {forbidden} cannot follow")
        })
    );
}
