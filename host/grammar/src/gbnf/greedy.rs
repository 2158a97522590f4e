//! Whether terminals that are taken greedily leave a grammar's language as it is.
//!
//! The matcher's lexer goes on with a terminal while it can. That is wrong where a terminal that is complete could go on with a
//! character (or another one that may stand at the same place could) with which also what follows it may begin.
//! All is approximated to the safe side: "no" where it is not sure, or would be too much work.

use super::Expr;
use super::chars::Chars;
use super::lark::{Node, Written};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Terminals, rounds and steps that are looked at.
const MAX_TERMINALS: usize = 200;
const MAX_RULES: usize = 2_000;
const MAX_POSITIONS: usize = 1_000;
const MAX_STEPS: usize = 1_000_000;

type Set = BTreeSet<usize>;

/// What can be said of a part: whether it may be empty, and with which terminals it begins and ends.
#[derive(Clone, Default, PartialEq)]
struct Ends {
    nullable: bool,
    first: Set,
    last: Set,
}

pub(super) fn is_exact(written: &Written<'_>) -> bool {
    if matches!(written.start, Node::Terminal(_)) {
        return true;
    }
    exact(written).unwrap_or(false)
}

/// None where it is too much work.
fn exact(written: &Written<'_>) -> Option<bool> {
    let count = written.terminals.len();
    if count > MAX_TERMINALS || written.rules.len() > MAX_RULES {
        return None;
    }
    let mut rules = vec![Ends::default(); written.rules.len()];
    let mut next = vec![Set::new(); count];
    loop {
        let mut changed = false;
        for (index, rule) in written.rules.iter().enumerate() {
            let Some(rule) = rule else { continue };
            let ends = ends(rule, &rules, &mut next);
            changed |= rules[index] != ends;
            rules[index] = ends;
        }
        if !changed {
            break;
        }
    }
    let start = ends(&written.start, &rules, &mut next);
    let automata = written
        .terminals
        .iter()
        .map(|expr| Automaton::of(expr, &written.source.rules))
        .collect::<Option<Vec<_>>>()?;
    let mut together: HashSet<(usize, usize)> = HashSet::new();
    for group in next.iter().chain([&start.first]) {
        together.extend(group.iter().flat_map(|a| group.iter().map(|b| (*a, *b))));
    }
    let mut steps = 0;
    for (a, b) in together {
        let mut follows = Chars::empty();
        for after in &next[a] {
            follows.add(&automata[*after].first_chars());
        }
        if !follows.is_empty() && extends(&automata[a], &automata[b], &mut steps)?.meets(&follows) {
            return Some(false);
        }
    }
    Some(true)
}

fn join(last: &Set, first: &Set, next: &mut [Set]) {
    for before in last {
        next[*before].extend(first);
    }
}

fn ends(node: &Node, rules: &[Ends], next: &mut [Set]) -> Ends {
    match node {
        Node::Terminal(index) => Ends {
            nullable: false,
            first: Set::from([*index]),
            last: Set::from([*index]),
        },
        Node::Token => Ends::default(),
        Node::Rule(rule) => rules[*rule].clone(),
        Node::Sequence(items) => {
            let mut whole = Ends {
                nullable: true,
                ..Ends::default()
            };
            for item in items {
                let item = ends(item, rules, next);
                join(&whole.last, &item.first, next);
                if whole.nullable {
                    whole.first.extend(&item.first);
                }
                if !item.nullable {
                    whole.last.clear();
                }
                whole.last.extend(&item.last);
                whole.nullable &= item.nullable;
            }
            whole
        }
        Node::Choice(items) => {
            let mut whole = Ends::default();
            for item in items {
                let item = ends(item, rules, next);
                whole.nullable |= item.nullable;
                whole.first.extend(item.first);
                whole.last.extend(item.last);
            }
            whole
        }
        Node::Repeat(inner, optional, often) => {
            let mut inner = ends(inner, rules, next);
            if *often {
                join(&inner.last, &inner.first, next);
            }
            inner.nullable |= optional;
            inner
        }
    }
}

/// Glushkov's automaton: each state is a place of the expression, entered with one of its characters.
#[derive(Default)]
struct Automaton {
    chars: Vec<Chars>,
    follow: Vec<Set>,
    first: Set,
    last: Set,
    nullable: bool,
}

