//! Corrections by a request's outcome.

use crate::check;

#[test]
fn outcomes_correct_charges() {
    check(
        "
outcomes that do not count are refunded: p log 5/60 counts
    0: a! a a! 1: ?p => 0 0 0 p=4
only the limit that counts some outcomes refunds: p log 5/60 counts, all log 9/60
    0: a! 1: ?p ?all => 0 p=5 all=8
a limit that is exhausted denies before it knows the outcome: p log 1/60 counts
    0: a a! => 0 deny(+60)
a request counts while it runs: p log 1/60 counts
    0: a~5! 4: a 5: a => 0 deny(+56) 5
callers that leave count: p log 5/60 counts
    0: a~5! 1: -1 9: ?p => gone p=4
failures are strikes, and block from the next request on: p failures 2/60 counts
    0: a a! a a => 0 0 0 deny(+60)
outcomes that forgive leave a full quota: p log 5/60 forgives
    0: a a a 1: a+ ?p => 0 0 0 1 p=5
    0: a a a a a 1: a => 0 0 0 0 0 deny(+59)
tries in flight are forgiven, too, and cannot be refunded: p log 5/60 counts forgives
    0: a~9! a~9! a a+ ?p 10: ?p => 0 0 0 0 p=5 p=5
    0: a~9! a a+ a a 10: ?p => 0 0 0 0 0 p=3
only the limit that forgives does, and only this key: p log 5/60 forgives, all log 9/60 global
    0: a b a+ ?p ?all b b b b b => 0 0 0 p=5 all=6 0 0 0 0 deny(p+60)
a request that is denied forgives nothing: p log 2/60 forgives
    0: a a a+ ?p => 0 0 deny(+60) p=0
a forgiveness ends strikes and the growth of blocks: p failures 3/60 counts forgives
    0: a a a!+ a a a => 0 0 0 0 0 0
    0: a a~5!+ a a 1: a 6: a => 0 0 0 0 deny(+59) 6
a forgiveness is no refund of a later charge: p bucket 2/60 forgives
    0: a a~5+ 6: ?p a a a => 0 0 p=2 6 6 deny(+30)
a stated cost does not prevent a forgiveness: p log 9/60 lapse 300 forgives
    0: a*3 a*2=4+ ?p => 0 0 p=9
an outage does not keep a success from forgiving: p log 10/60 counts forgives
    0: down a! a a a a+ ?p a a ?p up ?p => 0 0 0 0 0 p=5 0 0 p=3 p=10
denials are strikes: p log 1/5, blocked denials 2/60
    0: a a a 30: a b => 0 deny(p+5) deny(p+5,blocked+60) deny(blocked+30) 30
",
    );
}

#[test]
fn estimates_become_actual_costs() {
    check(
        "
a stated cost replaces the estimate: p log 1000/60 lapse 300
    0: a*100=30 1: ?p => 0 p=970
    0: a*100=0 1: ?p => 0 p=1000
    0: a*100=250 1: ?p => 0 p=750
an estimate that nothing corrects stands: p log 1000/60 lapse 300
    0: a*100 1: ?p => 0 p=900
only estimates are corrected: p log 1000/60 lapse 300, hits log 1000/60
    0: a*100=30 1: ?p ?hits => 0 p=970 hits=900
an estimate is final at its deadline: p log 1000/60 lapse 5
    0: a*100~4.999=0 9: ?p => 0 p=1000
    0: a*100~5=0 9: ?p => 0 p=900
each limit has its own deadline: p log 1000/60 lapse 5, q log 1000/60 lapse 10
    0: a*100~7=0 9: ?p ?q => 0 p=900 q=1000
    0: a*100~10=0 11: ?p ?q => 0 p=900 q=900
an outcome that does not count costs nothing: p log 1000/60 counts lapse 300
    0: a*100=30! 1: ?p => 0 p=1000
    0: a*100=30 1: ?p => 0 p=970
a debt is at most the capacity: p bucket 10/1^100 lapse 300
    0: a=1000000 1: a 10.099: a 10.1: a => 0 deny(+9.1) deny(+0.001) 10.1
a waiting request repays it first: p bucket 1/1^3 wait 60 lapse 300
    0: a*3=5 a => 0 3
a request without a charge is not corrected: p log 10/60 open lapse 300
    0: down a*5=9 up 1: ?p => open p=10
charges of a local store are corrected there: p log 10/60 lapse 300
    0: down a*4=1 1: ?p up ?p => 0 p=4 p=10
",
    );
}
