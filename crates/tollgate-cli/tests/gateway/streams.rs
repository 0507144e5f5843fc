//! Bodies of any size are streamed in constant memory.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;

use crate::support::{Gateway, is_heavy, listen};

/// 1 GiB in the heavy version, or 64 MiB for quick tests.
fn size() -> u64 {
    if is_heavy() { 1 << 30 } else { 64 << 20 }
}

/// The gateway's maximum memory use, in MiB, which is less than the body size.
const MEMORY: u64 = 48;

/// Answers a GET with a body of [`size`] bytes, and other requests with their body's length.
fn serve(mut stream: TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let mut piece = vec![0; 1 << 16];
    if head.starts_with("get ") {
        let length = size();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(answer.as_bytes()).unwrap();
        for _ in 0..length / piece.len() as u64 {
            if stream.write_all(&piece).is_err() {
                return;
            }
        }
        return;
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut left: u64 = length.unwrap().parse().unwrap();
    let whole = left;
    while left > 0 {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(read) => left -= read as u64,
        }
    }
    let answer = format!("{whole} bytes");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
    stream.write_all(format!("{head}{answer}").as_bytes()).unwrap();
}

fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl").args(["-sS", "--fail"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn large_bodies_are_not_buffered() {
    let limits = "client: {limit: 100, windowSeconds: 3600}\n";
    let gateway = Gateway::start(&format!("target: http://{}\n{limits}", listen(serve)));
    let url = format!("http://{}/", gateway.address);
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("large");
    // A sparse file takes no disk space.
    std::fs::File::create(&file).unwrap().set_len(size()).unwrap();
    let file = file.to_str().unwrap();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let down = curl(&[version, "-o", "/dev/null", "-w", "%{size_download}", &url]);
        assert_eq!(down, size().to_string(), "{version}");
        assert_eq!(curl(&[version, "-T", file, &url]), format!("{} bytes", size()), "{version}");
        let peak = gateway.peak_memory();
        assert!(peak < MEMORY, "{version}: {peak} MiB");
    }
    println!("{} MiB each way, {} MiB at the highest", size() >> 20, gateway.peak_memory());
}

#[test]
fn slow_receiver_throttles_the_sender() {
    let gateway = Gateway::start(&format!("target: http://{}\n", listen(serve)));
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    thread::sleep(std::time::Duration::from_millis(500));
    assert!(gateway.peak_memory() < MEMORY, "{} MiB", gateway.peak_memory());
    let mut piece = vec![0; 1 << 16];
    let mut came = 0;
    loop {
        match stream.read(&mut piece).unwrap() {
            0 => break,
            read => came += read as u64,
        }
    }
    assert!(came > size(), "{came} bytes, head included");
}
