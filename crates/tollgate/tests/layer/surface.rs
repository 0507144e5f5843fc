//! The names at the root of the crate, and the traits of its types. Lists of the public API do not show
//! derived traits.

use tollgate::layer::Status;
use tollgate::limiter::PoliteLayer;
use tollgate::{Limiter, Store};

const fn is_clone<T: Clone>() {}
#[cfg(feature = "redis")]
const fn is_display<T: std::fmt::Display>() {}

/// Compiles only if these types are `Clone` with any store.
const fn shared_types_are_clone<St: Store>() {
    is_clone::<Limiter<St>>();
    is_clone::<PoliteLayer<St>>();
    is_clone::<Status<St>>();
}

const _: () = shared_types_are_clone::<tollgate::MemoryStore>();
#[cfg(feature = "redis")]
const _: () = is_display::<tollgate::store::RedisWarning>();

/// The documentation's front page lists all of these names, so they must be few. Modules contain
/// the rest, grouped by theme.
#[test]
fn crate_root_has_at_most_23_names() {
    let source = include_str!("../../src/lib.rs");
    let mut names = Vec::new();
    for item in source.split(';').filter_map(|item| item.split_once("\npub ").map(|it| it.1)) {
        if let Some(module) = item.strip_prefix("mod ") {
            names.push(module);
        } else if let Some((_, list)) = item.split_once('{') {
            let list = list.trim_end_matches('}').split(',');
            names.extend(list.map(str::trim).filter(|name| !name.is_empty()));
        } else {
            names.extend(item.rsplit([':', ' ']).next());
        }
    }
    assert!(names.contains(&"Limit") && names.contains(&"StoreExt") && names.contains(&"tier"));
    assert!(names.len() <= 23, "{}: {names:?}", names.len());
}
