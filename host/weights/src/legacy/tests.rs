use super::*;

#[test]
fn buffers_are_told_from_parameters_of_the_same_name() {
    // Shapes and types as in the checkpoints that EleutherAI and OpenAI published.
    for (name, shape, dtype) in [
        (
            "transformer.h.0.attn.bias",
            &[1, 1, 1024, 1024][..],
            DType::F32,
        ),
        (
            "gpt_neox.layers.0.attention.bias",
            &[1, 1, 2048, 2048],
            DType::U8,
        ),
        ("gpt_neox.layers.0.attention.masked_bias", &[], DType::F16),
        ("transformer.h.0.attn.masked_bias", &[1], DType::F32),
        (
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            &[64],
            DType::F32,
        ),
        ("embeddings.position_ids", &[1, 512], DType::I64),
    ] {
        assert!(is_buffer(name, &TensorInfo::new(shape, dtype)), "{name}");
    }
    for (name, shape) in [
        ("h.0.attn.c_attn.bias", &[2304][..]),
        ("h.0.attn.bias", &[64]),
        ("h.0.attn.bias", &[1, 1, 4, 8]),
        ("masked_bias", &[8]),
        ("position_ids", &[8]),
        ("h.0.attn.weight", &[1, 1, 4, 4]),
    ] {
        assert!(
            !is_buffer(name, &TensorInfo::new(shape, DType::F32)),
            "{name}"
        );
    }
}

#[test]
fn norms_have_older_names() {
    assert_eq!(old_name("ln_1.weight").as_deref(), Some("ln_1.gamma"));
    assert_eq!(old_name("a.b.bias").as_deref(), Some("a.b.beta"));
    assert_eq!(old_name("a.inv_freq"), None);
    assert_eq!(old_name("weight"), None);
}
