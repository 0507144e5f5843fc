//! Formats numbers as header values, without an allocation for small numbers.

use std::cell::RefCell;
use std::sync::LazyLock;

use http::HeaderValue;

pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

/// A header value under construction. Short values are on the stack, so the final value is the only
/// allocation.
#[derive(Clone, Debug)]
pub(super) struct ValueBuffer {
    short: [u8; Self::SHORT],
    len: usize,
    long: Vec<u8>,
}

impl ValueBuffer {
    /// Enough for two members with typical names.
    const SHORT: usize = 96;

    pub(super) const fn new() -> Self {
        Self { short: [0; Self::SHORT], len: 0, long: Vec::new() }
    }

    pub(super) fn from(value: &HeaderValue) -> Self {
        let mut buffer = Self::new();
        buffer.push(value.as_bytes());
        buffer
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        match self.short.get(..self.len) {
            Some(value) => value,
            None => &self.long,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, piece: &[u8]) {
        let end = self.len + piece.len();
        match self.short.get_mut(self.len..end) {
            Some(room) => room.copy_from_slice(piece),
            None => self.push_long(piece),
        }
        self.len = end;
    }

    #[cold]
    fn push_long(&mut self, piece: &[u8]) {
        if let Some(value) = self.short.get(..self.len) {
            self.long.extend_from_slice(value);
        }
        self.long.extend_from_slice(piece);
    }

    /// Appends the first `len` bytes of `word`. A copy with a constant length needs no `memcpy`
    /// call.
    #[inline]
    pub(super) fn push_word(&mut self, word: [u8; 4], len: usize) {
        match self.short.get_mut(self.len..self.len + 4) {
            Some(room) => {
                room.copy_from_slice(&word);
                self.len += len;
            }
            None => self.push(&word[..len]),
        }
    }

    #[inline]
    pub(super) fn push_integer(&mut self, number: u64) {
        let number = number.min(MAX_INTEGER);
        match usize::try_from(number).ok().and_then(|number| Some((number, WORDS.get(number)?))) {
            Some((number, word)) => self.push_word(*word, digits(number)),
            None => self.push(itoa::Buffer::new().format(number).as_bytes()),
        }
    }
}

/// Returns this text as a header value. All parts are printable, because policies validate their
/// names. If they were not, the header would be omitted: a limiter must not break a response.
pub(super) fn value(text: &[u8]) -> Option<HeaderValue> {
    HeaderValue::from_bytes(text).ok()
}

pub(super) fn integer(number: u64) -> HeaderValue {
    let small = usize::try_from(number).ok().and_then(|number| SMALL.get(number));
    small.cloned().unwrap_or_else(|| {
        value(itoa::Buffer::new().format(number).as_bytes())
            .unwrap_or_else(|| HeaderValue::from(number))
    })
}

/// Returns a time or a wait in seconds. Each thread remembers the last values, because responses
/// have few different ones if the windows are short; any other value from 1000 on allocates twice,
/// for its text and to share it.
pub(super) fn seconds(number: u64) -> HeaderValue {
    const REMEMBERED: usize = 64;
    thread_local! {
        static LAST: RefCell<[(u64, HeaderValue); REMEMBERED]> =
            const { RefCell::new([const { (0, HeaderValue::from_static("0")) }; REMEMBERED]) };
    }
    LAST.with_borrow_mut(|last| {
        let (remembered, value) = &mut last[number as usize % REMEMBERED];
        if *remembered != number {
            (*remembered, *value) = (number, integer(number));
        }
        value.clone()
    })
}

/// Returns the same as [`value`]. Each thread remembers the last text, for a text that is the same in
/// most responses.
pub(super) fn frequent(text: &[u8]) -> Option<HeaderValue> {
    thread_local! {
        static LAST: RefCell<HeaderValue> = const { RefCell::new(HeaderValue::from_static("")) };
    }
    LAST.with_borrow_mut(|last| {
        if last.as_bytes() != text {
            *last = value(text)?;
        }
        Some(last.clone())
    })
}

/// The values of the numbers below 1000. Their texts are static, so a clone neither allocates nor
/// counts references.
static SMALL: LazyLock<Box<[HeaderValue]>> = LazyLock::new(|| {
    let texts =
        WORDS.iter().enumerate().map(|(number, word)| str::from_utf8(&word[..digits(number)]));
    texts.flatten().map(HeaderValue::from_static).collect()
});

#[inline]
const fn digits(number: usize) -> usize {
    1 + (number >= 10) as usize + (number >= 100) as usize
}

/// "0" to "999", padded with spaces.
static WORDS: [[u8; 4]; 1000] = {
    let mut words = [[b' '; 4]; 1000];
    let mut number = 0;
    while number < 1000 {
        let (mut rest, mut digit) = (number, digits(number));
        while digit > 0 {
            digit -= 1;
            words[number][digit] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        number += 1;
    }
    words
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_match_standard_formatting() {
        for n in (0..2_000).chain([u64::MAX, MAX_INTEGER, 10_u64.pow(12)]) {
            assert_eq!(integer(n), n.to_string());
            // Remembered by the second call.
            assert_eq!([seconds(n), seconds(n)], [n.to_string(), n.to_string()]);
        }
    }

    #[test]
    fn remembered_text_is_replaced() {
        for text in ["", "a", "a", "b", "a"] {
            assert_eq!(frequent(text.as_bytes()).unwrap(), text);
        }
        assert_eq!(frequent(b"\n"), None);
        assert_eq!(frequent(b"a").unwrap(), "a");
    }

    #[test]
    fn integers_are_capped_at_15_digits() {
        let mut buffer = ValueBuffer::new();
        buffer.push_integer(u64::MAX);
        assert_eq!(buffer.as_slice(), b"999999999999999");
    }

    #[test]
    fn value_ends_with_last_piece() {
        for room in 90..=100 {
            let mut buffer = ValueBuffer::new();
            buffer.push(&[b'x'; 100][..room]);
            buffer.push_integer(7);
            buffer.push_word(*b";t= ", 3);
            buffer.push_integer(42);
            assert_eq!(buffer.as_slice(), format!("{}7;t=42", "x".repeat(room)).as_bytes());
        }
    }

    #[test]
    fn line_grows_beyond_stack() {
        let (mut buffer, mut expected) = (ValueBuffer::new(), Vec::new());
        for piece in ["x".repeat(90), "y".repeat(6), "z".to_owned(), "w".repeat(300)] {
            buffer.push(piece.as_bytes());
            expected.extend_from_slice(piece.as_bytes());
            assert_eq!(buffer.as_slice(), expected);
        }
    }
}
