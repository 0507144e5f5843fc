//! Concurrency limits, and buckets that delay: what a request holds, and until when.

use crate::check;

#[test]
fn permits_are_held_while_requests_run() {
    check(
        "
a permit returns when its request ends: p permits 2/30
    0: a~1 a~5 a 0.999: ?p 1: ?p a a~1 => 0 0 deny(+30) p=0 p=1 1 1
a caller that leaves returns it: p permits 1/30
    0: a~9 3: -1 ?p a => gone p=1 3
requests wait for a permit in order: p permits 1/30 wait 60
    0: a~1.01 a~1.01 a => 0 1.025 2.05
# Requests usually end long before their permits expire, so the first in the queue asks often.
a request waits at most 25 ms for a permit that is free: p permits 1/30 wait 5
    0: a~2.01 a => 0 2.025
    0: a~6 a => 0 late@5(+25)
a short wait ends with a last try: p permits 1/30 wait 0.04
    0: a~0.033 a => 0 0.04
    0: a~0.05 a => 0 late@0.04(+29.96)
a short wait ends with a last try: p permits 1/30 wait 0.02
    0: a~0.015 a => 0 0.02
a permit that is not renewed expires: p permits 1/3 wait 60
    0: a~99 a => 0 3
a decision without a request returns its permits only: p permits 2/30, all log 9/60
    0: hold a -1 release ?p ?all => gone p=2 all=8
a failure opens or rejects as the limit says: p permits 1/30 open
    0: down a~5 a => open open
a failure opens or rejects as the limit says: p permits 1/30 closed
    0: down a~5 a => closed closed
permits of a local store return there: p permits 4/30
    0: down a~5 a~1 a ?p 1: ?p => 0 0 deny(+30) p=0 p=1
",
    );
}

#[test]
fn buckets_delay_requests() {
    check(
        "
requests leave evenly: p queue 10/1^5
    0: a a a 0.05: a a a a => 0 0.1 0.2 0.3 0.4 deny(+0.05) deny(+0.05)
the last to leave frees its turn: p queue 10/1^4
    0: a a a a -4 ?p a => 0 0.1 0.2 gone p=1 0.3
later turns are already taken: p queue 10/1^4
    0: a a a a -2 ?p a => 0 gone 0.2 0.3 p=0 deny(+0.1)
a request that did not run is refunded elsewhere: p queue 10/1^4, all log 99/60, at-once permits 9/30
    0: a~9 a~9 -2 ?all ?at-once => 0 gone all=98 at-once=8
    0: a~9 a~9 0.1: -2 ?all ?at-once => 0 gone all=97 at-once=8
a turn in a local store is refunded there: p queue 10/1^10
    0: down a a -2 ?p => 0 gone p=4
a shadow does not delay: p queue 10/1^4 shadow
    0: a a a => 0 0 0
a request waits for units first, and for its turn then: p queue 1/1^9, all log 2/10 wait 60
    0: a a a a => 0 1 10 11
",
    );
}