impl Automaton {
    /// None where it has too many states.
    fn of(expr: &Expr, rules: &[Expr]) -> Option<Self> {
        let mut whole = Self::default();
        let part = whole.add(expr, rules)?;
        (whole.first, whole.last, whole.nullable) = (part.first, part.last, part.nullable);
        Some(whole)
    }

    fn first_chars(&self) -> Chars {
        let mut chars = Chars::empty();
        self.first.iter().for_each(|at| chars.add(&self.chars[*at]));
        chars
    }

    fn chain(&mut self, whole: &mut Ends, part: &Ends) {
        join(&whole.last, &part.first, &mut self.follow);
        if whole.nullable {
            whole.first.extend(&part.first);
        }
        if !part.nullable {
            whole.last.clear();
        }
        whole.last.extend(&part.last);
        whole.nullable &= part.nullable;
    }

    fn add(&mut self, expr: &Expr, rules: &[Expr]) -> Option<Ends> {
        let empty = Ends {
            nullable: true,
            ..Ends::default()
        };
        match expr {
            Expr::Class(chars) => {
                let at = self.chars.len();
                if at >= MAX_POSITIONS {
                    return None;
                }
                self.chars.push(chars.clone());
                self.follow.push(Set::new());
                Some(Ends {
                    nullable: false,
                    first: Set::from([at]),
                    last: Set::from([at]),
                })
            }
            Expr::Rule(rule) => self.add(rules.get(*rule)?, rules),
            Expr::Token(_) => None,
            Expr::Sequence(items) => {
                let mut whole = empty;
                for item in items {
                    let item = self.add(item, rules)?;
                    self.chain(&mut whole, &item);
                }
                Some(whole)
            }
            Expr::Choice(items) => {
                let mut whole = Ends::default();
                for item in items {
                    let item = self.add(item, rules)?;
                    whole.nullable |= item.nullable;
                    whole.first.extend(item.first);
                    whole.last.extend(item.last);
                }
                Some(whole)
            }
            Expr::Repeat(inner, min, max) => {
                let mut whole = empty;
                let states = self.chars.len();
                let once = self.add(inner, rules)?;
                if self.chars.len() == states {
                    // Only the empty text.
                    return Some(once);
                }
                let required = match max {
                    Some(_) => *min,
                    None => (*min).max(1),
                };
                for copy in 1..=required {
                    let mut part = self.add(inner, rules)?;
                    if max.is_none() && copy == required {
                        join(&part.last, &part.first, &mut self.follow);
                    }
                    part.nullable |= *min == 0;
                    self.chain(&mut whole, &part);
                }
                // The others are nested, each in the one before: few edges.
                let (mut before, mut first) = (whole.last.clone(), whole.nullable);
                for _ in required..max.unwrap_or(required) {
                    let part = self.add(inner, rules)?;
                    join(&before, &part.first, &mut self.follow);
                    if first {
                        whole.first.extend(&part.first);
                    }
                    first &= part.nullable;
                    if !part.nullable {
                        before.clear();
                    }
                    before.extend(&part.last);
                    whole.last.extend(&part.last);
                }
                Some(whole)
            }
        }
    }
}

/// The characters with which a word of `b` goes on after a word of `a`; none where that is too much work.
fn extends(a: &Automaton, b: &Automaton, steps: &mut usize) -> Option<Chars> {
    let mut found = Chars::empty();
    let mut seen: HashMap<(usize, usize), ()> = HashMap::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    let pairs = |x: &Set, y: &Set| -> Vec<(usize, usize)> {
        x.iter()
            .flat_map(|p| y.iter().map(|q| (*p, *q)))
            .filter(|(p, q)| a.chars[*p].meets(&b.chars[*q]))
            .collect()
    };
    open.extend(pairs(&a.first, &b.first));
    while let Some((p, q)) = open.pop() {
        if seen.insert((p, q), ()).is_some() {
            continue;
        }
        *steps += 1 + a.follow[p].len() * b.follow[q].len();
        if *steps > MAX_STEPS {
            return None;
        }
        if a.last.contains(&p) {
            b.follow[q].iter().for_each(|at| found.add(&b.chars[*at]));
        }
        open.extend(pairs(&a.follow[p], &b.follow[q]));
    }
    Some(found)
}
