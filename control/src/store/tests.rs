//! The statements themselves, on a real database: what they select, which index answers them, and how many there are.

mod declared;
mod fleet;
mod heard;
mod hostile;
mod indexes;
mod retention;
mod search;
mod selectors;

use muster_shared::{
    ids::{ExecutionId, NodeId, RowId},
    labels::Labels,
    status::Status,
    time::Timestamp,
    wire::DispatchRequest,
};
use uuid::Uuid;

use super::{statement::query_scalar, *};
use crate::{
    authz::{Grants, Requester},
    config::{Config, Given},
    control::Shared,
    dispatch, init,
    keys::{chance, token_hash},
    serve,
};

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
