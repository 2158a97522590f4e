#![allow(clippy::unwrap_used)]

use super::DType;

#[test]
fn names_round_trip_through_serde() {
    for dtype in DType::ALL {
        let json = serde_json::to_string(&dtype).unwrap();
        assert_eq!(json, format!("\"{dtype}\""));
        assert_eq!(serde_json::from_str::<DType>(&json).unwrap(), dtype);
    }
    assert!(serde_json::from_str::<DType>("\"f31\"").is_err());
}

#[test]
fn sizes_are_those_of_the_formats() {
    let sizes: Vec<usize> = DType::ALL.iter().map(|d| d.bytes()).collect();
    assert_eq!(sizes, [4, 2, 2, 1, 1, 8, 4, 2, 1, 1, 1]);
}
