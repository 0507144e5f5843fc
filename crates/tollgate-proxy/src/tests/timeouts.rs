//! Late and silent peers.

use tokio::time::Instant;

use super::*;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";

fn http2_upstream(settings: &mut Upstream) {
    settings.servers.protocol = Protocol::Http2;
}

#[tokio::test(start_paused = true)]
async fn late_response_is_a_fault() {
    for (answer, then, fault) in [
        ("", Then::Hang, Fault::AnswerTimeout),
        ("HTTP/1.1 20", Then::Hang, Fault::AnswerTimeout),
        ("", Then::Close, Fault::BadAnswer),
        ("HTTP/1.1 200 OK\r\nContent-", Then::Close, Fault::BadAnswer),
        ("SSH-2.0-OpenSSH\r\n\r\n", Then::Hang, Fault::BadAnswer),
    ] {
        let started = Instant::now();
        let answered = Proxy::to(upstream(answer, then).0).exchange(GET).await;
        assert!(answered.ends_with(fault.code()), "{answer:?}: {answered}");
        let waited = if fault == Fault::AnswerTimeout { RESPONSE } else { Duration::ZERO };
        assert_eq!(started.elapsed().as_secs(), waited.as_secs(), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn truncated_response_is_not_completed() {
    for then in [Then::Hang, Then::Close] {
        let answer = Proxy::to(upstream(CHUNKED, then).0).exchange(GET).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("hello"), "{answer}");
        assert!(!answer.contains("0\r\n\r\n"), "{answer}");
    }
}

/// The client needs the header to see what happened, and an abort to see that the body is
/// incomplete.
#[tokio::test(start_paused = true)]
async fn truncated_response_keeps_its_header() {
    for answer in [
        "HTTP/1.1 201 Created\r\nX-Id: 7\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 201 Created\r\nX-Id: 7\r\nContent-Length: 5\r\n\r\nhe",
        "HTTP/1.1 201 Created\r\nX-Id: 7\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 201 Created\r\nX-Id: 7\r\nTransfer-Encoding: chunked\r\n\r\nnonsense",
    ] {
        let proxy = Proxy::to(upstream(answer, Then::Close).0);
        let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
        let answered = proxy.exchange(request).await;
        assert!(answered.starts_with("HTTP/1.1 201 Created\r\n"), "{answered:?}");
        assert!(answered.contains("\r\nx-id: 7\r\n"), "{answered:?}");
        assert!(!answered.ends_with("0\r\n\r\n"), "{answered:?}");
        let request = Request::post("http://a/").body(()).unwrap();
        let (answered, mut body) = http2(&proxy).await.send_request(request, false).unwrap();
        body.send_data("hi".into(), true).unwrap();
        let mut answered = answered.await.unwrap();
        assert_eq!(answered.status(), 201);
        let error = loop {
            if let Err(error) = answered.body_mut().data().await.expect("the body is incomplete") {
                break error;
            }
        };
        assert!(error.is_reset(), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn upstreams_may_allow_longer_pauses() {
    let pause = Duration::from_secs(1_800);
    let slow = || upstream(CHUNKED, Then::Send(pause, "5\r\nworld\r\n0\r\n\r\n")).0;
    let answer = Proxy::with(slow(), |settings| settings.timeouts.body = 2 * pause);
    let answer = answer.exchange(GET).await;
    assert!(answer.contains("hello") && answer.ends_with("world\r\n0\r\n\r\n"), "{answer}");
    let answer = Proxy::to(slow()).exchange(GET).await;
    assert!(answer.contains("hello") && !answer.contains("world"), "{answer}");
}

/// The service has started to respond, so it has already processed the request.
#[tokio::test(start_paused = true)]
async fn partial_response_prevents_a_retry() {
    for (answer, tries) in [
        ("H", 1),
        ("HTTP/1.1 200 OK\r\nContent-", 1),
        ("HTTP/1.1 100 Continue\r\n\r\n", 1),
        ("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n", 1),
        // If there is no response at all, the request may not have arrived.
        ("", 2),
    ] {
        let (upstream, requests) = upstream(answer, Then::Close);
        let answered = Proxy::to(upstream).exchange(GET).await;
        assert!(answered.ends_with(Fault::BadAnswer.code()), "{answered}");
        assert_eq!(requests.lock().len(), tries, "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn connect_timeout_precedes_response_timeout() {
    let never: Dial = Arc::new(|| Box::pin(std::future::pending()));
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let proxy = Proxy::with(Arc::clone(&never), |settings| {
            settings.servers.protocol = protocol;
            // The response timeout starts only after the connection is established.
            settings.timeouts.response = CONNECT / 5;
        });
        for body in ["", "hello"] {
            let started = Instant::now();
            let length = body.len();
            let request = format!(
                "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            let answer = proxy.exchange(request).await;
            assert!(answer.contains(Fault::ConnectTimeout.code()), "{protocol:?} {answer}");
            assert_eq!(started.elapsed().as_secs(), CONNECT.as_secs());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn response_timeout_excludes_connecting() {
    let slow = delayed(ok().0, CONNECT / 2);
    let proxy = Proxy::with(slow, |settings| settings.timeouts.response = CONNECT / 4);
    let answer = proxy.exchange(GET).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Over HTTP/2, the request waits for the server's settings.
    let server: Dial = Arc::new(|| {
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(async move {
            tokio::time::sleep(CONNECT / 8).await;
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                respond.send_response(Response::new(()), true).unwrap();
            }
        });
        Box::pin(async { Ok(ours) })
    });
    let proxy = Proxy::with(server, |settings| {
        http2_upstream(settings);
        settings.timeouts.response = CONNECT / 4;
    });
    let answer = proxy.exchange(GET).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn missing_body_is_a_client_error() {
    let (upstream, requests) = ok();
    let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello";
    let answer = Proxy::to(upstream).exchange(request).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request-timeout"), "{answer}");
    assert_eq!(requests.lock().len(), 0);
}

/// A slow upload must not count as a slow response.
#[tokio::test(start_paused = true)]
async fn response_timeout_excludes_the_upload() {
    let proxy = Proxy::with(ok().0, |settings| settings.timeouts.response = IDLE / 4);
    let mut client = proxy.connect();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nConnection: close\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    for byte in b"helloworld" {
        tokio::time::sleep(IDLE / 2).await;
        client.write_all(&[*byte]).await.unwrap();
    }
    let answer = rest_of(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn slow_header_times_out() {
    let (upstream, requests) = ok();
    let proxy = Proxy::to(upstream);
    let endless = format!("GET / HTTP/1.1\r\nX-Endless: {}", "a".repeat(2_000));
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // SETTINGS, then HEADERS with 8 KiB.
    let headers = b"\0\0\0\x04\0\0\0\0\0\0\x20\0\x01\0\0\0\0\x01\x82\x86\x84\x40\x01";
    let headers = [&preface[..], headers, &[b'a'; 2_000]].concat();
    for opening in [endless.as_bytes(), &preface[..20], preface, &headers] {
        let mut client = proxy.connect();
        let started = Instant::now();
        // A byte now and then does not extend the time.
        for byte in opening {
            tokio::time::sleep(HEAD / 1_000).await;
            if client.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
        rest_of(&mut client).await;
        let kept = started.elapsed();
        assert!((HEAD..HEAD * 3 / 2).contains(&kept), "{}: {kept:?}", opening.escape_ascii());
    }
    assert_eq!(requests.lock().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn idle_connection_is_closed() {
    let proxy = Proxy::to(ok().0);
    for request in ["", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let started = Instant::now();
        let answer = proxy.exchange(request).await;
        assert_eq!(answer.starts_with("HTTP/1.1 200"), !request.is_empty(), "{answer}");
        let kept = started.elapsed();
        assert!((KEEP_ALIVE..KEEP_ALIVE + HEAD).contains(&kept), "{request:?}: {kept:?}");
    }
}

/// A client that does not read would otherwise occupy an upstream connection.
#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_is_disconnected() {
    let large: &'static str =
        format!("{}{}", OK.replace(": 2", ": 8000002"), "x".repeat(8_000_000)).leak();
    let mut client = Proxy::to(upstream(large, Then::Hang).0).connect();
    client.write_all(GET.as_bytes()).await.unwrap();
    tokio::time::sleep(3 * IDLE).await;
    let read = rest_of(&mut client).await.len();
    assert!((1..1 << 20).contains(&read), "{read} bytes arrived");
}
