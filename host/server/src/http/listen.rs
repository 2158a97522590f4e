//! Where connections come from.

use std::ffi::OsString;
use std::future::{Future, Ready, ready};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Accepts connections.
pub trait Listener: Send + 'static {
    /// A connection that HTTP is spoken over.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// What a connection takes before that, such as a handshake. It may last as long as the other side likes.
    type Opening: Future<Output = io::Result<Self::Stream>> + Send + 'static;

    /// The next one, as soon as it is there: it waits for nothing that the other side has to say. Dropping the future loses
    /// none.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Opening>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    type Opening = Ready<io::Result<TcpStream>>;

    async fn accept(&self) -> io::Result<Self::Opening> {
        Ok(ready(Ok(accept_tcp(self).await?)))
    }
}

/// The next connection of a TCP listener.
pub(super) async fn accept_tcp(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept().await?;
    // Small chunks leave at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    Ok(stream)
}

/// A Unix socket that only its user, and root, can open. Its file goes with it.
#[derive(Debug)]
pub struct PrivateSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of its file.
    file: (u64, u64),
}

impl PrivateSocket {
    /// Binds a socket of mode 0600; one that nobody listens on any more gives way. Must be called in a runtime.
    ///
    /// # Errors
    /// When somebody listens there, something else is there, or it cannot be made.
    pub fn bind(path: &Path) -> io::Result<Self> {
        check_free(path)?;
        // Made where nobody else gets at it, so that it never has another mode under its name.
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            let text = "expected the path of a file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let hidden = folder.join(hidden);
        std::fs::DirBuilder::new().mode(0o700).create(&hidden)?;
        let made = Self::bind_within(&hidden.join("s"), path);
        let cleared = std::fs::remove_dir_all(&hidden);
        let socket = made?;
        cleared?;
        Ok(socket)
    }

    fn bind_within(hidden: &Path, path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(hidden)?;
        std::fs::set_permissions(hidden, PermissionsExt::from_mode(0o600))?;
        std::fs::rename(hidden, path)?;
        let file = identity(path)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            file,
        })
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        // Another process may have taken the name since.
        if identity(&self.path).is_ok_and(|there| there == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Listener for PrivateSocket {
    type Stream = UnixStream;
    type Opening = Ready<io::Result<UnixStream>>;

    async fn accept(&self) -> io::Result<Self::Opening> {
        let (stream, _) = self.listener.accept().await?;
        Ok(ready(Ok(stream)))
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn check_free(path: &Path) -> io::Result<()> {
    let taken = |text: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => taken("a file is there that is no socket"),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(error),
            Ok(_) => taken("another process listens there"),
        },
    }
}

#[cfg(test)]
mod tests;
