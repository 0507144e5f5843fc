//! Reloads, and what operators see of the configuration.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::sleep;
use tollgate_test_servers::Redis;

use crate::support::{Client, Gateway, Upstream, until, whole};

fn lines(upstream: &Upstream, limit: u32) -> String {
    format!(
        "{}strategy: sliding_window_log\nglobal: {{limit: {limit}, windowSeconds: 3600}}\n",
        upstream.target()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_preserves_the_wait_queue() {
    let upstream = Upstream::new().await;
    let lines = |requests: u32| {
        format!(
            "{}strategy: sliding_window_log\n\
             global: {{limit: 1, window: 1h, excess: {{wait: 2h}}}}\n\
             waiting: {{requests: {requests}}}\n",
            upstream.target()
        )
    };
    let gateway = Gateway::start(&lines(9));
    let address = gateway.address;
    assert_eq!(Client::new(address).get("/").await.status, 200);
    let waiting = tokio::spawn(async move { Client::new(address).get("/").await.status });
    let waits = "tollgate_waiting_requests{policy=\"global\"} 1";
    while !String::from_utf8_lossy(&gateway.admin("/metrics").await.body).contains(waits) {
        sleep(Duration::from_millis(10)).await;
    }
    gateway.rewrite(&lines(1));
    gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(Client::new(address).get("/").await.status, 429, "the queue is full");
    assert!(!waiting.is_finished());
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_file_changes_nothing() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&lines(&upstream, 5));
    fs::remove_file(gateway.file("limits.yaml")).unwrap();
    gateway.until_config(|config| config["failedReloads"] == 1).await;
    assert_eq!(Client::new(gateway.address).get("/").await.status, 200);
}

/// Tools create files in any order, and often create the folder first.
#[tokio::test(flavor = "multi_thread")]
async fn missing_file_is_read_when_it_appears() {
    let upstream = Upstream::new().await;
    let (gateway, client) = Gateway::with_client(&lines(&upstream, 5));
    let naming = |file: &str| format!("{}deny: {{file: {file}}}\n", lines(&upstream, 5));
    gateway.rewrite(&naming("lists/of/deny.txt"));
    gateway.until_config(|config| config["failedReloads"] == 1).await;
    assert_eq!(client.get("/").await.status, 200);
    fs::create_dir(gateway.file("lists")).unwrap();
    fs::create_dir(gateway.file("lists/of")).unwrap();
    fs::write(gateway.file("lists/of/deny.txt"), "127.0.0.0/8\n").unwrap();
    gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(client.get("/").await.status, 403);

    // A replacement folder is watched as well.
    fs::create_dir_all(gateway.file("new/of")).unwrap();
    fs::write(gateway.file("new/of/deny.txt"), "192.0.2.0/24\n").unwrap();
    fs::rename(gateway.file("lists"), gateway.file("old")).unwrap();
    fs::rename(gateway.file("new"), gateway.file("lists")).unwrap();
    gateway.until_config(|config| config["version"] == 3).await;
    assert_eq!(client.get("/").await.status, 200);
    fs::write(gateway.file("lists/of/deny.txt"), "127.0.0.0/8\n").unwrap();
    gateway.until_config(|config| config["version"] == 4).await;
    fs::remove_dir_all(gateway.file("lists")).unwrap();
    gateway.until_config(|config| config["current"] == false).await;
    assert_eq!(client.get("/").await.status, 403);
    fs::create_dir_all(gateway.file("lists/of")).unwrap();
    fs::write(gateway.file("lists/of/deny.txt"), "192.0.2.0/24\n").unwrap();
    gateway.until_config(|config| config["version"] == 5).await;

    // A symlink's target may be created after the link and in another folder.
    symlink("elsewhere/deny.txt", gateway.file("link.txt")).unwrap();
    gateway.rewrite(&naming("link.txt"));
    gateway.until_config(|config| config["current"] == false).await;
    fs::create_dir(gateway.file("elsewhere")).unwrap();
    fs::write(gateway.file("elsewhere/deny.txt"), "127.0.0.0/8\n").unwrap();
    gateway.until_config(|config| config["version"] == 6).await;
    assert_eq!(client.get("/").await.status, 403);
}

/// No process writes to the pipe, so reading from it would block forever.
#[tokio::test(flavor = "multi_thread")]
async fn pipe_instead_of_file_does_not_block() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&lines(&upstream, 5));
    let pipe = gateway.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let client = Client::new(gateway.address);
    let told = |config: &serde_json::Value, file: &str| {
        let message = config["lastError"]["message"].as_str().unwrap_or_default();
        message.contains(file) && message.contains("it is a pipe")
    };
    gateway.rewrite(&format!("{}deny: {{file: pipe}}\n", lines(&upstream, 5)));
    gateway.until_config(|config| told(config, "pipe:")).await;
    fs::rename(&pipe, gateway.file("limits.yaml")).unwrap();
    gateway.until_config(|config| told(config, "limits.yaml:")).await;
    assert_eq!(client.get("/").await.status, 200);
    gateway.rewrite(&lines(&upstream, 6));
    gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(client.get("/").await.status, 200);
}

