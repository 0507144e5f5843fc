//! Expressions that no path matches: what is matched is the normal form, and not everything
//! that can be written is one.

use std::collections::HashSet;

use regex_automata::Input;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::NFA;

use super::super::problem::Problems;
use crate::proxy::normal::{Beyond, Part, Shape};
use crate::proxy::path::Ambiguous;

/// Warns of the expressions so far that match no path at all. Of some that cannot be told.
pub(super) fn warn(ambiguous: Ambiguous, problems: &mut Problems) {
    let mut steps = MOST_STEPS;
    for (place, expression) in problems.take_expressions() {
        let Some(mut matcher) = Matcher::new(&expression) else { continue };
        let shape = Shape { ambiguous, beyond: None };
        if matcher.matches_any(shape, &mut steps) != Some(false) {
            continue;
        }
        let explains = |(beyond, ..): &&(Beyond, &str, &str)| {
            let shape = Shape { beyond: Some(*beyond), ..shape };
            matcher.matches_any(shape, &mut steps) == Some(true)
        };
        let (why, cure) = REASONS.iter().find(explains).map_or(NO_REASON, |it| (it.1, it.2));
        problems.warn(place, format!("no request has a path that this matches: {why}"), cure);
    }
}

/// Why not, from what is surely meant otherwise to what may be.
const REASONS: &[(Beyond, &str, &str)] = &[
    (Beyond::Start, "a path begins with `/`", "write a `/` after `^`"),
    (
        Beyond::Query,
        "only the path is matched, never the query",
        "leave out `\\?` and what follows it",
    ),
    (Beyond::Slashes, "`//` is matched as `/`", "write one `/`"),
    (Beyond::Parameters, "`;` and what follows it in a segment is dropped", "leave it out"),
    (
        Beyond::LowerCase,
        "what is percent-encoded has digits in upper case when it is matched",
        "write `%C3%A9`, not `%c3%a9`",
    ),
    (
        Beyond::NeedlessEscape,
        "what may stand in a path as it is, is not percent-encoded when it is matched",
        "write `A`, not `%41`",
    ),
    (Beyond::Dots, "`.` and `..` are resolved before it is matched", "write where they lead"),
    (
        Beyond::Ambiguous,
        "paths with `%2F`, `%5C` or `%00` are answered with 400",
        "leave it out, or write `paths: {ambiguous: keep}`",
    ),
    (
        Beyond::Unescaped,
        "what may not stand in a path is percent-encoded when it is matched",
        "write `%20` for a space, and `%25` for `%`",
    ),
    (
        Beyond::Anything,
        "nothing of the kind is left in the normal form of a path",
        "one `/` at a time, no query, no `;`, no `..`, `%C3%A9` in upper case and only where a \
         letter may not stand in a path",
    ),
];

const NO_REASON: (&str, &str) =
    ("it matches nothing", "look where `^` and `$` stand, and what is between them");

/// An expression as a machine that can be asked step by step.
struct Matcher {
    dfa: DFA,
    cache: Cache,
}

impl Matcher {
    /// Nothing of what is too large, and needs not be looked at so closely.
    fn new(expression: &str) -> Option<Self> {
        // Where the states do not fit it gives up, instead of beginning anew with others of the
        // same numbers.
        let states = DFA::config()
            .cache_capacity(MOST_BYTES)
            .skip_cache_capacity_check(true)
            .minimum_cache_clear_count(Some(0))
            .unicode_word_boundary(true);
        let size = NFA::config().nfa_size_limit(Some(MOST_BYTES));
        let dfa = DFA::builder().configure(states).thompson(size).build(expression).ok()?;
        let cache = dfa.create_cache();
        Some(Self { dfa, cache })
    }

    /// Whether it matches a path of this shape; nothing where the steps do not suffice.
    fn matches_any(&mut self, shape: Shape, steps: &mut usize) -> Option<bool> {
        let Self { dfa, cache } = self;
        let start = (dfa.start_state_forward(cache, &Input::new("")).ok()?, Part::Begin);
        let (mut seen, mut open) = (HashSet::from([start]), vec![start]);
        while let Some((state, part)) = open.pop() {
            if part.may_end(shape) && dfa.next_eoi_state(cache, state).ok()?.is_match() {
                return Some(true);
            }
            *steps = steps.checked_sub(1)?;
            for byte in 0..=u8::MAX {
                let Some(part) = part.then(byte, shape) else { continue };
                let next = dfa.next_state(cache, state, byte).ok()?;
                // It has matched what came before this byte, and every part has an end.
                if next.is_match() {
                    return Some(true);
                }
                if next.is_quit() {
                    return None;
                }
                if !next.is_dead() && seen.insert((next, part)) {
                    open.push((next, part));
                }
            }
        }
        Some(false)
    }
}

/// As large as one expression may become, and the states of one.
const MOST_BYTES: usize = 1 << 20;

/// For all expressions of a file together: a second, mostly much less.
const MOST_STEPS: usize = 20_000;
