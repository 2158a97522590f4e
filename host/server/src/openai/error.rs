//! What a client is told when its request cannot be answered.

use serde::Serialize;
use utoipa::ToSchema;

/// Why a request was not answered. Each becomes one HTTP status and one [`ErrorBody`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// A field has a value that is not accepted.
    #[error("{message}")]
    Invalid {
        /// The field, as the client wrote it (`temperature`, `messages[0].content`).
        param: Option<String>,
        /// What was expected and what was found.
        message: String,
    },
    /// Prompt and answer do not fit the context.
    #[error("{message}")]
    ContextLength {
        /// The field that is too long.
        param: &'static str,
        /// The sizes, and what to do.
        message: String,
    },
    /// No model has this name.
    #[error(
        "the model `{name}` does not exist here; GET /v1/models lists the models that are served"
    )]
    ModelNotFound {
        /// The name asked for.
        name: String,
    },
    /// A model was loaded with another graph module than the tenant pinned.
    #[error(
        "the model `{name}` does not exist here with the graph module `{pinned}`, which is pinned for it: it was loaded with \
         `{loaded}`; have the model loaded with `{pinned}`, or the pin changed"
    )]
    OtherGraph {
        /// The model asked for.
        name: String,
        /// The module wanted.
        pinned: String,
        /// The module that there is.
        loaded: String,
    },
    /// No module has this name.
    #[error("there is no module `{name}`; the list of modules has those that there are")]
    ModuleNotFound {
        /// The name asked for.
        name: String,
    },
    /// The key is known, and does not allow this.
    #[error("{message}")]
    Forbidden {
        /// What is not allowed, and who can change it.
        message: String,
    },
    /// Over one of the caller's limits; the text has its numbers.
    #[error("{message}")]
    Limited {
        /// The limit's name.
        limit: &'static str,
        /// What was found, and what is allowed.
        message: String,
        /// Seconds after which another try makes sense.
        retry_after: u64,
    },
    /// No tenant has this name.
    #[error("there is no tenant `{name}`; GET /admin/v1/tenants lists those that there are")]
    TenantNotFound {
        /// The name asked for.
        name: String,
    },
    /// What is there stands against it.
    #[error("{message}")]
    Conflict {
        /// What, and what to do.
        message: String,
    },
    /// No route has this path.
    #[error("there is no {path} here; GET /docs lists what there is")]
    NotFound {
        /// The path asked for.
        path: String,
    },
    /// The route exists for other methods.
    #[error("{method} is not allowed on {path}; GET /docs lists what is")]
    MethodNotAllowed {
        /// The method used.
        method: String,
        /// The path asked for.
        path: String,
    },
    /// No key, or a wrong one.
    #[error(
        "this server needs an API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
    )]
    Unauthorized,
    /// The body is larger than the server reads.
    #[error(
        "the body is larger than the limit of {limit} bytes; send less, or start the server with a larger --max-body-bytes"
    )]
    BodyTooLarge {
        /// The limit, bytes.
        limit: usize,
    },
    /// A module is larger than its owner may bring.
    #[error("the module is larger than the limit of {limit} bytes")]
    ModuleTooLarge {
        /// The limit, bytes.
        limit: u64,
    },
    /// The body is not said to be JSON.
    #[error("the content type is {found:?}, expected application/json")]
    ContentType {
        /// What the header said.
        found: String,
    },
    /// The body is compressed.
    #[error(
        "the body's content-encoding is {found:?}, which is not supported; send the JSON as it is"
    )]
    ContentEncoding {
        /// What the header said.
        found: String,
    },
    /// The body did not arrive in time, or not whole.
    #[error("the body did not arrive within {seconds} s; send it faster, or in fewer bytes")]
    BodyTimeout {
        /// The limit.
        seconds: u64,
    },
    /// The connection broke while the body was read.
    #[error("the body could not be read: {message}")]
    BodyRead {
        /// The cause.
        message: String,
    },
    /// The tenant is over one of its limits.
    #[error("this key's tenant is over its limit `{limit}`; try again after {retry_after} s")]
    OverLimit {
        /// Its name among the tenant's quotas.
        limit: &'static str,
        /// Seconds after which another try makes sense.
        retry_after: u64,
    },
    /// The queue is full.
    #[error("{message}; try again after {retry_after} s")]
    Overloaded {
        /// What is full.
        message: String,
        /// Seconds after which another try makes sense.
        retry_after: u32,
    },
    /// The engine has stopped, or the server is shutting down.
    #[error("{message}")]
    Unavailable {
        /// Why.
        message: String,
    },
    /// A guest failed at this request.
    #[error("{message}")]
    Guest {
        /// Module and cause.
        message: String,
    },
    /// A fault of the server's own.
    #[error("{message}")]
    Internal {
        /// What happened, without secrets.
        message: String,
    },
}

