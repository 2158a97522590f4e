//! What requests take of their tenants' quotas, and give back when they end.

use super::AppState;
use super::access::{Caller, STATIC};
use super::metrics::{PerTenant, Refusals};
use crate::openai::ApiError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use guesthouse_tenants::{Counted, Refused, Reservation, Tenant, Usage, UsageDay, day_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Routes whose requests count.
const METERED: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/generate",
    "/tokenize",
    "/detokenize",
];

/// CPU time that a tenant's guests used since the server began: calls that ended.
pub type GuestClock = Arc<dyn Fn(&Tenant) -> Duration + Send + Sync>;

/// What all tenants use, and used.
#[derive(Default)]
pub(super) struct Limits {
    usage: Usage,
    ledger: Arc<Ledger>,
    clock: Option<GuestClock>,
    /// Milliseconds of guests' time that are charged, by the tenants' numbers.
    charged: Mutex<BTreeMap<u64, u64>>,
    pub(super) refused: PerTenant<Refusals>,
}

impl Limits {
    pub(super) fn with_clock(clock: GuestClock) -> Self {
        Self {
            clock: Some(clock),
            ..Self::default()
        }
    }

    /// Counts a request that begins.
    fn begin(&self, tenant: &Tenant) -> Result<(), ApiError> {
        self.charge_guests(tenant);
        let begun = self.usage.begin(tenant, Instant::now());
        begun.map_err(|refused| self.over(tenant, refused))?;
        self.ledger.add(
            tenant.number,
            &Counted {
                requests: 1,
                ..Counted::default()
            },
        );
        Ok(())
    }

    /// Places for so many sequences, before anything is done for them.
    pub(super) fn places(&self, caller: &Caller, sequences: u64) -> Result<Places, ApiError> {
        let sequences = u32::try_from(sequences).unwrap_or(u32::MAX);
        Ok(Places {
            held: self.reserve(&caller.tenant, sequences, 0)?,
            tenant: Arc::clone(&caller.tenant),
        })
    }

    /// The tokens that they may use at most: prompts and answers.
    pub(super) fn hold(&self, places: Places, tokens: u64) -> Result<Hold, ApiError> {
        let Places { held, tenant } = places;
        let tokens = self.reserve(&tenant, 0, tokens)?;
        Ok(Hold {
            tokens,
            tenant: tenant.number,
            ledger: Arc::clone(&self.ledger),
            prompt: AtomicU64::new(0),
            output: AtomicU64::new(0),
            _places: held,
        })
    }

    fn reserve(
        &self,
        tenant: &Tenant,
        sequences: u32,
        tokens: u64,
    ) -> Result<Reservation, ApiError> {
        let now = Instant::now();
        let held = self.usage.reserve(tenant, sequences, tokens, now);
        held.map_err(|refused| self.over(tenant, refused))
    }

    fn over(&self, tenant: &Tenant, refused: Refused) -> ApiError {
        self.refused.of(tenant).count(refused.limit);
        ApiError::OverLimit {
            limit: refused.limit,
            retry_after: whole_seconds(refused.retry_after),
        }
    }

    /// Charges what a tenant's guests used since the last time.
    pub(super) fn charge_guests(&self, tenant: &Tenant) {
        let Some(clock) = &self.clock else { return };
        let guest_ms = {
            // Read under the lock: what it tells only grows.
            let mut charged = self.charged.lock().unwrap_or_else(PoisonError::into_inner);
            let used = u64::try_from(clock(tenant).as_millis()).unwrap_or(u64::MAX);
            let charged = charged.entry(tenant.number).or_default();
            used.saturating_sub(std::mem::replace(charged, used))
        };
        if guest_ms == 0 {
            return;
        }
        let now = Instant::now();
        self.usage.charge_guest_ms(tenant, guest_ms, now);
        self.ledger.add(
            tenant.number,
            &Counted {
                guest_ms,
                ..Counted::default()
            },
        );
    }

