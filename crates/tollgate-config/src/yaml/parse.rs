//! Parses YAML into a tree.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span as YamlSpan};

use super::env::{self, Env};
use super::place::{Place, Span};
use super::problem::Problems;
use super::secrets::{hide_secrets, user};
use super::tree::{Node, Pair, Scalar, Value};
use crate::code;

/// Parses a text and reports its problems. Without a tree, no further checks are possible.
pub(crate) fn parse(text: &str, env: Env<'_>, problems: &Problems) -> Option<Rc<Node>> {
    let builder = Builder::new(Some(env), MAX_NODES, problems);
    let root = builder.parse(text, Documents::Only)?.pop();
    if root.is_none() {
        problems.error(
            code::EMPTY_FILE,
            Place::START,
            "the file is empty",
            "`tollgate init` prints a file to start from",
        );
    }
    root
}

/// Reads the first document, and warns about further documents. Variables remain as they are.
/// Returns `Some(None)` for an empty text.
pub(crate) fn parse_first(text: &str, problems: &Problems) -> Option<Option<Rc<Node>>> {
    Some(Builder::new(None, MAX_NODES, problems).parse(text, Documents::First)?.pop())
}

/// Reads a file with data that may have many values. Variables remain as they are.
pub(crate) fn parse_data(text: &str, most: usize, problems: &Problems) -> Option<Option<Rc<Node>>> {
    Some(Builder::new(None, most, problems).parse(text, Documents::Only)?.pop())
}

/// Reads all documents. Variables remain as they are.
pub(crate) fn parse_all(text: &str, problems: &Problems) -> Option<Vec<Rc<Node>>> {
    Builder::new(None, MAX_NODES, problems).parse(text, Documents::All)
}

/// Which documents of a text are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Documents {
    /// A second document is an error.
    Only,
    First,
    All,
}

/// The tab that stopped the parser, if it is in a line's indentation. The parser reports the value
/// before the tab, because it treats the line as that value's continuation.
fn indenting_tab(text: &str, error: &ScanError) -> Option<usize> {
    let lines_after = if error.info().contains("tab") { usize::MAX } else { 1 };
    let first = error.marker().line().saturating_sub(1);
    let (mut start, last) = (0, first.saturating_add(lines_after));
    for (number, line) in text.split_inclusive('\n').enumerate().take_while(|(n, _)| *n <= last) {
        let mut indentation = line.chars().take_while(|letter| matches!(letter, ' ' | '\t'));
        if number >= first
            && let Some(column) = indentation.position(|letter| letter == '\t')
            && !line.trim().is_empty()
        {
            return Some(start + column);
        }
        start += line.chars().count();
    }
    None
}

/// The variable that stopped the parser, with its default. Within braces and brackets, its brace
/// starts a section.
fn unquoted_variable(text: &str, at: usize) -> Option<String> {
    let mut text = text.chars().skip(at.checked_sub(1)?);
    let is_reference = (text.next(), text.next()) == (Some('$'), Some('{'));
    is_reference.then(|| text.take_while(|it| !matches!(it, '}' | '"' | '\n')).collect())
}

struct Frame {
    start: usize,
    anchor: usize,
    size: usize,
    kind: FrameKind,
}

enum FrameKind {
    List(Vec<Rc<Node>>),
    Map {
        pairs: Vec<Pair>,
        /// The keys so far, because searching the list would make large maps slow.
        seen: HashSet<String>,
        key: Option<(String, Span)>,
    },
}

struct Builder<'a> {
    frames: Vec<Frame>,
    anchors: HashMap<usize, Rc<Node>>,
    root: Option<Rc<Node>>,
    env: Option<Env<'a>>,
    problems: &'a Problems,
    most: usize,
}

impl<'a> Builder<'a> {
    /// `env` is `None` if variables remain as they are. `most` is the maximum number of values.
    fn new(env: Option<Env<'a>>, most: usize, problems: &'a Problems) -> Self {
        let (frames, anchors) = (Vec::new(), HashMap::new());
        Self { frames, anchors, root: None, env, problems, most }
    }

