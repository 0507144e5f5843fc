//! All tests are in a single binary, because linking several is slow.

mod bounds;
mod conformance;
mod histories;
mod laws;
mod thread_leases;
mod time;

use tollgate_core::Reply;

fn now<F: Future>(reply: Reply<F>) -> F::Output {
    let Ok(output) = reply.now() else { panic!("a memory store replies immediately") };
    output
}
