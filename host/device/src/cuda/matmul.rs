//! Choosing how a matrix product is computed: every way is tried once per shape, and the best is remembered on disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::blas::{Algorithm, Lt, Operands, Product};
use super::driver::{Buffer, Event, Gpu};
use super::ops::own::{Gating, Own};
use super::options::{CudaDtype, Numerics};
use crate::error::{DeviceError, Result};

/// Written between two tries so that weights come from memory, as they do in a model: larger than any L2.
const FLUSH: usize = 256 << 20;

/// Tries per way; the median counts.
const TRIES: usize = 5;

/// What of its time alone one of our kernels costs between others.
const OVERLAP: f32 = 0.93;

/// A way to compute a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// By cuBLASLt.
    Library(Algorithm),
    /// By one of our kernels, by its number.
    Own(u32),
}

/// Whether w may be read before the kernels ahead have ended, as our own kernels do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Weights {
    /// Nothing writes them.
    Fixed,
    /// A kernel ahead does.
    Written,
}

/// Products for which one choice holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// Rows of x, rounded up to a power of two; 0 where the choice must not depend on them.
    m: u32,
    n: u32,
    k: u32,
    input: CudaDtype,
    output: CudaDtype,
    bias: bool,
    gating: Option<Gating>,
    weights: Weights,
    numerics: Numerics,
}

impl Key {
    fn of(p: &Product, weights: Weights, numerics: Numerics) -> Self {
        Self {
            m: match numerics {
                Numerics::Fast => p.m.next_power_of_two(),
                Numerics::BatchInvariant => 0,
            },
            n: p.n,
            k: p.k,
            input: p.input,
            output: p.output,
            bias: p.bias,
            gating: p.gating,
            weights,
            numerics,
        }
    }

    fn text(&self) -> String {
        format!(
            "{}x{}x{} {} {} {} {} {:?}{}",
            self.m,
            self.n,
            self.k,
            self.input.name(),
            self.output.name(),
            self.bias,
            self.gating.map_or(0, Gating::number),
            self.numerics,
            match self.weights {
                Weights::Fixed => "",
                Weights::Written => " written",
            }
        )
    }
}

/// Matrix products of one GPU.
pub(crate) struct Matmul {
    gpu: Arc<Gpu>,
    lt: Lt,
    own: Own,
    numerics: Numerics,
    chosen: Mutex<HashMap<Key, Choice>>,
    /// What does for products whose choice refuses them.
    others: Mutex<HashMap<Product, Algorithm>>,
    /// Choices of earlier runs, by the text of their key.
    kept: Mutex<HashMap<String, Choice>>,
    file: Option<PathBuf>,
    flush: Mutex<Option<(Buffer, Event, Event)>>,
}

impl Matmul {
    /// Opens the libraries and reads what earlier runs chose.
    ///
    /// # Errors
    /// When cuBLASLt is missing.
    pub(crate) fn open(
        gpu: &Arc<Gpu>,
        numerics: Numerics,
        cache: Option<&Path>,
    ) -> Result<Arc<Self>> {
        let lt = Lt::open(gpu)?;
        let name: String = gpu
            .properties
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let file = cache.map(|c| {
            c.join(format!(
                "products-{name}-{}-{}.txt",
                lt.version,
                Own::VERSION
            ))
        });
        let kept = file.as_deref().map(read).unwrap_or_default();
        Ok(Arc::new(Self {
            own: Own::new(gpu)?,
            gpu: Arc::clone(gpu),
            lt,
            numerics,
            chosen: Mutex::default(),
            others: Mutex::default(),
            kept: Mutex::new(kept),
            file,
            flush: Mutex::new(None),
        }))
    }

    /// Whether results may depend on what else is in a batch.
    pub(crate) fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// Enqueues a product. The first of its kind takes longer: ways are tried on the operands, whose result is written
    /// again and again; that one must not be captured into a graph.
    ///
    /// # Errors
    /// When nothing computes it.
    pub(crate) fn run(&self, p: &Product, operands: &Operands) -> Result<()> {
        self.run_on(p, operands, Weights::Fixed)
    }

    /// The same, for weights that something writes.
    ///
    /// # Errors
    /// When nothing computes it.
    pub(crate) fn run_on(&self, p: &Product, operands: &Operands, weights: Weights) -> Result<()> {
        if p.m == 0 || p.n == 0 {
            return Ok(());
        }
        let key = Key::of(p, weights, self.numerics);
        let found = lock(&self.chosen).get(&key).copied();
        let choice = match found {
            Some(choice) => choice,
            None => self.choose(key, p, operands)?,
        };
        match (self.launch(p, operands, choice), choice) {
            (Err(error), Choice::Library(_)) => self.launch_other(p, operands).map_err(|_| error),
            (launched, _) => launched,
        }
    }

    /// Where the library's chosen algorithm refuses, which one may for some of the numbers of rows that share a choice: the
    /// one that it thinks best for exactly this product.
    fn launch_other(&self, p: &Product, operands: &Operands) -> Result<()> {
        if let Some(algorithm) = lock(&self.others).get(p) {
            return self.lt.run(&self.gpu, p, operands, algorithm);
        }
        let mut algorithms = self.lt.algorithms(p, self.numerics)?.into_iter();
        let found = algorithms.find(|a| self.lt.run(&self.gpu, p, operands, a).is_ok());
        let found = found.ok_or_else(|| DeviceError::Gpu {
            doing: "multiplying matrices",
            what: format!("no algorithm for {p:?}"),
        })?;
        lock(&self.others).insert(*p, found);
        Ok(())
    }

