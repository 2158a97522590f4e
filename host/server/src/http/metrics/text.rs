//! Prometheus' text exposition format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use super::histogram::Snapshot;
use std::fmt::Write as _;

#[derive(Default)]
pub(super) struct TextFormat(String);

impl TextFormat {
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (i, (label, value)) in labels.iter().enumerate() {
            self.0.push(if i == 0 { '{' } else { ',' });
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{value}\"");
        }
        let _ = writeln!(self.0, "}} {value}");
    }

    pub(super) fn histogram(&mut self, name: &str, labels: &[(&str, &str)], snapshot: &Snapshot) {
        let bucket = format!("{name}_bucket");
        for (bound, count) in &snapshot.buckets {
            let bound = format!("{bound:?}");
            let labels = [labels, &[("le", bound.as_str())]].concat();
            self.sample(&bucket, &labels, *count as f64);
        }
        let all = [labels, &[("le", "+Inf")]].concat();
        self.sample(&bucket, &all, snapshot.count as f64);
        self.sample(&format!("{name}_sum"), labels, snapshot.sum);
        self.sample(&format!("{name}_count"), labels, snapshot.count as f64);
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}
