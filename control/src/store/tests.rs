//! The statements themselves, on a real database: what they select, which index answers them, and how many there are.

use std::{
    collections::BTreeSet,
    sync::{Mutex, OnceLock},
    time::{Duration, Instant},
};

use muster_shared::{
    audit::Anchor,
    ids::{ActionName, ExecutionId, NodeId, RowId},
    labels::Labels,
    selector::Selector,
    status::Status,
    time::Timestamp,
    wire::{DispatchRequest, output_key},
};
use proptest::{prelude::*, test_runner::TestRunner};
use tokio::sync::MutexGuard;
use uuid::Uuid;

use super::{statement::query_scalar, testing::declares, *};
use crate::{
    audit::{self, VerifyError},
    authz::{Grants, Requester},
    config::{Config, Given},
    control::Shared,
    dispatch, init, integrity,
    keys::{chance, token_hash},
    retention::{self, Keep, Retention, Rules},
    serve,
    target::Target,
};

mod hostile;
mod search;

struct Fixture {
    control: Shared,
    project: Project,
    requester: Requester,
    _dir: tempfile::TempDir,
}

async fn fixture() -> Fixture {
    // The control of a test talks to nobody, and wants a TLS provider all the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let database_url = testing::database_url().await;
    let options = init::InitOptions {
        data_dir: dir.path().to_owned(),
        database_url: database_url.clone(),
        listen: "127.0.0.1:7443".into(),
        server_url: None,
        server_names: vec![],
    };
    let made = init::init(options, Timestamp::now()).await.unwrap();
    let given = Given {
        data_dir: dir.path().to_owned(),
        database_url,
        config: None,
        listen: None,
        server_url: None,
    };
    let control = serve::open(Config::load(given).unwrap(), String::new())
        .await
        .unwrap();
    let presented = control.store.presented_token(token_hash(&made.token)).await;
    let subject = format!("token:{}", presented.unwrap().unwrap().token.id);
    let grants = Grants::of(
        &subject,
        &control
            .store
            .tuples_about(std::slice::from_ref(&subject))
            .await
            .unwrap(),
    );
    Fixture {
        project: control.store.project(made.project_id).await.unwrap().unwrap(),
        control,
        requester: Requester { subject, grants },
        _dir: dir,
    }
}

impl Fixture {
    fn store(&self) -> &Store {
        &self.control.store
    }

    async fn sql(&self, sql: String) {
        query(&sql).execute(&self.store().write).await.unwrap();
    }

    /// Nodes that can do `ping`.
    async fn nodes(&self, count: u32) -> Vec<NodeId> {
        let (now, token) = (Timestamp::now(), RowId::mint(Timestamp::now(), chance().unwrap()));
        let mut tx = self.store().begin().await.unwrap();
        let bootstrap = NewBootstrapToken {
            id: token,
            project: self.project.id,
            hash: token_hash(&token.to_string()),
            labels: &Labels::new(),
            uses_max: 1,
            issued_by: "test",
            expires_at: now,
        };
        tx.insert_bootstrap_token(&bootstrap, now).await.unwrap();
        let mut ids = Vec::new();
        for n in 0..count {
            let id = NodeId::mint(now, chance().unwrap());
            let node = NewNode {
                id,
                domain: self.project.domain,
                project: self.project.id,
                name: &format!("node-{token}-{n}"),
                hostname: "h",
                machine_id: "m",
                nsk_hash: token_hash(&id.to_string()),
                token,
                enrollment: Uuid::from_u128(n.into()),
            };
            tx.insert_node(&node, now).await.unwrap();
            ids.push(id);
        }
        tx.commit().await.unwrap();
        self.sql(
            "INSERT INTO node_action (node_id, name, kind, manifest) SELECT id, 'ping', 'builtin', '{}' FROM node
             WHERE id NOT IN (SELECT node_id FROM node_action)"
                .into(),
        )
        .await;
        ids
    }

    async fn dispatch(&self) -> ExecutionId {
        let request = DispatchRequest {
            action: "ping".into(),
            all: true,
            ..DispatchRequest::default()
        };
        let admitted = dispatch::dispatch(&self.control, &self.project, &self.requester, request, None).await;
        admitted.unwrap().execution.id
    }