    /// What was used since the last call, by tenant; it counts for the day of `unix_seconds`. Keys of the command line have
    /// no counters that last.
    pub(super) fn take_used(&self, unix_seconds: u64) -> Vec<UsageDay> {
        let used = std::mem::take(&mut *self.ledger.lock());
        let day = day_of(unix_seconds);
        let lasting = used.into_iter().filter(|(tenant, _)| *tenant < STATIC);
        let used = lasting.map(|(tenant, counted)| UsageDay {
            tenant,
            day,
            counted,
        });
        used.collect()
    }

    /// Forgets tenants that are gone. Who needs no key stays.
    pub(super) fn retain(&self, known: &BTreeSet<u64>) {
        let stays = |number| number == 0 || known.contains(&number);
        self.usage.retain(stays);
        let mut charged = self.charged.lock().unwrap_or_else(PoisonError::into_inner);
        charged.retain(|number, _| stays(*number));
    }

    /// Sequences of a tenant that are accepted and not finished.
    #[cfg(test)]
    pub(super) fn sequences(&self, tenant: u64) -> u32 {
        self.usage.sequences(tenant)
    }
}

/// Rounded up; at least 1.
fn whole_seconds(wait: Duration) -> u64 {
    let started = u64::from(wait.subsec_nanos() > 0);
    wait.as_secs().saturating_add(started).max(1)
}

/// Counts that nobody took yet, by the tenants' numbers.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<u64, Counted>>);

impl Ledger {
    fn add(&self, tenant: u64, more: &Counted) {
        self.lock().entry(tenant).or_default().add(more);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Counted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Places of sequences that are not submitted yet.
pub(super) struct Places {
    held: Reservation,
    tenant: Arc<Tenant>,
}

/// What one request holds of its tenant's quotas. Dropping it gives back places, and tokens that were not used.
pub(super) struct Hold {
    tokens: Reservation,
    tenant: u64,
    ledger: Arc<Ledger>,
    prompt: AtomicU64,
    output: AtomicU64,
    _places: Reservation,
}

impl Hold {
    /// Tokens of a prompt that is computed.
    pub(super) fn used_prompt(&self, tokens: u32) {
        self.tokens.used(tokens.into());
        self.prompt.fetch_add(tokens.into(), Ordering::Relaxed);
    }

    /// A token of an answer came.
    pub(super) fn used_output(&self) {
        self.tokens.used(1);
        self.output.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let counted = Counted {
            prompt_tokens: *self.prompt.get_mut(),
            output_tokens: *self.output.get_mut(),
            ..Counted::default()
        };
        self.ledger.add(self.tenant, &counted);
    }
}

/// Refuses requests over their tenant's limits, and tells of the limits in the answers' headers, as OpenAI does.
pub(super) async fn meter(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let metered = request.method() == Method::POST && METERED.contains(&request.uri().path());
    let tenant = request.extensions().get::<Arc<Tenant>>().cloned();
    let (true, Some(tenant)) = (metered, tenant) else {
        return next.run(request).await;
    };
    let mut response = match state.limits().begin(&tenant) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    tell(&state.limits().usage, &tenant, response.headers_mut());
    response
}

fn tell(usage: &Usage, tenant: &Tenant, headers: &mut HeaderMap) {
    let levels = usage.levels(tenant, Instant::now());
    for (what, level) in [("requests", levels.requests), ("tokens", levels.tokens)] {
        let Some(level) = level else { continue };
        for (kind, value) in [
            ("limit", level.limit.to_string()),
            ("remaining", level.remaining.to_string()),
            ("reset", spelled(level.reset)),
        ] {
            let name = HeaderName::from_bytes(format!("x-ratelimit-{kind}-{what}").as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
                headers.insert(name, value);
            }
        }
    }
}

/// As OpenAI writes times: `6m0s`, `1s`, `20ms`. Rounded up to milliseconds.
fn spelled(time: Duration) -> String {
    let ms = time.as_nanos().div_ceil(1_000_000);
    let (minutes, rest) = (ms / 60_000, ms % 60_000);
    let seconds = format!("{:.3}", rest as f64 / 1e3);
    let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
    match (minutes, ms) {
        (_, 0..1000) => format!("{ms}ms"),
        (0, _) => format!("{seconds}s"),
        _ => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests;
