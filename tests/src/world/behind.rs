//! What a story writes into control's database behind its back.

use super::World;
use crate::{Operator, chance, hex};

impl World {
    /// Changes control's database behind its back, for what no command does yet.
    pub fn alter(&self, sql: &str) {
        self.database.alter(sql);
    }

    /// As many nodes that can do `ping` as nobody has the patience to enrol, beside one that is enrolled. They have the label
    /// `fleet=many`, and never connect.
    pub fn many_nodes(&self, count: u32) {
        let db = &self.database;
        self.alter(&format!(
            "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {count})
             INSERT INTO node (id, domain_id, project_id, name, hostname, machine_id, nsk_hash, bootstrap_token_id,
                               enrollment_id, created_at)
             SELECT {id}, n.domain_id, n.project_id, 'many-' || i, 'many', 'm' || i, {digest},
                    n.bootstrap_token_id, {id}, n.created_at
             FROM c, (SELECT * FROM node LIMIT 1) n;
             INSERT INTO node_action (node_id, name, kind, manifest)
             SELECT id, 'ping', 'builtin', '{{}}' FROM node WHERE true ON CONFLICT DO NOTHING;
             INSERT INTO node_label (node_id, key, value) SELECT id, 'fleet', 'many' FROM node WHERE hostname = 'many'",
            id = db.some_id(),
            digest = db.some_digest(),
        ));
    }

    /// Another operator with all rights in the project.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn another_operator(&self) -> Operator {
        let now = muster_shared::time::Timestamp::now();
        let mint = || muster_shared::ids::RowId::mint(now, chance());
        let (id, tuple) = (mint(), mint());
        let token = format!("mop_{}", hex(&chance::<32>()));
        let hash = muster_shared::ids::Digest::of(token.as_bytes());
        let db = &self.database;
        self.alter(&format!(
            "INSERT INTO operator_token (id, domain_id, name, token_hash, created_at)
                 SELECT {}, id, 'another', {}, {now} FROM domain;
             INSERT INTO relation_tuple (id, domain_id, project_id, subject, relation, resource, created_at)
                 SELECT {}, domain_id, id, 'token:{id}', 'operator', 'project:{}', {now} FROM project",
            db.id(id.uuid()),
            db.bytes(hash.as_bytes()),
            db.id(tuple.uuid()),
            self.operator.project,
            now = db.at(now.as_millis()),
        ));
        self.operator.with_token(&token)
    }
}
