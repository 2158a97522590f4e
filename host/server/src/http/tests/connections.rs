use super::support::{Server, Setup, until};
use crate::http::{Served, serve};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

struct Listening {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Served>,
}

async fn listen(server: &Server) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let serving = serve(listener, server.state.clone(), async {
        let _ = stopped.await;
    });
    Listening {
        address,
        stop,
        task: tokio::spawn(async { serving.await.unwrap() }),
    }
}

async fn request(address: SocketAddr, body: &serde_json::Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    stream
}

async fn read_until(stream: &mut TcpStream, mark: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains(mark) {
        let read = stream.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    text
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_frees_its_sequence() {
    let (setup, gate) = Setup::gated(&["a"]);
    let server = setup.start();
    let listening = listen(&server).await;
    let mut stream = request(
        listening.address,
        &json!({"prompt": "x", "max_tokens": 200, "stream": true}),
    )
    .await;
    gate.open(2);
    read_until(&mut stream, "data: {").await;
    assert_eq!(server.stats().running, 1);
    drop(stream);
    // At most two steps are under way when it leaves.
    until(|| {
        gate.open(1);
        server.stats().running == 0 && server.stats().blocks_used == 0
    })
    .await;
    let stats = server.stats();
    assert_eq!(
        (stats.cancelled, stats.blocks_used, stats.finished),
        (1, 0, 0)
    );
    let metrics = server.get("/metrics").await.body;
    assert!(
        metrics.contains(
            "vllm:request_success_total{model_name=\"org/tiny\",finished_reason=\"abort\"} 1\n"
        ),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_client_that_leaves_before_a_whole_answer_frees_its_sequences() {
    let (setup, gate) = Setup::gated(&["a"]);
    let server = setup.start();
    let listening = listen(&server).await;
    let stream = request(
        listening.address,
        &json!({"prompt": ["x", "y"], "n": 2, "max_tokens": 200}),
    )
    .await;
    until(|| server.stats().running > 0).await;
    drop(stream);
    until(|| {
        gate.open(1);
        let stats = server.stats();
        stats.running == 0 && stats.waiting == 0 && stats.blocks_used == 0
    })
    .await;
    assert_eq!(server.stats().cancelled, 2);
}

#[tokio::test]
async fn a_stop_string_frees_the_sequence() {
    let server = Setup::saying(&["aXb"]).start();
    let answer = server
        .ask(
            "/v1/completions",
            &json!({"prompt": "x", "stop": "X", "max_tokens": 200}),
        )
        .await;
    assert_eq!(answer["choices"][0]["text"], "a");
    until(|| server.stats().running == 0 && server.stats().blocks_used == 0).await;
}

#[tokio::test]
async fn shutdown_lets_running_requests_end() {
    let (setup, gate) = Setup::gated(&["abc<|im_end|>"]);
    let server = setup.start();
    let listening = listen(&server).await;
    let mut stream = request(listening.address, &json!({"prompt": "x", "stream": true})).await;
    let mut idle = TcpStream::connect(listening.address).await.unwrap();
    until(|| server.stats().running == 1).await;
    listening.stop.send(()).unwrap();
    assert_eq!(read_to_end(&mut idle).await, "", "idle connections close");
    gate.open(1000);
    let text = read_to_end(&mut stream).await;
    assert!(text.contains("data: [DONE]"), "{text}");
    assert_eq!(listening.task.await.unwrap(), Served::Drained);
    assert!(TcpStream::connect(listening.address).await.is_err());
}

#[tokio::test]
async fn what_outlasts_the_drain_is_cut_off() {
    let (mut setup, gate) = Setup::gated(&["a"]);
    setup.config.drain_timeout = Duration::from_millis(50);
    let server = setup.start();
    let listening = listen(&server).await;
    let mut stream = request(
        listening.address,
        &json!({"prompt": "x", "max_tokens": 200}),
    )
    .await;
    until(|| server.stats().running == 1).await;
    listening.stop.send(()).unwrap();
    assert_eq!(
        listening.task.await.unwrap(),
        Served::CutOff { connections: 1 }
    );
    assert_eq!(read_to_end(&mut stream).await, "");
    until(|| {
        gate.open(1);
        server.stats().running == 0
    })
    .await;
}

#[tokio::test]
async fn slow_headers_and_idle_connections_are_closed() {
    let mut setup = Setup::saying(&["a<|im_end|>"]);
    setup.config.header_timeout = Duration::from_millis(200);
    let server = setup.start();
    let listening = listen(&server).await;
    let mut slow = TcpStream::connect(listening.address).await.unwrap();
    slow.write_all(b"GET /health HTTP/1.1\r\nhost:")
        .await
        .unwrap();
    let mut silent = TcpStream::connect(listening.address).await.unwrap();
    let mut kept = request(listening.address, &json!({"prompt": "x"})).await;
    read_until(&mut kept, "\"usage\"").await;
    for stream in [&mut slow, &mut silent, &mut kept] {
        assert!(!read_to_end(stream).await.contains("200 OK"));
    }
}

#[tokio::test]
async fn too_many_headers_are_refused() {
    let mut setup = Setup::saying(&["a"]);
    setup.config.max_headers = 10;
    let server = setup.start();
    let listening = listen(&server).await;
    let mut stream = TcpStream::connect(listening.address).await.unwrap();
    let headers: String = (0..20).map(|i| format!("x-{i}: 1\r\n")).collect();
    stream
        .write_all(format!("GET /health HTTP/1.1\r\nhost: x\r\n{headers}\r\n").as_bytes())
        .await
        .unwrap();
    assert!(read_to_end(&mut stream).await.starts_with("HTTP/1.1 431"));
    let mut stream = TcpStream::connect(listening.address).await.unwrap();
    let _ = stream
        .write_all(format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000)).as_bytes())
        .await;
    assert!(!read_to_end(&mut stream).await.contains("200 OK"));
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let (mut setup, gate) = Setup::gated(&["a<|im_end|>"]);
    setup.config.max_connections = 1;
    let server = setup.start();
    let listening = listen(&server).await;
    let mut first = request(listening.address, &json!({"prompt": "x"})).await;
    until(|| server.stats().running == 1).await;
    let mut second = request(listening.address, &json!({"prompt": "x"})).await;
    let early = tokio::time::timeout(Duration::from_millis(100), second.read_u8()).await;
    assert!(early.is_err(), "the first still holds the place");
    gate.open(1000);
    read_until(&mut first, "\"usage\"").await;
    // Its connection is idle now, and gives way.
    read_until(&mut second, "\"usage\"").await;
    assert_eq!(read_to_end(&mut first).await, "");
}

#[tokio::test]
async fn connections_that_were_idle_for_longest_give_way() {
    let mut setup = Setup::saying(&["a<|im_end|>"]);
    setup.config.max_connections = 2;
    let server = setup.start();
    let listening = listen(&server).await;
    let mut silent = TcpStream::connect(listening.address).await.unwrap();
    let mut half = TcpStream::connect(listening.address).await.unwrap();
    half.write_all(b"GET /health HTTP/1.1\r\nhost:")
        .await
        .unwrap();
    let mut kept = Vec::new();
    for _ in 0..3 {
        let mut next = request(listening.address, &json!({"prompt": "x"})).await;
        read_until(&mut next, "\"usage\"").await;
        kept.push(next);
    }
    assert_eq!(read_to_end(&mut silent).await, "");
    assert_eq!(read_to_end(&mut half).await, "");
}

#[tokio::test]
async fn a_silent_stream_gets_comments() {
    let (mut setup, gate) = Setup::gated(&["a<|im_end|>"]);
    setup.config.keep_alive = Duration::from_millis(20);
    let server = setup.start();
    let listening = listen(&server).await;
    let mut stream = request(listening.address, &json!({"prompt": "x", "stream": true})).await;
    read_until(&mut stream, ": keep-alive\n\n").await;
    gate.open(1000);
    read_until(&mut stream, "data: [DONE]").await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_given_up() {
    let mut setup = Setup::saying(&["a"]);
    setup.config.write_timeout = Duration::from_millis(100);
    let server = setup.start();
    let listening = listen(&server).await;
    // Requests in a row whose answers are never read fill all buffers between the two.
    let mut stream = TcpStream::connect(listening.address).await.unwrap();
    let head = "GET /docs HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1000);
    let refused = async { while stream.write_all(head.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(60), refused)
        .await
        .expect("the server gives up");
}
