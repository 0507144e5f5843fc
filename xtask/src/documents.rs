//! `cargo xtask check prose links`: documents contain no hard phrases and no dead links.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, Failure};

/// Phrases that are hard to read, each with a cure.
const HARD: &[(&str, &str)] = &[
    ("anybody", "name the actor: client, caller, operator, replica"),
    ("somebody", "name the actor: client, caller, operator, replica"),
    ("nobody", "name the actor: no client, no replica"),
    ("whoever", "name the actor"),
    ("whom", "name the actor"),
    ("those who", "name the actor"),
    ("but for", "write `except`"),
    ("nothing but", "write `only`"),
    ("is none", "write `there is no ...` or `is not valid`"),
    ("so many", "write the number, or `up to n`"),
    ("so much", "write the amount"),
    ("so long", "write `for n s`, or `while`"),
    ("so often", "write `n times`"),
    ("stands in", "write `is in`"),
    ("stands for", "write `means`"),
    ("is away", "write `is down`"),
    ("are away", "write `are down`"),
    ("give back", "write `refund` or `return`"),
    ("gives back", "write `refunds` or `returns`"),
    ("given back", "write `refunded` or `returned`"),
    ("comes back", "write `is refilled` or `returns`"),
    ("is told", "name what the message or header contains"),
];

/// The most words in a sentence.
const MOST_WORDS: usize = 45;

/// Fails with the phrases in [`HARD`] and the long sentences in all documents.
pub(crate) fn prose() -> Result<(), Failure> {
    let mut faults = String::new();
    for file in documents()? {
        for (line, sentence) in sentences(&read(&file)?) {
            for fault in faults_of(&sentence) {
                let _ = writeln!(faults, "{}:{line}: {fault}\n    {sentence}", file.display());
            }
        }
    }
    verdict(faults)
}

/// Fails with the links that lead to no file or heading in this repository.
pub(crate) fn links() -> Result<(), Failure> {
    let mut faults = String::new();
    for file in documents()? {
        let is_published = file.starts_with("crates");
        for link in links_of(&without_code(&read(&file)?)) {
            let in_tree = link.strip_prefix(REPOSITORY).and_then(|path| {
                path.strip_prefix("/blob/main/").or_else(|| path.strip_prefix("/tree/main/"))
            });
            let fault = if let Some(path) = in_tree {
                missing(Path::new(path), Path::new(""))?
            } else if link.contains("://") || link.starts_with("mailto:") {
                None
            } else if is_published {
                Some(format!(
                    "write the whole address, {REPOSITORY}/blob/main/..., because this page is published"
                ))
            } else {
                missing(Path::new(&link), &file)?
            };
            if let Some(fault) = fault {
                let _ = writeln!(faults, "{}: the link {link}: {fault}", file.display());
            }
        }
    }
    verdict(faults)
}

/// `workspace.package.repository`, which this package inherits.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

fn verdict(faults: String) -> Result<(), Failure> {
    if faults.is_empty() { Ok(()) } else { Err(Failure::Broken(faults)) }
}

/// The repository's Markdown files without symbolic links, relative to its root.
fn documents() -> Result<Vec<PathBuf>, Failure> {
    let mut git = Command::new("git");
    git.current_dir(process::root());
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"]);
    let files = process::read(&mut git)?;
    let is_whole =
        |file: &PathBuf| process::root().join(file).symlink_metadata().is_ok_and(|it| it.is_file());
    Ok(files.lines().map(PathBuf::from).filter(is_whole).collect())
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(process::root().join(file))
        .map_err(|error| Failure::Broken(format!("cannot read {}: {error}", file.display())))
}

/// The fault if a link in the file `from` leads nowhere.
fn missing(link: &Path, from: &Path) -> Result<Option<String>, Failure> {
    let link = link.to_string_lossy();
    let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
    let target = if path.is_empty() && !from.as_os_str().is_empty() {
        from.to_owned()
    } else {
        from.parent().unwrap_or_else(|| Path::new("")).join(path)
    };
    if !process::root().join(&target).exists() {
        return Ok(Some("there is no such file".to_owned()));
    }
    if heading.is_empty() || target.extension().is_none_or(|it| it != "md") {
        return Ok(None);
    }
    let is_there = headings(&read(&target)?).contains(heading);
    Ok((!is_there).then(|| format!("{} has no heading `#{heading}`", target.display())))
}

/// The text with an empty line for each line of code blocks.
fn without_code(text: &str) -> String {
    let mut is_code = false;
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !is_code && !is_fence {
            out.push_str(line);
        }
        out.push('\n');
        is_code ^= is_fence;
    }
    out
}

