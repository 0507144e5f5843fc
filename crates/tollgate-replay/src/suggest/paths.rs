//! Groups paths into routes: numbers, UUIDs and segments with many values become `{id}`.
//!
//! Only successful requests determine the groups and routes, because scanners request many paths
//! that do not exist. Each path then belongs to the first route that matches it, for successful and
//! failed requests alike. A configuration with these routes in this order therefore charges the same
//! requests.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// The distinct paths, up to a bound.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// The user's patterns, split into segments. Patterns with fewer `{…}` are first.
    known: Vec<Vec<String>>,
    numbers: HashMap<Box<str>, u32, RandomState>,
    paths: Vec<Box<str>>,
    /// The number of successful requests to each path, in the entire log.
    counts: Vec<u64>,
    /// Requests to paths beyond the bound, which belong to no route.
    pub(super) beyond: u64,
}

/// The maximum number of distinct paths.
const PATHS: usize = 100_000;
/// Up to this many distinct paths are stored even if their first request fails.
const UNSUCCESSFUL: usize = PATHS / 2;
/// Deeper segments are ignored.
const DEPTH: usize = 8;
/// A position with more distinct segments contains identifiers.
const VARIED: usize = 32;

const ANY: &str = "{id}";
const DEEPER: &str = "…";

/// Marks paths that belong to no route or are beyond the bound.
pub(super) const NONE: u32 = u32::MAX;

/// Maps path numbers to route numbers.
pub(super) struct Routes {
    of: Vec<u32>,
    names: Vec<String>,
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').skip(1)
}

/// A template such as `{id}.json` matches any segment, because a name may have any text.
fn is_any(segment: &str) -> bool {
    segment.contains('{')
}

/// Whether a route matches a path. `{…}` matches any non-empty segment.
fn fits<'a>(route: &[String], mut path: impl Iterator<Item = &'a str>) -> bool {
    route.iter().all(|known| match path.next() {
        Some(segment) => known == segment || is_any(known) && !segment.is_empty(),
        None => false,
    }) && path.next().is_none()
}

/// Routes with fewer `{…}` are matched first.
fn wildcards(route: &[String]) -> usize {
    route.iter().filter(|segment| is_any(segment) || *segment == DEEPER).count()
}

impl Paths {
    pub(super) fn new(patterns: &[String]) -> Self {
        let split = |pattern: &String| segments(pattern).map(str::to_owned).collect::<Vec<_>>();
        let mut known: Vec<_> = patterns.iter().map(split).collect();
        known.sort_by_key(|pattern| wildcards(pattern));
        Self { known, ..Self::default() }
    }

    /// Returns the number of a path after replacing identifiers, or [`NONE`] if there are too many
    /// paths.
    pub(super) fn number(&mut self, path: &str, is_success: bool) -> u32 {
        let path = self.pattern(path);
        let number = match self.numbers.get(&*path) {
            Some(number) => *number,
            None if self.paths.len() >= if is_success { PATHS } else { UNSUCCESSFUL } => {
                self.beyond += 1;
                return NONE;
            }
            None => {
                #[expect(clippy::cast_possible_truncation, reason = "at most PATHS")]
                let number = self.paths.len() as u32;
                let path: Box<str> = path.into();
                self.numbers.insert(path.clone(), number);
                self.paths.push(path);
                self.counts.push(0);
                number
            }
        };
        self.counts[number as usize] += u64::from(is_success);
        number
    }

    /// The number of distinct paths.
    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    fn pattern(&self, path: &str) -> String {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        if let Some(known) = self.known.iter().find(|known| fits(known, segments(path))) {
            return format!("/{}", known.join("/"));
        }
        let mut pattern = String::new();
        let mut rest = segments(path);
        for segment in rest.by_ref().take(DEPTH) {
            pattern.push('/');
            pattern.push_str(if is_identifier(segment) { ANY } else { segment });
        }
        match (rest.next(), rest.next()) {
            (None, _) => {}
            (Some(""), None) => pattern.push('/'),
            _ => {
                pattern.push('/');
                pattern.push_str(DEEPER);
            }
        }
        pattern
    }

