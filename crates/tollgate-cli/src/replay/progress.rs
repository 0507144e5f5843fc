use indicatif::{ProgressBar, ProgressStyle};
use tollgate_replay::log;

/// Shows the progress on a bar, which is hidden unless stderr is a terminal.
pub(super) fn show(bar: &ProgressBar, progress: &log::Progress) {
    if bar.length() != progress.size {
        let style = match progress.size {
            Some(_) => "{wide_bar} {percent} %  {msg}  {eta} left",
            None => "{spinner} {bytes}  {msg}",
        };
        // The template is a constant, so it is valid.
        bar.set_style(
            ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
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
