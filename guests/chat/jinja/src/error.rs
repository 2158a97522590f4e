//! Why a conversation could not be rendered.

/// Mirrors `guesthouse:common/types.error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The model's files do not make sense.
    InvalidConfig(String),
    /// The client's request does not make sense, or the template refused it.
    InvalidRequest(String),
}

impl Error {
    /// A name for metrics that does not change.
    pub fn label(&self) -> &'static str {
        match self {
            Self::InvalidConfig(_) => "invalid_config",
            Self::InvalidRequest(_) => "invalid_request",
        }
    }
}

impl std::error::Error for Error {}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InvalidConfig(m) | Self::InvalidRequest(m) => f.write_str(m),
        }
    }
}

/// A minijinja error with its causes and line, as one line of text.
pub fn describe(error: &minijinja::Error) -> String {
    let mut text = error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line} of the chat template)"));
    }
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
