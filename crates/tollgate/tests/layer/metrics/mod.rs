//! Metrics and their labels.

mod decisions;
mod documented;
mod gauges;
mod labels;
mod waiting;

use std::collections::BTreeMap;

use metrics::LocalRecorderGuard;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// Records this thread's metrics until it is dropped.
pub(crate) struct Meter {
    handle: PrometheusHandle,
    _guard: LocalRecorderGuard<'static>,
}

impl Meter {
    pub(crate) fn start() -> Self {
        // The guard borrows the recorder, so leak it.
        let recorder: &'static PrometheusRecorder =
            Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
        let guard = metrics::set_default_local_recorder(recorder);
        Self { handle: recorder.handle(), _guard: guard }
    }

    /// The values of all series, by their names and labels.
    fn series(&self) -> BTreeMap<String, f64> {
        let text = self.handle.render();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let series = lines.map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            (series.to_owned(), value.parse().expect("a number"))
        });
        series.collect()
    }

    /// The sum over all series with these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let is_wanted = |series: &str| {
            series.split('{').next() == Some(name)
                && labels.iter().all(|label| series.contains(label))
        };
        self.series().iter().filter(|(series, _)| is_wanted(series)).map(|(_, value)| value).sum()
    }

    fn outcomes(&self, policy: &str) -> Vec<(String, f64)> {
        let all = ["allow", "deny", "shadow_deny", "failed_open", "failed_closed", "local"];
        let count = |outcome: &str| {
            let labels = [format!("policy=\"{policy}\""), format!("outcome=\"{outcome}\"")];
            self.sum("tollgate_decisions_total", &[&labels[0], &labels[1]])
        };
        let counts = all.map(|outcome| (outcome.to_owned(), count(outcome)));
        counts.into_iter().filter(|(_, count)| *count > 0.0).collect()
    }
}

fn counted(list: &[(&str, f64)]) -> Vec<(String, f64)> {
    list.iter().map(|(word, count)| ((*word).to_owned(), *count)).collect()
}
