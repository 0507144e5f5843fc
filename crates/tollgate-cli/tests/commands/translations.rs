//! Translated pages have the numbers of the English pages.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use crate::support::root;

/// The numbers in each row of a page's tables, without the first cell, which is words.
fn numbers(page: &Path) -> Vec<Vec<u64>> {
    static NUMBER: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(\d{1,3}(?:[ ,]\d{3})+|\d+)(만)?").unwrap());
    let text = fs::read_to_string(page).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let numbers = |row: &str| {
        let cells = row.splitn(3, '|').last().unwrap();
        let number = |found: regex::Captures<'_>| {
            let digits: u64 = found[1].replace([' ', ','], "").parse().unwrap();
            // Korean counts in ten thousands.
            if found.get(2).is_some() { digits * 10_000 } else { digits }
        };
        NUMBER.captures_iter(cells).map(number).collect()
    };
    rows.map(numbers).collect()
}

#[test]
fn korean_tables_have_the_english_numbers() {
    for (english, korean, least) in
        [("README.md", "docs/ko/README.md", 10), ("docs/choosing.md", "docs/ko/choosing.md", 15)]
    {
        let [english, korean] = [english, korean].map(|page| root().join(page));
        let numbers = [&english, &korean].map(|page| numbers(page));
        assert!(numbers[0].len() > least, "{english:?} has fewer tables");
        assert_eq!(numbers[0], numbers[1], "{korean:?} differs from {english:?}");
    }
}
