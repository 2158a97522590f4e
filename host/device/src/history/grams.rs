//! Where the same few tokens occur again, kept while a history grows and shrinks at its end.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use guesthouse_engine::TokenId;

/// No position.
const NONE: u32 = u32::MAX;
/// A position whose follower is listed elsewhere, or that has none.
const UNLISTED: u32 = u32::MAX - 1;

/// Odd, so that it can be multiplied with for ever.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

fn mixed(token: TokenId) -> u64 {
    let x = (u64::from(token) + 1).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ x >> 29
}

/// Hash of the `len` tokens that end at each position. Equal tokens have equal hashes; others may too, so that whoever
/// uses them compares the tokens.
#[derive(Clone, Debug)]
struct Rolling {
    len: usize,
    /// `FACTOR^len`
    power: u64,
    hashes: Vec<u64>,
}

impl Rolling {
    fn new(len: usize) -> Self {
        let mut power = 1u64;
        let (mut base, mut left) = (FACTOR, len);
        while left > 0 {
            if left % 2 == 1 {
                power = power.wrapping_mul(base);
            }
            base = base.wrapping_mul(base);
            left /= 2;
        }
        Self {
            len,
            power,
            hashes: Vec::new(),
        }
    }

    /// Of the last of `tokens`, which is new; none while there are fewer than `len`.
    fn push(&mut self, tokens: &[TokenId]) -> Option<u64> {
        let at = self.hashes.len();
        let before = self.hashes.last().copied().unwrap_or(0);
        let mut hash = before.wrapping_mul(FACTOR).wrapping_add(mixed(tokens[at]));
        if let Some(left) = at.checked_sub(self.len) {
            hash = hash.wrapping_sub(mixed(tokens[left]).wrapping_mul(self.power));
        }
        self.hashes.push(hash);
        (at + 1 >= self.len).then_some(hash)
    }

    fn pop(&mut self) -> Option<u64> {
        let hash = self.hashes.pop()?;
        (self.hashes.len() + 1 >= self.len).then_some(hash)
    }
}

/// Takes a chain's last link away.
fn unlink(heads: &mut HashMap<u64, u32>, hash: u64, before: u32) {
    if before == NONE {
        heads.remove(&hash);
    } else {
        heads.insert(hash, before);
    }
}

/// For each position the one before where, very likely, the same tokens end.
#[derive(Clone, Debug)]
pub(super) struct Chains {
    rolling: Rolling,
    before: Vec<u32>,
    last: HashMap<u64, u32>,
}

impl Chains {
    pub(super) fn new(len: usize) -> Self {
        Self {
            rolling: Rolling::new(len),
            before: Vec::new(),
            last: HashMap::new(),
        }
    }

    /// The last of `tokens` is new.
    pub(super) fn push(&mut self, tokens: &[TokenId]) {
        let at = self.before.len() as u32;
        let before = self
            .rolling
            .push(tokens)
            .and_then(|hash| self.last.insert(hash, at));
        self.before.push(before.unwrap_or(NONE));
    }

    pub(super) fn pop(&mut self) {
        if let (hash, Some(before)) = (self.rolling.pop(), self.before.pop())
            && let Some(hash) = hash
        {
            unlink(&mut self.last, hash, before);
        }
    }

    /// Earlier positions where the same tokens end, latest first.
    pub(super) fn earlier(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let next = |at: usize| {
            let before = *self.before.get(at)?;
            (before != NONE).then_some(before as usize)
        };
        std::iter::successors(next(at), move |&at| next(at))
    }
}

/// The distinct tokens that followed any `n - 1` tokens; n is 2 or more.
#[derive(Clone, Debug)]
pub(super) struct Followers {
    before: Rolling,
    whole: Rolling,
    /// End of the first of equal sequences of n tokens.
    first: HashMap<u64, u32>,
    /// Last listed position where such `n - 1` tokens end.
    heads: HashMap<u64, u32>,
    /// By position: the one listed before it.
    links: Vec<u32>,
}

impl Followers {
    pub(super) fn new(n: usize) -> Self {
        Self {
            before: Rolling::new(n - 1),
            whole: Rolling::new(n),
            first: HashMap::new(),
            heads: HashMap::new(),
            links: Vec::new(),
        }
    }

    pub(super) fn n(&self) -> usize {
        self.whole.len
    }

    pub(super) fn push(&mut self, tokens: &[TokenId]) {
        let at = self.links.len();
        let n = self.n();
        self.before.push(tokens);
        self.links.push(UNLISTED);
        let Some(hash) = self.whole.push(tokens) else {
            return;
        };
        let same = |end: u32| {
            let end = end as usize + 1;
            tokens[end - n..end] == tokens[at + 1 - n..=at]
        };
        match self.first.entry(hash) {
            Entry::Occupied(entry) if same(*entry.get()) => return,
            Entry::Occupied(_) => {}
            Entry::Vacant(entry) => {
                entry.insert(at as u32);
            }
        }
        let head = self.heads.insert(self.before.hashes[at - 1], at as u32 - 1);
        self.links[at - 1] = head.unwrap_or(NONE);
    }

    pub(super) fn pop(&mut self) {
        let (Some(at), Some(hash)) = (self.links.len().checked_sub(1), self.whole.pop()) else {
            self.links.pop();
            self.before.pop();
            return;
        };
        if self.first.get(&hash) == Some(&(at as u32)) {
            self.first.remove(&hash);
        }
        if self.links[at - 1] != UNLISTED {
            unlink(
                &mut self.heads,
                self.before.hashes[at - 1],
                self.links[at - 1],
            );
            self.links[at - 1] = UNLISTED;
        }
        self.links.pop();
        self.before.pop();
    }

    /// Tokens that followed the last `n - 1` ones of `tokens` before; in no order, and hardly ever one twice.
    pub(super) fn of_end<'a>(
        &'a self,
        tokens: &'a [TokenId],
    ) -> impl Iterator<Item = TokenId> + 'a {
        let end = &tokens[(tokens.len() + 1).saturating_sub(self.n())..];
        let hash = (end.len() + 1 == self.n())
            .then(|| self.before.hashes.last())
            .flatten();
        let head = hash.and_then(|hash| self.heads.get(hash).copied());
        std::iter::successors(head, |&at| {
            let before = self.links[at as usize];
            (before != NONE).then_some(before)
        })
        .map(|at| at as usize + 1)
        .filter(move |&at| tokens[at - end.len()..at] == *end)
        .map(|at| tokens[at])
    }
}
