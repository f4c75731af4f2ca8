//! Nodes: enrolment, presence, and what is known of each.

use std::collections::HashMap;

use muster_shared::{
    ids::{Digest, DomainId, NodeId, ProjectId, RowId},
    labels::Labels,
    selector::Selector,
    time::Timestamp,
    wire::{ActionKind, NodeAction, PreviewTarget, Verdict},
};
use uuid::Uuid;

use super::{
    CorruptRow, News, ROWS_PER_INSERT, Store, StoreError, Tx,
    labels::push_selector,
    rows::{Reader, Row},
    statement::{QueryBuilder, query, query_scalar},
};
use crate::presence::Seen;

pub(crate) struct NewNode<'a> {
    pub(crate) id: NodeId,
    pub(crate) domain: DomainId,
    pub(crate) project: ProjectId,
    pub(crate) name: &'a str,
    pub(crate) hostname: &'a str,
    pub(crate) machine_id: &'a str,
    pub(crate) nsk_hash: Digest,
    pub(crate) token: RowId,
    pub(crate) enrollment: Uuid,
}

#[derive(Clone, Debug)]
pub(crate) struct NodeRecord {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) domain: DomainId,
    pub(crate) project: ProjectId,
    pub(crate) hostname: String,
    pub(crate) created_at: Timestamp,
    pub(crate) last_seen_at: Option<Timestamp>,
    pub(crate) clock_skew_ms: Option<i64>,
    pub(crate) binary_version: Option<String>,
    /// Since when its key counts, and when another was asked for.
    pub(crate) nsk_since: Timestamp,
    pub(crate) nsk_asked_at: Option<Timestamp>,
    pub(crate) warning: Option<String>,
    pub(crate) warned_at: Option<Timestamp>,
    /// The service that holds its stream, of several.
    pub(crate) replica: Option<Uuid>,
    pub(crate) labels: Labels,
    pub(crate) actions: Vec<NodeAction>,
}

#[derive(Default)]
pub(crate) struct NodeFilter<'a> {
    pub(crate) projects: &'a [ProjectId],
    pub(crate) selector: Option<&'a Selector>,
    pub(crate) node: Option<NodeId>,
    /// Only nodes after this one, in the order of ids.
    pub(crate) after: Option<NodeId>,
    pub(crate) limit: Option<u32>,
}

const NODE_COLUMNS: &str = "node.id, node.name, node.domain_id, node.project_id, node.hostname, node.created_at, \
     node.last_seen_at, node.clock_skew_ms, node.binary_version, node.nsk_since, node.nsk_asked_at, \
     node.warning, node.warning_at, node.replica_id";

pub(super) fn push_projects(query: &mut QueryBuilder, projects: &[ProjectId]) {
    query.push_in("node.project_id", projects.iter().map(|project| project.uuid()));
}

const ENROLLED_BEFORE: &str =
    "SELECT id, name, decommissioned_at FROM node WHERE bootstrap_token_id = $1 AND enrollment_id = $2";

/// A node that was enrolled before with the same token and id: the answer was lost.
pub(crate) struct Enrolled {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) decommissioned_at: Option<Timestamp>,
}

fn read_enrolled(row: &Row) -> Result<Enrolled, CorruptRow> {
    let row = Reader::new(row, "node", "id");
    Ok(Enrolled {
        node: row.id("id")?,
        name: row.get("name")?,
        decommissioned_at: row.at_opt("decommissioned_at")?,
    })
}

impl Store {
    /// The node that this token made for this enrolment, at this moment.
    pub(crate) async fn enrolled_before(
        &self,
        token: RowId,
        enrollment: Uuid,
    ) -> Result<Option<Enrolled>, StoreError> {
        let row = query(ENROLLED_BEFORE)
            .bind(token.uuid())
            .bind(enrollment)
            .fetch_optional(&self.lookup)
            .await?;
        Ok(row.as_ref().map(read_enrolled).transpose()?)
    }

