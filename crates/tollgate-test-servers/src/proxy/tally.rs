//! Counts the messages that pass through the proxy.

use std::collections::BTreeMap;

/// Traffic in one direction, summed over all connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    bytes: u64,
    messages: u64,
    commands: BTreeMap<String, u64>,
}

impl Tally {
    /// The number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of complete Redis messages, either requests or replies.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// How many complete requests used a command such as `EVALSHA`. Requests over TLS are not
    /// counted.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        self.commands.get(&command.to_ascii_uppercase()).copied().unwrap_or(0)
    }
}

/// Splits a connection's bytes into messages as they arrive.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Requests start with a command name; replies do not.
    are_requests: bool,
    /// How many values each incomplete list still needs, outermost first.
    lists: Vec<u64>,
    line: Vec<u8>,
    /// How many bytes the current string still needs.
    missing: Option<usize>,
    /// The incomplete request's command.
    command: Option<String>,
    is_strange: bool,
}

impl Reader {
    pub(super) fn of_requests() -> Self {
        Self { are_requests: true, ..Self::default() }
    }

    pub(super) fn of_replies() -> Self {
        Self::default()
    }

    pub(super) fn read(&mut self, mut bytes: &[u8], tally: &mut Tally) {
        tally.bytes += bytes.len() as u64;
        while !bytes.is_empty() && !self.is_strange {
            bytes = match self.missing {
                Some(missing) => self.read_string(missing, bytes, tally),
                None => self.read_line(bytes, tally),
            };
        }
    }

    fn read_string<'a>(&mut self, missing: usize, bytes: &'a [u8], tally: &mut Tally) -> &'a [u8] {
        let (part, rest) = bytes.split_at(missing.min(bytes.len()));
        let is_name = self.are_requests && self.command.is_none();
        if is_name {
            self.line.extend_from_slice(part);
        }
        self.missing = (part.len() < missing).then_some(missing - part.len());
        if self.missing.is_none() {
            if is_name {
                let name = std::mem::take(&mut self.line);
                self.command = Some(String::from_utf8_lossy(&name).trim_end().to_ascii_uppercase());
            }
            self.end_value(tally);
        }
        rest
    }

    fn read_line<'a>(&mut self, bytes: &'a [u8], tally: &mut Tally) -> &'a [u8] {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (part, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        self.line.extend_from_slice(part);
        if end.is_some() {
            let line = std::mem::take(&mut self.line);
            self.end_line(&line, tally);
        }
        rest
    }

    fn end_line(&mut self, line: &[u8], tally: &mut Tally) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end();
        let number = || line.get(1..)?.parse::<i64>().ok();
        match line.as_bytes().first() {
            Some(b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(') => self.end_value(tally),
            Some(b'$' | b'=' | b'!') => match number().map(usize::try_from) {
                // The string is followed by CRLF.
                Some(Ok(length)) => self.missing = Some(length + 2),
                Some(Err(_)) => self.end_value(tally),
                None => self.is_strange = true,
            },
            Some(b'*' | b'~' | b'>') => self.begin_list(number(), 1, tally),
            Some(b'%') => self.begin_list(number(), 2, tally),
            _ => self.is_strange = true,
        }
    }

    fn begin_list(&mut self, entries: Option<i64>, values_each: u64, tally: &mut Tally) {
        match entries.map(u64::try_from) {
            Some(Ok(count @ 1..)) => self.lists.push(count * values_each),
            Some(_) => self.end_value(tally),
            None => self.is_strange = true,
        }
    }

    /// Completes a value, and each enclosing list of which it was the last value.
    fn end_value(&mut self, tally: &mut Tally) {
        while let Some(wanted) = self.lists.last_mut() {
            *wanted -= 1;
            if *wanted > 0 {
                return;
            }
            self.lists.pop();
        }
        tally.messages += 1;
        if let Some(command) = self.command.take() {
            *tally.commands.entry(command).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TALK: &[u8] = b"*3\r\n$3\r\nset\r\n$1\r\na\r\n$4\r\n\r\n*1\r\n\
        *1\r\n$4\r\nPING\r\n+PONG\r\n-ERR no\r\n:1\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n\
        *2\r\n*1\r\n:1\r\n*2\r\n+a\r\n$1\r\nb\r\n%1\r\n+a\r\n:1\r\n";

    #[test]
    fn message_counts_ignore_read_sizes() {
        for size in 1..TALK.len() {
            let (mut reader, mut tally) = (Reader::of_requests(), Tally::default());
            TALK.chunks(size).for_each(|part| reader.read(part, &mut tally));
            assert_eq!(tally.bytes(), TALK.len() as u64);
            assert_eq!(tally.messages(), 11, "in parts of {size}");
            assert_eq!([tally.calls("SET"), tally.calls("ping"), tally.calls("a")], [1, 1, 0]);
        }
    }

    #[test]
    fn other_protocols_count_only_bytes() {
        let (mut reader, mut tally) = (Reader::of_replies(), Tally::default());
        reader.read(b"GET / HTTP/1.1\r\n\r\n+OK\r\n", &mut tally);
        assert_eq!((tally.bytes(), tally.messages()), (23, 0));
    }
}
