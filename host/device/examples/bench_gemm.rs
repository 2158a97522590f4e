//! Speed of the CPU's matrix kernels on SmolLM2-135M's shapes, one thread.

use guesthouse_device::bench::time_product;
use guesthouse_weights::{BlockType, DType, Scheme};

fn main() {
    let shapes = [
        (576, 576),
        (192, 576),
        (1536, 576),
        (576, 1536),
        (49152, 576),
    ];
    let schemes = [
        Scheme::Block(BlockType::Q4_1),
        Scheme::Block(BlockType::Q4_0),
        Scheme::Block(BlockType::Q5_1),
        Scheme::Block(BlockType::Q8_0),
        Scheme::Block(BlockType::Q2K),
        Scheme::Block(BlockType::Q3K),
        Scheme::Block(BlockType::Q4K),
        Scheme::Block(BlockType::Q5K),
        Scheme::Block(BlockType::Q6K),
        Scheme::Plain(DType::Bf16),
        Scheme::Plain(DType::F16),
        Scheme::Plain(DType::F32),
    ];
    println!("scheme   rows   cols  tokens      us    GB/s  GFLOP/s  Gweight/s");
    for scheme in schemes {
        for (rows, cols) in shapes {
            if cols % scheme.unit().0 != 0 {
                continue;
            }
            for tokens in [1, 2, 4, 16, 96] {
                if tokens > 16 && rows > 10_000 {
                    continue;
                }
                let Some((seconds, bytes)) = time_product(scheme, rows, cols, tokens, 20) else {
                    continue;
                };
                let weights = (rows * cols) as f64;
                println!(
                    "{:6} {rows:6} {cols:6} {tokens:7} {:7.1} {:7.1} {:8.1} {:10.2}",
                    scheme.to_string(),
                    seconds * 1e6,
                    bytes as f64 / seconds / 1e9,
                    2.0 * weights * tokens as f64 / seconds / 1e9,
                    weights / seconds / 1e9,
                );
            }
        }
    }
}
