use std::net::{Ipv4Addr, SocketAddr};

use http::Request;

use super::*;
use crate::key::{ApiKey, FromExtension};

#[derive(Clone)]
struct Account(&'static str);

fn lists() -> AccessLists {
    AccessLists::new()
        .addresses_by(ClientIp::peer())
        .api_keys_in(ApiKey::in_x_api_key())
        .users_by(FromExtension::new(|account: &Account| Some(account.0)))
}

fn request(last: u8, key: Option<&str>, user: Option<&'static str>) -> Request<()> {
    let mut request = Request::new(());
    let peer = SocketAddr::from((Ipv4Addr::new(192, 0, 2, last), 50_000));
    request.extensions_mut().insert(peer);
    if let Some(key) = key {
        request.headers_mut().insert("x-api-key", key.parse().unwrap());
    }
    if let Some(user) = user {
        request.extensions_mut().insert(Account(user));
    }
    request
}

fn list(text: &str) -> SubjectList {
    text.parse().unwrap()
}

#[test]
fn blocklist_overrides_allowlist() {
    let lists = lists();
    // The digest of `foo`.
    let foo = "sha256:2C26B46B68FFC68FF99B453C1D30413413422D706483BFA0F98A5E886266E7AE";
    let deny = list("192.0.2.4/30 # four of them\nuser:mallory");
    let allow = list(&format!("192.0.2.0/29\n\n{foo}\nuser:root"));
    lists.replace(&deny, &allow).unwrap();
    for (last, key, user, expected) in [
        (9, None, None, Listed::Neither),
        (9, Some("foo"), None, Listed::Allowed),
        (9, Some("bar"), None, Listed::Neither),
        (9, None, Some("root"), Listed::Allowed),
        (3, None, None, Listed::Allowed),
        (4, None, None, Listed::Blocked),
        (4, Some("foo"), Some("root"), Listed::Blocked),
        (3, Some("foo"), Some("mallory"), Listed::Blocked),
    ] {
        let request = request(last, key, user);
        assert_eq!(
            lists.find(&RequestHead::of(&request)).unwrap(),
            expected,
            "{last} {key:?} {user:?}"
        );
    }
    lists.replace(&SubjectList::new(), &SubjectList::new()).unwrap();
    let request = request(4, None, None);
    assert_eq!(lists.find(&RequestHead::of(&request)).unwrap(), Listed::Neither);
}

#[test]
fn nat64_clients_match_ipv4_entries() {
    let blocks = |source: ClientIp, list: &str, ip: &str| {
        let lists = AccessLists::new().addresses_by(source);
        lists.replace(&list.parse().unwrap(), &SubjectList::new()).unwrap();
        let mut request = Request::new(());
        let peer = SocketAddr::new(ip.parse().unwrap(), 50_000);
        request.extensions_mut().insert(peer);
        lists.find(&RequestHead::of(&request)).unwrap() == Listed::Blocked
    };
    let translated = "64:ff9b::203.0.113.7";
    for (list, ip, expected) in [
        ("203.0.113.0/24", translated, true),
        ("203.0.113.0/24", "64:ff9b::203.0.112.7", false),
        // An entry with the translator's prefix still matches its clients, but not all of IPv4.
        ("64:ff9b::/96", translated, true),
        ("64:ff9b::/96", "203.0.113.7", false),
    ] {
        assert_eq!(blocks(ClientIp::peer(), list, ip), expected, "{list} {ip}");
    }
    let off = ClientIp::peer().nat64(false);
    assert!(!blocks(off, "203.0.113.0/24", translated), "hosts can choose such addresses");
}

#[test]
fn ineffective_lists_are_rejected() {
    let none = SubjectList::new();
    let lists = AccessLists::new().addresses_by(ClientIp::peer());
    lists.replace(&list("192.0.2.1"), &none).unwrap();
    let foo = "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
    for (text, expected) in [
        (
            foo,
            "the list has API keys, but the layer does not check them: add `.api_keys_in(..)` [TG0214]",
        ),
        (
            "user:eve",
            "the list has users, but the layer does not check them: add `.users_by(..)` [TG0214]",
        ),
    ] {
        assert_eq!(lists.replace(&none, &list(text)).unwrap_err().to_string(), expected);
    }
    let ip_is_no_user = lists.clone().users_by(ClientIp::peer());
    let error = ip_is_no_user.replace(&list("user:a"), &none).unwrap_err();
    assert_eq!(error, AccessListsError::NoSuchUser { position: 1 });
    let request = request(1, None, None);
    assert_eq!(lists.find(&RequestHead::of(&request)).unwrap(), Listed::Blocked);
}

#[test]
fn invalid_entries_report_line_not_text() {
    for (text, expected) in [
        ("k-7f3a", "expected a network"),
        ("192.0.2.1/33", "expected a network"),
        ("192.0.2.1/24", "write 192.0.2.0/24 for the network or 192.0.2.1 for the one"),
        ("0.0.0.0/0", "it matches every client"),
        ("::/0", "it matches every client"),
        ("::/1", "it holds IPv4-mapped and other addresses"),
        ("sha256:k-7f3a", "expected the SHA-256 of a key"),
        ("user:", "the name of the user is empty"),
    ] {
        let error = format!("# a comment\n\n{text}").parse::<SubjectList>().unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("line 3: ") && message.contains(expected), "{text}: {message}");
        assert!(!message.contains("k-7f3a"), "{message}");
    }
    // Mapped addresses count as IPv4.
    let mapped = list("::ffff:192.0.2.0/120");
    assert!(Networks::new(&mapped.networks).contain(Ipv4Addr::new(192, 0, 2, 7).into()));
}

#[test]
fn debug_shows_only_counts() {
    let list = list("192.0.2.1\nuser:mallory");
    let lists = lists();
    lists.replace(&list, &SubjectList::new()).unwrap();
    assert_eq!(format!("{list:?}"), "SubjectList { networks: 1, api_keys: 0, users: 1 }");
    assert_eq!(
        format!("{lists:?}"),
        "AccessLists { blocklist_is_empty: false, allowlist_is_empty: true, .. }"
    );
}
