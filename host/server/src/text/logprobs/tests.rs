#![allow(clippy::unwrap_used, clippy::panic)]

use super::finite;

#[test]
fn what_json_cannot_write_is_a_large_number() {
    assert_eq!(finite(f32::NEG_INFINITY), -9999.0);
    assert_eq!(finite(f32::NAN), -9999.0);
    assert_eq!(finite(-0.5), -0.5);
    // Rounding may lift a probability above one.
    assert_eq!(finite(1e-7), 0.0);
}
