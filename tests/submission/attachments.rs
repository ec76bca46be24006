//! Attachments.

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use airouter_sessiond::client::{Attachment, WaitFor};
use airouter_sessiond::model::Submission;
use nix::sys::memfd::{MFdFlags, memfd_create};
use zbus::Variant;

use super::support::{Bench, PATIENCE, text, until};
use super::{agent, bench, refusal, spool, submit};

pub fn png(size: usize) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    bytes.extend((bytes.len()..size).map(|n| (n * 31 % 251) as u8));
    bytes
}

#[tokio::test]
async fn the_program_gets_the_bytes_that_were_sent() {
    let bench = bench("");
    let client = bench.client().await;
    let submission = agent(&bench);
    let files = [
        ("a.png", png(300_000), "png"),
        ("b ü.jpeg", b"\xff\xd8\xff\xe0rest".to_vec(), "jpg"),
        ("c", b"GIF89a\0\0".to_vec(), "gif"),
        ("d.webp", b"RIFF\x04\0\0\0WEBP".to_vec(), "webp"),
        ("the same again.png", png(300_000), "png"),
    ];
    let attachments: Vec<_> =
        files.iter().map(|(name, bytes, _)| Attachment::new(*name, bytes.clone())).collect();
    submit(&client, &submission, &attachments).await.expect("submits");
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"), "{:?}\n{}", status.json(), bench.log());

    let folder = super::ended(&bench, submission.run_id());
    let kept: Vec<_> = std::fs::read_dir(folder.join("attachments")).expect("kept").collect();
    assert_eq!(kept.len(), 4, "each content once");
    for entry in kept {
        assert_eq!(
            entry.expect("an entry").metadata().expect("metadata").permissions().mode() & 0o7777,
            0o600
        );
    }
    let modes = bench.read(&format!("modes-{}", submission.run_id()));
    assert_eq!(modes.lines().count(), 5);
    assert!(modes.lines().all(|line| line.starts_with("600 ")), "{modes}");
    let arguments = bench.read(&format!("arguments-{}", submission.run_id()));
    for (_, bytes, ending) in &files {
        let line = arguments.lines().find(|line| {
            let name = line.rsplit('/').next().unwrap_or_default();
            let got = bench.path().join(format!("got-{}-{name}", submission.run_id()));
            name.ends_with(&format!(".{ending}")) && std::fs::read(got).is_ok_and(|got| got == *bytes)
        });
        assert!(line.is_some(), "{ending} of {} bytes is not among {arguments}", bytes.len());
    }
}

#[tokio::test]
async fn what_is_refused_leaves_nothing() {
    let bench = bench("[limits]\nattachments = 3\nattachment_bytes = 1000\n");
    let client = bench.client().await;
    let before = spool(&bench);
    let fine = || Attachment::new("a.png", png(400));
    let named = |name: &str| Attachment::new(name, png(40));
    for (attachments, key) in [
        (vec![fine().with_sha256("0".repeat(64))], "attachments[0].sha256: is not the SHA-256"),
        (vec![fine(), named("b").with_sha256("")], "attachments[1].sha256: is not the SHA-256"),
        (vec![named("b"), Attachment::new("c", b"%PDF-1.7".to_vec())], "attachments[1]: is neither PNG"),
        (vec![Attachment::new("c", Vec::new())], "attachments[0]: is neither PNG"),
        (vec![fine().with_media_type("image/jpeg")], "attachments[0].media-type: is not what"),
        (vec![fine(), Attachment::new("b", png(601))], "attachments: are more than 1000 bytes together"),
        (vec![named("1"), named("2"), named("3"), named("4")], "attachments: are 4; the limit is 3"),
        (vec![named("a/b.png")], "attachments[0].name: holds '/'"),
        (vec![named("a\nb")], "attachments[0].name: holds '/'"),
        (vec![named("")], "attachments[0].name: must have 1 to 256"),
        (vec![named(&"x".repeat(257))], "attachments[0].name: must have 1 to 256"),
        (vec![fine(), named("a.png")], "attachments[1].name: is that of an attachment before"),
    ] {
        let text = refusal(submit(&client, &agent(&bench), &attachments).await);
        assert!(text.contains("InvalidSubmission: ") && text.contains(key), "{key}: {text}");
    }
    let mut unable = Submission { profile: "sh".into(), ..agent(&bench) };
    unable.arguments = vec!["true".into()];
    let text = refusal(submit(&client, &unable, &[fine()]).await);
    assert!(text.contains("attachments: the dialect jsonl takes no attachments"), "{text}");
    let unable = Submission { profile: "claude".into(), ..agent(&bench) };
    let text = refusal(submit(&client, &unable, &[fine()]).await);
    assert!(text.contains("attachments: ") && text.contains("claude-stream"), "{text}");
    assert_eq!(spool(&bench), before);
    let exact = [fine(), Attachment::new("b", png(600))];
    submit(&client, &agent(&bench), &exact).await.expect("the limits themselves are allowed");
}

