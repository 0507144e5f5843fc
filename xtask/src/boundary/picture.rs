//! The picture: small multiples of the requests that each algorithm allowed within a window.

use std::fmt::Write as _;
use std::time::Duration;

use super::attack::Answer;

/// The result of the attack on one algorithm.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) algorithm: &'static str,
    pub(super) answers: Vec<Answer>,
    /// The most requests that the algorithm can allow within any window.
    pub(super) worst: usize,
}

/// A picture's colours.
#[derive(Debug)]
pub(super) struct Theme {
    /// The end of the file name.
    pub(super) name: &'static str,
    text: &'static str,
    muted: &'static str,
    grid: &'static str,
    within: &'static str,
    above: &'static str,
}

pub(super) const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        text: "#1f2328",
        muted: "#59636e",
        grid: "#d1d9e0",
        within: "#2da44e",
        above: "#cf222e",
    },
    Theme {
        name: "dark",
        text: "#f0f6fc",
        muted: "#9198a1",
        grid: "#3d444d",
        within: "#3fb950",
        above: "#f85149",
    },
];

/// The largest number of requests allowed within any window.
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

/// Draws an SVG with a panel per algorithm. All panels share the vertical axis.
pub(super) fn draw(panels: &[Panel], window: Duration, limit: usize, theme: &Theme) -> String {
    let Theme { text, muted, .. } = theme;
    let seconds = window.as_secs();
    let sent = panels.first().map_or(0, |panel| panel.answers.len());
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\" \
         font-size=\"12\" fill=\"{text}\" role=\"img\">\n\
         <title>Requests allowed within {seconds} s by each algorithm, limit {limit}</title>\n\
         <text x=\"0\" y=\"16\" font-size=\"15\" font-weight=\"600\">{sent} requests around the end of a \
         window, limit {limit}</text>\n\
         <text x=\"0\" y=\"36\" fill=\"{muted}\">Requests allowed in the last {seconds} s. \
         Half of the requests arrive just before the boundary, half just after it.</text>\n",
    );
    scale(&mut svg, limit, theme);
    for (index, panel) in (0_u32..).zip(panels) {
        let frame = Frame { left: LEFT + index * STEP, window, limit };
        draw_panel(&mut svg, &frame, panel, theme);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Maps times and numbers to coordinates in the picture.
struct Frame {
    left: u32,
    window: Duration,
    limit: usize,
}

impl Frame {
    /// A panel shows 0.25 windows before the boundary, and 1.25 windows after it.
    fn x(&self, at: Duration) -> f64 {
        let from_boundary = at.as_secs_f64() / self.window.as_secs_f64() - 1.0;
        (from_boundary + 0.25).mul_add(f64::from(PANEL) / 1.5, f64::from(self.left))
    }

    fn y(&self, number: usize) -> f64 {
        height(number, self.limit)
    }
}

fn height(number: usize, limit: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "some hundreds at most")]
    let part = number as f64 / (2 * limit) as f64;
    part.mul_add(-f64::from(BOTTOM - TOP), f64::from(BOTTOM))
}

/// Draws the numbers at the vertical axis, each with a line through all panels.
fn scale(svg: &mut String, limit: usize, theme: &Theme) {
    for number in [0, limit, 2 * limit] {
        let y = height(number, limit);
        let (line, dashes) = if number == limit {
            (theme.muted, " stroke-dasharray=\"4 3\"")
        } else {
            (theme.grid, "")
        };
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.1}H{WIDTH}\" stroke=\"{line}\"{dashes}/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{}\">{number}</text>",
            LEFT - 8,
            y + 4.0,
            theme.muted,
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{}\">limit</text>",
        LEFT - 8,
        height(limit, limit) - 9.0,
        theme.muted,
    );
}