    /// Ends an execution as its nodes would.
    async fn settle(&self, id: ExecutionId, nodes: &[NodeId]) {
        let mut tx = self.store().begin().await.unwrap();
        let (_, settled) = tx
            .cancel_targets(id, nodes, &[Status::Pending], "over", Timestamp::now())
            .await
            .unwrap();
        assert!(settled);
        tx.commit().await.unwrap();
    }

    /// So much of it that PostgreSQL, which decides by what there is, decides as it would for a fleet.
    async fn settled_history(&self) {
        if !self.store().is_shared() {
            return;
        }
        let (domain, project) = (self.project.domain, self.project.id);
        for sql in [
            format!(
                "INSERT INTO action_execution
                     (id, domain_id, project_id, action_name, action_kind, timeout_seconds, live_targets,
                      terminal_status, requested_by, created_at, updated_at, expires_at)
                 SELECT gen_random_uuid(), '{}', '{}', 'action' || n % 50, 'builtin', 1, 0,
                        CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'succeeded' END, 'token:x',
                        now() - n * interval '1 minute', now() - n * interval '1 minute', now()
                 FROM generate_series(1, 5000) AS n",
                domain.uuid(),
                project.uuid()
            ),
            "INSERT INTO action_execution_target
                 (execution_id, node_id, status, callback_token_hash, created_at, updated_at, released_at)
             SELECT e.id, n.id, e.terminal_status, decode(repeat('00', 32), 'hex'), e.created_at, e.created_at,
                    e.created_at
             FROM action_execution e CROSS JOIN (SELECT id FROM node ORDER BY id LIMIT 1) n
             WHERE e.terminal_status IS NOT NULL"
                .to_owned(),
            "INSERT INTO action_execution_event (execution_id, node_id, from_status, to_status, at)
             SELECT execution_id, node_id, 'started', status, updated_at FROM action_execution_target"
                .to_owned(),
            "ANALYZE".to_owned(),
        ] {
            self.sql(sql).await;
        }
    }

    async fn count(&self, table: &str) -> i64 {
        query_scalar(&format!("SELECT count(*) FROM {table}"))
            .fetch_one(&self.store().read)
            .await
            .unwrap()
    }
}

// ---- the statements that were made

struct Statements(Mutex<Vec<String>>);

