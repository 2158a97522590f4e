//! TLS: a certificate and its key, taken up again when their files change.

mod files;
mod renew;

pub use files::{TlsError, TlsFiles};

use super::listen::{Listener, accept_tcp};
use renew::{Renewing, Serving};
use std::io;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// A certificate and key that were read, and that fit.
#[derive(Debug)]
pub struct Tls {
    renewing: Renewing,
}

impl Tls {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// When one cannot be read or understood, or the key is not the certificate's.
    pub fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let renewing = Renewing::open(files)?;
        Ok(Self { renewing })
    }

    /// TLS on what `listener` accepts, with the files' latest contents that fit. Must be called in a runtime.
    #[must_use]
    pub fn listen(self, listener: TcpListener) -> TlsListener {
        TlsListener {
            listener,
            serving: self.renewing.start(),
        }
    }
}

/// TCP with TLS on it.
#[derive(Debug)]
pub struct TlsListener {
    listener: TcpListener,
    serving: Serving,
}

impl Listener for TlsListener {
    type Stream = TlsStream<TcpStream>;
    type Opening = Accept<TcpStream>;

    async fn accept(&self) -> io::Result<Accept<TcpStream>> {
        let stream = accept_tcp(&self.listener).await?;
        Ok(TlsAcceptor::from(self.serving.now()).accept(stream))
    }
}

#[cfg(test)]
mod tests;
