//! `muster-control doctor`: what it finds well, what it finds broken, and what it says to do.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use muster_tests::{
    faulty_store::{Fault, FaultyStore},
    operator::Said,
    prelude::*,
    s3::S3,
};

async fn doctor(world: &World, words: &[&str]) -> Said {
    world
        .control_tool(&[&["doctor", "-o", "json"], words].concat())
        .await
}

/// The findings of one check, as `VERDICT finding`, with their remedies.
fn findings(said: &Said, check: &str) -> Vec<(String, Option<String>)> {
    let all = said.json();
    let found = all["findings"].as_array().expect("findings are a list");
    for one in found {
        let well = one["verdict"] == "ok" || one["verdict"] == "skip";
        assert_eq!(well, one["remedy"].is_null(), "{one}");
    }
    let of_check = found.iter().filter(|one| one["check"] == check);
    of_check
        .map(|one| {
            let text = |name: &str| one[name].as_str().map(str::to_owned);
            let told = format!(
                "{} {}",
                text("verdict").unwrap_or_default(),
                text("finding").unwrap_or_default()
            );
            (told, text("remedy"))
        })
        .collect()
}

#[track_caller]
fn expect(said: &Said, check: &str, finding: &str, remedy: &str) {
    let found = findings(said, check);
    let there = found.iter().any(|(told, does)| {
        told.contains(finding)
            && (remedy.is_empty() || does.as_ref().is_some_and(|does| does.contains(remedy)))
    });
    assert!(there, "{check}: {finding}; {remedy}\n{found:#?}");
}

