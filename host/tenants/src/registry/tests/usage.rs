use super::{add, id};
use crate::{Counted, Registry, UsageDay, day_of};

fn counted(n: u64) -> Counted {
    Counted {
        requests: n,
        prompt_tokens: 10 * n,
        output_tokens: 100 * n,
        guest_ms: 1_000 * n,
    }
}

fn day(tenant: u64, day: u32, n: u64) -> UsageDay {
    UsageDay {
        tenant,
        day,
        counted: counted(n),
    }
}

#[test]
fn counters_add_up_by_tenant_and_day() {
    let registry = Registry::in_memory().unwrap();
    add(&registry, "acme");
    registry
        .add_usage(&[day(1, 5, 1), day(0, 5, 7), day(1, 5, 2), day(1, 6, 4)])
        .unwrap();
    registry.add_usage(&[day(1, 6, 5)]).unwrap();
    registry.add_usage(&[]).unwrap();
    assert_eq!(registry.usage(1, 0).unwrap(), [day(1, 5, 3), day(1, 6, 9)]);
    assert_eq!(registry.usage(1, 6).unwrap(), [day(1, 6, 9)]);
    assert_eq!(registry.usage(0, 0).unwrap(), [day(0, 5, 7)]);
    // They outlive their tenant.
    registry.remove(&id("acme")).unwrap();
    registry.add_usage(&[day(1, 6, 1)]).unwrap();
    assert_eq!(registry.usage(1, 6).unwrap(), [day(1, 6, 10)]);
}

#[test]
fn counters_stop_at_the_largest_number() {
    let registry = Registry::in_memory().unwrap();
    let most = Counted {
        requests: u64::MAX,
        guest_ms: u64::try_from(i64::MAX - 1).unwrap(),
        ..Counted::default()
    };
    let entry = UsageDay {
        tenant: u64::MAX,
        day: u32::MAX,
        counted: most,
    };
    for _ in 0..3 {
        registry.add_usage(&[entry]).unwrap();
    }
    let found = registry.usage(u64::MAX, 0).unwrap();
    assert_eq!(found.len(), 1);
    // SQLite's largest integer.
    assert_eq!(found[0].counted.requests, 9_223_372_036_854_775_807);
    assert_eq!(found[0].counted.guest_ms, 9_223_372_036_854_775_807);
}

// `date -u -d @1700000000` is 2023-11-14, which is 19,675 days after 1970-01-01.
#[test]
fn days_are_of_utc() {
    assert_eq!(day_of(1_700_000_000), 19_675);
    assert_eq!((day_of(86_399), day_of(86_400)), (0, 1));
    assert_eq!(day_of(u64::MAX), u32::MAX);
}
