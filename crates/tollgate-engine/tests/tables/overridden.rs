//! Operators' overrides, beside waits, shadow limits, corrections and other limits.

use crate::check;

#[test]
fn blocked_requests_are_rejected() {
    check(
        "
a blocked request takes no units from other limits: p log 9/60, all log 9/60
    0: p^block/30 a ?all 30: a => deny(p+30) all=9 30
a block under a shadow limit has no effect: p log 9/60 shadow, all log 9/60
    0: p^block/30 a ?all => 0 all=8
a block does not shorten a wait: p log 1/60, all log 9/60
    0: a p^block/30 a => 0 deny(p+60)
a blocked request does not wait for its turn: p log 1/10 wait 60
    0: a a p^block/30 a 10: => 0 10 deny(+30)
a block holds while the store fails: p log 9/60 open
    0: p^block/30 down a b => deny(+30) open
",
    );
}

#[test]
fn overridden_quotas_replace_the_limit() {
    check(
        "
a request that only fits the override waits: p log 1/10 wait 60
    0: a p^2/99 a*2 a*3 => 0 10 never
it waits behind others, too: p log 1/10 wait 60
    0: a a p^3/99 a*2 => 0 10 10
its wait is estimated by the override: p bucket 1/10 wait 11
    0: a a p^5/99 a*5 5: -2 => 0 gone 5
a correction reaches an overridden quota's charge: p log 5/60 counts
    0: p^3/30 a*3! a*3 a => 0 0 deny(+60)
a forgiveness reaches it, too: p log 5/60 forgives
    0: p^3/30 a*3+ a*3 a => 0 0 deny(+60)
",
    );
}
