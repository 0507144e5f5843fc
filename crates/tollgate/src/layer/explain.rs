//! Why a request was answered as it was, and when others would pass: for those who develop
//! against a limit.

use std::fmt::Write;

use http::HeaderValue;
use tollgate_core::{Charge, Cost, Decision, Micros, Outcome, Store, Verdict};

use crate::Limit;

/// What requests usually cost: see [`Costs`](crate::Costs).
const COSTS: [Cost; 4] = [Cost::new(1), Cost::new(3), Cost::new(5), Cost::new(10)];

/// Charges of a request above which nothing is asked besides: stores may have bounds.
const MOST: usize = 32;

/// Decides a request, and asks in the same step what each of its policies would say of the
/// usual costs afterwards.
pub(super) fn decide<St: Store>(store: &St, charges: &[Charge<'_>]) -> St::Future<Verdict> {
    if charges.len() > MOST {
        return store.decide(charges);
    }
    let asked = charges.iter().flat_map(|charge| COSTS.map(|cost| Charge { cost, ..charge.dry() }));
    let all: Vec<_> = charges.iter().copied().chain(asked).collect();
    store.decide(&all)
}

/// Takes what was asked besides out of the verdict on a request of so many charges.
pub(super) fn split(verdict: Verdict, charges: usize) -> (Verdict, Vec<Decision>) {
    let Some((made, asked)) = verdict.decisions().split_at_checked(charges) else {
        return (verdict, Vec::new());
    };
    let (admitted, at, source) = (verdict.is_admitted(), verdict.decided_at(), verdict.source());
    let made = Verdict::new(admitted, at, made.iter().copied()).with_source(source);
    (made, asked.to_vec())
}

/// `"global";said=deny;r=2;c1=0;c3=4100000;c5=9000000;c10=never`
pub(super) fn field<'a>(
    limits: impl Iterator<Item = &'a Limit>,
    verdict: &Verdict,
    asked: &[Decision],
) -> Option<HeaderValue> {
    let mut line = String::new();
    let mut asked = asked.chunks(COSTS.len());
    for (limit, decision) in limits.zip(verdict.decisions()) {
        // Writing to a string does not fail.
        let _ = write_member(&mut line, limit, decision, asked.next().unwrap_or_default());
    }
    HeaderValue::try_from(line).ok()
}

fn write_member(
    line: &mut String,
    limit: &Limit,
    decision: &Decision,
    asked: &[Decision],
) -> std::fmt::Result {
    if !line.is_empty() {
        line.push_str(", ");
    }
    line.push('"');
    for char in limit.policy().name().chars() {
        if matches!(char, '"' | '\\') {
            line.push('\\');
        }
        line.push(char);
    }
    let said = match decision.outcome {
        Outcome::Allow { .. } => "allow",
        Outcome::WouldAllow => "pass",
        Outcome::Deny { .. } => "deny",
        Outcome::ExceedsCapacity => "exceed",
        Outcome::Undecided => "skip",
    };
    write!(line, r#"";said={said};r={}"#, decision.remaining)?;
    if !limit.enforce {
        line.push_str(";shadow");
    }
    if decision.delay() > Micros::ZERO {
        write!(line, ";delay={}", decision.delay().get())?;
    }
    for (cost, decision) in COSTS.iter().zip(asked) {
        write!(line, ";c{}=", cost.get())?;
        match decision.outcome {
            Outcome::Allow { .. } | Outcome::WouldAllow => line.push('0'),
            Outcome::Deny { retry_after } => write!(line, "{}", retry_after.get())?,
            Outcome::ExceedsCapacity => line.push_str("never"),
            Outcome::Undecided => line.push_str("unknown"),
        }
    }
    Ok(())
}
