//! Work that takes longer than a poll should.

use crate::openai::ApiError;

/// Runs it on a thread where it may block; it goes on when its client leaves.
///
/// # Errors
/// [`ApiError::Internal`] when it panics.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::Internal {
            message: format!("a worker thread failed: {error}"),
        })
}