    fn parse(mut self, text: &str, documents: Documents) -> Option<Vec<Rc<Node>>> {
        let mut read = Vec::new();
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            match event {
                Ok((Event::DocumentStart(_), _))
                    if documents == Documents::All && self.root.is_some() =>
                {
                    read.extend(self.root.take());
                    self.anchors.clear();
                }
                Ok((Event::DocumentStart(_), span))
                    if documents == Documents::First && self.root.is_some() =>
                {
                    let span = span.start.index()..span.end.index();
                    self.problems.warn(
                        code::UNSUPPORTED_YAML,
                        Place { span, path: String::new() },
                        "only the first document is read, as in envoyproxy/ratelimit",
                        "move the second document into its own file",
                    );
                    break;
                }
                Ok((event, span)) => self.take(event, span)?,
                Err(error) => {
                    hide_secrets(text, self.problems);
                    if let Some(at) = indenting_tab(text, &error) {
                        self.problems.error(
                            code::NOT_YAML,
                            Place { span: at..at + 1, path: String::new() },
                            "this is not valid YAML: a tab indents this line",
                            "indent with spaces",
                        );
                        return None;
                    }
                    let at = error.marker().index();
                    if let Some(name) = unquoted_variable(text, at) {
                        self.problems.error(code::NOT_YAML,
                            Place { span: at - 1..at + 1, path: path(&self.frames) },
                            "this is not valid YAML: a `${…}` without quotes, within braces or brackets",
                            format!("write the entire value in quotes, such as \"${{{name}}}\""),
                        );
                        return None;
                    }
                    self.problems.error(code::NOT_YAML,
                        Place { span: at..at + 1, path: path(&self.frames) },
                        format!("this is not valid YAML: {}", error.info()),
                        match error.info() {
                            info if info.contains("unknown anchor") => {
                                "name the value before it is used: `&name`"
                            }
                            _ => {
                                "look at the indentation, at quotes and at brackets here and in the \
                                 lines above"
                            }
                        },
                    );
                    return None;
                }
            }
        }
        read.extend(self.root.take());
        Some(read)
    }

    /// `None` if parsing cannot continue.
    fn take(&mut self, event: Event<'_>, span: YamlSpan) -> Option<()> {
        let at = span.start.index()..span.end.index();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tag(tag.is_some(), &at);
                if self.is_key() {
                    return self.key(&text, at);
                }
                let scalar = self.scalar(text.into_owned(), style, &at);
                self.add(anchor, Node { span: at, value: Value::Scalar(scalar), size: 1 })
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), &at);
                self.open(at, anchor, FrameKind::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), &at);
                let kind = FrameKind::Map { pairs: Vec::new(), seen: HashSet::new(), key: None };
                self.open(at, anchor, kind)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Frame { start, anchor, size, kind } = self.frames.pop()?;
                let value = match kind {
                    FrameKind::List(nodes) => Value::List(nodes),
                    FrameKind::Map { pairs, .. } => Value::Map(pairs),
                };
                self.add(anchor, Node { span: start..at.end.max(start), value, size })
            }
            Event::Alias(anchor) => {
                if self.is_key() {
                    return self.stop(at, "an alias as a key", "write the key out");
                }
                match self.anchors.get(&anchor) {
                    Some(node) => {
                        let node = Rc::clone(node);
                        self.attach(node)
                    }
                    None => self.stop(
                        at,
                        "an alias to something that is not complete yet",
                        "an anchor cannot contain itself: write the value out",
                    ),
                }
            }
            Event::DocumentStart(_) if self.root.is_some() => {
                self.stop(at, "a second document", "keep one document in a file: remove the `---`")
            }
            _ => Some(()),
        }
    }

    fn open(&mut self, at: Span, anchor: usize, kind: FrameKind) -> Option<()> {
        if self.is_key() {
            return self.stop(at, "a list or section as a key", "write a word as the key");
        }
        if self.frames.len() >= MAX_DEPTH {
            return self.stop(
                at,
                format!("values nested more than {MAX_DEPTH} deep"),
                "no value needs more than a few levels",
            );
        }
        self.frames.push(Frame { start: at.start, anchor, size: 1, kind });
        Some(())
    }

    fn add(&mut self, anchor: usize, node: Node) -> Option<()> {
        let node = Rc::new(node);
        // Anchors are numbered from 1; 0 means no anchor.
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.attach(node)
    }

    fn attach(&mut self, node: Rc<Node>) -> Option<()> {
        let Some(frame) = self.frames.last_mut() else {
            self.root = Some(node);
            return Some(());
        };
        frame.size += node.size;
        if frame.size > self.most {
            let at = node.span.clone();
            let most = self.most;
            return self.stop(
                at,
                format!("more than {most} values, aliases counted as often as they are used"),
                "write fewer, larger policies; an alias of aliases grows without bound",
            );
        }
        match &mut frame.kind {
            FrameKind::List(nodes) => nodes.push(node),
            FrameKind::Map { pairs, key, .. } => {
                if let Some((key, key_span)) = key.take() {
                    pairs.push(Pair { key, key_span, node });
                }
            }
        }
        Some(())
    }

    fn is_key(&self) -> bool {
        matches!(self.frames.last(), Some(Frame { kind: FrameKind::Map { key: None, .. }, .. }))
    }

    fn key(&mut self, name: &str, at: Span) -> Option<()> {
        let Some(Frame { kind: FrameKind::Map { seen, key, .. }, .. }) = self.frames.last_mut()
        else {
            return Some(());
        };
        *key = Some((name.to_owned(), at.clone()));
        if !seen.insert(name.to_owned()) {
            let path = path(&self.frames);
            self.problems.error(
                code::DUPLICATE_KEY,
                Place { span: at, path },
                format!("`{}` is defined twice", name.escape_debug()),
                "keep one of them",
            );
        }
        Some(())
    }

    fn scalar(&mut self, text: String, style: ScalarStyle, at: &Span) -> Scalar {
        let plain = style == ScalarStyle::Plain;
        // For any key, because the key may be wrong.
        if user(&text).is_some() {
            self.problems.hide(at.clone());
        }
        match self.env.map_or(Ok(None), |env| env::expand(&text, env)) {
            Ok(Some(expanded)) => {
                Scalar { text: expanded, plain: true, written: Some(text), broken: false }
            }
            Ok(None) => Scalar { text, plain, written: None, broken: false },
            Err((code, what, cure)) => {
                let place = Place { span: at.clone(), path: path(&self.frames) };
                self.problems.error(code, place, what, cure);
                Scalar { text: text.clone(), plain, written: Some(text), broken: true }
            }
        }
    }

    fn refuse_tag(&mut self, tagged: bool, at: &Span) {
        if tagged {
            let place = Place { span: at.clone(), path: path(&self.frames) };
            self.problems.error(
                code::UNSUPPORTED_YAML,
                place,
                "a YAML tag has no meaning here",
                "remove the `!…`",
            );
        }
    }

    fn stop(&mut self, at: Span, what: impl Into<String>, cure: &str) -> Option<()> {
        let place = Place { span: at, path: path(&self.frames) };
        self.problems.error(code::UNSUPPORTED_YAML, place, what, cure);
        None
    }
}

fn path(frames: &[Frame]) -> String {
    let mut path = String::new();
    for frame in frames {
        match &frame.kind {
            FrameKind::List(nodes) => {
                let _ = write!(path, "[{}]", nodes.len());
            }
            FrameKind::Map { key: Some((key, _)), .. } => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
            }
            FrameKind::Map { key: None, .. } => {}
        }
    }
    path
}

/// The tables are six levels deep.
const MAX_DEPTH: usize = 32;

/// Enough for thousands of policies.
const MAX_NODES: usize = 50_000;
