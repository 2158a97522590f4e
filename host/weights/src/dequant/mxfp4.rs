//! OCP Microscaling Formats 1.0, MXFP4: e2m1 elements under an e8m0 scale.

/// e2m1 magnitudes by their three bits (table 5 of the specification).
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Blocks `[scale: 1][pairs: 16]`; both slices hold the same number of them.
pub(super) fn blocks(bytes: &[u8], out: &mut [f32]) {
    let (blocks, _) = bytes.as_chunks::<17>();
    let (outs, _) = out.as_chunks_mut::<32>();
    for (&[e, ref pairs @ ..], out) in blocks.iter().zip(outs) {
        let scale = scale(e);
        let (low, high) = out.split_at_mut(16);
        for ((pair, low), high) in pairs.iter().zip(low).zip(high) {
            *low = element(pair & 15) * scale;
            *high = element(pair >> 4) * scale;
        }
    }
}

/// 2^(e − 127); 255 is NaN.
fn scale(e: u8) -> f32 {
    match e {
        255 => f32::NAN,
        // The smallest is below the normal numbers.
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(e) << 23),
    }
}

fn element(bits: u8) -> f32 {
    let magnitude = MAGNITUDES[usize::from(bits & 7)];
    if bits & 8 == 0 { magnitude } else { -magnitude }
}
