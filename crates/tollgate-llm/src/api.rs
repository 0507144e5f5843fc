use serde_json::json;

/// The API that a client uses, by the path of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Api {
    /// OpenAI's chat completions and completions: `…/completions`.
    Completions,
    /// Anthropic's messages and message batches: `…/messages` and `…/messages/batches`.
    Messages,
    /// OpenAI's embeddings: `…/embeddings`. They have no output.
    Embeddings,
    /// OpenAI's other APIs.
    OpenAi,
}

impl Api {
    /// The policy name for a budget in money. Its denials have OpenAI's code `insufficient_quota`,
    /// and so have those of a level's budget, such as `budget/team`.
    pub const BUDGET: &str = "budget";

    /// Returns the API with this path.
    pub fn of_path(path: &str) -> Self {
        let path = path.trim_end_matches('/');
        match path.strip_suffix(BATCHES).unwrap_or(path).rsplit('/').next() {
            Some("completions") => Self::Completions,
            Some("messages") => Self::Messages,
            Some("embeddings") => Self::Embeddings,
            _ => Self::OpenAi,
        }
    }

    pub(crate) fn is_batch(path: &str) -> bool {
        path.trim_end_matches('/').ends_with(BATCHES)
    }

    /// The model in a path of Azure: `/openai/deployments/NAME/…`. Azure ignores the name in the body.
    pub(crate) fn deployment(path: &str) -> Option<&str> {
        let mut segments = path.split('/').skip_while(|segment| *segment != "deployments");
        segments.nth(1)
    }

    /// Returns an error body in this API's JSON format. `policy` is the name of the policy that denied
    /// the request. If it belongs to a level, such as `tokens/team`, the message names it.
    ///
    /// ```
    /// use tollgate_llm::Api;
    ///
    /// let body = Api::of_path("/v1/messages").error(429, Some("tokens"), "Too many tokens.");
    /// let expected = r#"{"error":{"message":"Too many tokens.","type":"rate_limit_error"},"type":"error"}"#;
    /// assert_eq!(body, expected);
    /// ```
    pub fn error(self, status: u16, policy: Option<&str>, message: &str) -> String {
        let level = policy.filter(|policy| policy.contains('/'));
        let message = match level {
            Some(policy) => &*format!("{message} The limit is `{policy}`."),
            None => message,
        };
        let policy = policy.and_then(|policy| policy.split('/').next());
        if self == Self::Messages {
            let kind = match status {
                401 => "authentication_error",
                403 => "permission_error",
                413 => "request_too_large",
                429 => "rate_limit_error",
                500.. => "api_error",
                _ => "invalid_request_error",
            };
            let error = json!({"type": kind, "message": message});
            return json!({"type": "error", "error": error}).to_string();
        }
        let (kind, code) = match (status, policy) {
            (429, Some(Self::BUDGET)) => ("insufficient_quota", Some("insufficient_quota")),
            (429, policy) => (policy.unwrap_or("requests"), Some("rate_limit_exceeded")),
            (401 | 403, None) => ("invalid_request_error", Some("invalid_api_key")),
            (500.., _) => ("server_error", None),
            _ => ("invalid_request_error", None),
        };
        let error = json!({"message": message, "type": kind, "param": null, "code": code});
        json!({"error": error}).to_string()
    }
}

const BATCHES: &str = "/batches";
