//! The charts. They fit a phone screen, and a wide screen shows two charts per row.

#![expect(clippy::cast_precision_loss, reason = "for a drawing")]

use super::ClientLimit;
use super::svg::{ALLOWED, DENIED, FAINT, Side, Svg, WIDTH};
use crate::Instant;
use crate::report::Series;
use tollgate_core::Timestamp;

/// The part of a drawing between its axes.
struct Plot {
    svg: Svg,
    right: f64,
    bottom: f64,
    /// The number at the upper edge.
    highest: f64,
}

/// The left and the upper edge, beside the vertical axis's labels.
const LEFT: f64 = 64.0;
const TOP: f64 = 8.0;

impl Plot {
    fn new(height: f64, right: f64, highest: u64) -> Self {
        let (bottom, highest) = (height - 32.0, highest.max(1));
        let mut plot = Self { svg: Svg::new(height), right, bottom, highest: highest as f64 };
        let step = tick(highest);
        for number in (0..=highest).step_by(step as usize) {
            let y = plot.y(number);
            plot.svg.line([LEFT, y, right, y], FAINT, 1);
            plot.svg.text(LEFT - 6.0, y + 4.0, Side::Left, number);
        }
        plot
    }

    fn y(&self, number: u64) -> f64 {
        self.bottom - number as f64 / self.highest * (self.bottom - TOP)
    }

    /// The horizontal position of a part of the width.
    fn x(&self, part: f64) -> f64 {
        LEFT + part * (self.right - LEFT)
    }

    fn bar(&mut self, parts: [f64; 2], (low, high): (u64, u64), colour: &str) {
        if high > low {
            let [left, right] = parts.map(|part| self.x(part));
            self.svg.area([left, self.y(high), right, self.y(low)], colour, 1.0);
        }
    }

    fn label(&mut self, part: f64, text: &str) {
        self.svg.text(self.x(part), self.bottom + 18.0, Side::Both, text);
    }
}

/// The step between an axis's labels: 1, 2 or 5 times a power of ten, so that there are at most 5.
fn tick(highest: u64) -> u64 {
    let powers = (0..19).map(|power| 10_u64.pow(power));
    let steps = powers.flat_map(|power| [1, 2, 5].map(|times| power.saturating_mul(times)));
    { steps }.find(|step| highest / step < 5).unwrap_or(u64::MAX)
}

/// Stacks denied requests on top of allowed requests.
pub(super) fn over_time(series: &Series) -> String {
    let highest = series.steps.iter().map(|(allowed, denied)| allowed + denied).max();
    // The last label is centered on the right edge.
    let mut plot = Plot::new(220.0, WIDTH - 32.0, highest.unwrap_or(0));
    let end = series.steps.len().max(1) as u64;
    let part = |step: u64| step as f64 / end as f64;
    for (step, (allowed, denied)) in (0_u64..).zip(&series.steps) {
        let parts = [part(step), part(step + 1)];
        plot.bar(parts, (0, *allowed), ALLOWED);
        plot.bar(parts, (*allowed, allowed + denied), DENIED);
    }
    let seconds = series.step_seconds * end;
    let format = match seconds {
        172_801.. => "%m-%d %Hh",
        601.. => "%H:%M",
        _ => "%H:%M:%S",
    };
    for step in (0..=end).step_by(end.div_ceil(5) as usize) {
        let at = series.from.0.as_micros() + step * series.step_seconds * 1_000_000;
        let time = Instant(Timestamp::from_micros(at)).in_utc().strftime(format).to_string();
        plot.label(part(step), &time);
    }
    plot.svg.finish()
}

/// Clients by requests in their busiest minute, with the limits.
pub(super) fn peaks(peaks: &[(u64, u64)], limits: &[ClientLimit]) -> String {
    let highest = peaks.iter().map(|(_, clients)| *clients).max().unwrap_or(0).max(1);
    let mut plot = Plot::new(260.0, WIDTH - 8.0, highest + highest / 8);
    // Each bar is a power of two, and a limit lies between them.
    let place = |requests: f64| requests.max(0.5).log2();
    let of_limits = limits.iter().map(|limit| place(limit.in_a_minute).ceil());
    let end = of_limits.fold(peaks.len() as f64, f64::max).min(40.0) + 0.5;
    let part = |power: f64| (power + 1.0) / (end + 1.0);
    // A label is up to 90 units wide.
    let every = (end as usize + 1) * 90 / 410 + 1;
    for power in (0..=end as u32).step_by(every) {
        let most = 1_u64 << power;
        let range = match most / 2 + 1 {
            least if least < most => format!("{least}–{most}"),
            _ => most.to_string(),
        };
        plot.label(part(f64::from(power) - 0.5), &range);
    }
    for (requests, clients) in peaks {
        let right = place(*requests as f64);
        plot.bar([part(right - 0.95), part(right - 0.05)], (0, *clients), ALLOWED);
    }
    for (row, limit) in limits.iter().enumerate() {
        let x = plot.x(part(place(limit.in_a_minute)));
        plot.svg.line([x, TOP, x, plot.bottom], DENIED, 2);
        // Near the right edge, write the label on the left side.
        let (x, side) = if x > 320.0 { (x - 6.0, Side::Left) } else { (x + 6.0, Side::Right) };
        let text = format!("{}: {:.0}", limit.name, limit.in_a_minute);
        plot.svg.text(x, TOP + 12.0 + 14.0 * row as f64, side, text);
    }
    plot.svg.finish()
}

/// Denials by weekday and hour.
pub(super) fn heat(hours: &[Vec<u64>]) -> String {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    const LEFT: f64 = 40.0;
    const TOP: f64 = 20.0;
    const WIDE: f64 = 18.0;
    const HIGH: f64 = 24.0;
    let mut svg = Svg::new(200.0);
    let most = hours.iter().flatten().max().copied().unwrap_or(0).max(1);
    for hour in (0..24_u32).step_by(4) {
        svg.text(LEFT + f64::from(hour) * WIDE, 13.0, Side::Right, format_args!("{hour:02}:00"));
    }
    for ((day, name), hours) in (0_u32..).zip(DAYS).zip(hours) {
        let top = TOP + f64::from(day) * HIGH;
        svg.text(4.0, top + 16.0, Side::Right, name);
        for (hour, denied) in (0_u32..).zip(hours) {
            let left = LEFT + f64::from(hour) * WIDE;
            let cell = [left, top, left + WIDE - 2.0, top + HIGH - 2.0];
            svg.area(cell, FAINT, 0.4);
            if *denied > 0 {
                svg.area(cell, DENIED, 0.15 + 0.85 * *denied as f64 / most as f64);
            }
        }
    }
    svg.finish()
}
