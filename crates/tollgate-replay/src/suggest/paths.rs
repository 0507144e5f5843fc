//! Groups paths into routes: numbers, UUIDs and segments with many values become `{id}`.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// The different paths, up to a bound.
#[derive(Debug)]
pub(super) struct Paths {
    /// The patterns of the user, by segments.
    known: Vec<Vec<String>>,
    numbers: HashMap<Box<str>, u32, RandomState>,
    paths: Vec<Box<str>>,
    counts: Vec<u64>,
}

/// The most different paths. Further paths are one route.
const PATHS: usize = 100_000;
/// Deeper segments are ignored.
const DEPTH: usize = 8;
/// A place with more different segments has an identifier.
const VARIED: usize = 32;

const ANY: &str = "{id}";
const OTHER: &str = "(other)";

/// From the number of a path to that of its route.
pub(super) struct Routes {
    of: Vec<u32>,
    names: Vec<String>,
}

impl Paths {
    pub(super) fn new(patterns: &[String]) -> Self {
        let segments = |pattern: &String| pattern.split('/').skip(1).map(str::to_owned).collect();
        let known = patterns.iter().map(segments).collect();
        Self { known, numbers: HashMap::default(), paths: Vec::new(), counts: Vec::new() }
    }

    /// The number of a path, after its numbers and UUIDs are replaced.
    pub(super) fn number(&mut self, path: &str) -> u32 {
        let path = self.pattern(path);
        if let Some(number) = self.numbers.get(&*path) {
            self.counts[*number as usize] += 1;
            return *number;
        }
        let path: Box<str> = if self.paths.len() >= PATHS { OTHER.into() } else { path.into() };
        #[expect(clippy::cast_possible_truncation, reason = "at most PATHS and one")]
        let new = self.paths.len() as u32;
        let number = *self.numbers.entry(path.clone()).or_insert(new);
        if number == new {
            self.paths.push(path);
            self.counts.push(0);
        }
        self.counts[number as usize] += 1;
        number
    }

    fn pattern(&self, path: &str) -> String {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let segments: Vec<_> = path.split('/').skip(1).collect();
        let fits = |known: &&Vec<String>| {
            known.len() == segments.len()
                && known
                    .iter()
                    .zip(&segments)
                    .all(|(known, segment)| known.starts_with('{') || known == segment)
        };
        if let Some(known) = self.known.iter().find(fits) {
            return format!("/{}", known.join("/"));
        }
        let deep = segments.len() > DEPTH;
        let segments = segments.into_iter().take(DEPTH);
        let segments = segments.map(|segment| if is_identifier(segment) { ANY } else { segment });
        let mut pattern = String::new();
        for segment in segments {
            pattern.push('/');
            pattern.push_str(segment);
        }
        if deep {
            pattern.push_str("/…");
        }
        pattern
    }

    /// The routes: paths in which segments with many values are replaced, too.
    pub(super) fn routes(&self, most: usize) -> Routes {
        let split = |path: &str| path.split('/').skip(1).map(str::to_owned).collect();
        let mut paths: Vec<Vec<String>> = self.paths.iter().map(|path| split(path)).collect();
        let is_known = |path: &Vec<String>| self.known.contains(path);
        for depth in 0..DEPTH {
            // The segments after each begin.
            let mut places: BTreeMap<(usize, Vec<String>), Vec<&str>> = BTreeMap::new();
            for path in paths.iter().filter(|path| path.len() > depth && !is_known(path)) {
                let place = (path.len(), path[..depth].to_vec());
                places.entry(place).or_default().push(&path[depth]);
            }
            let varied: Vec<_> = places
                .into_iter()
                .filter_map(|(place, mut segments)| {
                    segments.sort_unstable();
                    segments.dedup();
                    (segments.len() > VARIED).then_some(place)
                })
                .collect();
            for path in paths.iter_mut().filter(|path| path.len() > depth) {
                let place = (path.len(), path[..depth].to_vec());
                if !self.known.contains(path) && varied.binary_search(&place).is_ok() {
                    ANY.clone_into(&mut path[depth]);
                }
            }
        }
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let names: Vec<_> = paths.iter().map(|path| format!("/{}", path.join("/"))).collect();
        for (name, count) in names.iter().zip(&self.counts) {
            *counts.entry(name.clone()).or_default() += count;
        }
        let mut kept: Vec<_> = counts.into_iter().collect();
        kept.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        kept.truncate(most);
        let mut kept: Vec<_> = kept.into_iter().map(|(name, _)| name).collect();
        kept.push(OTHER.to_owned());
        let place: HashMap<&str, u32, RandomState> = kept.iter().map(|it| &**it).zip(0..).collect();
        let other = place[OTHER];
        let of = names.iter().map(|name| place.get(&**name).copied().unwrap_or(other)).collect();
        Routes { of, names: kept.clone() }
    }
}

impl Routes {
    pub(super) fn of(&self, path: u32) -> u32 {
        self.of.get(path as usize).copied().unwrap_or_default()
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }
}

/// Numbers, UUIDs, and long texts in hexadecimal or with many digits.
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

    fn routes(patterns: &[&str], paths: impl IntoIterator<Item = String>) -> Vec<String> {
        let patterns: Vec<_> = patterns.iter().map(|it| (*it).to_owned()).collect();
        let mut all = Paths::new(&patterns);
        let numbers: Vec<_> = paths.into_iter().map(|path| all.number(&path)).collect();
        let routes = all.routes(5);
        let mut names: Vec<_> = numbers
            .iter()
            .map(|number| routes.names()[routes.of(*number) as usize].clone())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    #[test]
    fn numbers_uuids_and_slugs_become_identifiers_and_words_stay() {
        let fixed = ["/", "/login", "/api/item/7/comment?page=2", "/api/item/9/comment"];
        let uuid = "/user/4f1c9a52-0d5e-4b52-9d4e-1f2a3b4c5d6e".to_owned();
        let slugs = (0..50_u8).map(|n| format!("/blog/about-{}", char::from(b'A' + n)));
        let paths = fixed.iter().map(|it| (*it).to_owned()).chain([uuid]).chain(slugs);
        let found = routes(&[], paths);
        assert_eq!(found, ["/", "/api/item/{id}/comment", "/blog/{id}", "/login", "/user/{id}"]);
    }

    #[test]
    fn the_patterns_of_the_user_go_first() {
        let paths = ["/shop/red", "/shop/blue", "/shop/red/size"].map(str::to_owned);
        assert_eq!(routes(&["/shop/{colour}"], paths), ["/shop/red/size", "/shop/{colour}"]);
    }

    #[test]
    fn routes_beyond_the_bound_are_one() {
        let paths = (0..20_u8).map(|n| format!("/{}", char::from(b'a' + n)));
        let found = routes(&[], paths);
        assert_eq!(found.len(), 6);
        assert!(found.contains(&OTHER.to_owned()));
    }
}
