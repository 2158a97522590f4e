//! A component on its way from a client: into a file without a name, then into memory, once.

use crate::blocking::blocking;
use crate::openai::ApiError;
use axum::body::Body;
use axum::http::{HeaderMap, header};
use futures::StreamExt as _;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::time::Duration;

/// Bytes that are written at once.
const PART: usize = 1 << 20;
/// Longest time for all of it.
const TIME: Duration = Duration::from_secs(300);

/// Refuses before any of the body is read.
pub(super) fn check(headers: &HeaderMap, limit: u64) -> Result<(), ApiError> {
    if let Some(found) = headers.get(header::CONTENT_ENCODING)
        && !found.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        let found = String::from_utf8_lossy(found.as_bytes()).into_owned();
        return Err(ApiError::ContentEncoding { found });
    }
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(ApiError::ModuleTooLarge { limit });
    }
    Ok(())
}

/// All of the body, as a file that has no name and goes with its handle.
pub(super) async fn receive(body: Body, limit: u64) -> Result<File, ApiError> {
    let received = tokio::time::timeout(TIME, receive_all(body, limit)).await;
    received.unwrap_or(Err(ApiError::BodyTimeout {
        seconds: TIME.as_secs(),
    }))
}

async fn receive_all(body: Body, limit: u64) -> Result<File, ApiError> {
    let mut file = blocking(tempfile::tempfile).await?.map_err(disk)?;
    let mut stream = body.into_data_stream();
    let (mut part, mut length) = (Vec::new(), 0);
    while let Some(bytes) = stream.next().await {
        let bytes = bytes.map_err(|error| ApiError::BodyRead {
            message: error.to_string(),
        })?;
        length += bytes.len() as u64;
        if length > limit {
            return Err(ApiError::ModuleTooLarge { limit });
        }
        part.extend_from_slice(&bytes);
        if part.len() >= PART {
            file = write(file, std::mem::take(&mut part)).await?;
        }
    }
    write(file, part).await
}

async fn write(mut file: File, part: Vec<u8>) -> Result<File, ApiError> {
    let written = blocking(move || file.write_all(&part).map(|()| file));
    written.await?.map_err(disk)
}

/// What was received.
pub(super) fn read(file: &mut File) -> Result<Vec<u8>, ApiError> {
    let length = file.metadata().map_err(disk)?.len();
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .map_err(disk)?;
    Ok(bytes)
}

// By value as `map_err` gives it.
#[allow(clippy::needless_pass_by_value)]
fn disk(error: io::Error) -> ApiError {
    tracing::error!(%error, "a module cannot be received");
    ApiError::Unavailable {
        message: "the module cannot be received at the moment; the server's log has the cause"
            .to_owned(),
    }
}
