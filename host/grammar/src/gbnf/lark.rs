//! Writes a grammar as Lark.

use super::chars::Chars;
use super::{Expr, Gbnf};
use crate::syntax::quote;
use std::collections::HashMap;
use std::fmt::Write as _;

/// What becomes a terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Terminals {
    /// Whatever is regular, as large as it is; neighbours are one.
    Regular,
    /// Whatever is regular, but neighbours of parts that are not stay apart: places that differ only in what comes later then
    /// begin with the same terminal.
    Apart,
    /// Each character.
    Characters,
}

/// A rule's right-hand side over terminals.
pub(super) enum Node {
    /// By index; never empty.
    Terminal(usize),
    Token,
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// Whether it may be left out, and whether it may come more than once.
    Repeat(Box<Node>, bool, bool),
}

/// A grammar in Lark, and what it is made of.
pub(super) struct Written<'a> {
    pub(super) text: String,
    pub(super) start: Node,
    /// None where a rule is part of terminals.
    pub(super) rules: Vec<Option<Node>>,
    pub(super) terminals: Vec<Expr>,
    pub(super) source: &'a Gbnf,
}

pub(super) fn write(source: &Gbnf, terminals: Terminals) -> Written<'_> {
    let regular = match terminals {
        Terminals::Regular | Terminals::Apart => regular(source),
        Terminals::Characters => vec![false; source.rules.len()],
    };
    let mut writer = Writer {
        mode: terminals,
        nullable: nullable(source),
        regular,
        written: HashMap::new(),
        terminals: Vec::new(),
        text: String::new(),
    };
    let start = writer.node(&Expr::Rule(source.root));
    let mut text = format!("start: {}\n", start.0);
    let mut rules = Vec::new();
    for (index, rule) in source.rules.iter().enumerate() {
        let node = (!writer.regular[index]).then(|| {
            let (body, node) = writer.node(&loops(rule, index, &writer.regular));
            let _ = writeln!(text, "r{index}: {body}");
            node
        });
        rules.push(node);
    }
    for (index, rule) in source.rules.iter().enumerate() {
        if writer.regular[index] {
            let _ = writeln!(text, "T{index}: {}", terminal(rule));
        }
    }
    text.push_str(&writer.text);
    Written {
        text,
        start: start.1,
        rules,
        terminals: writer.terminals,
        source,
    }
}

/// `r ::= (x r)?` is `x*` where x is regular: so white space is often written.
fn loops(rule: &Expr, own: usize, regular: &[bool]) -> Expr {
    if let Expr::Repeat(inner, 0, Some(1)) = rule
        && let Expr::Sequence(items) = inner.as_ref()
        && let Some((Expr::Rule(last), rest)) = items.split_last()
        && *last == own
        && rest.iter().all(|item| is_regular(item, regular))
    {
        return Expr::Repeat(Box::new(Expr::Sequence(rest.to_vec())), 0, None);
    }
    rule.clone()
}

fn is_regular(expr: &Expr, rules: &[bool]) -> bool {
    match expr {
        Expr::Class(_) => true,
        Expr::Token(_) => false,
        Expr::Rule(rule) => rules[*rule],
        Expr::Sequence(items) | Expr::Choice(items) => items.iter().all(|e| is_regular(e, rules)),
        Expr::Repeat(inner, ..) => is_regular(inner, rules),
    }
}

fn references(expr: &Expr, found: &mut Vec<usize>) {
    match expr {
        Expr::Class(_) | Expr::Token(_) => {}
        Expr::Rule(rule) => found.push(*rule),
        Expr::Sequence(items) | Expr::Choice(items) => {
            items.iter().for_each(|item| references(item, found));
        }
        Expr::Repeat(inner, ..) => references(inner, found),
    }
}

/// The rules that reach neither themselves nor a token nor another such rule.
fn regular(source: &Gbnf) -> Vec<bool> {
    let count = source.rules.len();
    let mut users = vec![Vec::new(); count];
    let mut waiting = vec![0; count];
    for (index, rule) in source.rules.iter().enumerate() {
        let mut used = Vec::new();
        references(rule, &mut used);
        waiting[index] = used.len();
        used.into_iter().for_each(|rule| users[rule].push(index));
    }
    let mut regular = vec![false; count];
    let mut ready: Vec<usize> = (0..count).filter(|rule| waiting[*rule] == 0).collect();
    while let Some(rule) = ready.pop() {
        regular[rule] = is_regular(&source.rules[rule], &regular);
        if !regular[rule] {
            continue;
        }
        for &user in &users[rule] {
            waiting[user] -= 1;
            if waiting[user] == 0 {
                ready.push(user);
            }
        }
    }
    regular
}

pub(super) fn is_nullable(expr: &Expr, rules: &[bool]) -> bool {
    match expr {
        Expr::Class(_) | Expr::Token(_) => false,
        Expr::Rule(rule) => rules[*rule],
        Expr::Sequence(items) => items.iter().all(|e| is_nullable(e, rules)),
        Expr::Choice(items) => items.iter().any(|e| is_nullable(e, rules)),
        Expr::Repeat(inner, min, _) => *min == 0 || is_nullable(inner, rules),
    }
}

