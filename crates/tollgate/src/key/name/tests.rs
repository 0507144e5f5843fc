use super::*;

fn parsed(text: &str) -> Option<SubjectName> {
    text.parse().ok()
}

#[test]
fn names_parse_kind_and_value() {
    let ip = |text: &str| Some(SubjectName::Ip(text.parse().unwrap()));
    let user = |issuer: Option<&str>, name: &str| {
        Some(SubjectName::User { issuer: issuer.map(str::to_owned), name: name.to_owned() })
    };
    for (text, expected) in [
        ("global", Some(SubjectName::Global)),
        ("missing", Some(SubjectName::Missing)),
        ("ip:203.0.113.7", ip("203.0.113.7")),
        ("ip:::ffff:203.0.113.7", ip("203.0.113.7")),
        ("ip:2001:db8::/64", ip("2001:db8::")),
        ("ip:203.0.113.7/33", None),
        ("ip:here", None),
        ("user:alice", user(None, "alice")),
        ("user:auth0|7, eve", user(Some("auth0|7,"), "eve")),
        ("user:https://a.example alice", user(Some("https://a.example"), "alice")),
        ("api-key:a:b", Some(SubjectName::ApiKey("a:b".to_owned()))),
        ("route:/a/{b}", Some(SubjectName::Route("/a/{b}".to_owned()))),
        ("header:acme", Some(SubjectName::Header("acme".to_owned()))),
        ("other:", None),
        ("key:01cb007107", Some(SubjectName::Key(Key::new([1, 203, 0, 113, 7])))),
        ("key:01c", None),
        ("key:zz", None),
        ("cookie:7", None),
        ("", None),
    ] {
        assert_eq!(parsed(text), expected, "{text}");
    }
}

#[test]
fn commas_separate_names_not_values() {
    let route = SubjectName::Route("/a".to_owned());
    let ip = SubjectName::Ip("192.0.2.1".parse().unwrap());
    let several = SubjectName::Several(vec![route, ip, SubjectName::Global]);
    assert_eq!(parsed("route:/a,ip:192.0.2.1,global"), Some(several));
    assert_eq!(parsed("other:a,b"), Some(SubjectName::Other("a,b".to_owned())));
    assert_eq!(parsed("ip:192.0.2.1,global,"), None);
}

#[test]
fn debug_hides_secret() {
    let name = parsed("api-key:sk_live_1").unwrap();
    assert_eq!(format!("{name:?}"), "ApiKey");
    let error = "sk_live_1".parse::<SubjectName>().unwrap_err();
    assert!(!error.to_string().contains("sk_live"));
}
