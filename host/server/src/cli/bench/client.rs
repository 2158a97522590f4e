//! `bench serve`: streams completions from any OpenAI-compatible server and times the chunks.

use super::report::{Output, Timing, latencies, rate};
use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

#[derive(Debug, Args)]
pub(in crate::cli) struct Serve {
    /// Address of the server; http only.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    base_url: String,
    /// Model name (default: the server's first).
    #[arg(long)]
    model: Option<String>,
    /// Sent as `Authorization: Bearer`.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Requests.
    #[arg(long, default_value_t = 100)]
    num_prompts: usize,
    /// Requests, one after the other, that are not counted.
    #[arg(long, default_value_t = 0)]
    num_warmups: usize,
    /// Tokens of each prompt, random ids.
    #[arg(long, visible_alias = "input-len", default_value_t = 128)]
    random_input_len: usize,
    /// Tokens of each answer; end tokens do not end it.
    #[arg(long, visible_alias = "output-len", default_value_t = 128)]
    random_output_len: u32,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0)]
    temperature: f64,
    /// Nucleus; 1 is none.
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    /// Ids are below this.
    #[arg(long, default_value_t = 30_000)]
    vocab: u32,
    /// Requests per second, at random (Poisson) times; `inf` sends all at once.
    #[arg(long, default_value_t = f64::INFINITY)]
    request_rate: f64,
    /// Requests under way at most.
    #[arg(long)]
    max_concurrency: Option<usize>,
    /// Of prompts and times.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Debug)]
struct Server {
    /// host:port
    address: String,
    key: Option<String>,
}

impl Serve {
    pub(super) fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        runtime.block_on(self.measure())
    }

    async fn measure(self) -> Result<()> {
        let address = self
            .base_url
            .strip_prefix("http://")
            .context("--base-url must begin with http://")?;
        let server = Server {
            address: address.trim_end_matches('/').to_owned(),
            key: self.api_key.clone(),
        };
        let model = match &self.model {
            Some(name) => name.clone(),
            None => server.first_model().await?,
        };
        let mut random = StdRng::seed_from_u64(self.seed);
        let places = Arc::new(Semaphore::new(
            self.max_concurrency.unwrap_or(self.num_prompts).max(1),
        ));
        for _ in 0..self.num_warmups {
            server.stream(&self.body(&model, &mut random)).await?;
        }
        let started = Instant::now();
        let mut due = Duration::ZERO;
        let mut tasks = Vec::new();
        for _ in 0..self.num_prompts {
            let body = self.body(&model, &mut random);
            if self.request_rate.is_finite() {
                due += Duration::from_secs_f64(
                    -(1.0 - random.random::<f64>()).ln() / self.request_rate.max(1e-6),
                );
            }
            let (server, places) = (server.clone(), Arc::clone(&places));
            let at = tokio::time::Instant::from_std(started + due);
            tasks.push(tokio::spawn(async move {
                tokio::time::sleep_until(at).await;
                let _place = places.acquire_owned().await?;
                server.stream(&body).await
            }));
        }
        let (mut timings, mut failures) = (Vec::new(), Vec::new());
        for task in tasks {
            match task.await? {
                Ok(timing) => timings.push(timing),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        let elapsed = started.elapsed();
        let output: u64 = timings.iter().map(|t| t.output_tokens).sum();
        let mut result: Map<String, Value> = Map::new();
        result.insert("completed".into(), json!(timings.len()));
        result.insert("failed".into(), json!(failures.len()));
        result.insert("duration_seconds".into(), json!(elapsed.as_secs_f64()));
        result.insert(
            "request_throughput".into(),
            rate(timings.len() as u64, elapsed),
        );
        result.insert("output_throughput".into(), rate(output, elapsed));
        let input = (timings.len() * self.random_input_len.max(1)) as u64;
        result.insert(
            "total_token_throughput".into(),
            rate(input + output, elapsed),
        );
        result.extend(latencies(&timings));
        self.output.publish(&[result])?;
        match failures.first() {
            Some(first) => bail!("{} requests failed; the first: {first}", failures.len()),
            None => Ok(()),
        }
    }
}

impl Serve {
    /// A request with a prompt of its own.
    fn body(&self, model: &str, random: &mut StdRng) -> Value {
        let ids: Vec<u32> = (0..self.random_input_len.max(1))
            .map(|_| random.random_range(0..self.vocab))
            .collect();
        json!({
            "model": model,
            "prompt": ids,
            "max_tokens": self.random_output_len,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        })
    }
}

impl Server {
    async fn send(
        &self,
        request: hyper::http::request::Builder,
        body: String,
    ) -> Result<hyper::Response<hyper::body::Incoming>> {
        let stream = TcpStream::connect(&self.address)
            .await
            .with_context(|| format!("cannot reach {}", self.address))?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = request
            .header("host", &self.address)
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = sender
            .send_request(request.body(Full::new(Bytes::from(body)))?)
            .await?;
        if !response.status().is_success() {
            let status = response.status();
            let text = response.into_body().collect().await?.to_bytes();
            bail!("{status}: {}", String::from_utf8_lossy(&text));
        }
        Ok(response)
    }

    async fn first_model(&self) -> Result<String> {
        let response = self.send(Request::get("/v1/models"), String::new()).await?;
        let body: Value =
            serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
        body["data"][0]["id"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| anyhow!("the server lists no model"))
    }

    /// Sends one streaming completion and times its chunks with text.
    async fn stream(&self, body: &Value) -> Result<Timing> {
        let sent = Instant::now();
        let mut response = self
            .send(Request::post("/v1/completions"), body.to_string())
            .await?;
        let mut timing = Timing {
            sent,
            tokens: Vec::new(),
            output_tokens: 0,
        };
        let mut rest = Vec::new();
        while let Some(frame) = response.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            let at = Instant::now();
            rest.extend_from_slice(&data);
            while let Some(end) = rest.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let Some(json) = line.strip_prefix(b"data: ") else {
                    continue;
                };
                let Ok(chunk) = serde_json::from_slice::<Value>(json) else {
                    continue;
                };
                if let Some(error) = chunk.get("error") {
                    bail!("{error}");
                }
                if chunk["choices"].as_array().is_some_and(|c| !c.is_empty()) {
                    timing.tokens.push(at);
                }
                if let Some(n) = chunk["usage"]["completion_tokens"].as_u64() {
                    timing.output_tokens = n;
                }
            }
        }
        Ok(timing)
    }
}