    /// Whether any client's request has succeeded for each path, or for similar paths.
    pub(super) fn existing(&self) -> Vec<bool> {
        let mut groups = self.groups(&self.counts);
        groups.retain(|route, _| wildcards(route) > 0);
        let is_similar = |path: &str| groups.keys().any(|route| includes(route, path));
        let paths = self.paths.iter().zip(&self.counts);
        paths.map(|(path, count)| *count > 0 || is_similar(path)).collect()
    }

    /// The routes that a configuration can express, in the order in which it must match them: the
    /// user's patterns, and then grouped paths, up to `most` routes in total. `counts` are successful
    /// requests by path.
    pub(super) fn routes(&self, counts: &[u64], most: usize) -> Routes {
        let (known, mut others): (Vec<_>, Vec<_>) = self
            .groups(counts)
            .into_iter()
            .filter(|(path, _)| is_expressible(path))
            .partition(|(path, _)| self.known.contains(path));
        others.sort_by_key(|(_, count)| Reverse(*count));
        others.truncate(most.saturating_sub(known.len()));
        others.sort_by_key(|(path, count)| (wildcards(path), Reverse(*count)));
        let mut known: Vec<_> = known.into_iter().map(|(path, _)| path).collect();
        known.sort_by_key(|path| self.known.iter().position(|other| other == path));
        known.extend(others.into_iter().map(|(path, _)| path));
        let of = |path: &str| {
            let found = known.iter().position(|route| includes(route, path));
            found.and_then(|number| u32::try_from(number).ok()).unwrap_or(NONE)
        };
        let of = self.paths.iter().map(|path| of(path)).collect();
        let names = known.iter().map(|path| format!("/{}", path.join("/"))).collect();
        Routes { of, names }
    }

    /// The paths with successful requests. Segments with many values are replaced too.
    fn groups(&self, counts: &[u64]) -> BTreeMap<Vec<String>, u64> {
        let split = |path: &str| segments(path).map(str::to_owned).collect::<Vec<_>>();
        let successful = self.paths.iter().zip(counts).filter(|(_, count)| **count > 0);
        let mut paths: Vec<(Vec<String>, u64)> =
            successful.map(|(path, count)| (split(path), *count)).collect();
        let is_known = |path: &Vec<String>| self.known.contains(path);
        for depth in 0..DEPTH {
            // The segments that follow each prefix.
            let mut places: BTreeMap<(usize, &[String]), Vec<&str>> = BTreeMap::new();
            for (path, _) in &paths {
                // The empty segment in `/blog/` is not an identifier.
                if path.get(depth).is_some_and(|segment| !segment.is_empty()) && !is_known(path) {
                    places.entry((path.len(), &path[..depth])).or_default().push(&path[depth]);
                }
            }
            let varied: Vec<(usize, Vec<String>)> = places
                .into_iter()
                .filter_map(|((length, begin), mut segments)| {
                    segments.sort_unstable();
                    segments.dedup();
                    (segments.len() > VARIED).then(|| (length, begin.to_vec()))
                })
                .collect();
            for (path, _) in &mut paths {
                let place = (path.len(), path.get(..depth).unwrap_or_default().to_vec());
                let segment = path.get(depth);
                if segment.is_some_and(|segment| !segment.is_empty() && segment != DEEPER)
                    && !self.known.contains(path)
                    && varied.binary_search(&place).is_ok()
                {
                    ANY.clone_into(&mut path[depth]);
                }
            }
        }
        let mut counts: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for (path, count) in paths {
            *counts.entry(path).or_default() += count;
        }
        counts
    }
}

/// Whether a route includes all requests with this grouped path.
fn includes(route: &[String], path: &str) -> bool {
    match route {
        [begin @ .., last] if last == DEEPER => {
            let mut path = segments(path);
            let is_begin = begin.len() == DEPTH
                && fits(begin, path.by_ref().take(DEPTH).collect::<Vec<_>>().into_iter());
            is_begin && path.next() == Some(DEEPER)
        }
        _ => fits(route, segments(path)) && !path.ends_with(DEEPER),
    }
}

/// Whether a configuration can match the path, which must be in normal form and without escapes.
fn is_expressible(path: &[String]) -> bool {
    let is_plain = |segment: &String| {
        segment == DEEPER
            || segment.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '%' | ';' | '\\'))
    };
    !path.is_empty() && path.iter().all(is_plain)
}

impl Routes {
    pub(super) fn of(&self, path: u32) -> u32 {
        self.of.get(path as usize).copied().unwrap_or(NONE)
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }
}

