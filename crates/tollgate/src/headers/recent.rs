//! Header values that a thread has sent lately.

use std::cell::RefCell;

use http::HeaderValue;

/// Numbers and [texts](text) that determine a value, from the first on; the rest is zero.
pub(super) type Parts = [u64; 3];

const PLACES: u64 = 128;

/// Returns the value of these parts, which `make` makes if this thread has not sent it lately.
///
/// Clients get the same values again and again: what is left of a quota, the second of a reset. A
/// shared value costs a third of a new one. Threads do not share values, because the count of the
/// owners would move between cores.
pub(super) fn value(parts: Parts, make: impl Fn() -> Option<HeaderValue>) -> Option<HeaderValue> {
    thread_local! {
        static SENT: RefCell<[(Parts, Option<HeaderValue>); PLACES as usize]> =
            const { RefCell::new([const { ([0; 3], None) }; PLACES as usize]) };
    }
    let [first, second, _] = parts;
    // Different texts, and numbers that follow each other, have different places. The place is less
    // than `PLACES`, so it fits.
    let place = ((first / 16).wrapping_add(second) % PLACES) as usize;
    let value = SENT.try_with(|sent| {
        let (last, value) = &mut sent.borrow_mut()[place];
        if *last != parts {
            // A value is kept when it is sent again: to share it takes one more allocation.
            (*last, *value) = (parts, None);
            return make();
        }
        if value.is_none() {
            *value = make();
        }
        value.clone()
    });
    // The values of a thread that ends are gone.
    value.unwrap_or_else(|_| make())
}

/// The part of an [interned](super::intern) text, which has one address while the program runs.
pub(super) fn text(text: &HeaderValue) -> u64 {
    text.as_bytes().as_ptr().addr() as u64
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How often the value of these parts is made for three responses.
    fn made(parts: Parts) -> u32 {
        let count = Cell::new(0);
        let expected = HeaderValue::from_str(&format!("{parts:?}")).unwrap();
        for _ in 0..3 {
            let make = || {
                count.set(count.get() + 1);
                Some(expected.clone())
            };
            assert_eq!(value(parts, make).as_ref(), Some(&expected));
        }
        count.get()
    }

    #[test]
    fn a_value_is_kept_from_the_second_time_on() {
        assert_eq!(made([0, 5, 0]), 2);
        assert_eq!(made([0, 5, 0]), 0);
    }

    #[test]
    fn parts_that_share_a_place_are_told_apart() {
        let other = 5 + PLACES;
        for parts in [[0, 5, 0], [0, 5, 1], [0, other, 1], [16 * PLACES, other, 1]] {
            assert_eq!(made(parts), 2, "{parts:?}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_made_is_asked_for_again() {
        for _ in 0..3 {
            assert_eq!(value([0, 9, 0], || None), None);
        }
        assert_eq!(made([0, 9, 0]), 1);
    }
}
