//! Submits a session and prints its texts, each once and in order, whatever dies in between.
//!
//! ```text
//! cargo run --example subscriber -- PROFILE [ARGUMENT ...]
//! ```
//!
//! Transport: this crate's client takes the private socket, found by the account alone, or else the session bus; with
//! SESSIOND_SOCKET, that socket. It subscribes with `follow`: a pipe whose reader may be as slow as it likes, and whose
//! end tells that the service is gone.

use std::process::ExitCode;
use std::time::Duration;

use airouter_sessiond::client::{Client, Error, FollowOptions};
use airouter_sessiond::model::{RunId, Submission};

async fn connect() -> Result<Client, Error> {
    match std::env::var_os("SESSIOND_SOCKET") {
        Some(path) => Client::connect_socket(path.as_ref()).await,
        None => Client::connect().await,
    }
}

/// Prints what comes after the cursor and moves it, until the session's end (true) or the service's.
async fn follow(submission: &Submission, cursor: &mut String) -> Result<bool, Error> {
    let client = connect().await?;
    // The same submission again is the same session, never a second run: a reply that was lost does no harm.
    client.submit(submission, None).await?;
    let mut follow = client.follow(submission.run_id(), cursor, FollowOptions::default()).await?;
    while let Some(entry) = follow.next().await? {
        if entry.kind == "response-completed" {
            println!("{}", entry.details["text"].as_str().unwrap_or_default());
        }
        follow.position().clone_into(cursor);
    }
    Ok(follow.ended())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mut submission = Submission::new(RunId::random(), words.next().unwrap_or_default());
    submission.arguments = words.collect();
    let mut cursor = "start".to_owned();
    loop {
        match follow(&submission, &mut cursor).await {
            Ok(true) => return ExitCode::SUCCESS,
            Err(error) if !error.is_lost() && error.refusal() != Some("Stopping") => {
                eprintln!("{error}"); // it says what was wrong and what to do
                return ExitCode::FAILURE;
            }
            // The service is gone. Nobody tells when a socket is served again.
            Ok(false) | Err(_) => tokio::time::sleep(Duration::from_millis(250)).await,
        }
    }
}