impl log::Log for Statements {
    fn enabled(&self, about: &log::Metadata<'_>) -> bool {
        about.target() == engine::STATEMENTS
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

static STATEMENTS: Statements = Statements(Mutex::new(Vec::new()));
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Begins to listen; tests that do so go one after another, also in one process.
async fn listen() -> MutexGuard<'static, ()> {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    let alone = ALONE.lock().await;
    INSTALLED.get_or_init(|| {
        log::set_logger(&STATEMENTS).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
    STATEMENTS.0.lock().unwrap().clear();
    alone
}

/// What was heard.
fn heard() -> Vec<String> {
    std::mem::take(&mut *STATEMENTS.0.lock().unwrap())
}

/// Asks how each statement over history that was heard is carried out. None walks along a whole table or index of it, and
/// the named index is used.
async fn answered_by(store: &Store, index: &str) {
    let history = [
        "e",
        "t",
        "m",
        "s",
        "ev",
        "action_execution",
        "action_execution_target",
        "action_execution_event",
        "audit",
    ];
    let mut plans = String::new();
    for statement in heard() {
        let of_history = statement.contains("FROM action_execution") || statement.contains("FROM audit");
        if !of_history || statement.starts_with("EXPLAIN") || statement.starts_with("BEGIN") {
            continue;
        }
        plans.push_str(&format!("{statement}\n"));
        for step in testing::plan(&store.read, &statement).await {
            plans.push_str(&format!("    {step}\n"));
            let scanned = step
                .strip_prefix("SCAN ")
                .or_else(|| Some(step.split_once("Seq Scan on ")?.1))
                .and_then(|rest| rest.split(' ').next());
            assert!(!scanned.is_some_and(|table| history.contains(&table)), "{plans}");
            assert!(
                !step.contains("FOR ORDER BY") && !step.contains("Sort"),
                "{plans}"
            );
        }
    }
    let index = testing::index_name(&store.read, index);
    assert!(
        index.split('|').any(|index| plans.contains(index)),
        "{index} is not used:\n{plans}"
    );
}

#[tokio::test]
async fn every_read_of_history_is_answered_by_an_index() {
    let fixture = fixture().await;
    let (store, project) = (fixture.store(), fixture.project.id);
    let node = fixture.nodes(1).await[0];
    let id = fixture.dispatch().await;
    fixture.settled_history().await;
    let now = Timestamp::now();
    let _alone = listen().await;
    let selector = Selector::parse("role=web,!old").unwrap();
    let keyset = "action_execution_project_keyset_idx";
    // PostgreSQL has one more, for what is live.
    let by_status = "action_execution_status_";
    let by_node = "action_execution_target_node_idx";
    let any = ListFilter::default;
    for (filter, index) in [
        (any(), keyset),
        (
            ListFilter {
                before: Some((now, id)),
                ..any()
            },
            keyset,
        ),
        (
            ListFilter {
                created: (Some(now), Some(now)),
                ..any()
            },
            keyset,
        ),
        (
            ListFilter {
                selector: Some(&selector),
                ..any()
            },
            keyset,
        ),
        (
            ListFilter {
                action: Some("ping"),
                ..any()
            },
            "action_execution_action_idx",
        ),
        (
            ListFilter {
                status: Some(Status::Failed),
                ..any()
            },
            by_status,
        ),
        (
            ListFilter {
                status: Some(Status::Pending),
                ..any()
            },
            by_status,
        ),
        (
            ListFilter {
                status: Some(Status::Started),
                before: Some((now, id)),
                ..any()
            },
            by_status,
        ),
        (
            ListFilter {
                node: Some(node),
                ..any()
            },
            by_node,
        ),
        (
            ListFilter {
                node: Some(node),
                before: Some((now, id)),
                ..any()
            },
            by_node,
        ),
        (
            ListFilter {
                node: Some(node),
                status: Some(Status::Failed),
                ..any()
            },
            by_node,
        ),
    ] {
        let _ = store.executions(project, &filter, 50).await.unwrap();
        answered_by(store, index).await;
    }
    let _ = store.count_live_executions(fixture.project.domain).await.unwrap();
    // Of what is live there is little, and PostgreSQL takes either index of it.
    answered_by(
        store,
        "action_execution_live_by_domain_idx|action_execution_status_live_idx",
    )
    .await;
    let _ = store.timeline(id, 0, 50).await.unwrap();
    answered_by(store, "action_execution_event_execution_idx").await;
    let _ = store
        .execution(project, id, Detail::WithOutput { bytes_max: 1 << 20 })
        .await
        .unwrap();
    answered_by(store, "PRIMARY KEY").await;
    let _ = store
        .execution_targets(id, Some(node), (50, 1 << 20))
        .await
        .unwrap();
    answered_by(store, "PRIMARY KEY").await;
    let _ = store.overdue(now, 50).await.unwrap();
    answered_by(
        store,
        "action_execution_live_by_due_idx|action_execution_status_live_idx",
    )
    .await;
    let ping: ActionName = "ping".parse().unwrap();
    let settled = Settled::new(fixture.project.domain, &ping, Duration::from_secs(1), now);
    let _ = store.settled(&settled).await.unwrap();
    answered_by(store, "action_execution_settled_idx").await;
    let _ = store.count_settled(&settled).await.unwrap();
    answered_by(store, "action_execution_settled_idx").await;
    let _ = store.settled_actions(fixture.project.domain).await.unwrap();
    answered_by(store, "action_execution_settled_idx").await;
    let _ = store.count_old_audit(fixture.project.domain, now).await.unwrap();
    answered_by(store, "PRIMARY KEY").await;
    let _ = store.nodes_still_owed((now, now), node, 50).await.unwrap();
    answered_by(store, "action_execution_target_owed_idx").await;
}

/// A timeline may have tens of thousands of events, and a node may ask this as often as it likes.
#[tokio::test]
async fn what_is_kept_against_an_end_is_found_without_the_timeline() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(2000).await;
    let id = fixture.dispatch().await;
    fixture.settle(id, &nodes).await;
    let told = |error| Advance {
        execution: id,
        node: nodes[0],
        from: Status::Cancelled,
        through: &[],
        to: Status::Failed,
        exit_code: None,
        error: Some(error),
        output: None,
        output_bytes: None,
        output_total_bytes: None,
        output_error: None,
    };
    let mut tx = fixture.store().begin().await.unwrap();
    tx.append_late_events(&[told("first")], Timestamp::now())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let _alone = listen().await;
    let mut tx = fixture.store().begin().await.unwrap();
    for (error, max, expected) in [
        ("first", 1, Room::Known),
        ("second", 1, Room::Full),
        ("second", 2, Room::News),
    ] {
        let _ = heard();
        let room = tx.room_for_evidence(&[told(error)], max).await.unwrap();
        assert_eq!(room[&(id, nodes[0])], expected, "{error} of {max}");
    }
    drop(tx);
    let asked = heard()
        .into_iter()
        .find(|statement| statement.contains("AND e.late"));
    let plan = testing::plan(&fixture.store().read, &asked.expect("it was asked")).await;
    let found = plan
        .iter()
        .any(|step| step.contains("action_execution_event_late_idx"));
    assert!(found, "{plan:#?}");
}

/// Also before PostgreSQL has counted the targets: an index that says more of the status would lead along the execution.
#[tokio::test]
async fn a_target_that_is_reported_is_found_by_its_key() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(2000).await;
    let id = fixture.dispatch().await;
    let step = Advance {
        execution: id,
        node: nodes[0],
        from: Status::Pending,
        through: &[],
        to: Status::Ack,
        exit_code: None,
        error: None,
        output: None,
        output_bytes: None,
        output_total_bytes: None,
        output_error: None,
    };
    let _alone = listen().await;
    let mut tx = fixture.store().begin().await.unwrap();
    tx.advance(&[step], Timestamp::now()).await.unwrap();
    tx.commit().await.unwrap();
    let statements = heard();
    let moves: Vec<_> = statements
        .iter()
        .filter(|s| s.contains("UPDATE action_execution_target AS t"))
        .collect();
    assert_eq!(moves.len(), 1, "{statements:#?}");
    let steps = testing::plan(&fixture.store().write, moves[0]).await;
    let key = testing::index_name(&fixture.store().write, "PRIMARY KEY");
    let found = steps.iter().any(|step| step.contains(key));
    let walked = steps.iter().any(|step| step.contains("target_status_idx"));
    assert!(found && !walked, "{steps:#?}");
}

#[tokio::test]
async fn what_a_node_is_owed_is_found_without_its_history() {
    let fixture = fixture().await;
    let node = fixture.nodes(100).await[0];
    for _ in 0..3 {
        let _ = fixture.dispatch().await;
    }
    fixture.settled_history().await;
    let _alone = listen().await;
    let _ = fixture.store().owed_to(node).await.unwrap();
    let statements = heard();
    let owed: Vec<_> = statements
        .iter()
        .filter(|s| s.contains("t.status = 'pending'"))
        .collect();
    assert_eq!(owed.len(), 1, "{statements:#?}");
    let steps = testing::plan(&fixture.store().read, owed[0]).await;
    let partial = steps.iter().any(|step| {
        (step.starts_with("SEARCH t") || step.contains("Index Scan"))
            && step.contains("action_execution_target_owed_idx")
    });
    assert!(partial, "{steps:#?}");
}

#[tokio::test]
#[expect(
    clippy::print_stderr,
    reason = "the time is for whoever reads the output, and nothing asserts it"
)]
async fn a_dispatch_to_ten_thousand_nodes_asks_for_none_of_them_alone() {
    const NODES: u32 = 10_000;
    let fixture = fixture().await;
    let _ = fixture.nodes(NODES).await;
    let _alone = listen().await;
    let began = Instant::now();
    let id = fixture.dispatch().await;
    let took = began.elapsed();
    let statements = heard();
    eprintln!("{NODES} nodes: {} statements in {took:?}", statements.len());
    // Two inserts for every thousand targets, and what is the same for any cohort.
    let chunks = (NODES as usize).div_ceil(ROWS_PER_INSERT);
    assert!(
        (2 * chunks..2 * chunks + 30).contains(&statements.len()),
        "{}",
        statements.len()
    );
    let shown = fixture
        .store()
        .execution(fixture.project.id, id, Detail::WithOutput { bytes_max: 1 << 20 })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(shown.target_count(), u64::from(NODES));
    assert_eq!(shown.targets.len(), 1000);
}

