use super::*;

fn place(offset: usize, stride: usize, ty: ValueType, element: usize) -> Place {
    Place {
        arena: Rows::Tokens,
        base: 64,
        stride,
        offset,
        width: 0,
        ty,
        element,
    }
}

#[test]
fn accesses_are_as_wide_as_alignment_allows() {
    let bf16 = |offset, stride| place(offset, stride, ValueType::Model, 2);
    let f32 = |offset, stride| place(offset, stride, ValueType::F32, 4);
    // 16 bytes of bf16 are 8 elements.
    assert_eq!(elements(&[&bf16(0, 8192)], &[4096]), 8);
    // The last 4 bytes of an 8-byte offset, and a length of 2 mod 4.
    assert_eq!(elements(&[&bf16(8, 8192)], &[4096]), 4);
    assert_eq!(elements(&[&bf16(0, 8192)], &[4096, 6]), 2);
    assert_eq!(elements(&[&bf16(0, 154)], &[77]), 1);
    assert_eq!(elements(&[&f32(0, 64)], &[16]), 4);
    // 8 elements of f32 are two accesses of 16 bytes.
    assert_eq!(elements(&[&bf16(0, 1040), &f32(0, 2080)], &[520]), 8);
    assert_eq!(elements(&[&bf16(0, 1040), &f32(8, 2080)], &[520]), 2);
}

#[test]
fn broadcast_rows_have_no_stride() {
    let one = Place {
        arena: Rows::Broadcast,
        ..place(0, 6, ValueType::Model, 2)
    };
    assert_eq!(elements(&[&one], &[8]), 8);
}

#[test]
fn rows_beyond_a_grids_second_dimension_go_on_in_the_third() {
    // 1792 accesses are 7 blocks of 256 threads.
    assert_eq!(rows_grid(1792, 1, 64).blocks, [7, 64, 1]);
    assert_eq!(rows_grid(1793, 1, 65_535).blocks, [8, 65_535, 1]);
    assert_eq!(rows_grid(1, 2, 70_000).blocks, [1, 65_535, 2]);
}
