use super::*;

#[test]
fn gate_and_up_stand_in_blocks_of_eight() {
    let halves = gate_up_rows(10, GateLayout::Halves);
    assert_eq!(halves.len(), 32);
    assert_eq!(halves[..8], (0..8).map(Some).collect::<Vec<_>>());
    assert_eq!(halves[8..16], (10..18).map(Some).collect::<Vec<_>>());
    assert_eq!(halves[16..20], [Some(8), Some(9), None, None]);
    assert_eq!(halves[24..28], [Some(18), Some(19), None, None]);
    let alternating = gate_up_rows(8, GateLayout::Interleaved);
    assert_eq!(alternating[..3], [Some(0), Some(2), Some(4)]);
    assert_eq!(alternating[8..11], [Some(1), Some(3), Some(5)]);
    assert_eq!(down_rows(9)[7..10], [Some(7), Some(8), None]);
}

#[test]
fn every_code_of_mxfp4_comes_where_the_kernels_look() {
    // Eight rows of 96 columns: a whole chunk and half of one.
    let (rows, cols) = (8, 96);
    let code = |row: usize, column: usize| (row * 5 + column * 7 + column / 16) as u8 & 15;
    let mut bytes = Vec::new();
    for row in 0..rows {
        for block in 0..cols / 32 {
            bytes.push((100 + 3 * row + block) as u8);
            let at = |i: usize| code(row, 32 * block + i);
            bytes.extend((0..16).map(|i| at(i) | at(i + 16) << 4));
        }
    }
    let packed = packed_mxfp4(&bytes, cols);
    assert_eq!(packed.len(), 2 * MXFP4_BYTES);
    for row in 0..rows {
        for column in 0..128 {
            // `mxfp4_element` of moe/order.cuh.
            let chunk = &packed[column / 64 * MXFP4_BYTES..];
            let (s, half, t) = (column % 64 / 16, column % 16 / 8, column % 8 / 2);
            let word = &chunk[32 * row + 8 * t + 4 * (s / 2)..][..4];
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let found = word >> (4 * (2 * (s % 2) + half) + 16 * (column % 2)) & 15;
            let scale = chunk[MXFP4_SCALES + 2 * row + s / 2];
            if column < cols {
                assert_eq!(found, u32::from(code(row, column)), "{row} {column}");
                assert_eq!(usize::from(scale), 100 + 3 * row + column / 32);
            } else {
                assert_eq!((found, scale), (0, 0));
            }
        }
    }
}