// ---- what nodes declare

#[tokio::test]
async fn what_is_kept_of_a_node_is_what_it_declared_last_and_what_it_showed_first() {
    let fixture = fixture().await;
    let node = fixture.nodes(1).await[0];
    let ids = (node, fixture.project.domain);
    for (manifest, changed) in [
        (
            declares(&[("a", "1"), ("b", "1")], &["ping"], &[("x", "open")]),
            3,
        ),
        (
            declares(&[("a", "1"), ("b", "1")], &["ping"], &[("x", "open")]),
            0,
        ),
        (
            declares(&[("a", "2"), ("b", "1"), ("c", "1")], &["ping", "facts"], &[]),
            3,
        ),
        // A builtin of before is a hook now, and the other way round.
        (declares(&[("facts", "1")], &["ping", "a"], &[("x", "a link")]), 3),
        (
            declares(
                &[],
                &["ping"],
                &[("x", "open"), ("y", "open"), ("x", "said twice")],
            ),
            3,
        ),
        (declares(&[("a", "1"), ("b", "2")], &[], &[]), 3),
    ] {
        let told = integrity::declare(&fixture.control, ids, &manifest, Timestamp::now()).await;
        assert_eq!(told.unwrap().len(), changed, "{manifest:?}");
        let kept = fixture.store().declared_by(node).await.unwrap();
        assert_eq!(kept, Declared::by(&manifest));
    }
    let pinned = query("SELECT node_id, hook, digest FROM hook_baseline ORDER BY hook");
    let rows = pinned.fetch_all(&fixture.store().read).await.unwrap();
    let pinned: Vec<(String, Digest)> = rows
        .iter()
        .map(|row| {
            let row = rows::Reader::new(row, "hook_baseline", "node_id");
            (row.get("hook").unwrap(), row.digest("digest").unwrap())
        })
        .collect();
    let first = Digest::of(b"1");
    assert_eq!(
        pinned,
        ["a", "b", "c", "facts"].map(|hook| (hook.to_owned(), first))
    );
    // Those that show something else now are violations, each once.
    assert_eq!(fixture.count("integrity_violation").await, 2);
}