    /// What these nodes are called, by name.
    pub(crate) async fn preview_targets(&self, nodes: &[NodeId]) -> Result<Vec<PreviewTarget>, StoreError> {
        let rows = in_nodes("SELECT id, name FROM node WHERE ", "id", nodes)
            .push(" ORDER BY name, id")
            .build()
            .fetch_all(&self.read)
            .await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "node", "id");
                Ok(PreviewTarget {
                    node_id: row.id("id")?,
                    node_name: row.get("name")?,
                })
            })
            .collect()
    }

    pub(crate) async fn nodes(&self, filter: &NodeFilter<'_>) -> Result<Vec<NodeRecord>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query
            .push(NODE_COLUMNS)
            .push(" FROM node WHERE node.decommissioned_at IS NULL AND ");
        push_projects(&mut query, filter.projects);
        if let Some(selector) = filter.selector {
            push_selector(&mut query, selector);
        }
        if let Some(node) = filter.node {
            query.push(" AND node.id = ").push_bind(node.uuid());
        }
        if let Some(after) = filter.after {
            query.push(" AND node.id > ").push_bind(after.uuid());
        }
        query.push(" ORDER BY node.id");
        if let Some(limit) = filter.limit {
            query.push(" LIMIT ").push_bind(i64::from(limit));
        }
        let rows = query.build().fetch_all(&self.read).await?;
        let mut nodes = rows
            .iter()
            .map(|row| {
                let row = Reader::new(row, "node", "id");
                let created_at = row.at("created_at")?;
                Ok(NodeRecord {
                    id: row.id("id")?,
                    name: row.get("name")?,
                    domain: row.id("domain_id")?,
                    project: row.id("project_id")?,
                    hostname: row.get("hostname")?,
                    created_at,
                    nsk_since: row.at_opt("nsk_since")?.unwrap_or(created_at),
                    nsk_asked_at: row.at_opt("nsk_asked_at")?,
                    warning: row.get("warning")?,
                    warned_at: row.at_opt("warning_at")?,
                    replica: row.get("replica_id")?,
                    last_seen_at: row.at_opt("last_seen_at")?,
                    clock_skew_ms: row.get("clock_skew_ms")?,
                    binary_version: row.get("binary_version")?,
                    labels: Labels::new(),
                    actions: Vec::new(),
                })
            })
            .collect::<Result<Vec<_>, StoreError>>()?;
        self.fill_labels_and_actions(&mut nodes).await?;
        Ok(nodes)
    }

    async fn fill_labels_and_actions(&self, nodes: &mut [NodeRecord]) -> Result<(), StoreError> {
        let index: HashMap<NodeId, usize> = nodes.iter().enumerate().map(|(i, n)| (n.id, i)).collect();
        let ids: Vec<NodeId> = nodes.iter().map(|n| n.id).collect();
        for chunk in ids.chunks(ROWS_PER_INSERT) {
            let labels = in_nodes(
                "SELECT node_id, key, value FROM node_label WHERE ",
                "node_id",
                chunk,
            )
            .push(" ORDER BY node_id, key")
            .build()
            .fetch_all(&self.read)
            .await?;
            for row in &labels {
                let row = Reader::new(row, "node_label", "node_id");
                if let Some(at) = index.get(&row.id("node_id")?) {
                    nodes[*at].labels.insert(row.get("key")?, row.get("value")?);
                }
            }
            let actions = in_nodes(
                "SELECT a.node_id, a.name, a.kind, a.digest, a.denied, b.digest AS baseline FROM node_action a
                 LEFT JOIN hook_baseline b ON b.node_id = a.node_id AND b.hook = a.name
                 WHERE ",
                "a.node_id",
                chunk,
            )
            .push(" ORDER BY a.node_id, a.name")
            .build()
            .fetch_all(&self.read)
            .await?;
            for row in &actions {
                let row = Reader::new(row, "node_action", "node_id");
                let observed = row.digest_opt("digest")?;
                let baseline = row.digest_opt("baseline")?;
                if let Some(at) = index.get(&row.id("node_id")?) {
                    nodes[*at].actions.push(NodeAction {
                        name: row.parsed("name")?,
                        kind: if observed.is_some() {
                            ActionKind::Hook
                        } else {
                            ActionKind::Builtin
                        },
                        verdict: observed.map(|observed| Verdict::of(baseline, observed)),
                        denied: row.get("denied")?,
                    });
                }
            }
        }
        Ok(())
    }

    /// Where a node belongs, whoever asks.
    pub(crate) async fn home_of(&self, node: NodeId) -> Result<Option<(DomainId, ProjectId)>, StoreError> {
        let row = query("SELECT id, domain_id, project_id FROM node WHERE id = $1")
            .bind(node.uuid())
            .fetch_optional(&self.read)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let row = Reader::new(&row, "node", "id");
        Ok(Some((row.id("domain_id")?, row.id("project_id")?)))
    }

    /// Every project with its domain.
    pub(crate) async fn all_projects(&self) -> Result<Vec<(DomainId, ProjectId)>, StoreError> {
        let rows = query("SELECT id, domain_id FROM project ORDER BY id")
            .fetch_all(&self.read)
            .await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "project", "id");
                Ok((row.id("domain_id")?, row.id("id")?))
            })
            .collect()
    }
}

