#![allow(clippy::unwrap_used, clippy::panic)]

use super::histogram::Histogram;
use super::text::TextFormat;

#[test]
fn bounds_are_inclusive_and_counts_add_up() {
    let histogram = Histogram::new(&[1.0, 2.0, 5.0]);
    for value in [0.5, 1.0, 1.5, 5.0, 7.0] {
        histogram.observe(value);
    }
    let snapshot = histogram.snapshot();
    assert_eq!(snapshot.buckets, [(1.0, 2), (2.0, 3), (5.0, 4)]);
    assert_eq!((snapshot.count, snapshot.sum), (5, 15.0));
}

/// The example's form is that of Prometheus' exposition formats page.
#[test]
fn labels_are_escaped() {
    let mut out = TextFormat::default();
    out.family("x", "gauge", "Help.");
    out.sample("x", &[("model_name", "a\\b\"c\nd"), ("le", "+Inf")], 1.5);
    assert_eq!(
        out.finish(),
        "# HELP x Help.\n# TYPE x gauge\nx{model_name=\"a\\\\b\\\"c\\nd\",le=\"+Inf\"} 1.5\n"
    );
}