#[tokio::test]
async fn a_node_that_declares_one_thing_anew_writes_one_thing() {
    let fixture = fixture().await;
    let node = fixture.nodes(1).await[0];
    let ids = (node, fixture.project.domain);
    let hooks: Vec<String> = (0..100).map(|n| format!("hook-{n}")).collect();
    let mut hooks: Vec<(&str, &str)> = hooks.iter().map(|name| (name.as_str(), "1")).collect();
    let builtins = ["ping", "facts", "reboot"];
    let declare = async |hooks: &[(&str, &str)]| {
        let manifest = declares(hooks, &builtins, &[]);
        let told = integrity::declare(&fixture.control, ids, &manifest, Timestamp::now()).await;
        let _ = told.unwrap();
    };
    let _alone = listen().await;
    let wrote = || {
        let writes = ["INSERT", "UPDATE", "DELETE"];
        let is_one = |sql: &String| writes.iter().any(|word| sql.contains(word));
        heard().into_iter().filter(is_one).collect::<Vec<_>>()
    };
    declare(&hooks).await;
    // Actions and baselines, in pieces, and the node.
    assert!(wrote().len() < 20);
    declare(&hooks).await;
    assert_eq!(wrote(), [""; 0], "nothing changed");
    hooks.push(("one-more", "1"));
    declare(&hooks).await;
    let wrote = wrote();
    assert_eq!(wrote.len(), 3, "{wrote:#?}");
    assert_eq!(fixture.count("node_action").await, 104);
}

