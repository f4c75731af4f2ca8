//! Outputs in a real S3 store that checks every signature.

use muster_tests::{
    Answer,
    prelude::*,
    s3::{BUCKET, S3},
    world::{on_node, target},
};

async fn world_on(s3: &S3) -> World {
    World::with_config(Some(&s3.config_through(&s3.endpoint))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn large_output_lands_in_the_bucket_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = S3::start(dir.path()).await;
    let world = world_on(&s3).await;
    let node = world
        .node("n")
        .hook(
            "large",
            "#!/bin/sh\nhead -c 300000 /dev/urandom > @DIR@/made\ncat @DIR@/made\n",
        )
        .hook("small", "#!/bin/sh\necho small\n")
        .start()
        .await;

    let ran = world.run(on_node("large", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");
    let made = std::fs::read(node.dir.join("made")).unwrap();
    let ended = target(&ran, node.id);
    let Some(OutputRef::ObjectStore { bucket, key, sha256 }) = &ended.output_ref else {
        panic!("{ended:#?}")
    };
    assert_eq!(
        (bucket.as_str(), key),
        (BUCKET, &format!("{}/{}/output", ran.id, node.id))
    );
    assert_eq!(*sha256, Digest::of(&made));
    assert!(
        s3.object(key).is_some_and(|kept| kept == made),
        "the bucket holds other bytes"
    );
    assert!(
        world.operator.output(ran.id, node.id).await == made,
        "control hands out other bytes"
    );

    let out = dir.path().join("out");
    let (execution, one) = (ran.id.to_string(), node.id.to_string());
    let mut command = world.operator.muster_command();
    command.args(["execution", "output", &execution, "--node", &one, "-o", "raw"]);
    command.stdout(std::fs::File::create(&out).unwrap());
    assert!(command.status().await.unwrap().success());
    assert!(
        std::fs::read(&out).unwrap() == made,
        "`muster execution output` writes other bytes"
    );

    // What fits into the callback needs no store.
    let ran = world.run(on_node("small", node.id)).await;
    assert_eq!(s3.object(&output_key(ran.id, node.id)), None);
    assert_eq!(world.operator.output(ran.id, node.id).await, b"small\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_takes_only_what_control_signed() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = S3::start(dir.path()).await;
    let world = world_on(&s3).await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let sent = world.dispatch(on_node("ping", node.id)).await;
    let mut frames = node.stream().await;
    let request = node.next_request(&mut frames).await;
    let _ = node
        .report(&request, &Callback::of(Status::Ack))
        .await
        .expect(200);
    let declared = Callback {
        declared_output_bytes: Some(20_000),
        ..Callback::of(Status::Started)
    };
    let answer: CallbackResponse = node.report(&request, &declared).await.expect(200).json();
    let url = answer.output_upload_url.expect("an upload is offered");
    assert!(url.starts_with(&s3.endpoint), "{url}");
    let (place, query) = url.split_once('?').unwrap();

    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let put = |url: &str, bytes: usize| {
        let mut ask = http.put(url).body(vec![b'o'; bytes]);
        for (name, value) in answer
            .output_upload_headers
            .iter()
            .filter(|(name, _)| *name != "content-length")
        {
            ask = ask.header(name, value);
        }
        ask
    };
    let key = output_key(sent.id, node.id);
    let elsewhere = place.replace(&node.id.to_string(), &sent.id.to_string());
    let longer = url.replace("X-Amz-Expires=", "X-Amz-Expires=1");
    for bad in [
        place.to_owned(),
        format!("{elsewhere}?{query}"),
        longer,
        url.replace("X-Amz-Signature=", "X-Amz-Signature=0"),
    ] {
        let answer = Answer::to(put(&bad, 20_000)).await;
        assert!(
            (400..500).contains(&answer.status),
            "{bad}: {} {}",
            answer.status,
            answer.text()
        );
    }
    assert!(
        (400..500).contains(&Answer::to(put(&url, 20_001)).await.status),
        "more bytes than were declared"
    );
    assert_eq!(s3.object(&key), None);

    assert_eq!(Answer::to(put(&url, 20_000)).await.status, 200);
    let ended = Callback {
        exit_code: Some(0),
        output: Some(CallbackOutput {
            object_key: Some(key.clone()),
            sha256: Some(Digest::of(&[b'o'; 20_000])),
            inline: None,
        }),
        ..Callback::of(Status::Succeeded)
    };
    let _ = node.report(&request, &ended).await.expect(200);
    assert_eq!(
        world.operator.output(sent.id, node.id).await,
        s3.object(&key).unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_down_costs_time_and_no_result() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = S3::start(dir.path()).await;
    let world = world_on(&s3).await;
    let script = "#!/bin/sh\necho begun > @DIR@/begun\nwhile [ ! -e @DIR@/go ]; do sleep 0.05; done\n\
                  head -c 50000 /dev/zero | tr '\\0' q\n";
    let node = world
        .node("n")
        .config("backoff_max_seconds = 1\n")
        .hook("large", script)
        .start()
        .await;
    let sent = world.dispatch(on_node("large", node.id)).await;
    until("the hook runs", async || {
        node.dir.join("begun").exists().then_some(())
    })
    .await;
    let s3 = s3.pause();
    std::fs::write(node.dir.join("go"), "").unwrap();
    until("the hook is over", async || {
        muster_tests::daemon::supervisors_under(&node.dir)
            .is_empty()
            .then_some(())
    })
    .await;
    let s3 = s3.resume().await;
    let ran = world.settled(sent.id).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");
    assert!(
        s3.object(&output_key(sent.id, node.id)) == Some(vec![b'q'; 50_000]),
        "other bytes"
    );
}
