use super::*;

#[test]
fn vectors_are_shared_by_part_of_a_warp_or_by_a_block() {
    let shape = |d, access| NormShape::new(d, access).map(|s| (s.group, s.threads));
    // 16 accesses of 8: half a warp. 12: the next power of two.
    assert_eq!(shape(128, 8), Some((16, 256)));
    assert_eq!(shape(96, 8), Some((16, 256)));
    assert_eq!(shape(1, 1), Some((1, 256)));
    // Up to 64 accesses: a warp, two each.
    assert_eq!(shape(512, 8), Some((32, 256)));
    assert_eq!(shape(4096, 8), Some((256, 256)));
    assert_eq!(shape(5120, 8), Some((320, 320)));
    assert_eq!(shape(896, 8), Some((64, 64)));
    // 1024 threads at most, 64 elements each at most.
    assert_eq!(shape(65_536, 8), Some((1024, 1024)));
    assert_eq!(shape(65_537, 1), None);
}
