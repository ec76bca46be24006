//! One that takes too much takes nothing from the others.

mod support;

use airouter_sessiond::client::{FollowOptions, WaitFor};
use support::{Bench, PATIENCE};

#[tokio::test]
async fn readers_that_take_every_descriptor_strand_no_session() {
    let bench = Bench::new();
    let (long, _) = bench.run("awk 'BEGIN { for (n = 0; n < 20000; n++) print n }'").await;
    let greedy = bench.client().await;
    let options = FollowOptions { raw: false, live: true };
    let mut held = Vec::new();
    let refused = loop {
        match greedy.follow(long, "start", options).await {
            Ok(follow) => held.push(follow),
            Err(error) => break error,
        }
        assert!(held.len() < 2_000, "nothing bounds them");
    };
    assert_eq!(refused.refusal(), Some("AtCapacity"), "{refused}");
    let begun = std::time::Instant::now();
    let (_, status) = bench.run("echo '{}'").await;
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    assert!(begun.elapsed().as_secs() < 20, "the others are served: {:?}", begun.elapsed());
    drop(held);
    let client = bench.client().await;
    client.follow(long, "start", options).await.expect("there is room again");
    assert!(client.wait(long, WaitFor::Finished, PATIENCE).await.expect("answers").is_over());
}

#[tokio::test]
async fn programs_get_the_usual_limit_of_descriptors() {
    let bench = Bench::new();
    let (_, status) = bench.run("ulimit -Sn >limit; ulimit -Hn >>limit").await;
    assert_eq!(status.end(), Some("completed"));
    let limit = bench.read("limit");
    let hard = limit.lines().nth(1).expect("two lines");
    let usual = hard.parse::<u64>().map_or(1024, |hard| hard.min(1024));
    assert_eq!(limit.lines().next(), Some(usual.to_string().as_str()), "{limit}");
}
