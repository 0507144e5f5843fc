//! The page's static files.

pub(super) fn has(path: &str) -> bool {
    path == SETTINGS || FILES.iter().any(|(own, ..)| *own == path)
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

pub(super) const SETTINGS: &str = "/page/settings.json";

pub(super) const FILES: [(&str, &str, &str); 11] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/page/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/page/main.js", SCRIPT, include_str!("page/main.js")),
    ("/page/stream.js", SCRIPT, include_str!("page/stream.js")),
    ("/page/replica.js", SCRIPT, include_str!("page/replica.js")),
    ("/page/chart.js", SCRIPT, include_str!("page/chart.js")),
    ("/page/view.js", SCRIPT, include_str!("page/view.js")),
    ("/page/client.js", SCRIPT, include_str!("page/client.js")),
    ("/page/overrides.js", SCRIPT, include_str!("page/overrides.js")),
    ("/page/send.js", SCRIPT, include_str!("page/send.js")),
];
