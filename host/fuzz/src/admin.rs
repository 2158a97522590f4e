//! What the administrator sends.

use guesthouse_server::admin::LoadRequest;
use guesthouse_tenants::Policy;
use serde_json::Value;

/// A policy, the same as a change of the default one, or a request to load a model.
pub fn admin_body(data: &[u8]) {
    let Ok(body) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    if let Ok(policy) = Policy::default().patched(&body) {
        let json = serde_json::to_value(&policy).unwrap_or_default();
        assert_eq!(
            Policy::from_json(json).ok(),
            Some(policy),
            "what is kept can be read again"
        );
    }
    let _ = Policy::from_json(body.clone());
    let _ = serde_json::from_value::<LoadRequest>(body);
}
