//! Where requests stand in line for the quotas that they share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Mutex as Turn;
use tollgate_core::Key;

/// The lines of a layer, one for all requests that wait for the same quotas.
pub(super) struct Room(Arc<Mutex<Lines>>);

/// What a line is for: limits by their number, and whose quota of each.
pub(super) type LineKey = Box<[(usize, Key)]>;

struct Lines {
    /// So many may wait in all lines together.
    most: usize,
    waiting: usize,
    /// None is empty.
    lines: HashMap<LineKey, Line>,
}

struct Line {
    /// Held by whoever stands in front: it is given on in the order in which it was asked
    /// for, and to nobody who has left.
    turn: Arc<Turn<()>>,
    waiting: usize,
}

/// A place in a line. Dropped, it is free for others.
pub(super) struct Place {
    lines: Arc<Mutex<Lines>>,
    key: LineKey,
    pub(super) turn: Arc<Turn<()>>,
}

/// What somebody finds who comes.
pub(super) enum Arrival {
    /// Nobody waits for these quotas.
    Free,
    /// Others wait, and there is a place behind them.
    Behind(Place),
    /// Others wait, and there is no place left.
    Full,
}

impl Room {
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Lines { most, waiting: 0, lines: HashMap::new() })))
    }

    /// Joins the line, if there is one.
    pub(super) fn arrive(&self, key: LineKey) -> Arrival {
        if !self.0.lock().lines.contains_key(&key) {
            return Arrival::Free;
        }
        // If the line has gone meanwhile, this is the first of a new one: it waits for
        // nobody then.
        self.enter(key).map_or(Arrival::Full, Arrival::Behind)
    }

    /// Joins the line or begins it; `None` if the room is full.
    pub(super) fn enter(&self, key: LineKey) -> Option<Place> {
        let mut all = self.0.lock();
        if all.waiting >= all.most {
            return None;
        }
        all.waiting += 1;
        let new = || Line { turn: Arc::default(), waiting: 0 };
        let line = all.lines.entry(key.clone()).or_insert_with(new);
        line.waiting += 1;
        let turn = Arc::clone(&line.turn);
        drop(all);
        Some(Place { lines: Arc::clone(&self.0), key, turn })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.lines.lock();
        all.waiting -= 1;
        if let Entry::Occupied(mut line) = all.lines.entry(std::mem::take(&mut self.key)) {
            line.get_mut().waiting -= 1;
            if line.get().waiting == 0 {
                line.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LineKey {
        [(0, Key::from(name))].into()
    }

    #[test]
    fn a_line_is_there_as_long_as_somebody_waits() {
        let room = Room::new(2);
        let is_free = |name| matches!(room.arrive(key(name)), Arrival::Free);
        assert!(is_free("a"));
        let first = room.enter(key("a")).unwrap();
        assert!(!is_free("a"));
        assert!(is_free("b"));
        let Arrival::Behind(second) = room.arrive(key("a")) else { panic!("a place is left") };
        assert!(Arc::ptr_eq(&first.turn, &second.turn));
        assert!(matches!(room.arrive(key("a")), Arrival::Full));
        assert!(room.enter(key("b")).is_none(), "the room is full for all");
        drop(first);
        assert!(!is_free("a"));
        drop(second);
        assert!(is_free("a"));
        assert!(room.0.lock().lines.is_empty());
    }
}
