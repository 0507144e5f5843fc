//! The prefix that syslog adds to a line.

use memchr::memchr;

/// The length of the text before a syslog message, such as `Feb  3 10:00:01 host nginx[7]: `, or
/// `<134>1 2026-02-03T10:00:01Z host nginx 7 - - `. Other lines have no such text.
pub(super) fn prefix(line: &[u8]) -> usize {
    let mut rest = Rest(line);
    let has_priority = line.first() == Some(&b'<');
    if has_priority {
        let Some(end) = memchr(b'>', line).filter(|end| (2..=4).contains(end)) else { return 0 };
        rest.0 = &line[end + 1..];
    }
    // Nearly all lines of other formats end here.
    let has_version = has_priority && rest.0.starts_with(b"1 ");
    if !has_version && !rest.starts_with_month() && rest.0.get(10) != Some(&b'T') {
        return 0;
    }
    let found = if has_version { rest.after_header() } else { rest.after_tag() };
    found.map_or(0, |()| line.len() - rest.0.len())
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn starts_with_month(&self) -> bool {
        const MONTHS: &[u8] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
        let is_word = matches!(self.0, [b'A'..=b'Z', _, _, b' ', ..]);
        is_word && MONTHS.chunks_exact(3).any(|month| self.0.starts_with(month))
    }

    fn word(&mut self) -> Option<&'a [u8]> {
        let end = memchr(b' ', self.0)?;
        let word = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(word)
    }

    /// RFC 3164: the time, the host and the program's name with a colon.
    fn after_tag(&mut self) -> Option<()> {
        if self.starts_with_month() {
            self.word()?;
            // Days before the tenth have two spaces.
            self.0 = self.0.trim_ascii_start();
            self.word()?;
        }
        let time = self.word()?;
        self.word()?;
        let tag = self.word()?;
        (time.contains(&b':') && tag.ends_with(b":")).then_some(())
    }

    /// RFC 5424: the version, time, host, program, process, kind, and structured data.
    fn after_header(&mut self) -> Option<()> {
        for _ in 0..6 {
            self.word()?;
        }
        if !self.0.starts_with(b"[") {
            return (self.word()? == b"-").then_some(());
        }
        let end = memchr::memmem::find(self.0, b"] ")?;
        self.0 = &self.0[end + 2..];
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_follow_the_prefix() {
        for (start, message) in [
            ("Feb  3 10:00:01 edge haproxy[812]: ", "192.0.2.1:5 [03/Feb/2026:10:00:01.250] x"),
            ("<190>Nov 24 11:00:00 web nginx: ", "192.0.2.1 - - [24/Nov/2026:11:00:00 +0000]"),
            ("2026-02-03T10:00:01.250+09:00 edge haproxy[812]: ", "{\"a\": 1}"),
            ("<134>1 2026-02-03T10:00:01Z edge haproxy 812 - - ", "192.0.2.1 x: y"),
            ("<134>1 2026-02-03T10:00:01Z edge haproxy 812 - [a@1 b=\"c d\"][e@1] ", "192.0.2.1"),
            ("", "192.0.2.1 - - [24/Nov/2026:11:00:00 +0000] \"GET / HTTP/1.1\" 200 5"),
            ("", "2026-02-03T10:00:01.000000Z elb 192.0.2.1:5 10.0.0.1:80 0.1 0.1 0.1 200"),
            ("", "2026-02-03 10:00:01 10.0.0.5 GET / - 443 - 192.0.2.1 - - 200 0 0 5"),
            ("", "Jan.example:443 192.0.2.1 - - [24/Nov/2026:11:00:00 +0000]"),
            ("", "May 192.0.2.1 x"),
            ("", "<none>"),
            ("", "<"),
            ("", ""),
        ] {
            assert_eq!(prefix(format!("{start}{message}").as_bytes()), start.len(), "{start}");
        }
    }
}
