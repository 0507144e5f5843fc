//! `cargo xtask check prose links`: documents contain no hard phrases and no dead links.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::iter;
use std::mem;
use std::path::{Path, PathBuf};
use std::process::Command;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::process::{self, Failure};

/// Phrases that are hard to read, because they hide who acts or are no plain verb.
const HARD: &str = "anybody|somebody|nobody|whoever|whom|those who|but for|nothing but|is none|so many|\
    so much|so long|so often|stands in|stands for|is away|are away|give back|gives back|given back|\
    comes back|is told";

/// The most words in a sentence.
const MOST_WORDS: usize = 45;

/// Fails with the phrases in [`HARD`] and the long sentences in all documents.
pub(crate) fn prose() -> Result<(), Failure> {
    let mut faults = String::new();
    for file in documents()? {
        for (line, sentence) in Page::parse(&process::read_file(&file)?).sentences() {
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
        for link in Page::parse(&process::read_file(&file)?).links {
            let in_tree = link.strip_prefix(REPOSITORY).and_then(|path| {
                path.strip_prefix("/blob/main/").or_else(|| path.strip_prefix("/tree/main/"))
            });
            let fault = if let Some(path) = in_tree {
                missing(path, Path::new(""))?
            } else if link.contains("://") || link.starts_with("mailto:") {
                None
            } else if is_published {
                Some(format!(
                    "write the whole address, {REPOSITORY}/blob/main/..., because this page is published"
                ))
            } else {
                missing(&link, &file)?
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

/// The fault if a link in the file `from` leads nowhere.
fn missing(link: &str, from: &Path) -> Result<Option<String>, Failure> {
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
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
    let is_there = Page::parse(&process::read_file(&target)?).anchors.contains(heading);
    Ok((!is_there).then(|| format!("{} has no heading `#{heading}`", target.display())))
}

#[derive(Default)]
struct Page {
    /// The targets of links and pictures, in Markdown and HTML.
    links: Vec<String>,
    /// The headings' anchors.
    anchors: HashSet<String>,
    /// The text of each paragraph, heading, list item and table cell, with its first line's number.
    /// The word `code` replaces inline code, which is not prose.
    blocks: Vec<(usize, String)>,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let (mut block, mut title) = (String::new(), String::new());
        let (mut line, mut at, mut is_code) = (1, 0, false);
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match &event {
                Event::Text(words) if !is_code => {
                    block.push_str(words);
                    title.push_str(words);
                }
                Event::Code(code) => {
                    block.push_str("code");
                    title.push_str(code);
                }
                Event::SoftBreak | Event::HardBreak => block.push(' '),
                Event::Html(html) | Event::InlineHtml(html) => {
                    for attribute in ["href=\"", "src=\"", "srcset=\""] {
                        let links = html.split(attribute).skip(1);
                        page.links
                            .extend(links.filter_map(|it| Some(it.split_once('"')?.0.into())));
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.to_string());
                }
                Event::Start(Tag::Emphasis | Tag::Strong)
                | Event::End(TagEnd::Emphasis | TagEnd::Strong | TagEnd::Link | TagEnd::Image) => {}
                Event::Start(_) | Event::End(_) => {
                    is_code = matches!(event, Event::Start(Tag::CodeBlock(_)));
                    if matches!(event, Event::End(TagEnd::Heading(_))) {
                        page.add_anchor(&title);
                    }
                    title.clear();
                    page.blocks.push((line, mem::take(&mut block)));
                    line += text[at.min(range.start)..range.start].matches('\n').count();
                    at = at.max(range.start);
                }
                _ => {}
            }
        }
        page
    }

    /// Adds the anchor that GitHub and GitLab generate for a heading.
    fn add_anchor(&mut self, title: &str) {
        let title = title.to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = iter::once(anchor.clone()).chain(numbered).find(|it| !self.anchors.contains(it));
        self.anchors.extend(free);
    }

    /// The page's sentences, each with the first line of its block.
    fn sentences(&self) -> Vec<(usize, String)> {
        let mut sentences = Vec::new();
        for (line, block) in &self.blocks {
            let words: Vec<_> = block.split_whitespace().collect();
            let ends = |word: &&str| {
                word.trim_end_matches([')', '"', '*']).ends_with(['.', '!', '?', ':', ';'])
            };
            let parts = words.split_inclusive(ends);
            sentences.extend(parts.map(|words| (*line, words.join(" "))));
        }
        sentences
    }
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

    fn faults(text: &str) -> Vec<String> {
        let sentences = Page::parse(text).sentences();
        sentences.iter().flat_map(|(_, sentence)| faults_of(sentence)).collect()
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
        assert_eq!(Page::parse("a\n\nb\nc.").sentences()[1], (3, "b c.".to_owned()));
    }

    #[test]
    fn headings_have_github_anchors() {
        let anchors =
            Page::parse("# The file\n## `tollgate serve`: it's on\n## The file\n").anchors;
        for anchor in ["the-file", "tollgate-serve-its-on", "the-file-1"] {
            assert!(anchors.contains(anchor), "{anchor}: {anchors:?}");
        }
    }

    #[test]
    fn dead_links_are_found() {
        let fault = |link: &str| missing(link, Path::new("docs/README.md")).unwrap();
        assert_eq!(fault("choosing.md#which-mode"), None);
        assert_eq!(fault("../README.md"), None);
        assert!(fault("no-such-page.md").unwrap().contains("no such file"));
        assert!(fault("choosing.md#nowhere").unwrap().contains("no heading"));
    }

    #[test]
    fn links_are_found_in_markdown_and_in_html() {
        let text =
            "[a](b.md#c) ![d](e.svg) [g]\n\n<img src=\"f.png\">\n\n[g]: h.md\n\n```\n[x](y)\n```\n";
        assert_eq!(Page::parse(text).links, ["b.md#c", "e.svg", "h.md", "f.png"]);
    }
}
