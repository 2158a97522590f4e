use super::*;

#[test]
fn devices_are_named_as_elsewhere() {
    for (text, choice) in [
        ("auto", DeviceChoice::Auto),
        ("cpu", DeviceChoice::Cpu),
        ("cuda", DeviceChoice::Cuda { ordinal: 0 }),
        ("cuda:3", DeviceChoice::Cuda { ordinal: 3 }),
    ] {
        assert_eq!(text.parse(), Ok(choice));
    }
    for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU"] {
        assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
    }
}

/// vLLM's `auto`: float32 checkpoints are served in bfloat16.
#[test]
fn the_type_follows_the_checkpoint() {
    let auto = |stored| DtypeChoice::Auto.resolve(stored);
    assert_eq!(auto(Some(DType::F16)), CudaDtype::F16);
    assert_eq!(auto(Some(DType::Bf16)), CudaDtype::Bf16);
    assert_eq!(auto(Some(DType::F32)), CudaDtype::Bf16);
    assert_eq!(auto(None), CudaDtype::Bf16);
    let exactly = DtypeChoice::Exactly(CudaDtype::F32);
    assert_eq!(exactly.resolve(Some(DType::Bf16)), CudaDtype::F32);
}
