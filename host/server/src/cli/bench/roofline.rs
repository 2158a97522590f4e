//! How close a decode step comes to the time in which its bytes can be read.

use crate::model::{LoadedModel, Target};
use guesthouse_graph::{PlainStorage, Plan};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Bytes that a decode step must read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Roofline {
    weights: u64,
    kv: u64,
}

impl Roofline {
    /// Of `sequences` that have `context` positions each.
    pub(super) fn of_decode(loaded: &LoadedModel, sequences: u64, context: u64) -> Self {
        let storage = match loaded.target {
            Target::Cpu => PlainStorage::AsStored,
            Target::Cuda { .. } => PlainStorage::AsModel,
        };
        Self::new(&loaded.plan, storage, sequences, context)
    }

    fn new(plan: &Plan, storage: PlainStorage, sequences: u64, context: u64) -> Self {
        Self {
            weights: plan.weight_bytes_per_step(storage),
            kv: sequences * plan.cache_bytes_per_step(context),
        }
    }

    /// Bytes, and with a bandwidth in bytes per second the floor, and with a step's time the share of it.
    pub(super) fn report(
        self,
        bandwidth: Option<f64>,
        step: Option<Duration>,
    ) -> Map<String, Value> {
        let round = |x: f64| json!((x * 1e4).round() / 1e4);
        let bytes = (self.weights + self.kv) as f64;
        let mut all = Map::new();
        all.insert("step_weight_gb".into(), round(self.weights as f64 / 1e9));
        all.insert("step_kv_gb".into(), round(self.kv as f64 / 1e9));
        if let Some(step) = step.map(|s| s.as_secs_f64()).filter(|s| *s > 0.0) {
            all.insert("achieved_gb_per_second".into(), round(bytes / step / 1e9));
            if let Some(bandwidth) = bandwidth.filter(|b| *b > 0.0) {
                let floor = bytes / bandwidth;
                all.insert("bandwidth_gb_per_second".into(), round(bandwidth / 1e9));
                all.insert("floor_ms".into(), round(floor * 1e3));
                all.insert("share_of_roofline".into(), round(floor / step));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 15 GB of weights and 64 sequences with 1/64 GB each, at 4 TB/s: 4 ms. A step of 5 ms has 80 % of that.
    #[test]
    fn a_share_by_hand() {
        let roofline = Roofline {
            weights: 15_000_000_000,
            kv: 1_000_000_000,
        };
        let all = roofline.report(Some(4e12), Some(Duration::from_millis(5)));
        assert_eq!(all["floor_ms"], json!(4.0));
        assert_eq!(all["share_of_roofline"], json!(0.8));
        assert_eq!(all["achieved_gb_per_second"], json!(3200.0));
        let unknown = roofline.report(None, Some(Duration::from_millis(5)));
        assert!(!unknown.contains_key("share_of_roofline"));
        assert_eq!(unknown["step_weight_gb"], json!(15.0));
    }
}
