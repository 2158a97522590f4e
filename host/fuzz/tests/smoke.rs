//! Each target over its corpus, and over seeded mutations of it.
#![allow(clippy::unwrap_used)]

use guesthouse_fuzz::TARGETS;
use std::path::Path;

/// Mutations per target; `GUESTHOUSE_FUZZ_RUNS` asks for more.
const RUNS: usize = 2000;

/// Marsaglia's xorshift64*.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// A few bytes flipped, replaced, dropped, doubled, or taken from another input.
fn mutate(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut data = seeds[rng.below(seeds.len())].clone();
    for _ in 0..=rng.below(4) {
        let at = rng.below(data.len());
        let end = (at + 1 + rng.below(16)).min(data.len());
        match rng.below(7) {
            _ if data.is_empty() => data.push(rng.next() as u8),
            0 => data[at] ^= 1 << rng.below(8),
            1 => data[at] = rng.next() as u8,
            2 => data[at] = [0, 0x7f, 0x80, 0xff, b'0', b'"', b'{', b'['][rng.below(8)],
            3 => data.truncate(at),
            4 => drop(data.drain(at..end)),
            5 => data.extend_from_within(at..end),
            _ => {
                let other = &seeds[rng.below(seeds.len())];
                let from = rng.below(other.len());
                let to = (from + 1 + rng.below(32)).min(other.len());
                data.splice(at..end, other[from..to].iter().copied());
            }
        }
    }
    data
}

fn run(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut files: Vec<_> = std::fs::read_dir(folder.join(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
    assert!(!seeds.is_empty());
    let (_, target) = TARGETS.into_iter().find(|(n, _)| *n == name).unwrap();
    seeds.iter().for_each(|seed| target(seed));
    let runs = std::env::var("GUESTHOUSE_FUZZ_RUNS").map_or(RUNS, |runs| runs.parse().unwrap());
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    for _ in 0..runs {
        target(&mutate(&mut rng, &seeds));
    }
}

macro_rules! smoke {
    ($($name:ident)*) => { $( #[test] fn $name() { run(stringify!($name)); } )* };
}

smoke!(http_body gguf safetensors tokenizer record grammar tiktoken component chat_parsers admin_body);
