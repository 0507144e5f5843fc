//! Requests from an access log.

use http::{HeaderName, HeaderValue, Method, Uri};
use tollgate_core::Micros;
use tollgate_replay::log::{ReadError, Record, Records};
use tollgate_replay::scenario::Requests;

/// A log's requests.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The requests. The first arrives at the start.
    pub requests: Vec<Requests>,
    /// The number of lines that are unreadable or not valid HTTP, such as scanners' probes.
    pub skipped: u64,
}

/// Why a log's requests cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordedError {
    /// The log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Lines have no client address, so all their clients would share a quota.
    #[doc(alias = "TG0705")]
    #[error(
        "{without} of the log's requests have no client address: add the address to the log's \
         format, or remove these lines [TG0705]"
    )]
    NoAddress {
        /// The number of these lines.
        without: u64,
    },
}

/// Reads a log's requests: their times, methods, targets, hosts, clients and logged headers. The first
/// request arrives at the start.
///
/// ```no_run
/// use tollgate_testing::log::{Input, Options, Records};
/// use tollgate_testing::{Expected, Test, recorded};
///
/// let log = Records::new(vec![Input::open("tests/access.log".as_ref())?], &Options::default());
/// let mut test = Test::new("no recorded request is denied").expect(Expected::denied(0));
/// test.requests = recorded(log)?.requests;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Each request needs about 300 bytes of memory. Lines that are unreadable or not valid HTTP are
/// [skipped](Recorded::skipped), and so are headers with invalid names or values.
///
/// # Errors
/// The log cannot be read, or a request has no client address.
pub fn recorded(mut log: Records) -> Result<Recorded, RecordedError> {
    let (mut requests, mut start) = (Vec::new(), None);
    let (mut skipped, mut without) = (0, 0);
    while let Some(record) = log.next()? {
        if !is_valid(&record) {
            skipped += 1;
            continue;
        }
        let start = *start.get_or_insert(record.at);
        let Some(client) = record.address else {
            without += 1;
            continue;
        };
        let mut request = Requests::new(record.method, record.target).at(record.at.since(start));
        request.is_recorded = true;
        request.host = record.host.map(str::to_owned);
        request.client = client;
        request.takes = record.duration.unwrap_or(Micros::ZERO);
        for (name, value) in &record.headers {
            let is_valid = HeaderName::from_bytes(name.as_bytes()).is_ok();
            if is_valid && HeaderValue::from_str(value).is_ok() {
                request = request.header(*name, *value);
            }
        }
        requests.push(request);
    }
    skipped += log.unreadable();
    if without > 0 {
        Err(RecordedError::NoAddress { without })
    } else {
        Ok(Recorded { requests, skipped })
    }
}

/// Whether an HTTP server would read this request.
fn is_valid(record: &Record<'_>) -> bool {
    Method::from_bytes(record.method.as_bytes()).is_ok()
        && record.target.parse::<Uri>().is_ok()
        && record.host.is_none_or(|host| HeaderValue::from_str(host).is_ok())
}
