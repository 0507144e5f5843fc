use super::*;

#[test]
fn grpc_is_told_from_its_neighbours() {
    for (content_type, expected) in [
        ("application/grpc", true),
        ("application/grpc+proto", true),
        ("application/grpc; charset=utf-8", true),
        ("Application/GRPC", true),
        ("application/grpc-web", false),
        ("application/grpc-web+proto", false),
        ("application/grpcs", false),
        ("application/json", false),
        ("", false),
    ] {
        let value = HeaderValue::from_static(content_type);
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, value)]);
        assert_eq!(has_grpc_type(&headers), expected, "{content_type}");
    }
    assert!(!has_grpc_type(&HeaderMap::new()));
}

#[test]
fn a_method_is_told_from_other_paths_and_patterns() {
    for (path, expected) in [
        ("/grpc.health.v1.Health/Check", true),
        ("/grpc.health.v1.Health/{*rest}", true),
        ("/_a.b2/c", true),
        ("/Greeter/SayHello", false),
        ("/comments", false),
        ("/comments/{id}", false),
        ("/v1.0/users", false),
        ("/index.html", false),
        ("/a.b/", false),
        ("/a.b/c/d", false),
        ("/a..b/c", false),
        ("/.well-known/acme", false),
        ("/a.b%2F/c", false),
        ("a.b/c", false),
        ("//a.b/c", false),
        ("", false),
    ] {
        assert_eq!(is_method(path), expected, "{path}");
    }
}

#[test]
fn messages_are_percent_encoded() {
    let response = trailers_only("8", "100 % é\n");
    assert_eq!(response.headers()[GRPC_MESSAGE], "100 %25 %C3%A9%0A");
}

#[test]
fn any_message_makes_a_header() {
    let all: String = (0..0x250).filter_map(char::from_u32).collect();
    let response = trailers_only("8", &all);
    assert!(response.headers().contains_key(GRPC_MESSAGE));
    assert!(response.body().is_empty());
}