fn draw_panel(svg: &mut String, frame: &Frame, panel: &Panel, theme: &Theme) {
    let Theme { muted, grid, within, above, .. } = theme;
    let left = frame.left;
    let boundary = frame.x(frame.window);
    let highest = highest(&panel.answers, frame.window);
    // A steady refill during the attack adds one or two requests, as a user would expect.
    let verdict = |number| if number > frame.limit * 21 / 20 { above } else { within };
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\" font-weight=\"600\">{}</text>\n\
         <path d=\"M{boundary:.1} {TOP}V{BOTTOM}\" stroke=\"{grid}\"/>",
        TOP - 12,
        panel.algorithm.replace('_', " "),
    );
    for (clamp, color) in [(0..=frame.limit, within), (frame.limit..=2 * frame.limit, above)] {
        let area = area(frame, &panel.answers, *clamp.start(), *clamp.end());
        let _ = writeln!(svg, "<path d=\"{area}\" fill=\"{color}\" fill-opacity=\"0.75\"/>");
    }
    let _ = writeln!(
        svg,
        "<text x=\"{boundary:.1}\" y=\"{0}\" text-anchor=\"middle\" fill=\"{muted}\">boundary</text>\n\
         <text x=\"{1:.1}\" y=\"{0}\" text-anchor=\"middle\" fill=\"{muted}\">+{2} s</text>\n\
         <text x=\"{left}\" y=\"{3}\" fill=\"{muted}\">this attack: \
         <tspan font-weight=\"600\" fill=\"{4}\">{highest}</tspan></text>\n\
         <text x=\"{left}\" y=\"{5}\" fill=\"{muted}\">worst case: \
         <tspan font-weight=\"600\" fill=\"{6}\">{7}</tspan></text>",
        BOTTOM + 18,
        frame.x(frame.window * 2),
        frame.window.as_secs(),
        BOTTOM + 44,
        verdict(highest),
        BOTTOM + 64,
        verdict(panel.worst),
        panel.worst,
    );
}

/// The area under the number of allowed requests, between two numbers. The number changes when a
/// request is allowed, and again one window later.
fn area(frame: &Frame, answers: &[Answer], low: usize, high: usize) -> String {
    let admitted = answers.iter().filter(|answer| answer.is_admitted).map(|answer| answer.at);
    let mut moments: Vec<_> = admitted.flat_map(|at| [at, at + frame.window]).collect();
    moments.sort_unstable();
    moments.dedup();
    let end = frame.window * 9 / 4;
    let base = frame.y(low);
    let mut path = format!("M{} {base:.1}", frame.left);
    let mut last = (String::new(), String::new());
    for at in moments.into_iter().filter(|at| *at <= end) {
        let number = within(answers, frame.window, at).clamp(low, high);
        let place = (format!("{:.1}", frame.x(at)), format!("{:.1}", frame.y(number)));
        if place.1 != last.1 {
            let _ = write!(path, "H{}V{}", place.0, place.1);
            last = place;
        }
    }
    let _ = write!(path, "H{}V{base:.1}Z", frame.left + PANEL);
    path
}

const WIDTH: u32 = 900;
const HEIGHT: u32 = 270;
const LEFT: u32 = 40;
const STEP: u32 = 175;
const PANEL: u32 = 160;
const TOP: u32 = 80;
const BOTTOM: u32 = 200;

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
    fn request_counts_for_one_window() {
        // The first request stops counting after exactly 12 seconds.
        let answers = answers(&[(0, true), (5, true), (6, false), (12, true), (17, true)]);
        assert_eq!(highest(&answers, WINDOW), 2);
        assert_eq!(within(&answers, WINDOW, Duration::from_secs(11)), 2);
        assert_eq!(highest(&[], WINDOW), 0);
    }

    #[test]
    fn requests_above_limit_are_red() {
        let [light, _] = &THEMES;
        let panel = |answers| Panel { algorithm: "token_bucket", answers, worst: 2 };
        let steps = |svg: &str, color| {
            let area = svg.lines().find(|line| line.contains(&format!("fill=\"{color}\" fill-op")));
            area.map_or(0, |area| area.matches('V').count())
        };
        let over =
            draw(&[panel(answers(&[(11, true), (12, true), (12, false)]))], WINDOW, 1, light);
        assert!(over.contains("3 requests around the end of a window, limit 1"), "{over}");
        assert!(over.contains(&format!("fill=\"{}\">2</tspan></text>\n", light.above)), "{over}");
        let held = draw(&[panel(answers(&[(11, true), (12, false)]))], WINDOW, 1, light);
        // Up and down, and the line back to the start.
        assert_eq!((steps(&over, light.within), steps(&over, light.above)), (3, 4), "{over}");
        assert_eq!((steps(&held, light.within), steps(&held, light.above)), (3, 2), "{held}");
    }
}
