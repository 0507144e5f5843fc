use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressStyle};
use tollgate_replay::log;

/// A progress bar on a terminal, otherwise no output.
pub(super) struct Progress(Option<ProgressBar>);

impl Progress {
    pub(super) fn new() -> Self {
        Self(io::stderr().is_terminal().then(ProgressBar::no_length))
    }

    pub(super) fn show(&mut self, progress: &log::Progress) {
        let Some(bar) = &self.0 else { return };
        if bar.length() != progress.size {
            let style = match progress.size {
                Some(_) => "{wide_bar} {percent} %  {msg}  {eta} left",
                None => "{spinner} {bytes}  {msg}",
            };
            // The template is a constant, so it is valid.
            bar.set_style(
                ProgressStyle::with_template(style)
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            if let Some(size) = progress.size {
                bar.set_length(size);
            }
        }
        let seconds = bar.elapsed().as_secs_f64().max(0.001);
        #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
        let rate = progress.lines as f64 / seconds;
        bar.set_message(format!("{} lines, {rate:.0} lines/s", progress.lines));
        bar.set_position(progress.read);
    }

    pub(super) fn finish(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}
