//! CPU time of a request's guest calls, charged to its tenant.

use super::limits::Limits;
use guesthouse_tenants::Tenant;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Charges what is done in its name to a tenant; cheap to clone.
#[derive(Clone)]
pub(super) struct GuestTime {
    limits: Arc<Limits>,
    tenant: Arc<Tenant>,
}

impl GuestTime {
    pub(super) fn new(limits: &Arc<Limits>, tenant: &Arc<Tenant>) -> Self {
        Self {
            limits: Arc::clone(limits),
            tenant: Arc::clone(tenant),
        }
    }

    /// Runs a call that blocks.
    pub(super) fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        let mut charge = self.charge();
        let before = thread_cpu();
        let result = call();
        charge.took += thread_cpu().saturating_sub(before);
        result
    }

    /// Runs a call that lets others run meanwhile, on whichever threads. What it took until it is dropped counts too.
    pub(super) async fn during<F: Future>(&self, call: F) -> F::Output {
        let mut charge = self.charge();
        let mut call = pin!(call);
        poll_fn(|context| {
            let before = thread_cpu();
            let polled = call.as_mut().poll(context);
            charge.took += thread_cpu().saturating_sub(before);
            polled
        })
        .await
    }

    fn charge(&self) -> Charge<'_> {
        Charge {
            to: self,
            took: Duration::ZERO,
        }
    }
}

/// Charged when dropped.
struct Charge<'a> {
    to: &'a GuestTime,
    took: Duration,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.to.limits.charge_guests(&self.to.tenant, self.took);
    }
}

/// CPU time of the calling thread.
fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}