    fn launch(&self, p: &Product, operands: &Operands, choice: Choice) -> Result<()> {
        match choice {
            Choice::Library(algorithm) => self.lt.run(&self.gpu, p, operands, &algorithm),
            Choice::Own(variant) => self.own.run(&self.gpu, p, operands, variant),
        }
    }

    fn choose(&self, key: Key, p: &Product, operands: &Operands) -> Result<Choice> {
        let text = key.text();
        let kept = lock(&self.kept).get(&text).copied();
        let choice = match kept {
            // A choice of an earlier run may not do for this one's alignment.
            Some(choice) if self.launch(p, operands, choice).is_ok() => choice,
            _ => self.try_all(&text, p, operands, key.weights)?,
        };
        lock(&self.chosen).insert(key, choice);
        Ok(choice)
    }

    fn ways(&self, p: &Product, weights: Weights) -> Result<Vec<Choice>> {
        let own = match weights {
            Weights::Fixed => self.own.candidates(p, self.numerics),
            Weights::Written => Vec::new(),
        };
        let own = own.into_iter().map(Choice::Own);
        if self.numerics == Numerics::BatchInvariant {
            // One way for any number of rows.
            let own: Vec<Choice> = own.take(1).collect();
            if !own.is_empty() || p.gating.is_some() {
                return Ok(own);
            }
            let wide = Product { m: 512, ..*p };
            let first = self
                .lt
                .algorithms(&wide, Numerics::BatchInvariant)?
                .into_iter()
                .next();
            return Ok(first.map(Choice::Library).into_iter().collect());
        }
        if p.gating.is_some() {
            return Ok(own.collect());
        }
        let library = self
            .lt
            .algorithms(p, Numerics::Fast)?
            .into_iter()
            .map(Choice::Library);
        Ok(own.chain(library).collect())
    }

    fn try_all(
        &self,
        text: &str,
        p: &Product,
        operands: &Operands,
        weights: Weights,
    ) -> Result<Choice> {
        let ways = self.ways(p, weights)?;
        let mut best: Option<(f32, Choice)> = None;
        for &way in &ways {
            if ways.len() == 1 {
                best = Some((0.0, way));
                break;
            }
            let Ok(time) = self.time(p, operands, way) else {
                continue;
            };
            // Our kernels read weights while the kernel ahead still runs, which a try on its own does not show.
            let time = match way {
                Choice::Own(_) => time * OVERLAP,
                Choice::Library(_) => time,
            };
            if best.is_none_or(|(least, _)| time < least) {
                best = Some((time, way));
            }
        }
        let Some((time, choice)) = best else {
            return Err(DeviceError::Gpu {
                doing: "choosing an algorithm",
                what: format!("no kernel multiplies {text}"),
            });
        };
        tracing::debug!(
            product = text,
            m = p.m,
            microseconds = time * 1e3,
            own = matches!(choice, Choice::Own(_)),
            ways = ways.len(),
            "chosen"
        );
        lock(&self.kept).insert(text.to_owned(), choice);
        if let Some(file) = &self.file {
            append(file, text, choice);
        }
        Ok(choice)
    }

    /// Median time of a way, milliseconds.
    fn time(&self, p: &Product, operands: &Operands, way: Choice) -> Result<f32> {
        let mut flush = lock(&self.flush);
        if flush.is_none() {
            let buffer = self.gpu.allocate(FLUSH, "trying matrix products")?;
            *flush = Some((buffer, self.gpu.event()?, self.gpu.event()?));
        }
        let Some((buffer, start, end)) = &*flush else {
            return Err(DeviceError::plan("no memory to try products with"));
        };
        self.launch(p, operands, way)?;
        let mut times = Vec::with_capacity(TRIES);
        for _ in 0..TRIES {
            self.gpu.fill(buffer.address(), 1, FLUSH)?;
            start.record()?;
            self.launch(p, operands, way)?;
            end.record()?;
            end.wait()?;
            times.push(end.since(start)?);
        }
        times.sort_by(f32::total_cmp);
        Ok(times[TRIES / 2])
    }

    /// Gives back memory that only trying needs.
    pub(crate) fn settle(&self) {
        *lock(&self.flush) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One line per choice: key, tab, `own N` or nine words. Lines that make no sense are skipped.
fn read(file: &Path) -> HashMap<String, Choice> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let parse = |line: &str| {
        let (key, choice) = line.split_once('\t')?;
        let choice = match choice.strip_prefix("own ") {
            Some(n) => Choice::Own(n.parse().ok()?),
            None => {
                let words: Vec<u64> = choice
                    .split(' ')
                    .map(|w| u64::from_str_radix(w, 16).ok())
                    .collect::<Option<_>>()?;
                Choice::Library(Algorithm::of(words.try_into().ok()?))
            }
        };
        Some((key.to_owned(), choice))
    };
    text.lines().filter_map(parse).collect()
}

fn append(file: &Path, key: &str, choice: Choice) {
    use std::io::Write as _;
    let choice = match choice {
        Choice::Own(n) => format!("own {n}"),
        Choice::Library(a) => a.words().map(|w| format!("{w:x}")).join(" "),
    };
    let line = format!("{key}\t{choice}\n");
    let opened = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(file);
    if let Err(error) = opened.and_then(|mut f| f.write_all(line.as_bytes())) {
        tracing::warn!(file = %file.display(), %error, "a choice was not kept");
    }
}
