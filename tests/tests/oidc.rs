//! Signing in at a real OpenID provider, and every token that must not count.

use std::{os::unix::fs::PermissionsExt as _, process::Stdio};

use muster_shared::{access::WhoAmI, audit::AuditPage};
use muster_tests::{
    Answer, Daemon, Operator, Said,
    oidc::{AUDIENCE, CLIENT_ID, IssuerKey, Plan, Provider, muster_signed_out, unsigned},
    operator::said_by,
    prelude::*,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

const OFTEN: &str = "[limits]\nrequests_per_second = 10000\nrequests_burst = 10000\n";
const DISPATCH: &str = "executions:dispatch";

fn plan() -> Plan {
    Plan {
        token_seconds: 600,
        groups: json!({"alice": ["ops", "two words"], "robot-ES256": ["bots"]}),
        key: IssuerKey::new("first"),
    }
}

async fn provider(plan: &Plan) -> (tempfile::TempDir, Provider) {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let provider = Provider::start(dir.path(), plan).await;
    (dir, provider)
}

async fn world(provider: &Provider, more: &str) -> World {
    World::with_config(Some(&format!("{OFTEN}{}{more}", provider.settings()))).await
}

async fn ask(world: &World, token: &str) -> Answer {
    world.operator.with_token(token).get("/v1/auth/whoami").await
}

async fn grant(world: &World, subject: &str, relation: &str, resource: &str) {
    let path = format!("/v1/authz/relation-tuples?project_id={}", world.operator.project);
    let body = json!({"subject": subject, "relation": relation, "resource": resource});
    let _ = world.operator.post(&path, &body).await.expect(201);
}

fn refused_for(answer: Answer, code: &str, class: &str) {
    let challenge = answer.headers["www-authenticate"]
        .to_str()
        .expect("a challenge is text")
        .to_owned();
    let _ = answer.refused(401, code);
    assert_eq!(
        challenge,
        format!("Bearer error=\"invalid_token\", error_description=\"{class}\"")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_every_algorithm_count_and_groups_are_granted_by_tuples() {
    let (_dir, provider) = provider(&plan()).await;
    let world = world(&provider, "").await;
    for alg in ["RS256", "PS256", "ES256", "EdDSA"] {
        let me: WhoAmI = ask(&world, &provider.robot_token(alg).await)
            .await
            .expect(200)
            .json();
        assert_eq!(me.subject, format!("user:robot-{alg}"));
        assert!(me.expires_at.is_some());
    }

    // A group of the same name that the domain made is another one.
    let token = provider.robot_token("ES256").await;
    let robot = world.operator.with_token(&token);
    let nodes = format!("/v1/nodes?project_id={}", world.operator.project);
    let project = format!("project:{}", world.operator.project);
    let _ = robot.get(&nodes).await.refused(404, "project_not_found");
    grant(&world, "group:bots#member", "operator", &project).await;
    let _ = robot.get(&nodes).await.refused(404, "project_not_found");
    grant(&world, "group:oidc/bots#member", "operator", &project).await;
    let _ = robot.get(&nodes).await.expect(200);
    let other = world.operator.with_token(&provider.robot_token("RS256").await);
    let _ = other.get(&nodes).await.refused(404, "project_not_found");

    // Who is in an issuer's group is not for a domain to say.
    let path = format!("/v1/authz/relation-tuples?project_id={}", world.operator.project);
    let body = json!({"subject": "user:robot-RS256", "relation": "member", "resource": "group:oidc/bots"});
    let _ = world
        .operator
        .post(&path, &body)
        .await
        .refused(400, "invalid_resource");

    // What is taken from one user is taken, whatever its groups were given.
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let on_node = json!({"action": "ping", "node_id": node.id});
    let ran = robot
        .post(&robot.in_project(DISPATCH), &on_node)
        .await
        .expect(201);
    let ran: Execution = ran.json();
    world.leave_open();
    let path = format!("/v1/audit?project_id={}&limit=200", world.operator.project);
    let page: AuditPage = world.operator.get(&path).await.expect(200).json();
    let of_robot: Vec<_> = page
        .items
        .iter()
        .filter(|row| row.subject == "user:robot-ES256")
        .collect();
    assert!(
        of_robot.iter().any(|row| row.relation == "actions.dispatch"),
        "{ran:?}: {page:#?}"
    );
    assert!(
        of_robot.iter().any(|row| row.relation == "node.list"),
        "{page:#?}"
    );
    grant(&world, "user:robot-ES256", "excluded", &project).await;
    let refused = robot.post(&robot.in_project(DISPATCH), &on_node).await;
    assert!(matches!(refused.status, 403 | 404), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_of_the_issuer_for_us_and_now_opens_nothing() {
    let plan = plan();
    let (_dir, provider) = provider(&plan).await;
    let world = world(&provider, "").await;
    let key = &provider.key;
    let claims = provider.claims();
    let _ = ask(&world, &key.sign(&claims)).await.expect(200);

    let with = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        claims
    };
    let now = claims["iat"].as_i64().unwrap();
    for (wrong, code, class) in [
        (with("aud", json!(CLIENT_ID)), "unauthenticated", "audience"),
        (
            with("iss", json!("https://127.0.0.1:1")),
            "unauthenticated",
            "issuer",
        ),
        (
            with("iss", json!(format!("{}/", provider.issuer))),
            "unauthenticated",
            "issuer",
        ),
        (with("exp", json!(now - 1)), "token_expired", "expired"),
        (with("nbf", json!(now + 1000)), "unauthenticated", "not_yet_valid"),
        (with("iat", json!(now + 1000)), "unauthenticated", "not_yet_valid"),
        (with("sub", json!("a b")), "unauthenticated", "subject"),
        (with("groups", json!([7])), "unauthenticated", "groups"),
    ] {
        refused_for(ask(&world, &key.sign(&wrong)).await, code, class);
    }
    let none = json!({"alg": "none", "kid": key.kid});
    let stranger = IssuerKey::new(&key.kid);
    let unknown = IssuerKey::new("made-up");
    let good = key.sign(&claims);
    let (head, signature) = good.rsplit_once('.').unwrap();
    let forged = unsigned(
        &json!({"alg": "EdDSA", "typ": "at+jwt", "kid": key.kid}),
        &with("sub", json!("root")),
    );
    let logout = json!({"alg": "EdDSA", "typ": "logout+jwt", "kid": key.kid});
    for (token, class) in [
        (format!("{}.", unsigned(&none, &claims)), "algorithm"),
        (key.confuse(&claims), "algorithm"),
        (stranger.sign(&claims), "signature"),
        (format!("{forged}.{signature}"), "signature"),
        (format!("{head}."), "signature"),
        (unknown.sign(&claims), "key"),
        (key.sign_under(&logout, &claims), "malformed"),
        ("eyJ.eyJ.eyJ".to_owned(), "malformed"),
    ] {
        refused_for(ask(&world, &token).await, "unauthenticated", class);
    }
    assert_eq!(AUDIENCE, claims["aud"]);
    let _ = ask(&world, &good).await.expect(200);

    // Where no issuer is set up, none is believed.
    let alone = World::new().await;
    let _ = ask(&alone, &good).await.refused(401, "unauthenticated");
    let config: Value = alone.operator.get("/v1/auth/config").await.expect(200).json();
    assert_eq!(config, json!({}));
    let said = said_by(muster_signed_out(&alone.operator, &["login"]))
        .await
        .expect(5);
    assert!(said.stderr.contains("no issuer"), "{}", said.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_is_away_or_has_new_keys_opens_nothing_and_shuts_no_other_door() {
    let first = plan();
    let (_dir, provider) = provider(&first).await;
    let issued = first.key.sign(&provider.claims());
    let settings = "keys_max_age_seconds = 5\nask_every_seconds = 1\nfetch_timeout_seconds = 2\n";
    let text = format!("{}{settings}", provider.settings());
    let away = provider.pause();
    let second = Plan {
        key: IssuerKey::new("second"),
        ..plan()
    };

    // Control starts without its issuer, and its own tokens count.
    let world = World::with_config(Some(&format!("{OFTEN}{text}"))).await;
    let _ = ask(&world, &issued).await.refused(503, "issuer_unavailable");
    let _ = ask(&world, &world.operator.token).await.expect(200);

    // It comes, and its tokens count.
    let provider = away.resume(&first).await;
    until("the issuer's tokens count", async || {
        (ask(&world, &issued).await.status == 200).then_some(())
    })
    .await;

    // It goes, and they stop.
    let away = provider.pause();
    until("keys that nobody vouches for stop counting", async || {
        (ask(&world, &issued).await.status == 503).then_some(())
    })
    .await;
    let _ = ask(&world, &world.operator.token).await.expect(200);

    // It comes back with other keys: the new one counts, the old one never again.
    let provider = away.resume(&second).await;
    let fresh = second.key.sign(&provider.claims());
    until("the new key counts", async || {
        (ask(&world, &fresh).await.status == 200).then_some(())
    })
    .await;
    until("the old key is gone", async || {
        (ask(&world, &issued).await.status == 401).then_some(())
    })
    .await;
}

/// Runs `muster login` until it shows where to go, has a person go there, and gives back how it ended.
async fn sign_in(operator: &Operator, provider: &Provider, args: &[&str], approve: bool) -> Said {
    let mut command = muster_signed_out(operator, &["login", "--issuer-ca-file"]);
    command
        .arg(&provider.ca_file)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("muster starts");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let mut stderr = String::new();
    let mut page = None;
    while let Some(line) = lines.next_line().await.expect("it writes text") {
        stderr.push_str(&line);
        stderr.push('\n');
        if line.contains("?user_code=") {
            page = Some(line.trim().to_owned());
            break;
        }
    }
    let page = page.unwrap_or_else(|| panic!("no page to open: {stderr}"));
    provider.browse(&page, "alice", approve).await;
    while let Some(line) = lines.next_line().await.expect("it writes text") {
        stderr.push_str(&line);
        stderr.push('\n');
    }
    let mut stdout = String::new();
    let mut out = child.stdout.take().expect("it is piped");
    out.read_to_string(&mut stdout).await.expect("it writes text");
    Said {
        code: child.wait().await.expect("it ends").code().unwrap_or(-1),
        stdout,
        stderr,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_signs_in_works_and_signs_out() {
    // Every command finds the token about to end, so that each renews it.
    let plan = Plan {
        token_seconds: 5,
        ..plan()
    };
    let (_dir, provider) = provider(&plan).await;
    let world = world(&provider, "").await;
    let operator = &world.operator;
    let project = format!("project:{}", operator.project);
    grant(&world, "group:oidc/ops#member", "operator", &project).await;

    let said = sign_in(operator, &provider, &["-o", "json"], true)
        .await
        .expect(0);
    let me: WhoAmI = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(me.subject, "user:alice");
    assert_eq!(me.groups, ["group:oidc/ops#member"]);
    let file = operator.home.join(".config/muster/config.toml");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(kept.contains("refresh_token"), "a login is kept");
    for line in kept.lines().filter(|line| line.contains("_token = ")) {
        let secret = line.split('"').nth(1).unwrap();
        assert!(!said.stderr.contains(secret) && !said.stdout.contains(secret));
    }

    // A login is sent to its own control alone, and takes nobody else's place unasked.
    let elsewhere = ["--server", "https://127.0.0.1:1", "nodes"];
    let said = said_by(muster_signed_out(operator, &elsewhere)).await.expect(5);
    assert!(said.stderr.contains("goes nowhere else"), "{}", said.stderr);
    let other = ["--server", "https://127.0.0.1:1", "login"];
    let said = said_by(muster_signed_out(operator, &other)).await.expect(2);
    assert!(said.stderr.contains("--context NAME"), "{}", said.stderr);

    // At once from many shells: a refresh token that is used twice would end the login.
    let runs = (0..6).map(|_| said_by(muster_signed_out(operator, &["nodes"])));
    for said in futures_util::future::join_all(runs).await {
        let _ = said.expect(0);
    }
    let said = said_by(muster_signed_out(operator, &["whoami", "-o", "name"]))
        .await
        .expect(0);
    assert_eq!(said.stdout.trim(), "user:alice");
    assert_ne!(std::fs::read_to_string(&file).unwrap(), kept, "it was renewed");

    let renewed = std::fs::read_to_string(&file).unwrap();
    let said = said_by(muster_signed_out(operator, &["logout"])).await.expect(0);
    assert!(said.stderr.contains("signed out"), "{}", said.stderr);
    let forgotten = std::fs::read_to_string(&file).unwrap();
    assert!(!forgotten.contains("_token"), "the login is forgotten");
    let said = said_by(muster_signed_out(operator, &["nodes"])).await.expect(2);
    assert!(said.stderr.contains("muster login"), "{}", said.stderr);

    // Whoever kept a copy has nothing any more.
    std::fs::write(&file, renewed).unwrap();
    let said = said_by(muster_signed_out(operator, &["nodes"])).await.expect(5);
    assert!(said.stderr.contains("muster login"), "{}", said.stderr);

    // Turned down at the issuer, or interrupted: nothing is kept.
    let _ = said_by(muster_signed_out(operator, &["logout"])).await.expect(0);
    let said = sign_in(operator, &provider, &[], false).await.expect(5);
    assert!(said.stderr.contains("denied"), "{}", said.stderr);
    let before = std::fs::read_to_string(&file).unwrap();
    let mut command = std::process::Command::new(muster_tests::binaries::binary("muster"));
    command
        .env_clear()
        .env("HOME", &operator.home)
        .args(["login", "--issuer-ca-file"])
        .arg(&provider.ca_file);
    let log = world.dir().join("login.log");
    let mut waiting = Daemon::start("muster login", command, &log);
    until("it waits for the person", async || {
        waiting.log().contains("?user_code=").then_some(())
    })
    .await;
    waiting.signal(rustix::process::Signal::INT);
    assert_eq!(waiting.end().await.code(), Some(130));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);

    // The issuer is away: said so, and no word of control.
    drop(provider);
    let said = said_by(muster_signed_out(operator, &["login"])).await.expect(7);
    assert!(said.stderr.contains("cannot reach the issuer"), "{}", said.stderr);
}