/// Whether a segment is a number, a UUID, or a long text in hexadecimal or with many digits.
fn is_identifier(segment: &str) -> bool {
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    let is_hex = || segment.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    match segment.len() {
        0 => false,
        length if digits == length => true,
        length @ 8.. => digits > 0 && is_hex() || length >= 16 && digits * 3 >= length,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The routes for successful requests to these paths.
    fn routes(patterns: &[&str], paths: impl IntoIterator<Item = String>) -> Vec<String> {
        let patterns: Vec<_> = patterns.iter().map(|it| (*it).to_owned()).collect();
        let mut all = Paths::new(&patterns);
        for path in paths {
            all.number(&path, true);
        }
        all.routes(&all.counts, 5).names().to_vec()
    }

    #[test]
    fn numbers_uuids_and_slugs_become_identifiers() {
        let fixed = ["/", "/login", "/api/item/7/comment?page=2", "/api/item/9/comment"];
        let uuid = "/user/4f1c9a52-0d5e-4b52-9d4e-1f2a3b4c5d6e".to_owned();
        let slugs = (0..50_u8).map(|n| format!("/blog/about-{}", char::from(b'A' + n)));
        let paths = fixed.iter().map(|it| (*it).to_owned()).chain([uuid]).chain(slugs);
        let mut found = routes(&[], paths);
        found.sort();
        assert_eq!(found, ["/", "/api/item/{id}/comment", "/blog/{id}", "/login", "/user/{id}"]);
    }

    #[test]
    fn user_patterns_come_first() {
        let paths = ["/shop/red", "/shop/blue", "/shop/red/size"].map(str::to_owned);
        assert_eq!(routes(&["/shop/{colour}"], paths), ["/shop/{colour}", "/shop/red/size"]);
    }

    #[test]
    fn routes_are_bounded() {
        let paths = (0..20_u8).map(|n| format!("/{}", char::from(b'a' + n)));
        assert_eq!(routes(&[], paths).len(), 5);
    }

    #[test]
    fn failed_requests_do_not_affect_grouping() {
        let mut all = Paths::new(&[]);
        let good = ["/login", "/shop", "/shop/"].map(|path| all.number(path, true));
        let scans: Vec<_> =
            (0..100).map(|n| all.number(&format!("/scan-{n}.php"), false)).collect();
        let failed = all.number("/shop", false);
        let routes = all.routes(&all.counts, 5);
        assert_eq!(routes.names(), ["/login", "/shop", "/shop/"]);
        assert_eq!(good.map(|path| routes.of(path)), [0, 1, 2]);
        assert!(scans.into_iter().all(|path| routes.of(path) == NONE));
        assert_eq!(routes.of(failed), 1);
    }

    #[test]
    fn empty_segment_is_not_an_identifier() {
        let mut all = Paths::new(&[]);
        let folder = all.number("/blog/", true);
        let slugs: Vec<_> = (0..50).map(|n| all.number(&format!("/blog/of-{n}x"), true)).collect();
        let missing = all.number("/blog/missing", false);
        let routes = all.routes(&all.counts, 5);
        assert_eq!(routes.names(), ["/blog/", "/blog/{id}"]);
        assert_eq!(routes.of(folder), 0);
        assert!(slugs.into_iter().chain([missing]).all(|path| routes.of(path) == 1));
    }

    #[test]
    fn deep_paths_share_a_route() {
        let mut all = Paths::new(&[]);
        let [deep, deeper, folder] =
            ["/a/b/c/d/e/f/g/h/i", "/a/b/c/d/e/f/g/h/i/j/", "/a/b/c/d/e/f/g/h/"]
                .map(|path| all.number(path, true));
        let routes = all.routes(&all.counts, 5);
        assert_eq!(routes.names(), ["/a/b/c/d/e/f/g/h/", "/a/b/c/d/e/f/g/h/…"]);
        assert_eq!([folder, deep, deeper].map(|path| routes.of(path)), [0, 1, 1]);
    }

    #[test]
    fn paths_beyond_the_bound_have_no_route() {
        let mut all = Paths::new(&[]);
        for n in 0..=UNSUCCESSFUL {
            all.number(&format!("/scan{n}.php"), false);
        }
        assert_eq!(all.beyond, 1);
        assert_ne!(all.number("/new", true), NONE);
    }
}
