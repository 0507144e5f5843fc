//! The list of overrides as a value in Redis: a version, a line with the format's number, and a line
//! for each override.

use std::fmt::Write as _;

use tollgate_core::{Micros, Override, OverrideChange, OverrideId, OverrideList, Timestamp};

/// Sixteen digits.
pub(super) type Version = [u8; 16];

/// The version while there is no value.
pub(super) const NONE: Version = [b'0'; 16];

/// The first line, after the version.
const FORMAT: &str = "1\n";

/// Reads a value. Returns `None` if a later build has written it.
pub(super) fn read_list(value: &[u8]) -> Option<(Version, OverrideList)> {
    if value.is_empty() {
        return Some((NONE, OverrideList::new()));
    }
    let (version, list) = value.split_first_chunk()?;
    let lines = str::from_utf8(list).ok()?.strip_prefix(FORMAT)?;
    // An edit would lose a line that is not understood.
    Some((*version, lines.lines().map(read_line).collect::<Option<_>>()?))
}

/// Writes a list without its version. An empty list has no value.
pub(super) fn write_list(list: &OverrideList) -> String {
    let mut text = String::new();
    for (id, it) in list {
        if text.is_empty() {
            text.push_str(FORMAT);
        }
        let letters = id.split(|byte| *byte == b':').next().unwrap_or_default();
        let (letters, until) = (String::from_utf8_lossy(letters), it.until.as_micros());
        let number =
            |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let change = match it.change {
            OverrideChange::Block => "block".to_owned(),
            OverrideChange::Quota { limit, window, burst } => {
                format!("{limit},{},{}", number(window.map(Micros::get)), number(burst))
            }
        };
        let subject: String =
            it.subject.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{letters}\t{until}\t{change}\t{}\t{subject}", it.policy);
    }
    text
}

fn read_line(line: &str) -> Option<(OverrideId, Override)> {
    let mut parts = line.splitn(5, '\t');
    let mut next = || parts.next();
    let (letters, until, change, policy, subject) = (next()?, next()?, next()?, next()?, next()?);
    let change = if change == "block" {
        OverrideChange::Block
    } else {
        let mut numbers = change.split(',');
        let limit = numbers.next()?.parse().ok()?;
        let mut number = || match numbers.next()? {
            "-" => Some(None),
            number => number.parse().ok().map(Some),
        };
        let (window, burst) = (number()?, number()?);
        OverrideChange::Quota { limit, window: window.map(Micros::new), burst }
    };
    let id = format!("{letters}:{policy}").into_bytes().into();
    let (policy, subject) = (policy.to_owned(), subject.to_owned());
    let until = Timestamp::from_micros(until.parse().ok()?);
    Some((id, Override { policy, subject, change, until }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(policy: &str, change: OverrideChange) -> (OverrideId, Override) {
        let id = format!("x7EMR_x1SrB4Pd5BuWD_3A:{policy}").into_bytes().into();
        let (policy, until) = (policy.to_owned(), Timestamp::from_micros(1_790_000_000_000_000));
        (id, Override { policy, subject: "user:Zoë, \"1\"".to_owned(), change, until })
    }

    #[test]
    fn lists_are_read_as_written() {
        let quota = |window, burst| OverrideChange::Quota { limit: 5_000, window, burst };
        let list: OverrideList = [
            entry("client", OverrideChange::Block),
            entry("client/team", quota(None, None)),
            entry("a:b", quota(Some(Micros::new(7)), Some(9))),
        ]
        .into();
        let written = format!("0001790000000001{}", write_list(&list));
        assert_eq!(read_list(written.as_bytes()), Some((*b"0001790000000001", list)));
        assert_eq!(write_list(&OverrideList::new()), "");
    }

    #[test]
    fn unknown_formats_and_lines_need_a_later_build() {
        assert_eq!(read_list(b""), Some((NONE, OverrideList::new())));
        assert_eq!(read_list(b"00017900000000012\nx"), None);
        let (id, it) = entry("client", OverrideChange::Block);
        let list = write_list(&[(id, it)].into());
        assert!(read_list(format!("0001790000000001{list}").as_bytes()).is_some());
        let later = format!("0001790000000001{list}x\t1\tpause 3\tp\ts\n");
        assert_eq!(read_list(later.as_bytes()), None);
    }

    #[test]
    fn control_characters_do_not_add_lines() {
        let (id, it) = entry("client", OverrideChange::Block);
        let it = Override { subject: "a\nb\tc".to_owned(), ..it };
        let list = format!("0001790000000001{}", write_list(&[(id, it)].into()));
        let (_, list) = read_list(list.as_bytes()).unwrap();
        assert_eq!(list.values().next().unwrap().subject, "a b c");
    }
}