#[tokio::test]
async fn an_approval_for_a_fleet_asks_for_no_node_alone() {
    const NODES: u32 = 1500;
    let fixture = fixture().await;
    let nodes = fixture.nodes(NODES).await;
    let (was, is) = (Digest::of(b"was"), Digest::of(b"is"));
    let project = &fixture.project;
    // The last one shows something else.
    let (showing, other) = nodes.split_at(nodes.len() - 1);
    let mut tx = fixture.store().begin().await.unwrap();
    for node in &nodes {
        for shown in ["was", if showing.contains(node) { "is" } else { "was" }] {
            let manifest = declares(&[("job", shown)], &["ping"], &[]);
            tx.replace_capabilities(*node, &manifest, Timestamp::now())
                .await
                .unwrap();
        }
    }
    for node in &nodes[..2] {
        let violation = NewViolation {
            id: RowId::mint(Timestamp::now(), chance().unwrap()),
            node: *node,
            domain: project.domain,
            kind: "hook",
            artifact: "job",
            detected_by: "capabilities",
            observed: Some(is.as_bytes()),
            expected: Some(was.as_bytes()),
        };
        tx.insert_violation(&violation, Timestamp::now()).await.unwrap();
    }
    tx.commit().await.unwrap();
    let hook: ActionName = "job".parse().unwrap();
    let all = Target::parse(None, None, true).unwrap();
    let _alone = listen().await;
    let answer = integrity::approve(&fixture.control, project, &fixture.requester, (&hook, is, &all))
        .await
        .unwrap();
    let asked = heard().len();
    assert!(asked < NODES as usize / 10, "{asked} statements");
    assert_eq!(
        answer.approved.iter().collect::<BTreeSet<_>>(),
        showing.iter().collect::<BTreeSet<_>>()
    );
    assert_eq!(answer.unchanged, other);
    let approved = i64::from(NODES) - 1;
    for (counted, rows) in [
        ("hook_baseline WHERE approved_at IS NOT NULL", approved),
        ("outbox WHERE event_type = 'hook_baseline_updated'", approved),
        ("audit WHERE relation = 'hook.approve'", approved),
        ("integrity_violation WHERE status = 'resolved'", 2),
    ] {
        assert_eq!(fixture.count(counted).await, rows, "{counted}");
    }
    let owed = fixture.store().owed_to(showing[0]).await.unwrap();
    assert!(
        matches!(&owed[..], [Owed::Baseline { digest, .. }] if *digest == is),
        "{owed:?}"
    );
}

/// The keyset of one node's list stands on it.
#[tokio::test]
async fn targets_have_the_instant_of_their_execution() {
    let fixture = fixture().await;
    let _ = fixture.nodes(3).await;
    let _ = fixture.dispatch().await;
    let odd = "action_execution_target t JOIN action_execution e ON e.id = t.execution_id
               WHERE t.created_at <> e.created_at";
    assert_eq!(fixture.count(odd).await, 0);
    assert_eq!(fixture.count("action_execution_target").await, 3);
}

// ---- selectors

const KEYS: [&str; 3] = ["a", "b", "c/d"];
const VALUES: [&str; 4] = ["x", "y", "", "z \"\\ü"];

fn any_labels() -> impl Strategy<Value = Labels> {
    proptest::collection::btree_map(0..KEYS.len(), 0..VALUES.len(), 0..=KEYS.len()).prop_map(|labels| {
        labels
            .into_iter()
            .map(|(key, value)| (KEYS[key].to_owned(), VALUES[value].to_owned()))
            .collect()
    })
}

fn quoted(value: usize) -> String {
    format!("\"{}\"", VALUES[value].replace('\\', "\\\\").replace('"', "\\\""))
}

fn any_term() -> impl Strategy<Value = String> {
    let values = proptest::collection::vec(0..VALUES.len(), 1..4);
    (0..KEYS.len(), 0..6, values).prop_map(|(key, op, values)| {
        let (key, one) = (KEYS[key], quoted(values[0]));
        let list = values.into_iter().map(quoted).collect::<Vec<_>>().join(",");
        match op {
            0 => format!("{key}={one}"),
            1 => format!("{key}!={one}"),
            2 => format!("{key} in ({list})"),
            3 => format!("{key} notin ({list})"),
            4 => key.to_owned(),
            _ => format!("!{key}"),
        }
    })
}

/// Random labels, random selectors, a real database: what SQL selects is what the pure matcher matches.
#[test]
fn the_database_selects_what_the_matcher_matches() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let fixture = runtime.block_on(fixture());
    let nodes = runtime.block_on(fixture.nodes(8));
    let action = "ping".parse().unwrap();
    let fleet = proptest::collection::vec(any_labels(), nodes.len());
    let selectors = proptest::collection::vec(proptest::collection::vec(any_term(), 1..4), 8);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&(fleet, selectors), |(fleet, selectors)| {
        runtime.block_on(async {
            fixture.sql("DELETE FROM node_label".into()).await;
            let mut tx = fixture.store().begin().await.unwrap();
            for (node, labels) in nodes.iter().zip(&fleet) {
                for (key, value) in labels {
                    tx.set_label(*node, key, value).await.unwrap();
                }
            }
            tx.commit().await.unwrap();
            for terms in selectors {
                let text = terms.join(",");
                let selector = Selector::parse(&text).unwrap();
                let found = fixture
                    .store()
                    .candidates(fixture.project.id, Some(&selector), None, &action, Order::Id)
                    .await
                    .unwrap();
                let found: BTreeSet<NodeId> = found.iter().map(|candidate| candidate.node).collect();
                let wanted: BTreeSet<NodeId> = nodes
                    .iter()
                    .zip(&fleet)
                    .filter(|(_, labels)| selector.matches(labels))
                    .map(|(node, _)| *node)
                    .collect();
                prop_assert_eq!(found, wanted, "{}", text);
            }
            Ok(())
        })
    });
    outcome.unwrap();
}

