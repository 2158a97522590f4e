use super::*;

#[test]
fn parts_of_an_axis_are_runs() {
    // Columns 3..10 of [4, 10, 2]: 4 runs of 14 elements, 20 apart, the first at 6.
    let taken = Strided::take(&[4, 10, 2], 1, 3, 7);
    assert_eq!(
        taken,
        Some(Strided {
            outer: 4,
            len: 14,
            from: (6, 20),
            to: (0, 14),
        })
    );
    assert_eq!(Strided::take(&[4, 10, 2], 1, 4, 7), None);
    assert_eq!(Strided::take(&[4], 1, 0, 1), None);
}
