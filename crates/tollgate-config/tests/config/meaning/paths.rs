//! Path patterns mean the same in the file and in the layer.

use tollgate::limit::Paths;

use super::with;

#[test]
fn patterns_match_like_in_the_layer() {
    let paths = [
        "/",
        "/static",
        "/static/",
        "/static/a",
        "/static/a/b",
        "/statics",
        "/Static/a",
        "/a/static",
        "/login",
        "/login/",
        "/%EA%B2%80",
        "/%EA%B2%80/a",
    ];
    for (pattern, matched) in [
        ("/static/*", &["/static", "/static/", "/static/a", "/static/a/b"][..]),
        ("/static/", &["/static/"]),
        ("/login", &["/login"]),
        ("/%EA%B2%80", &["/%EA%B2%80"]),
        ("/%EA%B2%80/*", &["/%EA%B2%80", "/%EA%B2%80/a"]),
        ("/", &["/"]),
        ("/*", &paths),
    ] {
        let in_file = with(&format!("  exempt: [\"{pattern}\"]\n"));
        let in_layer = Paths::new([pattern]).unwrap();
        for path in paths {
            let expected = matched.contains(&path);
            assert_eq!(in_file.exempt[0].matches(path), expected, "{pattern} {path}");
            assert_eq!(in_layer.surely_contains(path), expected, "{pattern} {path}");
            assert_eq!(in_layer.may_contain(path), expected, "{pattern} {path}");
        }
    }
}
