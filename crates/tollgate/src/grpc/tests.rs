use super::*;

#[test]
fn only_grpc_content_types_match() {
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
fn only_declared_services_have_calls() {
    let paths = Paths::new(["/pkg.Greeter/*"]).unwrap();
    for (services, greeter, api) in [
        (GrpcServices::None, false, false),
        (GrpcServices::All, true, true),
        (GrpcServices::at(paths), true, false),
    ] {
        for (path, expected) in [("/pkg.Greeter/SayHello", greeter), ("/api.v1/items", api)] {
            let call = http::Request::post(path).header(CONTENT_TYPE, "application/grpc");
            let call = call.body(()).unwrap();
            assert_eq!(services.is_call(&RequestHead::of(&call)), expected, "{path}");
            let post = http::Request::post(path).body(()).unwrap();
            assert!(!services.is_call(&RequestHead::of(&post)), "{path}");
        }
    }
}

#[test]
fn messages_are_percent_encoded() {
    let response = trailers_only("8", "100 % é\n");
    assert_eq!(response.headers()[GRPC_MESSAGE], "100 %25 %C3%A9%0A");
}

#[test]
fn any_message_is_valid_header() {
    let all: String = (0..0x250).filter_map(char::from_u32).collect();
    let response = trailers_only("8", &all);
    assert!(response.headers().contains_key(GRPC_MESSAGE));
    assert!(response.body().is_empty());
}