#[tokio::test]
async fn a_retry_with_the_same_content_is_the_same_session() {
    let mut bench = bench("");
    let submission = agent(&bench);
    let sent = [Attachment::new("a.png", png(5000)), Attachment::new("b.png", png(700))];
    let mut one_byte = png(5000);
    one_byte[4000] ^= 1;
    let changed = [
        vec![],
        vec![sent[0].clone()],
        vec![sent[1].clone(), sent[0].clone()],
        vec![Attachment::new("a.png", one_byte), sent[1].clone()],
        vec![Attachment::new("other.png", png(5000)), sent[1].clone()],
    ];
    for round in 0..3 {
        let client = bench.client().await;
        for _ in 0..2 {
            let same = submit(&client, &submission, &sent).await.expect("the same");
            assert_eq!(same.status.run_id().expect("run_id"), submission.run_id());
            // Said or not, it is the same type.
            let typed = sent.clone().map(|attachment| attachment.with_media_type("image/png"));
            submit(&client, &submission, &typed).await.expect("the same");
        }
        for other in &changed {
            let text = refusal(submit(&client, &submission, other).await);
            assert!(text.contains("SubmissionChanged"), "{round}: {text}");
        }
        client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
        if round == 1 {
            bench.kill();
            bench.start();
        }
    }
    assert_eq!(bench.read(&format!("starts-{}", submission.run_id())), "start\n");
}

#[tokio::test]
async fn as_many_as_are_allowed_travel_in_one_call() {
    let bench = bench("");
    let client = bench.client().await;
    let mut many: Vec<_> = (0..32).map(|n| Attachment::new(format!("{n}.png"), png(100_000 + n))).collect();
    let submission = agent(&bench);
    // Its input too by a descriptor: it is no text.
    let input = Some(b"\0".repeat(100));
    client.submit_with(&submission, input, &many).await.expect("submits");
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    assert_eq!(bench.read(&format!("modes-{}", submission.run_id())).lines().count(), 32);
    many.push(Attachment::new("one more.png", png(10)));
    assert!(refusal(submit(&client, &agent(&bench), &many).await).contains("are 33; the limit is 32"));
}

#[tokio::test]
async fn a_program_that_is_talked_to_is_sent_the_bytes() {
    let bench = bench("");
    let client = bench.client().await;
    let submission = Submission { profile: "talker".into(), ..agent(&bench) };
    let sent = [Attachment::new("a.png", png(3000)), Attachment::new("b.gif", b"GIF89a\0".to_vec())];
    submit(&client, &submission, &sent).await.expect("submits");
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert!(status.is_over(), "{:?}", status.json());
    let heard = bench.read(&format!("heard-{}", submission.run_id()));
    let prompt: serde_json::Value =
        serde_json::from_str(heard.lines().nth(1).expect("a prompt")).expect("JSON");
    assert_eq!(prompt["message"], "What is it?");
    let images = prompt["images"].as_array().expect("images");
    let types: Vec<_> = images.iter().map(|image| &image["mimeType"]).collect();
    assert_eq!(types, ["image/png", "image/gif"]);
    use base64::Engine;
    let data = base64::engine::general_purpose::STANDARD.decode(images[0]["data"].as_str().expect("text"));
    assert_eq!(data.expect("base64"), png(3000));
    let latin = Submission { profile: "talker".into(), ..agent(&bench) };
    let text = refusal(client.submit_with(&latin, Some(vec![0xe4]), &[]).await);
    assert!(text.contains("InvalidSubmission: input: is not UTF-8"), "{text}");
}

