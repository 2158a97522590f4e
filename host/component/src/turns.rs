//! Turns of tenants.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Lets each tenant do so many things at once: whoever wants more waits for its own, and for nobody else's.
pub struct Turns {
    most: usize,
    /// Of tenants that have any.
    all: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
}

impl Turns {
    /// `most` at once for each.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            all: Mutex::default(),
        }
    }

    /// Waits for a turn, which ends when it is dropped.
    ///
    /// # Errors
    /// Never: nothing closes them.
    pub async fn of(&self, tenant: &str) -> Result<OwnedSemaphorePermit, AcquireError> {
        let own = {
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(own) = all.get(tenant).and_then(Weak::upgrade) {
                own
            } else {
                all.retain(|_, own| own.strong_count() > 0);
                let own = Arc::new(Semaphore::new(self.most));
                all.insert(Arc::from(tenant), Arc::downgrade(&own));
                own
            }
        };
        own.acquire_owned().await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    /// The turn, if it is there now.
    fn now(turns: &Turns, tenant: &str) -> Option<OwnedSemaphorePermit> {
        let future = pin!(turns.of(tenant));
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(turn) => Some(turn.unwrap()),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn a_tenant_waits_for_its_own_turns_alone() {
        let (turns, a, b) = (Turns::new(2), "a", "b");
        let (first, second) = (now(&turns, a), now(&turns, a));
        assert!(first.is_some() && second.is_some() && now(&turns, a).is_none());
        let other = now(&turns, b);
        assert!(other.is_some());
        drop(second);
        assert!(now(&turns, a).is_some());
    }

    #[test]
    fn who_has_no_turns_is_forgotten() {
        let turns = Turns::new(1);
        for number in 0..100 {
            assert!(now(&turns, &number.to_string()).is_some());
        }
        assert_eq!(turns.all.lock().unwrap().len(), 1);
    }
}
