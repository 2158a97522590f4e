//! Stages against the logits processors of transformers: tests/golden/samplers.py makes the cases.

use serde_json::Value;

use super::properties::run_stages;
use super::reference::Setting;
use super::*;

fn floats(list: &Value) -> Vec<f32> {
    let number = |x: &Value| x.as_f64().map_or(f32::NEG_INFINITY, |x| x as f32);
    list.as_array().unwrap().iter().map(number).collect()
}

fn stage(name: &str, values: &[f32]) -> Stage {
    match name {
        "temperature" => Stage::Temperature(values[0]),
        "top-k" => Stage::TopK(values[0] as u32),
        "top-p" => Stage::TopP(values[0]),
        "min-p" => Stage::MinP(values[0]),
        "typical-p" => Stage::TypicalP(values[0]),
        "epsilon" => Stage::EpsilonCutoff(values[0]),
        "eta" => Stage::EtaCutoff(values[0]),
        "n-gram" => Stage::NoRepeatNgram(values[0] as u32),
        "repetition" => Stage::Penalties {
            repetition: values[0],
            presence: 0.0,
            frequency: 0.0,
        },
        "bad-words" => Stage::BadWords(vec![vec![3], vec![1, 2], vec![2, 1, 7]]),
        "bias" => Stage::LogitBias(vec![(4, -2.5), (9, 1.25)]),
        other => panic!("{other}"),
    }
}

#[test]
fn stages_equal_those_of_transformers() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/samplers.json"
    );
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 100);
    for case in cases {
        let name = case["stage"].as_str().unwrap();
        let plan = SamplingPlan {
            stages: vec![stage(name, &floats(&case["values"]))],
            draw: DrawKind::Greedy,
        };
        let setting = Setting {
            tokens: floats(&case["tokens"]).iter().map(|&t| t as u32).collect(),
            prompt_len: 0,
            random: key(0),
            mu: None,
        };
        let got = run_stages(&floats(&case["logits"]), &plan, &setting).unwrap();
        for (t, (a, b)) in got.iter().zip(floats(&case["processed"])).enumerate() {
            let close = *a == b || (a - b).abs() <= 2e-6 * b.abs();
            assert!(close, "{name} token {t}: {a} instead of {b}: {case}");
        }
    }
}
