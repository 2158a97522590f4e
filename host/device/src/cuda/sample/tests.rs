use super::words;

#[test]
fn words_of_no_bytes() {
    assert_eq!(words::<u64>(&[], 0, 0), [0u64; 0]);
    assert_eq!(words::<u32>(&[1, 2, 3], 16, 32), [0u32; 0]);
    let two: &[u8] = bytemuck::cast_slice(&[7u32, 9]);
    assert_eq!(words::<u32>(two, 4, 99), [9]);
}
