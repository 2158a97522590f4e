use super::alibi_slopes;

#[test]
fn eight_heads_halve_from_a_half() {
    // Press et al. 2021, section 3: 1/2, 1/4, … 1/256.
    let paper = [
        0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625,
    ];
    assert_eq!(alibi_slopes(8, 8.0), paper);
}

#[test]
fn heads_beyond_a_power_of_two_come_from_the_finer_series() {
    // The authors' `get_slopes(6)`: the series of 4, then the first and third member of that of 8.
    assert_eq!(
        alibi_slopes(6, 8.0),
        [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    );
}

#[test]
fn a_larger_maximum_is_steeper() {
    // MPT storywriter: alibi_bias_max 16 over 32 heads begins as 8 over 16 heads does.
    let steep = alibi_slopes(32, 16.0);
    assert_eq!(steep[..16], alibi_slopes(16, 8.0));
    assert_eq!(steep[31], 1.0 / 65536.0);
}