/// The targets of links and pictures in Markdown and HTML.
fn links_of(text: &str) -> Vec<String> {
    let starts = [("](", ')'), ("href=\"", '"'), ("src=\"", '"'), ("srcset=\"", '"')];
    let mut links = Vec::new();
    for (start, end) in starts {
        for rest in text.split(start).skip(1) {
            links.extend(rest.split_once(end).map(|(link, _)| link.to_owned()));
        }
    }
    // A line `[name]: target`.
    let named = text.lines().filter(|line| line.starts_with('['));
    links.extend(named.filter_map(|line| Some(line.split_once("]: ")?.1.trim().to_owned())));
    links
}

/// The anchors that GitHub and GitLab generate for a page's headings.
fn headings(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    for line in without_code(text).lines().filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let mut numbered = anchor.clone();
        let mut number = 0;
        while !anchors.insert(numbered.clone()) {
            number += 1;
            numbered = format!("{anchor}-{number}");
        }
    }
    anchors
}

/// A page's sentences, each with the number of its first line. Table cells are sentences too.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let mut sentences = Vec::new();
    let (mut at, mut sentence) = (0, String::new());
    let mut end = |at: usize, sentence: &mut String| {
        if !sentence.is_empty() {
            sentences.push((at, std::mem::take(sentence)));
        }
    };
    for (number, line) in without_code(text).lines().enumerate() {
        let line = line.trim();
        let is_new = line.is_empty() || line.starts_with(['|', '#', '*', '-', '<', '>', '!']);
        if is_new || line.starts_with(|c: char| c.is_ascii_digit()) {
            end(at, &mut sentence);
        }
        for word in plain(line).split_whitespace() {
            if word == "|" {
                end(at, &mut sentence);
                continue;
            }
            if sentence.is_empty() {
                at = number + 1;
            } else {
                sentence.push(' ');
            }
            sentence.push_str(word);
            if word.trim_end_matches([')', '"', '*']).ends_with(['.', '!', '?', ':', ';']) {
                end(at, &mut sentence);
            }
        }
    }
    end(at, &mut sentence);
    sentences
}

/// A line with the word `code` instead of inline code, which is not prose.
fn plain(line: &str) -> String {
    let pieces = line.split('`').enumerate();
    pieces.map(|(index, piece)| if index % 2 == 0 { piece } else { "code" }).collect()
}

fn faults_of(sentence: &str) -> Vec<String> {
    let words: Vec<_> = sentence
        .split_whitespace()
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase())
        .filter(|word| !word.is_empty())
        .collect();
    let text = format!(" {} ", words.join(" "));
    let mut faults: Vec<_> = HARD
        .iter()
        .filter(|(phrase, _)| text.contains(&format!(" {phrase} ")))
        .map(|(phrase, cure)| format!("`{phrase}`: {cure}"))
        .collect();
    if sentence.starts_with("What ") && !sentence.ends_with('?') && words.len() > 6 {
        faults.push("a sentence that begins with `What`: begin with its subject".to_owned());
    }
    if words.len() > MOST_WORDS {
        faults.push(format!("{} words: make two sentences of at most 25", words.len()));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_phrases_count_across_lines_except_in_code() {
        let text = "Requests pass, but\nfor those of the list.\n\n```sh\necho nobody\n```\nUse `nobody` here.\n";
        let faults: Vec<_> = sentences(text)
            .into_iter()
            .flat_map(|(line, text)| faults_of(&text).into_iter().map(move |fault| (line, fault)))
            .collect();
        assert_eq!(faults, [(1, "`but for`: write `except`".to_owned())]);
    }

    #[test]
    fn table_cells_are_separate_sentences() {
        let long = "word ".repeat(MOST_WORDS + 1);
        assert_eq!(faults_of(&long).len(), 1);
        let table = format!("| {} | {} |", "word ".repeat(30), "word ".repeat(30));
        assert!(sentences(&table).iter().all(|(_, text)| faults_of(text).is_empty()));
    }

    #[test]
    fn headings_have_github_anchors() {
        let anchors = headings("# The file\n## `tollgate serve`: it's on\n## The file\n");
        for anchor in ["the-file", "tollgate-serve-its-on", "the-file-1"] {
            assert!(anchors.contains(anchor), "{anchor}: {anchors:?}");
        }
    }

    #[test]
    fn dead_links_are_found() {
        let from = Path::new("docs/README.md");
        let fault = |link: &str| missing(Path::new(link), from).unwrap();
        assert_eq!(fault("choosing.md#which-mode"), None);
        assert_eq!(fault("../README.md"), None);
        assert!(fault("no-such-page.md").unwrap().contains("no such file"));
        assert!(fault("choosing.md#nowhere").unwrap().contains("no heading"));
    }

    #[test]
    fn links_are_found_in_markdown_and_in_html() {
        let text = "[a](b.md#c) ![d](e.svg)\n<img src=\"f.png\">\n[g]: h.md\n";
        assert_eq!(links_of(text), ["b.md#c", "e.svg", "f.png", "h.md"]);
    }
}
