//! Any configuration text gives either a plan or errors, and both can be displayed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_config::check::in_words;
use tollgate_config::{Source, read};

fuzz_target!(|text: &str| {
    let env = |name: &str| (name.len() % 2 == 0).then(|| name.to_owned());
    let outcome = read(&Source::new("fuzz", text), &env);
    assert_eq!(outcome.plan.is_none(), outcome.report.errors() > 0);
    let shown = outcome.report.render(false);
    assert_eq!(shown.is_empty(), outcome.report.problems().is_empty());
    assert_eq!(outcome.report.to_string().is_empty(), shown.is_empty());
    if let Some(plan) = outcome.plan {
        assert!(!in_words(&plan).is_empty());
    }
});
