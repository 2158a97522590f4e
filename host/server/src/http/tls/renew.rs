//! Files that change while the server runs.

use super::files::{TlsError, TlsFiles};
use rustls::ServerConfig;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;

/// Time between two looks at the files.
const INTERVAL: Duration = Duration::from_secs(1);

type Shared = Arc<RwLock<Arc<ServerConfig>>>;

/// What new connections are served with. Dropping it ends the looks.
#[derive(Debug)]
pub(super) struct Serving {
    config: Shared,
    looking: AbortHandle,
}

impl Serving {
    pub(super) fn now(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

/// The files, and what serves of them.
#[derive(Debug)]
pub(super) struct Renewing {
    files: TlsFiles,
    config: Arc<ServerConfig>,
    /// Of the contents that serve.
    digest: [u8; 32],
    trouble: Option<Trouble>,
}

/// What is wrong with the files as they are.
#[derive(Debug)]
struct Trouble {
    text: String,
    /// Two looks in a row found it: the files are not just being replaced.
    lasts: bool,
}

/// What a look found.
#[derive(Debug)]
pub(super) enum Found {
    /// Nothing to tell.
    Nothing,
    /// Another pair, which serves from now on.
    New,
    /// A pair that does not do; the last one goes on serving. Told once.
    Broken(TlsError),
}

impl Renewing {
    pub(super) fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let contents = files.read()?;
        let digest = contents.digest;
        let config = files.config(contents)?;
        Ok(Self {
            files,
            config,
            digest,
            trouble: None,
        })
    }

    /// Compares contents, not times: links that are turned and copies that keep times count too. Blocks.
    pub(super) fn look(&mut self) -> Found {
        let read = self.files.read();
        if read.as_ref().is_ok_and(|new| new.digest == self.digest) {
            self.trouble = None;
            return Found::Nothing;
        }
        let made = read.and_then(|new| Ok((new.digest, self.files.config(new)?)));
        let error = match made {
            Ok((digest, config)) => {
                (self.digest, self.config, self.trouble) = (digest, config, None);
                return Found::New;
            }
            Err(error) => error,
        };
        let text = error.to_string();
        match &mut self.trouble {
            Some(known) if known.text == text => {
                let told = std::mem::replace(&mut known.lasts, true);
                if told {
                    Found::Nothing
                } else {
                    Found::Broken(error)
                }
            }
            other => {
                *other = Some(Trouble { text, lasts: false });
                Found::Nothing
            }
        }
    }

    /// Looks again and again, until what is returned is dropped.
    pub(super) fn start(self) -> Serving {
        let config: Shared = Arc::new(RwLock::new(Arc::clone(&self.config)));
        let task = tokio::spawn(self.follow(Arc::clone(&config)));
        Serving {
            config,
            looking: task.abort_handle(),
        }
    }

    async fn follow(mut self, serving: Shared) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // The files may lie on a network.
            let look = move || {
                let found = self.look();
                (self, found)
            };
            let Ok((renewing, found)) = tokio::task::spawn_blocking(look).await else {
                return;
            };
            self = renewing;
            let (certificates, key) = (self.files.certificates.display(), self.files.key.display());
            match found {
                Found::Nothing => {}
                Found::New => {
                    let mut serving = serving.write().unwrap_or_else(PoisonError::into_inner);
                    *serving = Arc::clone(&self.config);
                    tracing::info!(%certificates, %key, "new connections get the renewed certificate");
                }
                Found::Broken(error) => {
                    tracing::error!(%error, "the changed certificate and key are not used; the last ones go on serving");
                }
            }
        }
    }
}
