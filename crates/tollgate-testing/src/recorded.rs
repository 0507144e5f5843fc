//! Requests from an access log.

use tollgate_core::Micros;
use tollgate_replay::log::{ReadError, Records};
use tollgate_replay::scenario::Requests;

/// Reads a log's requests: their times, methods, targets, hosts, clients and logged headers. The first
/// request arrives at the start.
///
/// ```no_run
/// use tollgate_replay::log::{Input, Options, Records};
/// use tollgate_testing::{Expected, Test, recorded};
///
/// let log = Records::new(vec![Input::open("tests/access.log".as_ref())?], &Options::default());
/// let mut test = Test::new("no recorded request is denied").expect(Expected::denied(0));
/// test.requests = recorded(log)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Each request needs about 300 bytes of memory. Lines that are not HTTP are skipped.
///
/// # Errors
/// The log cannot be read.
pub fn recorded(mut log: Records) -> Result<Vec<Requests>, ReadError> {
    let (mut all, mut start) = (Vec::new(), None);
    while let Some(record) = log.next()? {
        let start = *start.get_or_insert(record.at);
        if record.method.is_empty() {
            continue;
        }
        let mut requests = Requests::new(record.method, record.target).at(record.at.since(start));
        requests.host = record.host.map(str::to_owned);
        requests.client = record.address.unwrap_or(requests.client);
        requests.takes = record.duration.unwrap_or(Micros::ZERO);
        for (name, value) in &record.headers {
            requests = requests.header(*name, *value);
        }
        all.push(requests);
    }
    Ok(all)
}