/// The `error` object of OpenAI's API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// What is wrong and what to do.
    pub message: String,
    /// Kind of error: `invalid_request_error`, `authentication_error`, `rate_limit_error`, `overloaded_error`, `server_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The field at fault, if one is.
    pub param: Option<String>,
    /// A fixed word for programs.
    pub code: Option<&'static str>,
}

/// The body of every answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

impl ApiError {
    /// A field with a value that is not accepted.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid {
            param: Some(param.into()),
            message: message.into(),
        }
    }

    /// A fixed name for metrics and logs.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid",
            Self::ContextLength { .. } => "context_length",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::OtherGraph { .. } => "model_not_found",
            Self::ModuleNotFound { .. } => "module_not_found",
            Self::Forbidden { .. } => "forbidden",
            Self::Limited { .. } => "limit_exceeded",
            Self::TenantNotFound { .. } => "tenant_not_found",
            Self::Conflict { .. } => "conflict",
            Self::NotFound { .. } => "not_found",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::Unauthorized => "unauthorized",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::ModuleTooLarge { .. } => "module_too_large",
            Self::ContentType { .. } => "content_type",
            Self::ContentEncoding { .. } => "content_encoding",
            Self::BodyTimeout { .. } => "body_timeout",
            Self::BodyRead { .. } => "body_read",
            Self::OverLimit { .. } => "rate_limit_exceeded",
            Self::Overloaded { .. } => "overloaded",
            Self::Unavailable { .. } => "unavailable",
            Self::Guest { .. } => "guest",
            Self::Internal { .. } => "internal",
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Invalid { .. } | Self::ContextLength { .. } | Self::BodyRead { .. } => 400,
            Self::Unauthorized => 401,
            Self::ModelNotFound { .. }
            | Self::OtherGraph { .. }
            | Self::ModuleNotFound { .. }
            | Self::TenantNotFound { .. }
            | Self::NotFound { .. } => 404,
            Self::Forbidden { .. } => 403,
            Self::Conflict { .. } => 409,
            Self::MethodNotAllowed { .. } => 405,
            Self::BodyTimeout { .. } => 408,
            Self::BodyTooLarge { .. } | Self::ModuleTooLarge { .. } => 413,
            Self::ContentType { .. } | Self::ContentEncoding { .. } => 415,
            Self::Limited { .. } | Self::OverLimit { .. } => 429,
            Self::Overloaded { .. } | Self::Unavailable { .. } => 503,
            Self::Guest { .. } | Self::Internal { .. } => 500,
        }
    }

    /// The body to send.
    #[must_use]
    pub fn body(&self) -> ErrorBody {
        let kind = match self {
            Self::Unauthorized => "authentication_error",
            Self::OverLimit { .. } | Self::Limited { .. } => "rate_limit_error",
            Self::Overloaded { .. } => "overloaded_error",
            _ if self.status() < 500 => "invalid_request_error",
            _ => "server_error",
        };
        let param = match self {
            Self::Invalid { param, .. } => param.clone(),
            Self::ContextLength { param, .. } => Some((*param).to_owned()),
            Self::ModelNotFound { .. } | Self::OtherGraph { .. } => Some("model".to_owned()),
            Self::Limited { limit, .. } | Self::OverLimit { limit, .. } => {
                Some((*limit).to_owned())
            }
            _ => None,
        };
        let code = match self {
            Self::Invalid { .. } => None,
            Self::ContextLength { .. } => Some("context_length_exceeded"),
            Self::Unauthorized => Some("invalid_api_key"),
            Self::Guest { .. } => Some("guest_error"),
            other => Some(other.label()),
        };
        ErrorBody {
            error: ErrorDetail {
                message: self.to_string(),
                kind,
                param,
                code,
            },
        }
    }
}