fn in_nodes(begin: &'static str, column: &str, nodes: &[NodeId]) -> QueryBuilder {
    let mut query = QueryBuilder::new(begin);
    query.push_in(column, nodes.iter().map(|node| node.uuid()));
    query
}

impl Tx {
    pub(crate) async fn insert_node(&mut self, node: &NewNode<'_>, now: Timestamp) -> Result<(), StoreError> {
        query(
            "INSERT INTO node (id, domain_id, project_id, name, hostname, machine_id, nsk_hash,
                               bootstrap_token_id, enrollment_id, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        )
        .bind(node.id.uuid())
        .bind(node.domain.uuid())
        .bind(node.project.uuid())
        .bind(node.name)
        .bind(node.hostname)
        .bind(node.machine_id)
        .bind(&node.nsk_hash.as_bytes()[..])
        .bind(node.token.uuid())
        .bind(node.enrollment)
        .bind(now)
        .execute(&mut self.0)
        .await?;
        Ok(())
    }

    /// The same as [`Store::enrolled_before`], within the transaction.
    pub(crate) async fn enrolled_before(
        &mut self,
        token: RowId,
        enrollment: Uuid,
    ) -> Result<Option<Enrolled>, StoreError> {
        let row = query(ENROLLED_BEFORE)
            .bind(token.uuid())
            .bind(enrollment)
            .fetch_optional(&mut self.0)
            .await?;
        Ok(row.as_ref().map(read_enrolled).transpose()?)
    }

    pub(crate) async fn node_name_taken(
        &mut self,
        project: ProjectId,
        name: &str,
    ) -> Result<bool, StoreError> {
        let row =
            query("SELECT 1 FROM node WHERE project_id = $1 AND name = $2 AND decommissioned_at IS NULL")
                .bind(project.uuid())
                .bind(name)
                .fetch_optional(&mut self.0)
                .await?;
        Ok(row.is_some())
    }

    /// The names of the domain's nodes that report this machine-id.
    pub(crate) async fn nodes_with_machine_id(
        &mut self,
        domain: DomainId,
        machine_id: &str,
    ) -> Result<Vec<String>, StoreError> {
        Ok(query_scalar(
            "SELECT name FROM node
             WHERE domain_id = $1 AND machine_id = $2 AND decommissioned_at IS NULL ORDER BY id LIMIT 10",
        )
        .bind(domain.uuid())
        .bind(machine_id)
        .fetch_all(&mut self.0)
        .await?)
    }

    /// Takes a node out of service for good: its NSK opens nothing any more, its history stays.
    pub(crate) async fn decommission(&mut self, node: NodeId, now: Timestamp) -> Result<(), StoreError> {
        self.tell(News::EndStream(node));
        query("UPDATE node SET decommissioned_at = $2 WHERE id = $1 AND decommissioned_at IS NULL")
            .bind(node.uuid())
            .bind(now)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// Notes when nodes were last heard of, how far off their clocks were, and what they run. Of what is known already, a
    /// later word from another service counts.
    pub(crate) async fn note_presence(&mut self, seen: &[(NodeId, Seen)]) -> Result<(), StoreError> {
        for seen in self.0.pieces(seen) {
            let mut query = QueryBuilder::new("WITH seen (id, at, skew_ms, binary_version) AS (");
            query.push_values(seen, |row, (node, seen)| {
                row.push_bind(node.uuid())
                    .push_bind(seen.at)
                    .push_bind(seen.skew_ms)
                    .push_bind(seen.binary_version.as_deref());
            });
            query.push(
                ") UPDATE node SET last_seen_at = seen.at,
                       clock_skew_ms = coalesce(seen.skew_ms, clock_skew_ms),
                       binary_version = coalesce(seen.binary_version, node.binary_version)
                 FROM seen
                 WHERE node.id = seen.id AND (last_seen_at IS NULL OR last_seen_at < seen.at)",
            );
            query.build().execute(&mut self.0).await?;
        }
        Ok(())
    }
}