// ---- retention

fn keep(executions: Keep, audit: Keep) -> Retention {
    let general = Rules {
        executions: Some(executions),
        audit: Some(audit),
        actions: std::collections::BTreeMap::new(),
    };
    Retention {
        general,
        domains: std::collections::BTreeMap::new(),
        batch: 2,
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn what_is_settled_goes_whole_and_what_lives_stays() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(3).await;
    let (old, live) = (fixture.dispatch().await, fixture.dispatch().await);
    fixture.settle(old, &nodes).await;
    let retention = keep(Keep::For(HOUR), Keep::Forever);
    let (store, outputs) = (fixture.store(), &fixture.control.outputs);
    let soon = Timestamp::now();
    let pruned = retention::prune(store, outputs, &retention, soon, || true)
        .await
        .unwrap();
    assert_eq!(pruned, retention::Pruned::default(), "its time is not over");
    let later = soon.plus(2 * HOUR);
    let never = keep(Keep::Forever, Keep::Forever);
    let pruned = retention::prune(store, outputs, &never, later, || true)
        .await
        .unwrap();
    assert_eq!(pruned, retention::Pruned::default(), "no retention is set");
    let due = retention::due(store, &retention, later).await.unwrap();
    assert_eq!(
        (due.len(), due[0].executions, due[0].invocations),
        (1, Some(1), Some(3))
    );
    let pruned = retention::prune(store, outputs, &retention, later, || true)
        .await
        .unwrap();
    assert_eq!((pruned.executions, pruned.invocations), (1, 3));
    assert!(!store.execution_exists(old).await.unwrap() && store.execution_exists(live).await.unwrap());
    assert_eq!(fixture.count("action_execution_target").await, 3);
    assert_eq!(fixture.count("action_execution_event").await, 0);
}

#[tokio::test]
async fn an_execution_to_which_a_key_leads_stays_until_the_key_ends() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(1).await;
    let id = fixture.dispatch().await;
    fixture.settle(id, &nodes).await;
    let later = Timestamp::now().plus(2 * HOUR);
    fixture
        .sql(format!(
            "INSERT INTO idempotency_key (project_id, subject, key, body_hash, execution_id, created_at, expires_at)
             SELECT project_id, 'token:x', 'k', {}, id, created_at, {} FROM action_execution",
            testing::zeros(32),
            testing::instant(later.shifted(1)),
        ))
        .await;
    let retention = keep(Keep::For(HOUR), Keep::Forever);
    let (store, outputs) = (fixture.store(), &fixture.control.outputs);
    let pruned = retention::prune(store, outputs, &retention, later, || true)
        .await
        .unwrap();
    assert_eq!(pruned.executions, 0);
    let pruned = retention::prune(store, outputs, &retention, later.plus(HOUR), || true)
        .await
        .unwrap();
    assert_eq!(pruned.executions, 1);
    assert_eq!(fixture.count("idempotency_key").await, 0);
}

#[tokio::test]
async fn an_output_store_that_refuses_is_asked_again() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(1).await;
    let id = fixture.dispatch().await;
    let mut tx = fixture.store().begin().await.unwrap();
    tx.declare_output(id, nodes[0], 20_000, Timestamp::now())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    fixture.settle(id, &nodes).await;
    // A file where the folder of the execution should be cannot be removed as one.
    let path = fixture._dir.path().join("outputs").join(id.to_string());
    std::fs::write(&path, b"in the way").unwrap();
    let retention = keep(Keep::For(HOUR), Keep::Forever);
    let (store, outputs, later) = (
        fixture.store(),
        &fixture.control.outputs,
        Timestamp::now().plus(2 * HOUR),
    );
    let pruned = retention::prune(store, outputs, &retention, later, || true)
        .await
        .unwrap();
    assert_eq!((pruned.executions, pruned.objects), (1, 0));
    assert_eq!(fixture.count("output_garbage").await, 1);
    std::fs::remove_file(&path).unwrap();
    let object = fixture._dir.path().join("outputs").join(output_key(id, nodes[0]));
    std::fs::create_dir_all(object.parent().unwrap()).unwrap();
    std::fs::write(&object, b"kept too long").unwrap();
    let pruned = retention::prune(store, outputs, &retention, later, || true)
        .await
        .unwrap();
    assert_eq!(pruned.objects, 1);
    assert!(!path.exists());
    assert_eq!(fixture.count("output_garbage").await, 0);
}

