//! The charts. They fit a phone screen, and a wide screen shows two charts per row.

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::ClientLimit;
use crate::Instant;
use crate::report::Series;
use tollgate_core::Timestamp;

// Placeholders that are replaced with CSS variables.
const TEXT: RGBColor = RGBColor(1, 1, 1);
const FAINT: RGBColor = RGBColor(2, 2, 2);
const ALLOWED: RGBColor = RGBColor(3, 3, 3);
const DENIED: RGBColor = RGBColor(4, 4, 4);
const COLOURS: [(&str, &str); 4] = [
    ("#010101", "var(--text)"),
    ("#020202", "var(--faint)"),
    ("#030303", "var(--allowed)"),
    ("#040404", "var(--denied)"),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// Stacks denied requests on top of allowed requests.
pub(super) fn over_time(series: &Series) -> String {
    drawing(220, |area| {
        let steps: Vec<_> = (0_u64..).zip(&series.steps).collect();
        let highest = series.steps.iter().map(|(allowed, denied)| allowed + denied).max();
        let end = steps.len().max(1) as u64;
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            // The last label is centered on the right edge.
            .margin_right(32)
            .x_label_area_size(24)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(0..end, 0..highest.unwrap_or(0).max(1))?;
        let is_long = series.step_seconds * end > 2 * 86_400;
        let label = |step: &u64| {
            let at = series.from.0.as_micros() + step * series.step_seconds * 1_000_000;
            let format = match (is_long, series.step_seconds * end > 600) {
                (true, _) => "%m-%d %Hh",
                (_, true) => "%H:%M",
                _ => "%H:%M:%S",
            };
            Instant(Timestamp::from_micros(at)).in_utc().strftime(format).to_string()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .axis_style(FAINT)
            .x_labels(5)
            .y_labels(4)
            .x_label_formatter(&label)
            .label_style(label_style())
            .draw()?;
        let bars = |from: fn(&(u64, u64)) -> (u64, u64), colour: RGBColor| {
            let bar = move |(step, counts): &(u64, &(u64, u64))| {
                let (low, high) = from(counts);
                Rectangle::new([(*step, low), (step + 1, high)], colour.filled())
            };
            steps
                .iter()
                .filter(move |(_, counts)| {
                    let (low, high) = from(counts);
                    high > low
                })
                .map(bar)
                .collect::<Vec<_>>()
        };
        chart.draw_series(bars(|(allowed, _)| (0, *allowed), ALLOWED))?;
        chart.draw_series(bars(|(allowed, denied)| (*allowed, allowed + denied), DENIED))?;
        Ok(())
    })
}

/// Clients by requests in their busiest minute, with the limits.
pub(super) fn peaks(peaks: &[(u64, u64)], limits: &[ClientLimit]) -> String {
    drawing(260, |area| {
        let highest = peaks.iter().map(|(_, clients)| *clients).max().unwrap_or(0).max(1);
        // Each bar is a power of two, and a limit lies between them.
        let place = |requests: f64| requests.max(0.5).log2();
        let of_limits = limits.iter().map(|limit| place(limit.in_a_minute).ceil());
        #[expect(clippy::cast_precision_loss, reason = "there are at most 64")]
        let end = of_limits.fold(peaks.len() as f64, f64::max).min(40.0) + 0.5;
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(24)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(-1.0..end, 0..highest + highest / 8)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .axis_style(FAINT)
            .x_labels(0)
            .y_labels(4)
            .label_style(label_style())
            .draw()?;
        label_bars(area, end, |power| chart.backend_coord(&(power, 0)))?;
        chart.draw_series(peaks.iter().map(|(requests, clients)| {
            #[expect(clippy::cast_precision_loss, reason = "it is a power of two")]
            let right = place(*requests as f64);
            Rectangle::new([(right - 0.95, 0), (right - 0.05, *clients)], ALLOWED.filled())
        }))?;
        for (row, limit) in limits.iter().enumerate() {
            let x = place(limit.in_a_minute);
            chart.draw_series([PathElement::new(
                [(x, 0), (x, highest + highest / 8)],
                DENIED.stroke_width(2),
            )])?;
            let (x, y) = chart.backend_coord(&(x, highest + highest / 8));
            let row = i32::try_from(row).unwrap_or_default();
            let text = format!("{}: {:.0}", limit.name, limit.in_a_minute);
            // Near the right edge, write the label on the left side.
            let (x, side) = if x > 320 { (x - 6, HPos::Right) } else { (x + 6, HPos::Left) };
            let style = label_style().pos(Pos::new(side, VPos::Top));
            area.draw(&Text::new(text, (x, y + 4 + 14 * row), style))?;
        }
        Ok(())
    })
}

/// Labels each bar with its request range: 1, 2, 3–4, 5–8, …
#[expect(clippy::cast_possible_truncation, reason = "there are at most 40 bars")]
fn label_bars<'a>(area: &Area<'a>, end: f64, at: impl Fn(f64) -> (i32, i32)) -> Drawn<'a> {
    let bars = end as i32;
    // A label is up to 90 units wide.
    let every = (bars + 1) * 90 / 410 + 1;
    for power in (0..=bars).filter(|power| power % every == 0) {
        let most = 1_u64 << power;
        let text = match most / 2 + 1 {
            least if least < most => format!("{least}–{most}"),
            _ => most.to_string(),
        };
        let (x, y) = at(f64::from(power) - 0.5);
        let style = label_style().pos(Pos::new(HPos::Center, VPos::Top));
        area.draw(&Text::new(text, (x, y + 6), style))?;
    }
    Ok(())
}

/// Denials by weekday and hour.
pub(super) fn heat(hours: &[Vec<u64>]) -> String {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    const LEFT: i32 = 40;
    const TOP: i32 = 20;
    const WIDE: i32 = 18;
    const HIGH: i32 = 24;
    drawing(200, |area| {
        let most = hours.iter().flatten().max().copied().unwrap_or(0).max(1);
        for hour in (0..24).step_by(4) {
            area.draw(&Text::new(format!("{hour:02}:00"), (LEFT + hour * WIDE, 2), label_style()))?;
        }
        for ((day, name), hours) in (0..).zip(DAYS).zip(hours) {
            let top = TOP + day * HIGH;
            area.draw(&Text::new(name, (4, top + 6), label_style()))?;
            for (hour, denied) in (0..).zip(hours) {
                let left = LEFT + hour * WIDE;
                let cell = [(left, top), (left + WIDE - 2, top + HIGH - 2)];
                area.draw(&Rectangle::new(cell, FAINT.mix(0.4).filled()))?;
                if *denied > 0 {
                    #[expect(clippy::cast_precision_loss, reason = "a shade")]
                    let shade = 0.15 + 0.85 * *denied as f64 / most as f64;
                    area.draw(&Rectangle::new(cell, DENIED.mix(shade).filled()))?;
                }
            }
        }
        Ok(())
    })
}

/// The width of the vertical axis's labels.
const LEFT: u32 = 56;

fn label_style() -> TextStyle<'static> {
    ("sans-serif", 15).into_font().color(&TEXT)
}

/// An SVG of this height, with variables for colours.
fn drawing(height: u32, draw: impl for<'a> FnOnce(&Area<'a>) -> Drawn<'a>) -> String {
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, (480, height)).into_drawing_area();
        draw(&area).and_then(|()| area.present())
    };
    if drawn.is_err() {
        // Drawing into a string should not fail, but an empty chart is better than no report.
        svg.clear();
    }
    COLOURS.iter().fold(svg, |svg, (stand_in, variable)| svg.replace(stand_in, variable))
}