/// Kubernetes mounts a config map this way: `limits.yaml -> ..data/limits.yaml`, `..data -> ..1`.
/// An update swaps `..data`.
#[tokio::test(flavor = "multi_thread")]
async fn swapped_symlink_triggers_a_reload() {
    let upstream = Upstream::new().await;
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_owned();
    let version = |name: &str, limit| {
        fs::create_dir(path.join(name)).unwrap();
        fs::write(path.join(name).join("limits.yaml"), whole(&lines(&upstream, limit))).unwrap();
        symlink(name, path.join("..data_tmp")).unwrap();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    };
    version("..1", 5);
    symlink("..data/limits.yaml", path.join("limits.yaml")).unwrap();
    let gateway = Gateway::start_with(folder, "limits.yaml");
    let client = Client::new(gateway.address);
    assert_eq!(client.get("/").await.header("x-ratelimit-remaining"), "4");
    for (number, limit, left) in [(2, 7, "5"), (3, 9, "6")] {
        version(&format!("..{number}"), limit);
        fs::remove_dir_all(path.join(format!("..{}", number - 1))).unwrap();
        gateway.until_config(|config| config["version"] == number).await;
        assert_eq!(client.get("/").await.header("x-ratelimit-remaining"), left);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_reloads_an_unchanged_file() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&lines(&upstream, 5));
    gateway.signal("HUP");
    gateway.until_config(|config| config["version"] == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_under_load_fail_no_request() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&lines(&upstream, 1_000_000));
    let done = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicUsize::new(0));
    let mut load = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (done, sent) = (Arc::clone(&done), Arc::clone(&sent));
        let client = if number % 2 == 0 {
            Client::new(gateway.address)
        } else {
            Client::http2(gateway.address)
        };
        load.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let answer = client.send("POST", "/", &[], "body").await.unwrap();
                assert_eq!((answer.status.as_u16(), &*answer.body), (200, &b"ok"[..]));
                sent.fetch_add(1, Ordering::Relaxed);
                // Leave time for the gateway's other tasks.
                sleep(Duration::from_millis(1)).await;
            }
        });
    }
    for version in 2..6 {
        let before = sent.load(Ordering::Relaxed);
        gateway.rewrite(&lines(&upstream, 1_000_000 + version));
        gateway.until_config(|config| config["version"] == version).await;
        until("100 requests were sent", async || sent.load(Ordering::Relaxed) >= before + 100)
            .await;
    }
    done.store(true, Ordering::Relaxed);
    load.join_all().await;
    // Every request was charged.
    let sent = sent.load(Ordering::Relaxed);
    let left = Client::new(gateway.address).get("/").await;
    let left: usize = left.header("x-ratelimit-remaining").parse().unwrap();
    assert_eq!(left, 1_000_005 - sent - 1);
}

#[test]
fn invalid_file_or_used_port_fails_startup() {
    let run = |lines: &str| {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("limits.yaml"), whole(lines)).unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--config", "limits.yaml"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run("target: 5\n");
    assert_eq!(code, Some(2), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, said) = run(&format!("listen: {address}\ntarget: http://127.0.0.1:9\n"));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("error[TG0401]: cannot listen on {address}")), "{said}");
    assert!(said.contains("choose another `listen`"), "{said}");
    // A gateway does not take over a socket that another one listens on.
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("decide.sock");
    let _taken = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let policies = "policies: [{identifier: a, limit: 1, window: 1h}]";
    let (code, said) = run(&format!("decisionApi: {{socket: {}, {policies}}}\n", path.display()));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("cannot listen on {}", path.display())), "{said}");
    assert!(said.contains("choose another `decisionApi.socket`"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_says_why_redis_is_not_usable() {
    let redis = Redis::builder().password("s3cret").start();
    let refused = redis.url().replace("s3cret", "wr0ng");
    for (url, code) in [(&*refused, "TG0310"), ("redis://127.0.0.1:9", "TG0309")] {
        let upstream = Upstream::new().await;
        let store = format!("store: {{redis: {{url: '{url}'}}}}\n");
        let gateway = Gateway::start(&format!("{}{store}", upstream.target()));
        gateway.until_logged(&format!(" [{code}]"));
    }
}

/// A server that starts later, with another password.
#[tokio::test(flavor = "multi_thread")]
async fn log_names_login_after_connection_errors() {
    let redis = Redis::builder().password("s3cret").start();
    let server = redis.url().rsplit('@').next().unwrap().trim_end_matches('/').to_owned();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = redis.url().replace("s3cret", "wr0ng");
    let url = url.replace(&server, &listener.local_addr().unwrap().to_string());
    let (starts, mut is_started) = tokio::sync::watch::channel(false);
    let proxy = tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            if *is_started.borrow_and_update() {
                let mut server = tokio::net::TcpStream::connect(&server).await.unwrap();
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        }
    });
    let upstream = Upstream::new().await;
    let store = format!("store: {{redis: {{url: '{url}'}}}}\n");
    let gateway = Gateway::start(&format!("{}{store}", upstream.target()));
    gateway.until_logged(" [TG0309]");
    assert!(!gateway.log().contains("TG0310"), "{}", gateway.log());
    starts.send_replace(true);
    gateway.until_logged(" [TG0310]");
    assert_eq!(gateway.log().matches(" [TG0309]").count(), 1, "{}", gateway.log());
    proxy.abort();
}
