//! A set of strings that finds those which a text begins with.

/// Strings with a number each, as a trie over bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trie {
    /// Where each node's edges begin; the next node's beginning is their end.
    first_edge: Vec<u32>,
    /// The edges' bytes, ascending within a node.
    labels: Vec<u8>,
    /// Where each edge leads.
    targets: Vec<u32>,
    /// The number of the string that ends at a node; `NONE` if none does.
    values: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl Trie {
    /// Takes distinct non-empty strings. The strings have at most 2^31 bytes together.
    pub(crate) fn new<'a>(strings: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let mut sorted: Vec<(&[u8], u32)> = strings
            .into_iter()
            .map(|(text, value)| (text.as_bytes(), value))
            .collect();
        sorted.sort_unstable();
        let mut trie = Self::default();
        // Breadth first, so that the edges of a node stand together: a node is a range of strings with a common prefix.
        let mut level = std::collections::VecDeque::from([(0, sorted.len(), 0)]);
        let mut nodes = 1;
        while let Some((mut from, to, depth)) = level.pop_front() {
            trie.first_edge.push(offset(trie.labels.len()));
            let own = sorted[from..to]
                .first()
                .filter(|(text, _)| text.len() == depth);
            trie.values.push(own.map_or(NONE, |(_, value)| *value));
            from += usize::from(own.is_some());
            while from < to {
                let label = sorted[from].0[depth];
                let count = sorted[from..to].partition_point(|(text, _)| text[depth] == label);
                trie.labels.push(label);
                trie.targets.push(nodes);
                nodes += 1;
                level.push_back((from, from + count, depth + 1));
                from += count;
            }
        }
        trie.first_edge.push(offset(trie.labels.len()));
        trie
    }

    /// Every string that `text` begins with, shortest first: its length in bytes and its number.
    pub(crate) fn prefixes(&self, text: &[u8]) -> impl Iterator<Item = (usize, u32)> {
        let mut node = 0;
        let walk = text.iter().enumerate().map_while(move |(at, byte)| {
            let (from, to) = (self.first_edge[node], self.first_edge[node + 1]);
            let edges = &self.labels[from as usize..to as usize];
            let edge = edges.binary_search(byte).ok()?;
            node = self.targets[from as usize + edge] as usize;
            Some((at + 1, self.values[node]))
        });
        walk.filter(|(_, value)| *value != NONE)
    }

    /// The length of the longest string that `text` begins with.
    pub(crate) fn longest(&self, text: &str) -> Option<usize> {
        self.prefixes(text.as_bytes()).last().map(|(len, _)| len)
    }
}

fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(NONE)
}
