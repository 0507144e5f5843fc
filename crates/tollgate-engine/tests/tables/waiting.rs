//! Which requests wait, for how long, and in which order they pass.

use crate::check;

#[test]
fn requests_pass_in_order_as_soon_as_they_can() {
    check(
        "
requests wait in the order of arrival: p log 1/10 wait 1200
    0: a 9.999: a 10: a 19.999: a => 0 10 20 30
# A unit is free at 10 s, but the first request's timer fires later.
newcomers do not overtake: p log 1/10 wait 600
    0: a a freeze 10: a ?p 11: thaw => 0 11 21 p=1
newcomers overtake at no limit: own log 9/60 wait 600, all log 1/10 wait 600 global
    0: a b freeze 10: c ?all 11: thaw => 0 11 21 all=1
a large request is not overtaken: p bucket 1/1^3 wait 60
    0: a*2 a*3 a => 0 2 3
a request waits until `Retry-After`, exactly: p window 2/60 wait 180
    7: a a a => 7 7 60
a request waits until `Retry-After`, exactly: p counter 2/60 wait 180
    7: a a a => 7 7 90
a request waits until `Retry-After`, exactly: p bucket 2/60 wait 180
    7: a a a => 7 7 37
a request waits until `Retry-After`, exactly: p meter 2/60 wait 180
    7: a a a => 7 7 37
a request waits until `Retry-After`, exactly: p log 2/60 wait 180
    7: a 9: a a => 7 9 67
clients do not wait for each other: p log 1/10 wait 60
    0: a a b b => 0 10 0 10
# Another process may take the unit at the time for which a request waits.
a lost unit delays to the next one: p log 1/10 wait 600
    0: a a freeze 10: p*1 thaw a => 0 20 30
a lost unit delays to the next one: p window 1/10 wait 600
    0: a a freeze 10: p*1 thaw a => 0 20 30
a lost unit delays to the next one: p counter 1/10 wait 600
    0: a a freeze 20: p*1 thaw a => 0 40 60
a lost unit delays to the next one: p bucket 1/10 wait 600
    0: a a freeze 10: p*1 thaw a => 0 20 30
a lost unit delays to the next one: p meter 1/10 wait 600
    0: a a freeze 10: p*1 thaw a => 0 20 30
a lost unit rejects who cannot wait for the next one: p log 1/10 wait 15
    0: a a freeze 10: p*1 thaw => 0 late@10(+10)
a wait without bound does not overflow: p log 1/10 wait ever
    0: a a => 0 10
requests without a cost do not wait: p log 1/10 wait 60
    0: a a a*0 => 0 10 0
requests wait only for keys that they charge: slow log 1/10 wait 60, other log 9/60 wait 60 flat
    0: a a a*0 => 0 10 0
a caller that leaves takes no unit: p log 1/10 wait 60
    0: a a a 5: -2 => 0 gone 10
a request waits only for keys that deny it: all log 1/10 wait 999 global, own log 1/100 wait 999
    0: a a a b 5: -2 => 0 gone 100 10
requests in shadow never wait: p log 1/10 shadow
    0: a a a => 0 0 0
annotated requests never wait: p log 1/10 annotate
    0: a a a => 0 0 0
an annotating limit denies nothing: p log 1/10 annotate, hard log 2/60
    0: a a a => 0 0 deny(hard+60)
",
    );
}

#[test]
fn hopeless_requests_do_not_wait() {
    check(
        "
# A request behind others asks once for its estimate. Each asks for units when it is first, and after
# its wait.
a wait of exactly the longest wait is allowed, a longer one is not: p log 1/10 wait 20
    0: a a a a a 30: ?calls => 0 10 20 late(+30) late(+30) calls=8
a first request that would wait too long is rejected: p log 1/10 wait 9.999
    0: a a => 0 late(+10)
units ahead are refilled continuously: p bucket 5/1^2 wait 0.5
    0: a a a a a a => 0 0 0.2 0.4 late(+0.6) late(+0.6)
units ahead are refilled continuously: p meter 5/1^2 wait 0.5
    0: a a a a a a => 0 0 0.2 0.4 late(+0.6) late(+0.6)
units ahead are refilled window by window: p window 2/1 wait 1.4
    0: a a a a a a => 0 0 1 1 late(+2) late(+2)
units ahead are refilled window by window: p log 1/1 wait 2
    0: a a a a => 0 1 2 late(+3)
the cost of requests ahead counts: p bucket 1/1^3 wait 3
    0: a*3 a*2 a*2 a => 0 2 late(+4) 3
the shortest of the longest waits counts: slow log 1/10 wait 60, roomy log 100/60 wait 1
    0: a a => 0 late(slow+10)
units ahead count at each limit: own log 9/60 wait 15, all log 1/10 wait 15 global
    0: a b c => 0 10 late(all+20)
a caller may be less patient than the limit: p log 1/10 wait 60
    0: a a<9 a<10 a<19 => 0 late(+10) 10 late(+20)
more than the capacity is rejected for good: p log 1/10 wait 600
    0: a a a*6 => 0 10 never
    0: max=1 a a a*6 => 0 10 never
more than the capacity of any limit is, too: slow log 1/10 wait 600 flat, strict log 5/60
    0: a a a*6 => 0 10 never
    0: max=1 a a a*6 => 0 10 never
a limit that rejects does so while others wait: all log 1/10 wait 3600 global, own log 1/60
    0: a b a => 0 10 deny(all+10,own+60)
a limit that rejects decides if both deny: slow log 1/10 wait 600 global, strict log 2/60 global
    0: a a 10: a ?slow => 0 10 deny(slow+10,strict+50) slow=0
# The second request's reply is late, so the third is not first before its deadline.
requests whose time is over take no unit: p log 1/10 wait 25
    0: a a a hold 10: 26: release ?p => 0 26 late@26(+0.000001) p=1
",
    );
}

