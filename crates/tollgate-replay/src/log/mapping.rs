//! Maps the fields of JSON objects to record fields.

use super::{Clock, FormatError};

/// The path of each record field in a JSON object. A path joins the names of nested objects with
/// dots.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    pub(super) root: Node,
    pub(super) headers: Vec<Box<str>>,
    pub(super) clock: Clock,
    /// The server that writes such lines, or `None` for user-defined names.
    pub(super) server: Option<&'static str>,
    /// Each field with its path, in the order of [`Node::bit`].
    pub(super) names: Vec<(Field, Box<str>)>,
    /// Each set must have at least one field in every line.
    required: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) field: Option<Field>,
    /// The field's bit in the set of fields in a line. Fields beyond the 64th have no bit.
    pub(super) bit: u64,
    pub(super) children: Vec<(Box<str>, Self)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Time,
    Address,
    User,
    Tier,
    Request,
    Method,
    Target,
    Host,
    Status,
    Bytes,
    /// A duration, with its unit in nanoseconds.
    Duration(u32),
    Model,
    /// Tokens by kind: input, cached input, output.
    Tokens(u8),
    Header(u8),
}

/// A server's names for the record fields.
type Names = &'static [(&'static str, &'static str)];

const CADDY: Names = &[
    ("time", "ts"),
    ("address", "request.remote_ip"),
    // Used before version 2.5.
    ("address", "request.remote_addr"),
    ("method", "request.method"),
    ("target", "request.uri"),
    ("host", "request.host"),
    ("status", "status"),
    ("bytes", "size"),
    ("seconds", "duration"),
    ("user", "user_id"),
    ("header.x-forwarded-for", "request.headers.X-Forwarded-For"),
    ("header.x-api-key", "request.headers.X-Api-Key"),
];
const TRAEFIK: Names = &[
    ("time", "StartUTC"),
    ("address", "ClientHost"),
    ("method", "RequestMethod"),
    ("target", "RequestPath"),
    ("host", "RequestHost"),
    ("status", "DownstreamStatus"),
    ("bytes", "DownstreamContentSize"),
    ("nanoseconds", "Duration"),
    ("user", "ClientUsername"),
];
const ENVOY: Names = &[
    ("time", "start_time"),
    ("address", "downstream_remote_address"),
    ("method", "method"),
    ("target", "path"),
    ("host", "authority"),
    ("status", "response_code"),
    ("bytes", "bytes_sent"),
    ("milliseconds", "duration"),
    ("header.x-forwarded-for", "x_forwarded_for"),
];
/// The `tollgate serve` access log.
const TOLLGATE: Names = &[
    ("time", "time"),
    ("address", "address"),
    ("method", "method"),
    ("target", "target"),
    ("host", "host"),
    ("status", "status"),
    ("bytes", "bytes"),
    ("seconds", "seconds"),
    ("header.x-forwarded-for", "x_forwarded_for"),
];
const NGINX: Names = &[
    ("time", "time_iso8601"),
    ("address", "remote_addr"),
    ("request", "request"),
    ("method", "request_method"),
    ("target", "request_uri"),
    ("host", "host"),
    ("status", "status"),
    ("bytes", "body_bytes_sent"),
    ("seconds", "request_time"),
    ("user", "remote_user"),
    ("header.x-forwarded-for", "http_x_forwarded_for"),
    ("header.x-api-key", "http_x_api_key"),
];

impl Mapping {
    pub(super) fn caddy() -> Self {
        Self::known("Caddy", CADDY, Clock::AtEnd)
    }

    pub(super) fn traefik() -> Self {
        Self::known("Traefik", TRAEFIK, Clock::AtStart)
    }

    pub(super) fn envoy() -> Self {
        Self::known("Envoy", ENVOY, Clock::AtStart)
    }

    pub(super) fn nginx() -> Self {
        Self::known("nginx", NGINX, Clock::AtEnd)
    }

    pub(super) fn tollgate() -> Self {
        Self::known("tollgate", TOLLGATE, Clock::AtStart)
    }

    /// Guesses by field names which server wrote this line.
    pub(super) fn detect(line: &[u8]) -> Self {
        let has = |name: &str| memchr::memmem::find(line, name.as_bytes()).is_some();
        if has("\"DownstreamStatus\"") {
            Self::traefik()
        } else if has("\"response_code\"") {
            Self::envoy()
        } else if has("\"target\"") && has("\"seconds\"") {
            Self::tollgate()
        } else if has("\"request\"") && has("\"ts\"") {
            Self::caddy()
        } else {
            Self::nginx()
        }
    }

