use super::support::Setup;
use serde_json::Value;
use std::collections::BTreeSet;

/// Names of metrics in a query: `vllm:…` and `guesthouse:…`.
fn names(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    words.filter(|word| word.starts_with("vllm:") || word.starts_with("guesthouse:"))
}

#[tokio::test]
async fn the_dashboard_asks_for_metrics_that_exist() {
    let dashboard: Value =
        serde_json::from_str(include_str!("../../../../../examples/deploy/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries: Vec<&str> = targets
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    let asked: BTreeSet<&str> = queries.iter().flat_map(|query| names(query)).collect();
    assert!(asked.len() > 15, "{asked:?}");

    let server = Setup::saying(&["a"]).start();
    let metrics = server.get("/metrics").await.body;
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    let told: BTreeSet<&str> = samples
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let missing: Vec<_> = asked.difference(&told).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
