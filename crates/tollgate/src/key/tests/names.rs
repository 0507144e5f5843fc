//! How operators name the subjects of sources.

use super::*;

#[test]
fn shown_subjects_can_be_named() {
    #[derive(Clone)]
    struct User(&'static [u8]);

    let user = || FromExtension::<User>::borrowed(|user| Some(user.0));
    let closure = |text: &'static str, kind| from_fn(move |_| Some(text)).of_kind(kind);
    let tenant = || closure("acme", SubjectKind::Other);
    let sources: [(&'static [u8], Arc<dyn KeySource>, &str); 5] = [
        (b"Jane Doe", Arc::new(user()), "user:Jane Doe"),
        (b"", Arc::new(closure("Jo Doe", SubjectKind::User)), "user:Jo Doe"),
        (b"", Arc::new((Global, tenant())), "global,other:acme"),
        (b"", Arc::new((tenant(), closure("ann", SubjectKind::User))), "other:acme,other:ann"),
        (&[7, 0xff], Arc::new((user(), tenant())), "key:050207ff,other:acme"),
    ];
    for (user, source, shown) in sources {
        let mut request = request(&[]);
        request.extensions_mut().insert(User(user));
        let found = source.subject(&RequestHead::of(&request)).unwrap().unwrap();
        let formatter = SubjectFormatter::new(SubjectFormat::Clear);
        assert_eq!(formatter.format(&found.key, found.kind), shown);
        let name = shown.parse().unwrap();
        assert_eq!(source.named(&name).map(|subject| subject.key), Some(found.key), "{shown}");
    }
}

/// A source may name a subject by any text, so long texts must not be cut or hashed.
#[test]
fn sources_name_their_subjects_in_full() {
    let long = "a-name-that-does-not-fit-into-a-key-without-a-hash";
    let mut request = request(&[("x-api-key", KEY), ("x-tenant", long)]);
    request.extensions_mut().insert(long.to_owned());
    request.extensions_mut().insert(RoutePattern::new("/orders/{order}"));
    let tenant = Header::trust_unverified(HeaderName::from_static("x-tenant"));
    let absent = Header::trust_unverified(HeaderName::from_static("x-absent"));
    let user = FromExtension::<String>::borrowed(|user| Some(user));
    let sources: [(Box<dyn KeySource>, Option<&str>); 11] = [
        (Box::new(Global), Some("global")),
        (Box::new(ClientIp::peer()), Some("192.0.2.1")),
        (Box::new(ApiKey::in_x_api_key().one_of(keys())), Some(DIGEST)),
        (Box::new(tenant.clone()), Some(long)),
        (Box::new(user), Some(long)),
        (Box::new(from_ref(|head| head.headers.get("x-tenant")?.to_str().ok())), Some(long)),
        (Box::new(from_fn(|_| Some([0xff]))), None),
        (Box::new(MatchedRoute), Some("/orders/{order}")),
        (Box::new(PathParam::new("order")), Some("7")),
        (Box::new(absent.clone().or(tenant.clone())), Some(long)),
        (Box::new(chain([Arc::new(absent) as Arc<dyn KeySource>, Arc::new(tenant)])), Some(long)),
    ];
    for (number, (source, name)) in sources.iter().enumerate() {
        assert_eq!(source.name(&RequestHead::of(&request)).as_deref(), *name, "source {number}");
    }
}