#[test]
fn queues_are_bounded() {
    check(
        "
requests beyond the bound are rejected without a charge: p log 1/10 wait 600 global
    0: max=2 a a a a 10: a => 0 10 20 full(+10) 30
    0: max=2 a a a freeze 10: a a ?p thaw a => 0 10 20 full(+0.000001) full(+0.000001) p=1 30
    0: max=0 a a => 0 full(+10)
bytes are bounded as well: p log 1/10 wait 600 global
    0: bytes=2000 a a a a => 0 10 20 full(+10)
    0: bytes=1999 a a a => 0 10 full(+10)
a client fills half of the queue, but holds at least one request: p log 1/10 wait 600
    0: max=1 a a a b b => 0 10 full(+10) 0 full(+10)
    0: max=5 a a a a a b b => 0 10 20 30 full(+10) 0 10
    0: bytes=3997 a a a b b => 0 10 full(+10) 0 10
# Each request of client b sees its own unit, because no earlier one is charged yet.
clients with a unit left do not fill the queue: all log 1/10 wait 3600 global, own log 1/60
    0: max=4 a b b b b c => 0 10 deny@10(all+10,own+60) full(all+10) full(all+10) 20
rejected requests leave the queue: all log 1/10 wait 3600 global, own log 1/60
    0: max=3 a b a a a c => 0 10 deny(all+10,own+60) deny(all+10,own+60) deny(all+10,own+60) 20
only limits that others wait for deny: own log 1/1 wait 3600, all log 1/10 wait 3600 global
    0: max=1 a b c => 0 10 full(all+10)
all limits that deny are named: slow log 1/10 wait 600 flat, dear log 5/60, roomy log 9/60
    0: max=1 a a*3 dear*3 a*3 -2 => 0 gone full(slow+10,dear+60)
",
    );
}

#[test]
fn failing_stores_decide_waiting_requests() {
    check(
        "
a failure opens the limit for those that wait: p log 1/10 wait 60 open
    0: a a a down 30: => 0 open@10 open@10
a failure rejects those that wait: p log 1/10 wait 60 closed
    0: a a a down 30: => 0 closed@10 closed@10
a store that works again in time decides: p log 1/10 wait 60 closed
    0: a a down 9: up => 0 10
a limit that fails closed decides for all: p log 4/60, q log 9/60 closed
    0: down a ?p => closed p=2
a limit that does not apply does not fail closed: p log 4/60, q log 9/60 closed when r
    0: down a ar => 0 closed
only a limit that is enforced fails closed: p log 4/60, q log 9/60 closed shadow
    0: down a ?p => 0 p=1
# The local store decides with half of the quota. The primary store may allow the request later.
more than the local share is no final denial: p log 10/60 wait 120
    0: down a*6 a a a a a a a*6 300: => closed 0 0 0 0 0 60 closed@60
more than the local share does not break a full queue: slow log 1/10 wait 60 flat, p log 10/60
    0: max=1 down a a a*6 -2 => 0 gone full(slow+10)
# The local store decides only for the other limit, so no limit remains to wait for.
requests wait for no limit that fails open: slow log 1/10 wait 25 open flat, local log 10/60
    0: max=1 a a down a ?local 30: => 0 10 0 local=4
",
    );
}

#[test]
fn callers_that_leave_are_refunded() {
    check(
        "
# Otherwise a client could send requests for free.
the first question counts: p log 3/60 wait 60
    0: hold a -1 release ?p => gone p=2
a request that waited has not run: p log 1/10 wait 60
    0: a a hold 10: -2 release ?p => 0 gone p=1
a question without a charge refunds nothing: p log 1/10 wait 60
    0: a a hold a -3 release 5: ?p -2 10: ?p => 0 gone gone p=0 p=1
",
    );
}
