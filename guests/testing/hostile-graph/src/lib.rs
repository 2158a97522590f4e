//! A graph guest that does whatever its config says. "honest" builds one linear layer.

wit_bindgen::generate!({
    path: ["../../../wit/common", "../../../wit/graph"],
    world: "guesthouse:graph/graph-guest",
    generate_all,
});

#[path = "../../asked.rs"]
mod asked;
#[path = "../../misbehave.rs"]
mod misbehave;

use exports::guesthouse::graph::model::{Error, Guest, ModelInfo};
use guesthouse::common::types::{Attr, AttrValue};
use guesthouse::graph::builder::*;

struct Hostile;

impl Guest for Hostile {
    fn architectures() -> Vec<String> {
        vec!["Hostile".into()]
    }

    fn build(config: String) -> Result<ModelInfo, Error> {
        misbehave::set_hook();
        misbehave::misbehave(asked::asked(&config));
        let mut info = ModelInfo {
            architecture: "Hostile".into(),
            vocab_size: 8,
            max_position: 16,
            ext: vec![],
        };
        match config.as_str() {
            "error" => return Err(Error::InvalidConfig("no such model".into())),
            "forged-value" => {
                add(Value { id: 7_000_000 }, Value { id: u32::MAX });
            }
            "forged-weight" => {
                transpose(Weight { id: u32::MAX });
            }
            "forged-cache" => {
                let x = token_ids();
                let params = AttentionParams {
                    scale: 1.0,
                    mask: Mask::Causal,
                    window: None,
                    softcap: None,
                    alibi: None,
                    sinks: None,
                    ext: vec![],
                };
                attention_shared(x, Cache { id: 99 }, &params);
            }
            "giant-graph" => {
                let mut x = embed();
                loop {
                    x = add(x, x);
                }
            }
            "huge-constant" => {
                constant(&[10_000_000], &vec![0.5; 10_000_000]);
            }
            "many-constants" => loop {
                constant(&[1_000_000], &vec![0.5; 1_000_000]);
            },
            "huge-split" => {
                split(embed(), 0, &vec![0; 4_000_000]);
            }
            "many-scopes" => {
                for i in 0_u64.. {
                    scope(&format!("{i}"));
                }
            }
            "huge-name" => {
                param(&"n".repeat(8 << 20), &[1]);
            }
            "missing-tensor" => {
                param("absent", &[1]);
            }
            "wrong-shape" => {
                linear(embed(), param("w", &[8, 5]), None, Sharding::Replicated);
            }
            "no-output" => {
                embed();
                return Ok(info);
            }
            "unknown-setting" => info.ext.push(Attr {
                key: "turbo".into(),
                value: AttrValue::Flag(true),
            }),
            "wrong-vocab" => info.vocab_size = 9,
            _ => {}
        }
        let x = gather_outputs(embed());
        output_logits(linear(x, param("w", &[8, 4]), None, Sharding::Column));
        Ok(info)
    }
}

/// `[4]`
fn embed() -> Value {
    embedding(param("e", &[8, 4]), token_ids())
}

export!(Hostile);
