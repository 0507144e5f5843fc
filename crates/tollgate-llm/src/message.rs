//! Requests to models and their responses over HTTP, with any body.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue,
    TRANSFER_ENCODING,
};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::{Api, Call, Meter, Models};

/// Makes an error response with the body that clients of the path's [`Api`] expect. See
/// [`Api::error`].
pub fn error_response(
    path: &str,
    status: StatusCode,
    policy: Option<&str>,
    message: &str,
) -> Response<Bytes> {
    let body = Api::of_path(path).error(status.as_u16(), policy, message);
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

impl Call {
    /// Checks whether a request to this path can be read, before its body is.
    ///
    /// # Errors
    /// The response to a request with a content coding.
    pub fn check_coding(path: &str, headers: &HeaderMap) -> Result<(), Box<Response<Bytes>>> {
        if is_plain(headers) {
            return Ok(());
        }
        let what = "Send the request without a content coding.";
        Err(Box::new(error_response(path, StatusCode::UNSUPPORTED_MEDIA_TYPE, None, what)))
    }

    /// [Parses](Self::parse) a request to this path. Returns the body to send, and adapts the headers
    /// to it. The response must not be compressed, because it would not show its usage.
    ///
    /// # Errors
    /// The response to an invalid request.
    pub fn read(
        path: &str,
        headers: &mut HeaderMap,
        body: Bytes,
        models: &Models,
    ) -> Result<(Self, Bytes), Box<Response<Bytes>>> {
        let (call, changed) = Self::parse(path, &body, models).map_err(|error| {
            Box::new(error_response(path, StatusCode::BAD_REQUEST, None, &format!("{error}.")))
        })?;
        let body = changed.map_or(body, Bytes::from);
        headers.remove(TRANSFER_ENCODING);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Ok((call, body))
    }

    /// Makes a [meter](Self::meter) for a successful response, and changes its headers if the client
    /// gets fewer bytes. Returns `None` if the response is compressed, has no body or only accepts
    /// the work, because it does not show the usage.
    pub fn meter_response<B: Body>(&self, response: &mut Response<B>) -> Option<Meter> {
        let is_accepted =
            response.status() == StatusCode::ACCEPTED || response.body().is_end_stream();
        let headers = response.headers_mut();
        if is_accepted || !is_plain(headers) {
            return None;
        }
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let meter = self.meter(content_type.unwrap_or_default());
        if meter.shortens() {
            headers.remove(CONTENT_LENGTH);
        }
        Some(meter)
    }
}

/// Reads the usage, and hides a usage that the client did not request.
impl Watch for Meter {
    fn data(&mut self, data: Bytes) -> Bytes {
        match self.read(&data) {
            Cow::Borrowed(_) => data,
            Cow::Owned(passed) => passed.into(),
        }
    }

    fn rest(&mut self, is_complete: bool) -> Bytes {
        if is_complete { self.finish().into() } else { self.break_off().into() }
    }

    fn shortens(&self) -> bool {
        self.shortens()
    }
}

fn is_plain(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_ENCODING).is_none_or(|coding| coding == "identity")
}

/// Reads a body while it passes. Dropped when the body is complete or its receiver leaves.
pub trait Watch {
    /// Returns the bytes that pass on.
    fn data(&mut self, data: Bytes) -> Bytes;

    /// Returns the retained bytes after the last data. After an error, the body is not complete.
    fn rest(&mut self, is_complete: bool) -> Bytes;

    /// Returns whether fewer bytes may pass on than arrived.
    fn shortens(&self) -> bool {
        false
    }

    /// Reads the trailers.
    fn trailers(&mut self, _trailers: &HeaderMap) {}
}

/// A body, with an optional [`Watch`] that reads it.
pub struct WatchedBody<B: Body> {
    body: B,
    /// Dropped before the last frame is returned, because the client may then send its next request.
    watch: Option<Box<dyn Watch + Send>>,
    last: Option<Box<Last<B>>>,
}

impl<B: Body> fmt::Debug for WatchedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedBody").finish_non_exhaustive()
    }
}

/// The last frame, or `None` for the end. It follows the bytes that a watch retained.
struct Last<B: Body> {
    frame: Option<Result<Frame<B::Data>, B::Error>>,
    /// Whether the receiver has had time to send these bytes.
    yielded: bool,
}

impl<B: Body> WatchedBody<B> {
    /// Wraps a body that nobody reads.
    pub const fn new(body: B) -> Self {
        Self { body, watch: None, last: None }
    }

    /// Reads the body with this watch, unless it has already ended.
    #[must_use]
    pub fn watched_by(mut self, watch: Box<dyn Watch + Send>) -> Self {
        self.watch = Some(watch).filter(|_| !self.body.is_end_stream());
        self
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for WatchedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, watch, last } = &mut *self;
        if let Some(mut kept) = last.take() {
            // hyper drops unsent bytes when a body fails, so it may first send the rest.
            if matches!(kept.frame, Some(Err(_))) && !std::mem::replace(&mut kept.yielded, true) {
                *last = Some(kept);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(kept.frame);
        }
        loop {
            let mut frame = ready!(Pin::new(&mut *body).poll_frame(cx));
            let Some(reader) = watch else { return Poll::Ready(frame) };
            let is_last = match &mut frame {
                Some(Ok(piece)) => {
                    if let Some(data) = piece.data_ref() {
                        *piece = Frame::data(reader.data(data.clone()));
                    } else if let Some(trailers) = piece.trailers_ref() {
                        reader.trailers(trailers);
                    }
                    piece.is_trailers() || body.is_end_stream()
                }
                None | Some(Err(_)) => true,
            };
            if !is_last {
                // A watch may retain all bytes.
                match &frame {
                    Some(Ok(piece)) if piece.data_ref().is_some_and(Bytes::is_empty) => continue,
                    _ => return Poll::Ready(frame),
                }
            }
            let rest = reader.rest(!matches!(frame, Some(Err(_))));
            *watch = None;
            if rest.is_empty() {
                return Poll::Ready(frame);
            }
            return Poll::Ready(Some(Ok(Frame::data(match frame {
                Some(Ok(piece)) if piece.is_data() => {
                    let data = piece.into_data().unwrap_or_default();
                    [data, rest].concat().into()
                }
                frame => {
                    *last = Some(Box::new(Last { frame, yielded: false }));
                    rest
                }
            }))));
        }
    }

    fn is_end_stream(&self) -> bool {
        // A watch that shortens the body may retain its last bytes.
        let may_follow =
            self.last.is_some() || self.watch.as_ref().is_some_and(|watch| watch.shortens());
        !may_follow && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.watch {
            Some(watch) if watch.shortens() => SizeHint::default(),
            _ => self.body.size_hint(),
        }
    }
}
