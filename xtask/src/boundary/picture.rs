//! The picture: what passed in each slice of time, and in the window that ends there.

use std::fmt::Write as _;
use std::time::Duration;

use super::attack::Answer;

/// The most that was admitted within the time of a window, wherever it begins.
pub(super) fn highest(answers: &[Answer], window: Duration) -> usize {
    let admitted = answers.iter().filter(|answer| answer.is_admitted);
    admitted.map(|answer| within(answers, window, answer.at)).max().unwrap_or(0)
}

/// The number of requests allowed in the window that ends at `at`.
fn within(answers: &[Answer], window: Duration, at: Duration) -> usize {
    let counts =
        |answer: &&Answer| answer.is_admitted && answer.at <= at && answer.at + window > at;
    answers.iter().filter(counts).count()
}

/// An SVG that shows two windows.
pub(super) fn draw(algorithm: &str, answers: &[Answer], window: Duration, limit: usize) -> String {
    let highest = highest(answers, window);
    let admitted = answers.iter().filter(|answer| answer.is_admitted).count();
    let seconds = window.as_secs();
    let frame = Frame { span: window * 2, most: limit * 21 / 10 };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n\
         <title>{algorithm}: at most {highest} requests within {seconds} s, limit {limit}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{algorithm}</text>\n\
         <text x=\"{LEFT}\" y=\"38\">{sent} requests sent, {admitted} admitted; \
         at most {highest} within {seconds} s, where the limit is {limit}</text>\n",
        sent = answers.len(),
    );
    axes(&mut svg, &frame, window, limit);
    bars(&mut svg, &frame, answers, window / 60);
    line(&mut svg, &frame, answers, window);
    legend(&mut svg, seconds, window / 60);
    svg.push_str("</svg>\n");
    svg
}

/// From time and number to a place in the picture.
struct Frame {
    span: Duration,
    most: usize,
}

impl Frame {
    fn x(&self, at: Duration) -> f64 {
        let part = at.as_secs_f64() / self.span.as_secs_f64();
        part.mul_add(f64::from(RIGHT - LEFT), f64::from(LEFT))
    }

    fn y(&self, number: usize) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "some hundreds at most")]
        let part = number as f64 / self.most as f64;
        part.mul_add(-f64::from(BOTTOM - TOP), f64::from(BOTTOM))
    }
}

fn axes(svg: &mut String, frame: &Frame, window: Duration, limit: usize) {
    let end = frame.x(window);
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"#888\"/>\n\
         <path d=\"M{end:.1} {TOP}V{BOTTOM}\" stroke=\"#888\" stroke-dasharray=\"3 3\"/>\n\
         <path d=\"M{LEFT} {0:.1}H{RIGHT}\" stroke=\"#c0392b\" stroke-width=\"1.5\"/>",
        frame.y(limit),
    );
    for number in [0, limit, 2 * limit] {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{number}</text>",
            LEFT - 6,
            frame.y(number) + 4.0,
        );
    }
    for quarter in 0..=4 {
        let at = frame.span * quarter / 4;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{} s</text>",
            frame.x(at),
            BOTTOM + 16,
            at.as_secs(),
        );
    }
}

/// For each slice what was admitted, and on top of it what was refused.
fn bars(svg: &mut String, frame: &Frame, answers: &[Answer], slice: Duration) {
    let mut from = Duration::ZERO;
    while from < frame.span {
        let answered: Vec<_> =
            answers.iter().filter(|answer| (from..from + slice).contains(&answer.at)).collect();
        let admitted = answered.iter().filter(|answer| answer.is_admitted).count();
        for (low, high, color) in [(0, admitted, ADMITTED), (admitted, answered.len(), REFUSED)] {
            if high > low {
                let _ = writeln!(
                    svg,
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{color}\"/>",
                    frame.x(from),
                    frame.y(high),
                    frame.x(slice) - frame.x(Duration::ZERO),
                    frame.y(low) - frame.y(high),
                );
            }
        }
        from += slice;
    }
}

/// Draws the number of requests allowed in the window that ends at each moment. The number
/// changes when a request is allowed, and again one window later.
fn line(svg: &mut String, frame: &Frame, answers: &[Answer], window: Duration) {
    let admitted = answers.iter().filter(|answer| answer.is_admitted).map(|answer| answer.at);
    let mut moments: Vec<_> = admitted.flat_map(|at| [at, at + window]).collect();
    moments.sort_unstable();
    moments.dedup();
    let mut path = format!("M{LEFT} {BOTTOM}");
    for at in moments.into_iter().filter(|at| *at <= frame.span) {
        let _ = write!(path, "H{:.1}V{:.1}", frame.x(at), frame.y(within(answers, window, at)));
    }
    let _ = writeln!(
        svg,
        "<path d=\"{path}H{RIGHT}\" fill=\"none\" stroke=\"{LINE}\" stroke-width=\"1.5\"/>"
    );
}

fn legend(svg: &mut String, seconds: u64, slice: Duration) {
    let slice = slice.as_millis();
    let words = [
        (ADMITTED, format!("admitted in {slice} ms")),
        (REFUSED, format!("refused in {slice} ms")),
        (LINE, format!("admitted in the last {seconds} s")),
        ("#c0392b", "limit".to_owned()),
    ];
    for ((color, text), x) in words.iter().zip([LEFT, LEFT + 165, LEFT + 320, LEFT + 505]) {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"{}\">{text}</text>",
            HEIGHT - 20,
            x + 17,
            HEIGHT - 10,
        );
    }
}

const WIDTH: u32 = 640;
const HEIGHT: u32 = 270;
const LEFT: u32 = 40;
const RIGHT: u32 = 625;
const TOP: u32 = 50;
const BOTTOM: u32 = 220;

const ADMITTED: &str = "#2e7d32";
const REFUSED: &str = "#cfd8dc";
const LINE: &str = "#1565c0";

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(12);

    fn answers(moments: &[(u64, bool)]) -> Vec<Answer> {
        let answer =
            |&(seconds, is_admitted)| Answer { at: Duration::from_secs(seconds), is_admitted };
        moments.iter().map(answer).collect()
    }

    #[test]
    fn a_window_ends_where_the_next_may_begin() {
        // The first counts until twelve seconds have passed, and then no more.
        let answers = answers(&[(0, true), (5, true), (6, false), (12, true), (17, true)]);
        assert_eq!(highest(&answers, WINDOW), 2);
        assert_eq!(within(&answers, WINDOW, Duration::from_secs(11)), 2);
        assert_eq!(highest(&[], WINDOW), 0);
    }

    #[test]
    fn what_was_counted_stands_in_the_picture() {
        let svg = draw("token_bucket", &answers(&[(11, true), (12, true), (12, false)]), WINDOW, 1);
        assert!(svg.contains("3 requests sent, 2 admitted; at most 2 within 12 s"), "{svg}");
        let bars = |color| svg.matches(&format!("fill=\"{color}\"/>\n")).count();
        assert_eq!((bars(ADMITTED), bars(REFUSED)), (2, 1), "{svg}");
    }
}
