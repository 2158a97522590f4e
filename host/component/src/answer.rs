//! Errors that guests answer with.

use crate::bindings::types;
use crate::{ComponentError, GuestErrorKind};

/// Bytes of a guest's own words that are kept.
const MESSAGE_BYTES: usize = 4096;

/// The error as this crate's type; its words clipped, control characters but line breaks replaced.
pub(crate) fn guest_error(
    module: &str,
    function: &'static str,
    error: types::Error,
) -> ComponentError {
    let (kind, message) = match error {
        types::Error::InvalidConfig(m) => (GuestErrorKind::InvalidConfig, m),
        types::Error::InvalidRequest(m) => (GuestErrorKind::InvalidRequest, m),
        types::Error::Unsupported(m) => (GuestErrorKind::Unsupported, m),
        types::Error::Other(m) => (GuestErrorKind::Other, m),
    };
    let clipped = &message[..message.floor_char_boundary(MESSAGE_BYTES)];
    let message = clipped
        .chars()
        .map(|c| {
            if c.is_control() && c != '\n' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect();
    ComponentError::Guest {
        module: module.into(),
        function,
        kind,
        message,
    }
}