#[tokio::test]
async fn no_execution_outlives_its_evidence() {
    let fixture = fixture().await;
    let _ = fixture.nodes(1).await;
    let _ = fixture.dispatch().await;
    let (store, domain) = (fixture.store(), fixture.project.domain);
    let (end, _) = audit::verify(store, domain).await.unwrap();
    let (later, hour) = (Timestamp::now().plus(2 * HOUR), Keep::For(HOUR));
    let pruned = retention::prune(store, &fixture.control.outputs, &keep(hour, hour), later, || true)
        .await
        .unwrap();
    assert_eq!(
        (pruned.executions, pruned.audit_rows),
        (0, end.seq - 1),
        "it lives, and the row of its dispatch stays"
    );
}

#[tokio::test]
async fn two_who_prune_say_what_went_once() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(1).await;
    let id = fixture.dispatch().await;
    fixture.settle(id, &nodes).await;
    let (store, now) = (fixture.store(), Timestamp::now());
    let mut tx = store.begin().await.unwrap();
    assert_eq!(tx.prune_executions(&[id], "local", now).await.unwrap(), (1, 1));
    tx.commit().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    assert_eq!(tx.prune_executions(&[id], "local", now).await.unwrap().0, 0);
}

#[tokio::test]
async fn an_object_stays_garbage_while_it_may_be_uploaded_still() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(1).await;
    let id = fixture.dispatch().await;
    let later = Timestamp::now().plus(2 * HOUR);
    let mut tx = fixture.store().begin().await.unwrap();
    tx.declare_output(id, nodes[0], 20_000, later).await.unwrap();
    tx.commit().await.unwrap();
    fixture.settle(id, &nodes).await;
    let retention = keep(Keep::For(HOUR), Keep::Forever);
    let prune = async |at| {
        retention::prune(fixture.store(), &fixture.control.outputs, &retention, at, || true)
            .await
            .unwrap()
    };
    let pruned = prune(later).await;
    assert_eq!((pruned.executions, pruned.objects), (1, 0));
    assert_eq!(prune(later.plus(2 * HOUR)).await.objects, 1);
    assert_eq!(fixture.count("output_garbage").await, 0);
}

#[tokio::test]
async fn an_audit_chain_that_was_pruned_holds_and_says_so() {
    let fixture = fixture().await;
    let _ = fixture.nodes(1).await;
    for _ in 0..3 {
        let _ = fixture.dispatch().await;
    }
    let (store, domain) = (fixture.store(), fixture.project.domain);
    let (before, none) = audit::verify(store, domain).await.unwrap();
    assert!(none.is_none() && before.seq == 5, "{before}");
    let later = Timestamp::now().plus(2 * HOUR);
    let retention = keep(Keep::Forever, Keep::For(HOUR));
    fixture.sql("DELETE FROM action_execution".into()).await;
    let pruned = retention::prune(store, &fixture.control.outputs, &retention, later, || true)
        .await
        .unwrap();
    assert_eq!(pruned.audit_rows, 5);
    let (end, begins) = audit::verify(store, domain).await.unwrap();
    assert_eq!(begins, Some(before), "everything up to the old end went");
    // Two at a time: each batch has said where it ended.
    assert_eq!(end.seq, before.seq + 3);
    fixture
        .sql("DELETE FROM audit WHERE seq = (SELECT min(seq) FROM audit)".into())
        .await;
    let broken = audit::verify(store, domain).await.unwrap_err();
    assert!(matches!(broken, VerifyError::Broken { .. }), "{broken}");
    // Whoever moves the beginning after it was cut has no row that says so.
    fixture
        .sql("UPDATE audit_pruned SET seq = 6, hash = (SELECT previous_hash FROM audit WHERE seq = 7)".into())
        .await;
    let broken = audit::verify(store, domain).await.unwrap_err();
    let VerifyError::Broken { source, .. } = broken else {
        panic!("{broken}")
    };
    assert_eq!(source, muster_shared::audit::Broken::PruneUnsaid { seq: 6 });
    let _: Anchor = end;
}
