//! Lines with wrong times.

use super::*;

#[test]
fn isolated_wrong_times_are_skipped() {
    let days = (0..40).map(|day| (day * 86_400).to_string()).collect::<Vec<_>>().join(" ");
    let all = (0..40).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
    let twenty = (90_000..90_020).map(|second| second.to_string()).collect::<Vec<_>>().join(" ");
    let kept = (0..20).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
    // Servers may be idle overnight or receive only daily requests. With only a few lines, the
    // majority decides. The last lines follow many others.
    let table = format!(
        "
0 86400 1 2 | 0 2 3 | 2: its time is 86399 s ahead of the lines after it
86400 0 1 2 | 1 2 3 | 1: its time is 86400 s ahead of the lines after it
7 7 7 7 7 7 7 7 7 7 7 7 86400 8 | 0 1 2 3 4 5 6 7 8 9 10 11 13 | 13: its time is 86392 s ahead of the lines after it
86400 86400 86400 86400 86400 86400 0 86401 | 0 1 2 3 4 5 7 | 7: its time is 86400 s behind the lines before it
0 1 2000000000 | 0 1 | 3: its time is in the future
86400 86401 86400 0 86402 | 0 2 1 4 | 4: its time is 86401 s behind the lines before it
86400 86401 86400 0 | 0 2 1 | 4: its time is 86401 s behind the lines before it
0 1 2 50000 50001 50002 3 | 0 1 2 3 4 5 | 7: its time is 49999 s behind the lines before it
0 1 30000 30001 | 0 1 2 3 |@
{twenty} 180000 90020 | {kept} 21 | 21: its time is 89980 s ahead of the lines after it
{twenty} 0 | {kept} | 21: its time is 90019 s behind the lines before it
{days} | {all} |@"
    );
    for row in table.lines().skip(1) {
        let [times, kept, reason] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let times: Vec<u64> = times.split(' ').map(|it| it.parse().unwrap()).collect();
        let seconds: Vec<_> = times.iter().map(|second| 1_700_000_000 + second).collect();
        let not_after = Timestamp::from_micros(2_000_000_000_000_000);
        let options = Options { not_after, ..with("json:time=t,method=m,target=u") };
        let (targets, reasons) = read(records(log(&seconds), &options));
        assert_eq!(
            (targets.join(" ").replace('/', ""), reasons),
            (kept.to_owned(), reason.replace('@', ""))
        );
    }
}

#[test]
fn wrong_times_do_not_imply_another_format() {
    let options = Options { not_after: Timestamp::from_micros(1), ..Options::default() };
    for text in [LINE.to_owned(), format!("nonsense\n{LINE}")] {
        let error = reason(text, &options);
        assert!(error.contains("its time is in the future"), "{error}");
        assert!(
            error.ends_with("correct the times in the log, or this machine's clock [TG0706]"),
            "{error}"
        );
    }
    // A day earlier, or the newest line first, as in exported logs.
    let day_before = LINE.replace("10/Oct", "09/Oct");
    let two = format!("{LINE}\n").repeat(20) + &format!("{day_before}\n").repeat(20);
    let back = reason(two, &Options::default());
    assert!(back.starts_with("line 21 of test.log is 86400 s earlier"), "{back}");
    for (step, lines) in [(7_200, 100), (600, 100), (7_200, 14), (7_200, 2)] {
        let times: Vec<_> = (0..lines).map(|line| 1_000_000 - line * step).collect();
        let error = reason(log(&times), &with("json:time=t,method=m,target=u"));
        assert!(error.contains("s earlier than a line before it; sort the log by time"), "{error}");
    }
}
