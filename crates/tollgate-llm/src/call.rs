use std::borrow::Cow;
use std::hash::Hash;

use crate::{
    Api, Model, Models, OutputHistory, Request, RequestError, Usage, UsageEventFilter, UsageReader,
};

/// A request to a model, with everything needed to meter its response. Proxies reserve its
/// [estimate](Self::estimate), and pass the response through its [meter](Self::meter).
///
/// ```
/// use tollgate_llm::{Call, DOLLAR, Model, Models, Price};
///
/// let models = Models::new(Model::new(Price::per_million(DOLLAR, 4 * DOLLAR)));
/// let body = br#"{"model": "any", "stream": true, "max_tokens": 50, "prompt": "Hi"}"#;
/// let (call, changed) = Call::parse("/v1/completions", body, &models)?;
/// // The request now requests the usage.
/// assert!(changed.is_some());
/// assert_eq!(call.estimate().total(), 53);
///
/// let mut meter = call.meter("text/event-stream");
/// let text = b"data: {\"choices\": [{\"text\": \"Hello\"}]}\n\n";
/// assert_eq!(*meter.read(text), *text);
/// let usage = b"data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 1, \"completion_tokens\": 2}}\n\n";
/// assert_eq!(*meter.read(usage), *b"");
/// // The end of the stream may be incomplete.
/// assert_eq!(*meter.finish(), *b"");
/// assert_eq!(meter.usage().total(), 3);
/// # Ok::<(), tollgate_llm::RequestError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Call {
    request: Request,
    model: Model,
    learned: Option<(OutputHistory, u64)>,
    hides_usage: bool,
}

impl Call {
    /// Parses a request to this path, which decides the [`Api`]. Also returns the body to send if it
    /// differs: a stream of completions then reports its usage, which the [meter](Self::meter) hides
    /// from the client.
    ///
    /// # Errors
    /// See [`Request::parse`].
    pub fn parse(
        path: &str,
        body: &[u8],
        models: &Models,
    ) -> Result<(Self, Option<Vec<u8>>), RequestError> {
        let mut request = models.parse(body, Api::is_batch(path))?;
        if let Some(deployment) = Api::deployment(path) {
            deployment.clone_into(&mut request.model);
        }
        // A client that leaves does not stop a batch.
        request.background |= Api::is_batch(path);
        let api = Api::of_path(path);
        if api == Api::Embeddings {
            request.limit_output(0);
        }
        let model = *models.get(&request.model);
        let asks = api == Api::Completions && models.adds_stream_options();
        let asking = if asks { request.ask_for_usage(body) } else { None };
        let hides_usage = asking.is_some();
        Ok((Self { request, model, learned: None, hides_usage }, asking))
    }

    /// Makes a call for a request of `bytes` bytes that was not read. All bytes count as text, and
    /// the model is the default of `models`.
    pub fn of_size(bytes: u64, models: &Models) -> Self {
        let mut request = Request::default();
        request.text_bytes = bytes;
        Self { request, model: *models.get(""), learned: None, hides_usage: false }
    }

    /// Reserves the client's usual output if the request sets no maximum. The response adds to the
    /// history.
    #[must_use]
    pub fn learning(mut self, history: &OutputHistory, client: impl Hash) -> Self {
        let pair = history.pair(client, &self.request.model);
        if let Some(usual) = history.percentile_of(pair) {
            self.request.limit_output(usual);
        }
        self.learned = Some((history.clone(), pair));
        self
    }

    /// Returns the tokens to reserve.
    pub fn estimate(&self) -> Usage {
        self.request.estimate(&self.model)
    }

    /// Returns the model that the request names.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// Makes a meter for a response with this `Content-Type`. Before the response, it counts the
    /// input only.
    pub fn meter(&self, content_type: &str) -> Meter {
        let is_stream = UsageReader::is_sse(content_type);
        let filter = (self.hides_usage && is_stream).then(UsageEventFilter::default);
        let reader = UsageReader::for_content_type(content_type);
        Meter { call: self.clone(), reader, filter }
    }
}

/// Reads the usage from a response while it passes.
#[derive(Debug)]
pub struct Meter {
    call: Call,
    reader: UsageReader,
    filter: Option<UsageEventFilter>,
}

impl Meter {
    /// Reads the next bytes and returns the bytes for the client.
    pub fn read<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.reader.read(bytes);
        match &mut self.filter {
            Some(filter) => filter.filter(bytes).into(),
            None => bytes.into(),
        }
    }

    /// Finishes a complete response and returns the remaining bytes for the client.
    pub fn finish(&mut self) -> Vec<u8> {
        self.reader.finish();
        self.break_off()
    }

    /// Returns the remaining bytes for the client after an incomplete response.
    pub fn break_off(&mut self) -> Vec<u8> {
        self.filter.as_mut().map(UsageEventFilter::finish).unwrap_or_default()
    }

    /// Returns whether the client may get fewer bytes, so a `Content-Length` does not apply.
    pub const fn shortens(&self) -> bool {
        self.filter.is_some()
    }

    /// Returns the usage up to here. See [`UsageReader::usage`].
    pub fn usage(&self) -> Usage {
        self.reader.usage(&self.call.request, &self.call.model)
    }

    /// Returns the model that the request names.
    pub const fn model(&self) -> &Model {
        self.call.model()
    }

    /// Returns the price of the usage up to here.
    pub fn price(&self) -> u64 {
        self.call.model.price().of(&self.usage())
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // Only complete responses show the usual length.
        if let (Some((history, pair)), Some(usage)) = (&self.call.learned, self.reader.reported()) {
            history.record_of(*pair, self.call.request.share_of(usage.output));
        }
    }
}