/// Which rules may be the empty text.
pub(super) fn nullable(source: &Gbnf) -> Vec<bool> {
    let mut nullable = vec![false; source.rules.len()];
    let mut users = vec![Vec::new(); source.rules.len()];
    for (index, rule) in source.rules.iter().enumerate() {
        let mut used = Vec::new();
        references(rule, &mut used);
        used.into_iter().for_each(|rule| users[rule].push(index));
    }
    let mut open: Vec<usize> = (0..source.rules.len()).collect();
    while let Some(rule) = open.pop() {
        if !nullable[rule] && is_nullable(&source.rules[rule], &nullable) {
            nullable[rule] = true;
            open.extend(&users[rule]);
        }
    }
    nullable
}

struct Writer {
    mode: Terminals,
    nullable: Vec<bool>,
    regular: Vec<bool>,
    /// Terminals by their text.
    written: HashMap<String, usize>,
    terminals: Vec<Expr>,
    /// Their definitions.
    text: String,
}

impl Writer {
    fn is_terminal(&self, expr: &Expr) -> bool {
        match self.mode {
            Terminals::Regular | Terminals::Apart => is_regular(expr, &self.regular),
            Terminals::Characters => matches!(expr, Expr::Class(_)),
        }
    }

    fn node(&mut self, expr: &Expr) -> (String, Node) {
        if self.is_terminal(expr) {
            return self.terminal(expr);
        }
        match expr {
            Expr::Rule(rule) => (format!("r{rule}"), Node::Rule(*rule)),
            Expr::Token(token) => (token.clone(), Node::Token),
            Expr::Sequence(items) => {
                // Neighbours that are terminals are one.
                let mut texts = Vec::new();
                let mut nodes = Vec::new();
                let mut rest = items.as_slice();
                while let Some(first) = rest.first() {
                    let together = match self.mode {
                        Terminals::Regular => {
                            let count = rest.iter().take_while(|e| self.is_terminal(e)).count();
                            count.max(1)
                        }
                        Terminals::Apart | Terminals::Characters => 1,
                    };
                    let (text, node) = match together {
                        1 => self.node(first),
                        _ => self.node(&Expr::Sequence(rest[..together].to_vec())),
                    };
                    texts.push(text);
                    nodes.push(node);
                    rest = &rest[together..];
                }
                let text = match texts.is_empty() {
                    true => "\"\"".into(),
                    false => format!("({})", texts.join(" ")),
                };
                (text, Node::Sequence(nodes))
            }
            Expr::Choice(items) => {
                let (terminals, others): (Vec<&Expr>, Vec<&Expr>) =
                    items.iter().partition(|item| self.is_terminal(item));
                let mut options: Vec<(String, Node)> = Vec::new();
                if self.mode != Terminals::Characters && terminals.len() > 1 {
                    let one = Expr::Choice(terminals.into_iter().cloned().collect());
                    options.push(self.terminal(&one));
                } else {
                    options.extend(terminals.into_iter().map(|item| self.terminal(item)));
                }
                options.extend(others.into_iter().map(|item| self.node(item)));
                let (texts, nodes): (Vec<String>, Vec<Node>) = options.into_iter().unzip();
                (format!("({})", texts.join(" | ")), Node::Choice(nodes))
            }
            Expr::Repeat(inner, min, max) => {
                let (text, node) = self.node(inner);
                let node = Node::Repeat(Box::new(node), *min == 0, *max != Some(1));
                (format!("({text}){}", operator(*min, *max)), node)
            }
            // Is a terminal.
            Expr::Class(_) => self.terminal(expr),
        }
    }

    /// A terminal is never empty for the matcher; where it may be, it may be left out.
    fn terminal(&mut self, expr: &Expr) -> (String, Node) {
        let body = terminal(expr);
        if body == "\"\"" {
            return (body, Node::Sequence(Vec::new()));
        }
        let nullable = is_nullable(expr, &self.nullable);
        let next = self.terminals.len();
        let index = *self.written.entry(body).or_insert_with_key(|body| {
            let _ = match nullable {
                true => writeln!(self.text, "X{next}: ({body}) & /(?s:.)+/"),
                false => writeln!(self.text, "X{next}: {body}"),
            };
            self.terminals.push(expr.clone());
            next
        });
        let node = Node::Terminal(index);
        match nullable {
            true => (
                format!("X{index}?"),
                Node::Repeat(Box::new(node), true, false),
            ),
            false => (format!("X{index}"), node),
        }
    }
}

fn operator(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

/// A regular expression of terminals.
fn terminal(expr: &Expr) -> String {
    match expr {
        Expr::Class(chars) => match chars.single() {
            Some(c) => quote(c.encode_utf8(&mut [0; 4])),
            None => format!("/{}/", chars.to_regex()),
        },
        Expr::Rule(rule) => format!("T{rule}"),
        // There is none in a terminal.
        Expr::Token(_) => String::new(),
        Expr::Sequence(items) => {
            let mut parts = Vec::new();
            let mut rest = items.as_slice();
            while let Some(first) = rest.first() {
                let text: String = rest.iter().map_while(single).collect();
                let count = text.chars().count();
                if count > 0 {
                    parts.push(quote(&text));
                } else {
                    parts.push(terminal(first));
                }
                rest = &rest[count.max(1)..];
            }
            match parts.len() {
                0 => "\"\"".into(),
                1 => parts.swap_remove(0),
                _ => format!("({})", parts.join(" ")),
            }
        }
        Expr::Choice(items) => {
            let options: Vec<String> = items.iter().map(terminal).collect();
            format!("({})", options.join(" | "))
        }
        Expr::Repeat(inner, min, max) => format!("({}){}", terminal(inner), operator(*min, *max)),
    }
}

fn single(expr: &Expr) -> Option<char> {
    match expr {
        Expr::Class(chars) => Chars::single(chars),
        _ => None,
    }
}
