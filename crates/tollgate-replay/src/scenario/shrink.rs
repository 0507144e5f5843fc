//! The shortest history that shows a failure.

use super::{Arrival, Expectation, Failure, Outcome, Requests};

/// The number of requests that are simulated for it. The gateway's limits need a second or two.
const MOST: usize = 1_000_000;

/// Removes requests as long as the failure remains. `run` simulates the given requests.
///
/// A request with a wrong outcome retains this outcome. If too many requests pass, still too many
/// pass in the shorter history. The search ends after a million requests, or when `may_continue` is
/// false.
///
/// Returns the history, and whether the search is complete.
///
/// # Errors
/// Same as `run`.
pub fn shortest<E>(
    expectation: &Expectation,
    failure: &Failure,
    requests: &[Requests],
    outcomes: &[Outcome],
    may_continue: impl Fn() -> bool,
    mut run: impl FnMut(&[Arrival]) -> Result<Vec<Outcome>, E>,
) -> Result<(Vec<Outcome>, bool), E> {
    let Some(witness) = outcomes.get(failure.at) else { return Ok((Vec::new(), true)) };
    let mut kept = outcomes[..=failure.at].to_vec();
    let mut simulated = 0;
    let mut remains = |arrivals: &[Arrival]| {
        simulated += arrivals.len();
        let outcomes = run(arrivals)?;
        let shows = if failure.is_excess {
            expectation.check(requests, &outcomes).is_err_and(|failure| failure.is_excess)
        } else {
            outcomes.last().is_some_and(|last| last.is_like(witness))
        };
        Ok((shows.then_some(outcomes), simulated < MOST && may_continue()))
    };
    let mut size = kept.len();
    while size > 1 {
        size = size.div_ceil(2);
        let mut from = 0;
        // The last request shows the failure.
        while from + 1 < kept.len() {
            let to = (from + size).min(kept.len() - 1);
            let fewer: Vec<_> = kept[..from].iter().chain(&kept[to..]).collect();
            let fewer: Vec<_> = fewer.iter().map(|outcome| outcome.arrival).collect();
            let (shorter, has_time) = remains(&fewer)?;
            match shorter {
                Some(outcomes) => kept = outcomes,
                None => from = to,
            }
            if !has_time {
                return Ok((kept, false));
            }
        }
    }
    Ok((kept, true))
}
