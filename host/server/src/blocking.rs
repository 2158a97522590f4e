//! Work that takes longer than a poll should.

use crate::openai::ApiError;
use std::thread::available_parallelism;

/// How much work of one kind may be under way: two for each core.
pub(crate) fn two_per_core() -> usize {
    2 * available_parallelism().map_or(1, std::num::NonZero::get)
}

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
