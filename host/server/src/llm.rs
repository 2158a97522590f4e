//! Models inside a program of one's own, without a server.
//!
//! [`Llm`] goes through the same routes as an HTTP request, without a socket: answers, defaults and errors are equal.

use crate::http::{AppState, HttpConfig, router};
use crate::model::{LoadError, LoadOptions, ModuleStore, load};
use crate::openai::Usage;
use crate::serving::ServedModel;
use crate::source::ModelRef;
use axum::Router;
use axum::body::{Body, Bytes};
use futures::stream::{self, Stream, StreamExt, TryStreamExt};
use guesthouse_component::{ComponentError, Runtime, RuntimeConfig};
use guesthouse_engine::{Drain, EngineHandle, Stats};
use hyper::Request;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tower::ServiceExt;

/// Requests that run at once in [`Llm::generate`]; the engine batches them.
const AT_ONCE: usize = 512;
/// Largest answer read, bytes.
const MAX_ANSWER: usize = 1 << 30;

/// A loaded model.
pub struct Llm {
    router: Router,
    engine: EngineHandle,
    tokio: tokio::runtime::Runtime,
    name: String,
}

/// How to sample. Fields are those of the HTTP API; what is `None` takes the model's or OpenAI's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// Choices per prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// Most tokens of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// 0 is greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Best k.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Least probability relative to the best.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// Makes draws repeatable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Strings that end an answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Go on after the model's end token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// Log-probabilities of chosen tokens, and of so many best ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
    /// What the answer must be: one of `json` (a JSON schema), `regex`, `choice`, `grammar` (Lark or GBNF), `json_object`,
    /// `structural_tag`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_outputs: Option<Value>,
    /// Any other field of the request.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// What to continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Text, encoded with the tokenizer's own BOS rule.
    Text(String),
    /// Ids.
    Tokens(Vec<u32>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Self::Tokens(ids)
    }
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Which of the `n`.
    pub index: u32,
    /// The text.
    #[serde(default)]
    pub text: String,
    /// `stop` or `length`.
    pub finish_reason: Option<String>,
    /// In the legacy format of the HTTP API, if asked for.
    #[serde(default)]
    pub logprobs: Option<Value>,
}

/// All answers to one prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The answers, by index.
    pub choices: Vec<Choice>,
    /// Tokens counted.
    pub usage: Usage,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum LlmError {
    /// The model did not load.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The guests' runtime did not start.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// The system refused threads.
    #[error("the asynchronous runtime did not start: {0}")]
    Threads(std::io::Error),
    /// The request was refused or failed; `param` names the field at fault.
    #[error("{message}")]
    Request {
        /// What to do.
        message: String,
        /// Which field.
        param: Option<String>,
    },
    /// An answer could not be read.
    #[error("malformed answer: {0}")]
    Malformed(String),
}

impl Llm {
    /// Fetches and loads a model with default settings. Blocks.
    ///
    /// # Errors
    /// When it cannot be had or does not load.
    pub fn load(model: &str) -> Result<Self, LlmError> {
        Self::load_with(model, &LoadOptions::default())
    }

    /// Fetches and loads a model. Blocks.
    ///
    /// # Errors
    /// When it cannot be had or does not load.
    pub fn load_with(model: &str, options: &LoadOptions) -> Result<Self, LlmError> {
        let cache_dir = crate::paths::modules().ok();
        let runtime = Runtime::new(RuntimeConfig {
            cache_dir,
            ..RuntimeConfig::default()
        })?;
        let local = ModelRef::parse(model, None)
            .and_then(|m| m.fetch())
            .map_err(LoadError::from)?;
        Self::start(model, &local, &ModuleStore::new(runtime), options)
    }

    /// Loads files that are already here.
    ///
    /// # Errors
    /// When the model does not load.
    pub fn start(
        name: &str,
        model: &crate::source::LocalModel,
        modules: &Arc<ModuleStore>,
        options: &LoadOptions,
    ) -> Result<Self, LlmError> {
        Self::serve(load(name, model, modules, options)?.served)
    }

    /// Answers with a model that is loaded already.
    ///
    /// # Errors
    /// When the system refuses threads.
    pub fn serve(served: Arc<ServedModel>) -> Result<Self, LlmError> {
        let name = served.id.clone();
        let engine = served.engine.clone();
        let router = router(AppState::new(vec![served], HttpConfig::default()));
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .thread_stack_size(4 << 20)
            .build();
        Ok(Self {
            router,
            engine,
            tokio: tokio.map_err(LlmError::Threads)?,
            name,
        })
    }

