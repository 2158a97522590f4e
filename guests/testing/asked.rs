//! How clients tell testing guests what to do.

/// What a client asks for: the value of `"attack"` in a JSON object, or else all of the text.
pub fn asked(text: &str) -> &str {
    let value = text
        .split_once(r#""attack":""#)
        .and_then(|(_, rest)| rest.split_once('"'));
    value.map_or(text, |(what, _)| what)
}