#[tokio::test]
async fn files_and_memfds_are_read_from_their_beginning_and_devices_refused() {
    let bench = bench("");
    let address = bench.address();
    let connection =
        zbus::connection::Builder::address(address.as_str()).p2p().build().await.expect("connects");
    let bytes = png(2000);
    let mut memfd = std::fs::File::from(memfd_create(c"a", MFdFlags::empty()).expect("memfd"));
    let mut file = tempfile::tempfile().expect("a file");
    // Their positions are at their ends now.
    memfd.write_all(&bytes).expect("writes");
    file.write_all(&bytes).expect("writes");
    let sha256 = airouter_sessiond::spool::sha256(&bytes);
    let call = async |submission: &Submission, fds: &[&dyn AsFd]| {
        let attachments: Vec<HashMap<&str, Variant<'_>>> = fds
            .iter()
            .enumerate()
            .map(|(index, fd)| {
                let fd: OwnedFd = fd.as_fd().try_clone_to_owned().expect("a copy");
                HashMap::from([
                    ("name", Variant::from(format!("{index}.png"))),
                    ("sha256", Variant::from(sha256.to_uppercase())),
                    ("fd", Variant::from(zbus::Fd::from(fd))),
                ])
            })
            .collect();
        let binding = HashMap::from([("run_id", Variant::from(submission.run_id().to_string()))]);
        let environment: HashMap<&str, &str> =
            submission.environment.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let dictionary: HashMap<&str, Variant<'_>> = HashMap::from([
            ("version", Variant::from("airouter.sessions.v1")),
            ("binding", Variant::from(binding)),
            ("profile", Variant::from("agent")),
            ("environment", Variant::from(environment)),
            ("directory", Variant::from(submission.directory.clone().expect("a directory"))),
            ("input", Variant::from("What is it?")),
            ("attachments", Variant::from(attachments)),
        ]);
        let name = "org.airouter.Sessions1";
        connection
            .call_method(Some(name), "/org/airouter/Sessions1", Some(name), "Submit", &(dictionary,))
            .await
    };
    let submission = agent(&bench);
    call(&submission, &[&memfd, &file]).await.expect("submits");
    let client = bench.client().await;
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    let got = bench.path().join(format!("got-{}-{sha256}.png", submission.run_id()));
    assert_eq!(std::fs::read(got).expect("it got there"), bytes);

    let before = spool(&bench);
    let zero = std::fs::File::open("/dev/zero").expect("opens");
    let refused = call(&agent(&bench), &[&file, &zero]).await.expect_err("refused").to_string();
    assert!(refused.contains("attachments[1].fd: is a device"), "{refused}");
    assert_eq!(spool(&bench), before);
}

#[tokio::test]
async fn what_changed_since_its_admission_is_never_run() {
    for change in ["bytes", "missing", "schema"] {
        let bench = bench("[limits]\nactive = 1\n");
        let client = bench.client().await;
        let mut first = agent(&bench);
        first.environment.insert("GATE".into(), "go".into());
        submit(&client, &first, &[]).await.expect("submits");
        let mut waiting = agent(&bench);
        waiting.output_schema = Some("true".into());
        submit(&client, &waiting, &[Attachment::new("a.png", png(500))]).await.expect("submits");
        let folder = bench.spool().join("active").join(waiting.run_id().to_string());
        let kept = std::fs::read_dir(folder.join("attachments")).expect("kept").next();
        let kept = kept.expect("one").expect("an entry").path();
        match change {
            "bytes" => std::fs::write(&kept, png(501)).expect("writes"),
            "missing" => std::fs::remove_file(&kept).expect("removes"),
            _ => std::fs::write(folder.join("output-schema.json"), "false").expect("writes"),
        }
        bench.write("go", "");
        client.wait(first.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
        let file = if change == "schema" { "output-schema.json" } else { ".png" };
        until("it is said", || bench.log().contains(file));
        let status = client.wait(waiting.run_id(), WaitFor::Attention, PATIENCE).await.expect("waits");
        assert_ne!(status.end(), Some("completed"), "{change}");
        assert!(status.text("error").contains(file), "{change}: {:?}", status.json());
        assert_eq!(bench.read(&format!("starts-{}", waiting.run_id())), "", "{change}");
    }
}

#[test]
fn sessionctl_attaches_files() {
    let bench: Bench = bench("");
    std::fs::write(bench.path().join("a.png"), png(100)).expect("writes");
    bench.write("prompt", "What is it?");
    let id = airouter_sessiond::model::RunId::random();
    let arguments = |file: &str| {
        let (id, environment) = (id.to_string(), format!("ID={id}"));
        bench.sessionctl(&[
            "run",
            "--profile",
            "agent",
            "--run-id",
            &id,
            "--input-file",
            "prompt",
            "--env",
            &environment,
            "--attach",
            file,
        ])
    };
    let output = arguments("a.png");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(bench.read(&format!("arguments-{id}")).contains(".png"));
    let output = arguments("none.png");
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("the attachment none.png"), "{}", text(&output.stderr));
}