    /// Answers prompts, all at once; results are in the order of prompts. Blocks.
    ///
    /// # Errors
    /// The first request that is refused or fails.
    pub fn generate<P: Into<Prompt>>(
        &self,
        prompts: impl IntoIterator<Item = P>,
        params: &SamplingParams,
    ) -> Result<Vec<Completion>, LlmError> {
        let bodies: Vec<Value> = prompts
            .into_iter()
            .map(|p| self.body(&p.into(), params))
            .collect();
        self.tokio.block_on(async {
            let answers = stream::iter(bodies).map(|body| async move {
                let answer = self.post("/v1/completions", &body).await?;
                serde_json::from_value(answer).map_err(|e| LlmError::Malformed(e.to_string()))
            });
            answers.buffered(AT_ONCE).try_collect().await
        })
    }

    /// Sends requests of the HTTP API, many at once, and hands out answers as they come: (place of the request, answer).
    /// Blocks until all are answered.
    pub fn requests(
        &self,
        requests: Vec<(String, Value)>,
        mut answered: impl FnMut(usize, Result<Value, LlmError>),
    ) {
        self.tokio.block_on(async {
            let all = requests.into_iter().enumerate();
            let running =
                all.map(|(i, (path, body))| async move { (i, self.post(&path, &body).await) });
            let mut answers = stream::iter(running).buffer_unordered(AT_ONCE);
            while let Some((i, answer)) = answers.next().await {
                answered(i, answer);
            }
        });
    }

    /// Streams a chat answer: `each` gets the JSON of every chunk. Blocks.
    ///
    /// # Errors
    /// When the request is refused or fails.
    pub fn chat_stream(
        &self,
        messages: &Value,
        params: &SamplingParams,
        mut each: impl FnMut(&Value),
    ) -> Result<(), LlmError> {
        let mut body = json!(params);
        body["messages"] = messages.clone();
        body["stream"] = json!(true);
        self.tokio.block_on(async {
            let response = self.send("/v1/chat/completions", &body).await?;
            let mut chunks = std::pin::pin!(events(
                response
                    .into_body()
                    .into_data_stream()
                    .map(Result::unwrap_or_default)
            ));
            while let Some(chunk) = chunks.next().await {
                let chunk: Value =
                    serde_json::from_str(&chunk).map_err(|e| LlmError::Malformed(e.to_string()))?;
                if let Some(error) = chunk.get("error") {
                    return Err(refusal(error));
                }
                each(&chunk);
            }
            Ok(())
        })
    }

    /// Counters of the engine.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    fn body(&self, prompt: &Prompt, params: &SamplingParams) -> Value {
        let mut body = json!(params);
        body["model"] = json!(self.name);
        body["prompt"] = json!(prompt);
        body
    }

    async fn send(&self, path: &str, body: &Value) -> Result<axum::response::Response, LlmError> {
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()));
        let request = request.map_err(|e| LlmError::Malformed(e.to_string()))?;
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let bytes = read(response).await?;
        let answer: Value = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| json!({"error": {"message": "refused"}}));
        Err(refusal(&answer["error"]))
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, LlmError> {
        let bytes = read(self.send(path, body).await?).await?;
        serde_json::from_slice(&bytes).map_err(|e| LlmError::Malformed(e.to_string()))
    }
}

impl Drop for Llm {
    fn drop(&mut self) {
        self.engine.shutdown(Drain::No);
    }
}

fn refusal(error: &Value) -> LlmError {
    let text = |key: &str| error.get(key).and_then(Value::as_str).map(str::to_owned);
    LlmError::Request {
        message: text("message").unwrap_or_else(|| error.to_string()),
        param: text("param"),
    }
}

async fn read(response: axum::response::Response) -> Result<Bytes, LlmError> {
    axum::body::to_bytes(response.into_body(), MAX_ANSWER)
        .await
        .map_err(|e| LlmError::Malformed(e.to_string()))
}

/// The data of server-sent events up to `[DONE]`.
fn events(bytes: impl Stream<Item = Bytes>) -> impl Stream<Item = String> {
    let lines = bytes.scan(String::new(), |rest, chunk| {
        rest.push_str(&String::from_utf8_lossy(&chunk));
        let complete = rest.rfind('\n').map_or(0, |i| i + 1);
        let lines: Vec<String> = rest
            .drain(..complete)
            .as_str()
            .lines()
            .map(str::to_owned)
            .collect();
        futures::future::ready(Some(stream::iter(lines)))
    });
    let data = lines
        .flatten()
        .filter_map(|line| futures::future::ready(line.strip_prefix("data: ").map(str::to_owned)));
    data.take_while(|d| futures::future::ready(d != "[DONE]"))
}
