#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::json;

use super::{Decoding, Pieces, byte_level};

/// GPT-2's `bytes_to_unicode`, written out: three printable ranges stay, the rest counts up from U+0100.
#[test]
fn the_byte_table_is_that_of_gpt2() {
    let printable =
        |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 0;
    for byte in 0..=255u32 {
        let c = if printable(byte) {
            byte
        } else {
            next += 1;
            255 + next
        };
        let c = char::from_u32(c).unwrap();
        assert_eq!(
            byte_level(&c.to_string()),
            [u8::try_from(byte).unwrap()],
            "{c:?}"
        );
    }
    assert_eq!(next, 68);
    assert_eq!(byte_level("Ġthe"), b" the");
    assert_eq!(
        byte_level("<｜end｜>"),
        "<｜end｜>".as_bytes(),
        "outside the table"
    );
}

#[test]
fn known_decoders_are_recognised() {
    let parse = |value| Decoding::parse(&value).unwrap_or(Decoding::Opaque);
    assert_eq!(parse(json!({"type": "ByteLevel"})), Decoding::ByteLevel);
    assert_eq!(
        parse(json!({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Fuse"}]})),
        Decoding::ByteLevel
    );
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let steps = json!([replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]);
    let llama = Pieces {
        replace: vec![("▁".into(), " ".into())],
        byte_fallback: true,
        strip_left: Some((' ', 1)),
        first_token_drops: None,
    };
    assert_eq!(
        parse(json!({"type": "Sequence", "decoders": steps})),
        Decoding::Pieces(llama)
    );
    for opaque in [
        json!({"type": "WordPiece"}),
        json!({"type": "Sequence", "decoders": [strip]}),
        json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, replace]}),
        json!({}),
    ] {
        assert_eq!(parse(opaque), Decoding::Opaque);
    }
}

#[test]
fn bytes_of_pieces() {
    let decoding = Decoding::Pieces(Pieces {
        replace: vec![("▁".into(), " ".into())],
        byte_fallback: true,
        ..Pieces::default()
    });
    assert_eq!(decoding.bytes("▁a▁"), b" a ");
    assert_eq!(decoding.bytes("<0xE4>"), [0xe4]);
    assert_eq!(decoding.bytes("<0xé>"), "<0xé>".as_bytes());
    assert_eq!(decoding.bytes("<0x123>"), b"<0x123>");
}
