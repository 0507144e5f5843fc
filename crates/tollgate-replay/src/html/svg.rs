//! A drawing as SVG.

use std::fmt::{self, Display, Write as _};

use super::Escaped;

/// A drawing's width. The page scales it.
pub(super) const WIDTH: f64 = 480.0;

// Colours that the page defines for light and dark mode.
pub(super) const FAINT: &str = "var(--faint)";
pub(super) const ALLOWED: &str = "var(--allowed)";
pub(super) const DENIED: &str = "var(--denied)";

/// Where a label is relative to its position.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Right,
    Both,
    Left,
}

/// A drawing. Positions start at the upper left corner.
pub(super) struct Svg(String);

impl Svg {
    pub(super) fn new(height: f64) -> Self {
        let font = "font-family=\"sans-serif\" font-size=\"12\" fill=\"var(--text)\"";
        Self(format!("<svg viewBox=\"0 0 {WIDTH} {height}\" {font}>\n"))
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push_str("</svg>");
        self.0
    }

    fn add(&mut self, element: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{element}");
    }

    /// Draws a rectangle with an opacity from 0 to 1.
    pub(super) fn area(&mut self, [left, top, right, bottom]: [f64; 4], fill: &str, opacity: f64) {
        let (wide, high) = (right - left, bottom - top);
        self.add(format_args!(
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\" \
             fill=\"{fill}\" opacity=\"{opacity:.2}\"/>"
        ));
    }

    pub(super) fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], colour: &str, width: u8) {
        self.add(format_args!(
            "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"/>"
        ));
    }

    /// Writes a label. `y` is its baseline.
    pub(super) fn text(&mut self, x: f64, y: f64, side: Side, text: impl Display) {
        let anchor = match side {
            Side::Right => "start",
            Side::Both => "middle",
            Side::Left => "end",
        };
        let text = text.to_string();
        let text = Escaped(&text);
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }
}
