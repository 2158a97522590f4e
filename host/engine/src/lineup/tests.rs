#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

fn claims(of: &[(u64, u64)]) -> Vec<Claim> {
    of.iter()
        .zip(0..)
        .map(|(&(weight, demand), service)| Claim {
            weight,
            demand,
            service,
        })
        .collect()
}

#[test]
fn budgets_are_divided_by_weight() {
    assert_eq!(divide(90, &claims(&[(1, 100), (2, 100)])), [30, 60]);
    // What the first does not want is the others'.
    assert_eq!(
        divide(90, &claims(&[(1, 10), (1, 100), (1, 100)])),
        [10, 40, 40]
    );
    // Who was served least gets the odd token.
    assert_eq!(divide(1, &claims(&[(1, 9), (1, 7)])), [1, 0]);
    assert_eq!(divide(10, &claims(&[])), [] as [u64; 0]);
}

proptest! {
    #[test]
    fn nothing_is_wasted_and_no_one_is_below_a_share_that_it_wants(
        budget in 0u64..3000,
        of in proptest::collection::vec((1u64..9, 0u64..1000), 1..9),
    ) {
        let parts = divide(budget, &claims(&of));
        let wanted: u64 = of.iter().map(|(_, demand)| demand).sum();
        prop_assert_eq!(parts.iter().sum::<u64>(), budget.min(wanted));
        let weights: u64 = of.iter().map(|(weight, _)| weight).sum();
        for (part, (weight, demand)) in parts.iter().zip(&of) {
            prop_assert!(part <= demand);
            prop_assert!(*part >= (*demand).min(budget * weight / weights));
        }
    }
}
