//! Reads a GBNF source.

use super::chars::Chars;
use super::{Expr, Gbnf};
use crate::error::clip;
use crate::{GrammarError, Limits, Place};
use std::collections::HashMap;

/// Largest number of a repetition.
const MAX_REPEAT: u32 = 10_000;

pub(super) fn parse(source: &str, limits: &Limits) -> Result<Gbnf, GrammarError> {
    let mut parser = Parser {
        source,
        at: 0,
        limits,
        depth: 0,
        names: HashMap::new(),
        rules: Vec::new(),
    };
    parser.space(Lines::Cross);
    while parser.at < source.len() {
        parser.rule()?;
    }
    parser.finish()
}

/// Whether white space includes line ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// They are space.
    Cross,
    /// They end a rule, unless `|` begins the next line.
    End,
}

struct Named {
    /// Where it was first seen.
    at: usize,
    body: Option<Expr>,
}

struct Parser<'a> {
    source: &'a str,
    /// Byte.
    at: usize,
    limits: &'a Limits,
    depth: usize,
    names: HashMap<&'a str, usize>,
    rules: Vec<Named>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn error<T>(&self, at: usize, cause: impl Into<String>) -> Result<T, GrammarError> {
        Err(GrammarError::Invalid {
            place: Place::of_byte(self.source, at),
            cause: cause.into(),
        })
    }

    fn expected<T>(&self, what: &str) -> Result<T, GrammarError> {
        let found = match self.peek() {
            Some(c) => format!("`{}`", c.escape_debug()),
            None => "the end".into(),
        };
        self.error(self.at, format!("expected {what}, found {found}"))
    }

    /// Space and comments.
    fn space(&mut self, lines: Lines) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('\r' | '\n') if lines == Lines::Cross => self.at += 1,
                Some('#') => {
                    let length = self.rest().find(['\r', '\n']);
                    self.at += length.unwrap_or(self.rest().len());
                }
                Some('\r' | '\n') => {
                    let here = self.at;
                    self.space(Lines::Cross);
                    if self.peek() != Some('|') {
                        self.at = here;
                    }
                    return;
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<&'a str, GrammarError> {
        let rest = self.rest();
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let length = rest.find(|c| !word(c)).unwrap_or(rest.len());
        if length == 0 {
            return self.expected("a rule's name");
        }
        self.at += length;
        Ok(&rest[..length])
    }

    fn index(&mut self, name: &'a str, at: usize) -> Result<usize, GrammarError> {
        if let Some(index) = self.names.get(name) {
            return Ok(*index);
        }
        let index = self.rules.len();
        if index >= self.limits.rules {
            return Err(GrammarError::TooLarge {
                place: Place::of_byte(self.source, at),
                what: "the number of rules",
                found: index + 1,
                limit: self.limits.rules,
            });
        }
        self.names.insert(name, index);
        self.rules.push(Named { at, body: None });
        Ok(index)
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let at = self.at;
        let name = self.name()?;
        let index = self.index(name, at)?;
        self.space(Lines::End);
        if !self.eat("::=") {
            return self.expected("`::=`");
        }
        self.space(Lines::Cross);
        let body = self.choice(Lines::End)?;
        if self.rules[index].body.is_some() {
            return self.error(at, format!("the rule `{}` is there already", clip(name)));
        }
        self.rules[index].body = Some(body);
        if !matches!(self.peek(), None | Some('\r' | '\n')) {
            return self.expected("the end of the rule");
        }
        self.space(Lines::Cross);
        Ok(())
    }

    fn choice(&mut self, lines: Lines) -> Result<Expr, GrammarError> {
        let mut options = vec![self.sequence(lines)?];
        while self.eat("|") {
            self.space(Lines::Cross);
            options.push(self.sequence(lines)?);
        }
        Ok(match options.len() {
            1 => options.swap_remove(0),
            _ => Expr::Choice(options),
        })
    }

    fn sequence(&mut self, lines: Lines) -> Result<Expr, GrammarError> {
        let mut items = Vec::new();
        loop {
            let item = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    Expr::Class(Chars::any())
                }
                Some('<') => self.token()?,
                Some('!') => {
                    return self.error(self.at, "negated tokens (`!`) are not supported");
                }
                Some('(') => self.group()?,
                Some(c) if c.is_ascii_alphanumeric() || c == '_' || c == '-' => {
                    let at = self.at;
                    let name = self.name()?;
                    Expr::Rule(self.index(name, at)?)
                }
                _ => break,
            };
            self.space(lines);
            items.push(self.repeated(item, lines)?);
        }
        Ok(match items.len() {
            1 => items.swap_remove(0),
            _ => Expr::Sequence(items),
        })
    }

    fn group(&mut self) -> Result<Expr, GrammarError> {
        let open = self.at;
        self.at += 1;
        self.depth += 1;
        if self.depth > self.limits.nesting {
            return Err(GrammarError::TooLarge {
                place: Place::of_byte(self.source, open),
                what: "the depth of brackets",
                found: self.depth,
                limit: self.limits.nesting,
            });
        }
        self.space(Lines::Cross);
        let inner = self.choice(Lines::Cross)?;
        self.depth -= 1;
        if !self.eat(")") {
            return self.expected("`)`");
        }
        Ok(inner)
    }

    fn repeated(&mut self, mut item: Expr, lines: Lines) -> Result<Expr, GrammarError> {
        let mut operators = 0;
        loop {
            let at = self.at;
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.counts()?,
                _ => return Ok(item),
            };
            operators += 1;
            if operators > self.limits.nesting {
                return self.error(at, "too many repetitions of repetitions");
            }
            // `counts` leaves its last character, as the others do.
            self.at += 1;
            self.space(lines);
            item = match max {
                Some(0) => Expr::Sequence(Vec::new()),
                _ => Expr::Repeat(Box::new(item), min, max),
            };
        }
    }

    /// `{m}`, `{m,}` or `{m,n}`, up to the last brace.
    fn counts(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        let open = self.at;
        self.at += 1;
        self.space(Lines::Cross);
        let min = self.number()?;
        self.space(Lines::Cross);
        let mut max = Some(min);
        if self.eat(",") {
            self.space(Lines::Cross);
            max = match self.peek() {
                Some('}') => None,
                _ => Some(self.number()?),
            };
            self.space(Lines::Cross);
        }
        if self.peek() != Some('}') {
            return self.expected("`}`");
        }
        if max.is_some_and(|max| max < min) {
            return self.error(open, "the least number of repetitions is above the largest");
        }
        Ok((min, max))
    }

    fn number(&mut self) -> Result<u32, GrammarError> {
        let at = self.at;
        let rest = self.rest();
        let length = rest.find(|c: char| !c.is_ascii_digit());
        let digits = &rest[..length.unwrap_or(rest.len())];
        if digits.is_empty() {
            return self.expected("a number");
        }
        self.at += digits.len();
        match digits.parse() {
            Ok(number) if number <= MAX_REPEAT => Ok(number),
            _ => self.error(
                at,
                format!("`{}` repetitions are above {MAX_REPEAT}", clip(digits)),
            ),
        }
    }

    fn literal(&mut self) -> Result<Expr, GrammarError> {
        let open = self.at;
        self.at += 1;
        let mut items = Vec::new();
        loop {
            match self.peek() {
                None => return self.error(open, "this text never ends; close it with `\"`"),
                Some('"') => break,
                Some(_) => items.push(Expr::Class(Chars::one(self.character()?))),
            }
        }
        self.at += 1;
        // Repetitions apply to the whole text.
        Ok(Expr::Sequence(items))
    }

    fn class(&mut self) -> Result<Expr, GrammarError> {
        let open = self.at;
        self.at += 1;
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None => return self.error(open, "this class never ends; close it with `]`"),
                Some(']') => break,
                Some(_) => {}
            }
            let at = self.at;
            let first = self.character()?;
            let range = self.rest().strip_prefix('-');
            let last = if range.is_some_and(|rest| !rest.starts_with(']')) {
                self.at += 1;
                if self.peek().is_none() {
                    return self.error(open, "this class never ends; close it with `]`");
                }
                self.character()?
            } else {
                first
            };
            if last < first {
                return self.error(at, "this range's end is before its beginning");
            }
            ranges.push((first, last));
        }
        self.at += 1;
        let chars = Chars::ranges(ranges);
        let chars = if negated { chars.negated() } else { chars };
        if chars.is_empty() {
            return self.error(open, "this class has no character");
        }
        Ok(Expr::Class(chars))
    }

    /// One character, perhaps escaped. There is one.
    fn character(&mut self) -> Result<char, GrammarError> {
        let at = self.at;
        if !self.eat("\\") {
            return match self.next() {
                Some(c) => Ok(c),
                None => self.expected("a character"),
            };
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return self.error(at, "unknown escape"),
        };
        let code = self.rest().get(..digits);
        let code = code.filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
        let c = code
            .and_then(|code| u32::from_str_radix(code, 16).ok())
            .and_then(char::from_u32);
        match c {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => self.error(
                at,
                format!("expected {digits} hexadecimal digits of a character"),
            ),
        }
    }

    fn token(&mut self) -> Result<Expr, GrammarError> {
        let rest = self.rest();
        let end = rest.find('>').map(|end| &rest[..=end]);
        match end.filter(|token| token.len() > 2 && !token.contains(char::is_whitespace)) {
            Some(token) if !token[1..].contains('<') => {
                self.at += token.len();
                Ok(Expr::Token(token.to_owned()))
            }
            _ => self.error(self.at, "expected a token such as `<|end|>` or `<[7]>`"),
        }
    }

    fn finish(self) -> Result<Gbnf, GrammarError> {
        let Some(root) = self.names.get("root").copied() else {
            return self.error(0, "there is no rule `root`");
        };
        let mut rules = Vec::with_capacity(self.rules.len());
        for rule in &self.rules {
            match &rule.body {
                Some(body) => rules.push(body.clone()),
                None => {
                    let names = self.names.iter();
                    let name = names.filter(|(_, at)| self.rules[**at].at == rule.at);
                    let name = name.map(|(name, _)| *name).next().unwrap_or_default();
                    return self.error(
                        rule.at,
                        format!("the rule `{}` is used, but there is none", clip(name)),
                    );
                }
            }
        }
        Ok(Gbnf { rules, root })
    }
}