fn listen(world: &World) -> String {
    world.operator.server.trim_start_matches("https://").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_control_has_nothing_that_failed_and_each_break_is_named_with_a_remedy() {
    let mut world = World::new().await;
    let node = world.node("n").start().await;
    let _ = world.run(muster_tests::world::on_node("ping", node.id)).await;
    let served = doctor(&world, &[]).await.expect(0);
    expect(&served, "address", "ok", "");
    expect(&served, "address", "is served by this control", "");
    expect(&served, "database", "audit chains that hold: 1", "");
    expect(&served, "certificate", "ok is of the CA", "");
    expect(&served, "output store", "can be written", "");
    expect(&served, "OIDC issuer", "skip", "");
    let text = world.control_tool(&["doctor"]).await.expect(0).stdout;
    assert!(!text.contains("FAIL") && text.contains("signing keys"), "{text}");

    let _ = world.stop().await;
    let own = listen(&world);
    let stopped = doctor(&world, &["--listen", &own]).await.expect(0);
    expect(&stopped, "address", "is free", "");
    let taken = std::net::TcpListener::bind(&own).unwrap();
    let said = doctor(&world, &["--listen", &own]).await.expect(1);
    expect(&said, "address", "fail cannot listen", "ss -ltnp");
    drop(taken);

    let said = doctor(&world, &["--server-url", "https://other.example"])
        .await
        .expect(1);
    expect(
        &said,
        "certificate",
        "it is not for other.example",
        "other.example",
    );

    let data = world.data_dir().to_owned();
    let with_mode = async |path: PathBuf, mode: u32, check: &str, finding: &str, remedy: &str| {
        let was = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let said = doctor(&world, &[]).await.expect(1);
        expect(&said, check, finding, remedy);
        fs::set_permissions(&path, was).unwrap();
    };
    let key = data.join("secrets/derivation.key");
    with_mode(data.clone(), 0o755, "data directory", "mode 0755", "chmod 0700").await;
    with_mode(
        key,
        0o644,
        "data directory",
        "others than its owner may read a key",
        "chmod 0600",
    )
    .await;

    let without = async |file: &str, check: &str, finding: &str, remedy: &str| {
        let (path, aside) = (data.join(file), data.join("aside"));
        fs::rename(&path, &aside).unwrap();
        let said = doctor(&world, &[]).await.expect(1);
        expect(&said, check, finding, remedy);
        fs::rename(&aside, &path).unwrap();
    };
    without("secrets/domain-signing.key", "signing keys", "fail", "backup").await;
    without("ca.pem", "certificate", "fail", "backup").await;
    without("server.pem", "certificate", "fail", "certificate").await;
    without("outputs", "output store", "cannot be used", "mode 0700").await;
    without("control.db", "database", "is not there", "muster-control restore").await;

    world.alter("UPDATE audit SET detail = 'other' WHERE seq = 1");
    let said = doctor(&world, &[]).await.expect(1);
    expect(&said, "audit", "fail", "backup");
    world.alter("UPDATE _sqlx_migrations SET version = 9999 WHERE version = (SELECT max(version) FROM _sqlx_migrations)");
    let said = doctor(&world, &[]).await.expect(1);
    expect(&said, "database", "has schema 9999", "newer release");

    fs::write(data.join("control.toml"), "[limits]\nlive_executions_max = 0\n").unwrap();
    let said = doctor(&world, &[]).await.expect(1);
    expect(&said, "configuration", "live_executions_max", "mend");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_ends_soon_is_told_before_it_does() {
    let mut world = World::new().await;
    let renew = async |words: &[&str]| {
        let said = world
            .control_tool(&[&["certificate", "renew"], words].concat())
            .await;
        said.expect(0).stdout
    };
    let told = renew(&["--ttl", "20d"]).await;
    assert!(told.contains("it ends at "), "{told}");
    assert!(told.contains("systemctl restart muster-control"), "{told}");
    let said = doctor(&world, &[]).await.expect(0);
    expect(
        &said,
        "certificate",
        "warn is of the CA",
        "muster-control certificate renew",
    );
    expect(&said, "certificate", "ends in ", "then restart the service");
    let told = renew(&["--ttl", "400d"]).await;
    assert!(told.contains("server.key.before"), "{told}");
    let said = doctor(&world, &[]).await.expect(0);
    expect(&said, "certificate", "ok is of the CA", "");
    for ttl in ["1h", "36501d", "soon"] {
        let _ = world
            .control_tool(&["certificate", "renew", "--ttl", ttl])
            .await
            .expect(2);
    }

    // What doctor says to do, done.
    let elsewhere = ["--server-url", "https://other.example"];
    let said = doctor(&world, &elsewhere).await.expect(1);
    expect(&said, "certificate", "fail", "--server-name other.example");
    let _ = renew(&["--server-name", "other.example"]).await;
    let said = doctor(&world, &elsewhere).await.expect(0);
    expect(&said, "certificate", "ok is of the CA, for other.example", "");
    let _ = world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_others_may_read_is_told() {
    let world = World::new().await;
    let folder = world.dir().join("etc");
    let file = folder.join("control.toml");
    fs::create_dir(&folder).unwrap();
    // There is no socket in that folder.
    let url = format!(
        "postgres://muster:hunter2@localhost/muster?host={}",
        folder.display()
    );
    fs::write(&file, format!("database_url = {url:?}\n")).unwrap();
    let with_modes = async |of_folder: u32, of_file: u32| {
        for (path, mode) in [(&folder, of_folder), (&file, of_file)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        doctor(&world, &["--config", &file.to_string_lossy()]).await
    };
    let said = with_modes(0o755, 0o644).await.expect(1);
    expect(
        &said,
        "configuration",
        "may read the password in database_url",
        "chmod 0640",
    );
    assert!(!said.stdout.contains("hunter2"), "{}", said.stdout);
    for (of_folder, of_file) in [(0o755, 0o640), (0o700, 0o644)] {
        let said = with_modes(of_folder, of_file).await;
        let found = findings(&said, "configuration");
        assert!(found.iter().all(|(told, _)| told.starts_with("ok")), "{found:?}");
    }
}

async fn with_store(world: &World, dir: &Path, config: &str) -> Said {
    let file = dir.join("doctor.toml");
    fs::write(&file, config).expect("it is the story's own");
    let words = ["--config", &*file.to_string_lossy(), "--listen", &listen(world)];
    doctor(world, &words).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_is_tried_out_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = S3::start(dir.path()).await;
    let world = World::new().await;
    let good = s3.config_through(&s3.endpoint);
    let said = with_store(&world, dir.path(), &good).await.expect(0);
    for finding in [
        "takes an object",
        "comes back",
        "other bytes than those whose SHA-256 was signed are refused (400",
        "is gone once it was deleted",
    ] {
        expect(&said, "output store", finding, "");
    }
    let left = walk(&s3.root.join(muster_tests::s3::BUCKET));
    assert!(left.is_empty(), "{left:?}");

    // This store makes a bucket that is missing; others do not.
    let store = FaultyStore::before(&s3).await;
    store.fail_always(Fault::NoBucket);
    let no_bucket = s3.config_through(&store.endpoint);
    let said = with_store(&world, dir.path(), &no_bucket).await.expect(1);
    expect(
        &said,
        "output store",
        "takes no object: 404 NoSuchBucket",
        "create the bucket",
    );
    let stranger = good.replace("story-access-key", "stranger");
    let said = with_store(&world, dir.path(), &stranger).await.expect(1);
    expect(&said, "output store", "takes no object: 403", "output.s3");
    let nowhere = s3.config_through("http://127.0.0.1:1");
    let said = with_store(&world, dir.path(), &nowhere).await.expect(1);
    expect(&said, "output store", "cannot be reached", "output.s3.endpoint");
    fs::write(dir.path().join("secret"), "another secret").unwrap();
    let said = with_store(&world, dir.path(), &good).await.expect(1);
    expect(
        &said,
        "output store",
        "takes no object: 403 SignatureDoesNotMatch",
        "secret_access_key_file",
    );

    let issuer =
        "[oidc]\nissuer = \"https://127.0.0.1:1\"\naudience = \"muster\"\nfetch_timeout_seconds = 2\n";
    let said = with_store(&world, dir.path(), issuer).await.expect(1);
    expect(&said, "OIDC issuer", "fail", "oidc in control.toml");
}

/// Every file below a folder.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("it is the story's own").flatten() {
        if entry.path().is_dir() {
            found.extend(walk(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}
