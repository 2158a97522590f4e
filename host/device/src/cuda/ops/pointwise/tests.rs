use super::*;

/// Index into b of each element of a, as the kernel works it out.
fn indices(a: &[usize], b: &[usize]) -> Option<Vec<i32>> {
    let width: usize = a.iter().product();
    let of = |at: usize| match Spread::new(a, b)? {
        Spread::Same => Some(at as i32),
        Spread::One => Some(0),
        Spread::Dims { rank, sizes, steps } => {
            let mut rest = at as i32;
            let mut from = 0;
            for i in 0..rank {
                from += rest % sizes[i] * steps[i];
                rest /= sizes[i];
            }
            Some(from)
        }
    };
    (0..width).map(of).collect()
}

#[test]
fn missing_and_unit_dimensions_repeat() {
    assert_eq!(indices(&[2, 3], &[2, 3]), Some(vec![0, 1, 2, 3, 4, 5]));
    assert_eq!(indices(&[2, 3], &[1]), Some(vec![0; 6]));
    assert_eq!(indices(&[2, 3], &[2, 1]), Some(vec![0, 0, 0, 1, 1, 1]));
    assert_eq!(indices(&[2, 3], &[3]), Some(vec![0, 1, 2, 0, 1, 2]));
    assert_eq!(
        indices(&[2, 2, 2], &[2, 1, 2]),
        Some(vec![0, 1, 0, 1, 2, 3, 2, 3])
    );
    assert_eq!(
        indices(&[2, 2, 2], &[1, 2, 1]),
        Some(vec![0, 0, 1, 1, 0, 0, 1, 1])
    );
}

#[test]
fn neighbouring_dimensions_of_one_kind_are_one() {
    let Some(Spread::Dims { rank, sizes, steps }) = Spread::new(&[4, 5, 6, 7], &[1, 1, 6, 7])
    else {
        unreachable!("the shapes broadcast");
    };
    assert_eq!(
        (rank, &sizes[..2], &steps[..2]),
        (2, &[42, 20][..], &[1, 0][..])
    );
}

#[test]
fn shapes_that_do_not_broadcast_are_refused() {
    assert_eq!(Spread::new(&[2, 3], &[2, 2]), None);
    assert_eq!(Spread::new(&[3], &[2, 3]), None);
}
