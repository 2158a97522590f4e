//! The error that every export returns.

use std::fmt;

/// Why a guest could not do what it was asked. Returning one leaves the instance usable; a panic does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The model's files do not make sense: the load fails.
    InvalidConfig(String),
    /// The client's request does not make sense: HTTP 400.
    InvalidRequest(String),
    /// Valid, but this guest cannot do it.
    Unsupported(String),
    /// Anything else.
    Other(String),
}

impl Error {
    /// An [`Error::InvalidConfig`].
    pub fn config(message: impl Into<String>) -> Self {
        Self::InvalidConfig(message.into())
    }

    /// An [`Error::InvalidRequest`].
    pub fn request(message: impl Into<String>) -> Self {
        Self::InvalidRequest(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidConfig(m) => write!(f, "invalid config: {m}"),
            Self::InvalidRequest(m) => write!(f, "invalid request: {m}"),
            Self::Unsupported(m) => write!(f, "unsupported: {m}"),
            Self::Other(m) => f.write_str(m),
        }
    }
}

impl std::error::Error for Error {}

/// `From<Error>` for the error type that one world's bindings define.
#[allow(unused_macros)]
macro_rules! into_wit_error {
    ($wit:ty) => {
        impl From<$crate::Error> for $wit {
            fn from(error: $crate::Error) -> Self {
                match error {
                    $crate::Error::InvalidConfig(m) => Self::InvalidConfig(m),
                    $crate::Error::InvalidRequest(m) => Self::InvalidRequest(m),
                    $crate::Error::Unsupported(m) => Self::Unsupported(m),
                    $crate::Error::Other(m) => Self::Other(m),
                }
            }
        }
    };
}
#[allow(unused_imports)]
pub(crate) use into_wit_error;