    fn known(server: &'static str, names: Names, clock: Clock) -> Self {
        let mut mapping = Self { server: Some(server), ..Self::empty(clock) };
        for (field, path) in names {
            // All of these fields are valid: a test reads a line from each server.
            let _ = mapping.add(field, path);
        }
        mapping.require();
        mapping
    }

    fn empty(clock: Clock) -> Self {
        Self {
            root: Node::default(),
            headers: Vec::new(),
            clock,
            server: None,
            names: Vec::new(),
            required: Vec::new(),
        }
    }

    /// Parses user-defined names such as `time=ts,address=client.ip,target=url`.
    pub(super) fn new(names: &str) -> Result<Self, FormatError> {
        let mut mapping = Self::empty(Clock::AtStart);
        let mut given = Vec::new();
        for pair in names.split(',') {
            let (field, path) =
                pair.trim().split_once('=').ok_or_else(|| FormatError::NoPair(pair.into()))?;
            mapping.add(field, path)?;
            given.push(field);
        }
        if given.contains(&"end") {
            mapping.clock = Clock::AtEnd;
        } else if !given.contains(&"time") {
            return Err(FormatError::NoTime);
        }
        if !given.contains(&"target") && !given.contains(&"request") {
            return Err(FormatError::NoRequest);
        }
        if !given.contains(&"method") && !given.contains(&"request") {
            return Err(FormatError::NoMethod);
        }
        mapping.require();
        Ok(mapping)
    }

    /// Each line must have a time, a method and a target, and an address if the log has addresses.
    fn require(&mut self) {
        let sets: [&[Field]; 4] = [
            &[Field::Time],
            &[Field::Address],
            &[Field::Request, Field::Method],
            &[Field::Request, Field::Target],
        ];
        let names = (0..).zip(&self.names);
        let of = |set: &[Field]| {
            let bits = names.clone().filter(|(_, (field, _))| set.contains(field));
            bits.fold(0, |all, (place, _)| all | bit(place))
        };
        self.required = sets.map(of).into_iter().filter(|set| *set != 0).collect();
    }

    /// Returns the path of the first required field that is missing.
    pub(super) fn missing(&self, seen: u64) -> Option<&str> {
        let set = self.required.iter().find(|set| *set & seen == 0)?;
        Some(&self.names.get(set.trailing_zeros() as usize)?.1)
    }

    fn add(&mut self, name: &str, path: &str) -> Result<(), FormatError> {
        let field = match name {
            "time" | "end" => Field::Time,
            "address" => Field::Address,
            "user" => Field::User,
            "tier" => Field::Tier,
            "request" => Field::Request,
            "method" => Field::Method,
            "target" => Field::Target,
            "host" => Field::Host,
            "status" => Field::Status,
            "bytes" => Field::Bytes,
            "seconds" => Field::Duration(1_000_000_000),
            "milliseconds" => Field::Duration(1_000_000),
            "microseconds" => Field::Duration(1_000),
            "nanoseconds" => Field::Duration(1),
            "model" => Field::Model,
            "input_tokens" => Field::Tokens(0),
            "cached_tokens" => Field::Tokens(1),
            "output_tokens" => Field::Tokens(2),
            _ => {
                let header = name.strip_prefix("header.");
                let header = header.ok_or_else(|| FormatError::UnknownField(name.into()))?;
                let number = u8::try_from(self.headers.len());
                let number = number.map_err(|_| FormatError::Headers)?;
                self.headers.push(header.into());
                Field::Header(number)
            }
        };
        let bit = bit(self.names.len());
        self.names.push((field, path.into()));
        // A dotted name may be a single name or a path.
        let node = self.root.child(path);
        (node.field, node.bit) = (Some(field), bit);
        if path.contains('.') {
            let mut node = &mut self.root;
            for name in path.split('.') {
                node = node.child(name);
            }
            (node.field, node.bit) = (Some(field), bit);
        }
        Ok(())
    }
}

fn bit(place: usize) -> u64 {
    u32::try_from(place).ok().and_then(|place| 1_u64.checked_shl(place)).unwrap_or(0)
}

impl Node {
    fn child(&mut self, name: &str) -> &mut Self {
        let at = self.children.iter().position(|(other, _)| **other == *name);
        let at = at.unwrap_or_else(|| {
            self.children.push((name.into(), Self::default()));
            self.children.len() - 1
        });
        &mut self.children[at].1
    }
}
