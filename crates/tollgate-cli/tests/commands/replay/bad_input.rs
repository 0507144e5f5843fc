//! Input that cannot be replayed, and output that cannot be written.

use super::*;

#[test]
fn devices_are_not_replaced_by_reports() {
    let folder = Folder::new(&log());
    // Through a link, so a program that replaces its target replaces only the link.
    std::os::unix::fs::symlink("/dev/full", folder.0.path().join("report")).unwrap();
    for arguments in [
        &["suggest", "access.log", "-o", "report"][..],
        &["replay", "limits.yaml", "access.log", "--html", "report"],
    ] {
        let output = folder.tollgate(arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(
            told.starts_with("error[TG0707]: cannot write report: No space left on device"),
            "{told}"
        );
    }
    assert!(folder.0.path().join("report").is_symlink());
}

#[test]
fn full_disk_fails_but_closed_pipe_succeeds() {
    let folder = Folder::new(&log());
    let run = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["replay", "limits.yaml", "access.log"]).current_dir(folder.0.path());
        command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
    };
    let full = run(fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
    let told = String::from_utf8(full.stderr).unwrap();
    assert_eq!(full.status.code(), Some(1), "{told}");
    assert!(told.starts_with("error: cannot write the output: No space left"), "{told}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let closed = run(writer.into());
    assert_eq!((closed.status.code(), closed.stderr), (Some(0), Vec::new()));
}

#[test]
fn bad_input_exits_with_2_and_writes_no_report() {
    let folder = Folder::new(&log());
    let day_before = line(0, "203.0.113.7", "/").replace("22/Nov", "21/Nov");
    folder.write("empty.log", "");
    let back = line(3, "203.0.113.7", "/").repeat(20) + &day_before.repeat(20);
    folder.write("back.log", &back);
    folder.write("hosts.log", &line(3, "crawl-66.example.com", "/"));
    folder.write("quoted.log", &format!("\"{}", line(3, "203.0.113.7", "/")));
    folder.write("own.log", "{\"t\": 1, \"m\": \"GET\", \"u\": \"/\"}\n");
    let binary: Vec<u8> =
        (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(folder.0.path().join("binary.log"), binary).unwrap();
    // Random enough that the first half of the compressed file contains many complete lines.
    let long: String = (0..50_000).map(|n| line(n / 20, "203.0.113.7", &format!("/{n}"))).collect();
    folder.write("cut.log", &long);
    for compressor in ["gzip", "zstd"] {
        let output =
            Command::new(compressor).args(["-c", "cut.log"]).current_dir(folder.0.path()).output();
        let bytes = output.unwrap().stdout;
        let name = format!("cut.{compressor}");
        fs::write(folder.0.path().join(name), &bytes[..bytes.len() / 2]).unwrap();
    }
    for (arguments, expected, code) in [
        (&["limits.yaml", "empty.log"][..], "empty.log has no lines", "TG0704"),
        (&["limits.yaml", "."], "it is a directory", "TG0701"),
        (&["limits.yaml", "nowhere.log"], "cannot open nowhere.log", "TG0701"),
        (&["limits.yaml", "limits.yaml"], "can be read as a common or combined log", "TG0702"),
        (
            &["limits.yaml", "binary.log"],
            "of binary.log can be read as a common or combined log",
            "TG0702",
        ),
        (&["limits.yaml", "cut.gzip"], "cannot read cut.gzip after line ", "TG0701"),
        (&["limits.yaml", "cut.zstd"], "cannot read cut.zstd after line ", "TG0701"),
        (&["limits.yaml", "access.log", "--log", "caddy"], "it is not a JSON object", "TG0702"),
        (&["limits.yaml", "back.log"], "line 21 of back.log is 86403 s earlier", "TG0706"),
        (
            &["limits.yaml", "hosts.log"],
            "its remote_addr is `crawl-66.example.com`, which is not the",
            "TG0702",
        ),
        (
            &["limits.yaml", "quoted.log"],
            "which is not the address of a client; name its format",
            "TG0702",
        ),
        (
            &["limits.yaml", "own.log", "--log", "json:time=t,method=m,target=u"],
            "no request has a client",
            "TG0705",
        ),
        (
            &["limits.yaml", "own.log", "--log", "json:time=t,method=m,target=u,user=who"],
            "no line of own.log has the field `who` with a readable value; correct its name in --log",
            "TG0702",
        ),
        (
            &["limits.yaml", "own.log", "--log", "json:time=t,target=u"],
            "no method in the format; add",
            "TG0703",
        ),
        (
            &["limits.yaml", "access.log", "--strict"],
            "line 13 of access.log cannot be read",
            "TG0702",
        ),
        (
            &["limits.yaml", "access.log", "--log", "apache"],
            "`apache` is not a log format",
            "TG0703",
        ),
        (&["nowhere.yaml", "access.log"], "nowhere.yaml", "TG0001"),
        (&["limits.yaml", "access.log", "--compare", "access.log"], "error", "TG0011"),
        (
            &["limits.yaml", "access.log", "--html", "no/such/report.html"],
            "cannot write no/such",
            "TG0707",
        ),
    ] {
        let mut all = vec!["replay"];
        all.extend(arguments);
        if !arguments.contains(&"--html") {
            all.extend(["--html", "report.html"]);
        }
        let output = folder.tollgate(&all);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains(expected) && told.contains(code), "{arguments:?}: {told}");
        assert!(output.stdout.is_empty());
        let left = fs::read_dir(folder.0.path()).unwrap().map(|it| it.unwrap().file_name());
        assert!(left.into_iter().all(|name| !name.to_str().unwrap().starts_with("report")));
    }
}

#[test]
fn unusable_logs_and_options_are_rejected() {
    let folder = Folder::new(&line(3, "crawl-66.example.com", "/"));
    folder.write("own.log", "{\"t\": 1, \"m\": \"GET\", \"u\": \"/\"}\n");
    let request = line(3, "203.0.113.9", "/");
    folder.write("preflights.log", &request.replace("GET", "OPTIONS"));
    folder.write("bytes.log", &request.replace("GET /", "\\x16\\x03"));
    for (arguments, expected, code) in [
        (&["suggest", "access.log"][..], "its remote_addr is `crawl-66.example.com`", "TG0702"),
        (
            &["suggest", "own.log", "--log=json:time=t,method=m,target=u"],
            "no request has a client",
            "TG0705",
        ),
        (
            &["suggest", "preflights.log"],
            "no limit charges any line: they are preflights",
            "TG0704",
        ),
        (&["suggest", "bytes.log"], "no limit charges any line", "TG0704"),
        (&["replay", "limits.yaml", "bytes.log"], "no limit charges any line", "TG0704"),
        (&["suggest", "access.log", "--window=500ms"], "expected whole seconds such as 60s", ""),
        (
            &["suggest", "access.log", "--pattern=item/{id}"],
            "expected a path such as /item/{id}",
            "",
        ),
    ] {
        let output = folder.tollgate(arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(expected) && told.contains(code), "{told}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
