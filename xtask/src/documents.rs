//! `cargo xtask check prose links`: documents contain no phrases that are hard to read, and no dead
//! links.

use std::env;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::process::{self, Failure};
use crate::tools;

/// Phrases that are hard to read, because they hide the actor or replace a plain verb.
const HARD: &str = "anybody|somebody|nobody|whoever|whom|those who|but for|nothing but|is none|so many|\
    so much|so long|so often|stands in|stands for|is away|are away|give back|gives back|given back|\
    comes back|is told";

/// The most words in a sentence.
const MOST_WORDS: usize = 45;

/// Fails with the phrases in [`HARD`] and the long sentences in all documents.
pub(crate) fn prose() -> Result<(), Failure> {
    let mut faults = String::new();
    for file in documents()? {
        for (line, sentence) in sentences(&process::read_file(&file)?) {
            for fault in faults_of(&sentence) {
                let _ = writeln!(faults, "{}:{line}: {fault}\n    {sentence}", file.display());
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(Failure::Broken(faults)) }
}

/// Checks with lychee that links in documents lead to existing files and headings.
pub(crate) fn links() -> Result<(), Failure> {
    let documents = documents()?;
    for file in documents.iter().filter(|file| file.starts_with("crates")) {
        let text = process::read_file(file)?;
        let is_full = |link: &&str| link.starts_with("https://") || link.starts_with('#');
        if let Some(link) = text.split("](").skip(1).find(|link| !is_full(link)) {
            return Err(Failure::Broken(format!(
                "{}: this page is published, so write the full address of {}",
                file.display(),
                link.split(')').next().unwrap_or_default(),
            )));
        }
    }
    let tree = concat!(env!("CARGO_PKG_REPOSITORY"), "/(blob|tree)/main/");
    let tree = format!("{tree} file://{}/", process::root().display());
    let mut lychee = Command::new("lychee");
    lychee.env("PATH", tools::with_lychee(&env::var_os("PATH").unwrap_or_default())?);
    lychee.args(["--offline", "--include-fragments", "--no-progress", "--remap", &tree]);
    process::run(lychee.args(&documents).current_dir(process::root()))
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

/// The sentences in a text's paragraphs, headings, list items and table cells, each with the first
/// line of its block. The word `code` replaces inline code, which is not prose.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let mut sentences = Vec::new();
    let (mut block, mut start, mut is_code) = (String::new(), 0, false);
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match &event {
            Event::Text(words) if !is_code => block.push_str(words),
            Event::Code(_) => block.push_str("code"),
            Event::SoftBreak | Event::HardBreak => block.push(' '),
            Event::Start(Tag::Emphasis | Tag::Strong | Tag::Link { .. } | Tag::Image { .. })
            | Event::End(TagEnd::Emphasis | TagEnd::Strong | TagEnd::Link | TagEnd::Image) => {}
            Event::Start(_) | Event::End(_) => {
                is_code = matches!(event, Event::Start(Tag::CodeBlock(_)));
                let line = text[..start].matches('\n').count() + 1;
                let words: Vec<_> = block.split_whitespace().collect();
                let ends = |word: &&str| {
                    word.trim_end_matches([')', '"', '*']).ends_with(['.', '!', '?', ':', ';'])
                };
                sentences.extend(words.split_inclusive(ends).map(|it| (line, it.join(" "))));
                block.clear();
                start = start.max(range.start);
            }
            _ => {}
        }
    }
    sentences
}

fn faults_of(sentence: &str) -> Vec<String> {
    let words: Vec<_> = sentence
        .split_whitespace()
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase())
        .filter(|word| !word.is_empty())
        .collect();
    let text = format!(" {} ", words.join(" "));
    let hard = HARD.split('|').filter(|phrase| text.contains(&format!(" {phrase} ")));
    let mut faults: Vec<_> =
        hard.map(|phrase| format!("`{phrase}`: name the actor, and use a plain verb")).collect();
    if sentence.starts_with("What ") && !sentence.ends_with('?') && words.len() > 6 {
        faults.push("a sentence that starts with `What`: start with its subject".to_owned());
    }
    if words.len() > MOST_WORDS {
        faults.push(format!("{} words: make two sentences of at most 25", words.len()));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        sentences(text).iter().flat_map(|(_, sentence)| faults_of(sentence)).collect()
    }

    #[test]
    fn hard_phrases_count_across_lines_except_in_code() {
        let text = "Requests pass, but\nfor *those* of the list.\n\n```sh\necho nobody\n```\n\
                    Use `nobody` here.\n";
        assert_eq!(faults(text), ["`but for`: name the actor, and use a plain verb"]);
    }

    #[test]
    fn blocks_are_separate_sentences() {
        let (half, long) = ("word ".repeat(30), "word ".repeat(MOST_WORDS + 1));
        assert_eq!(faults(&long).len(), 1);
        for text in [
            format!("| a | b |\n|---|---|\n| {half} | {half} |"),
            format!("* {half}\n* {half}"),
            format!("# {half}\n{half}"),
            format!("{half}. {half}"),
        ] {
            assert_eq!(faults(&text), [""; 0], "{text}");
        }
        assert_eq!(sentences("a\n\nb\nc.")[1], (3, "b c.".to_owned()));
    }
}
