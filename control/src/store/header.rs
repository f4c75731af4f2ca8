//! The header of an execution: what was asked, by whom, and how it ended.

use std::collections::BTreeMap;

use muster_shared::{
    ids::{ActionName, DomainId, ExecutionId, ProjectId},
    status::{self, Status},
    time::Timestamp,
    wire::{ActionKind, Execution, ExecutionTarget, Parameters, Rollout},
};

use super::{
    CorruptRow, Store, StoreError,
    engine::Transaction,
    rows::{Reader, Row},
    statement::{QueryBuilder, query},
};

#[derive(Clone, Debug)]
pub(crate) struct ExecutionHeader {
    pub(crate) id: ExecutionId,
    pub(crate) domain: DomainId,
    pub(crate) project: ProjectId,
    pub(crate) action: ActionName,
    pub(crate) kind: ActionKind,
    pub(crate) parameters: Option<Parameters>,
    pub(crate) sealed_parameters: Option<Vec<u8>>,
    pub(crate) selector: Option<String>,
    pub(crate) timeout_seconds: u32,
    pub(crate) deliver_within_seconds: Option<u32>,
    pub(crate) terminal: Option<Status>,
    pub(crate) requested_by: String,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) expires_at: Timestamp,
}

pub(super) const HEADER_COLUMNS: &str = "e.id, e.domain_id, e.project_id, e.action_name, e.action_kind, e.parameters, \
     e.selector, e.timeout_seconds, e.deliver_within_seconds, e.terminal_status, e.requested_by, e.created_at, \
     e.updated_at, e.expires_at, e.sealed_parameters";

impl ExecutionHeader {
    pub(super) fn read(row: &Row) -> Result<Self, CorruptRow> {
        let row = Reader::new(row, "action_execution", "id");
        let kind = match row.get::<&str>("action_kind")? {
            "builtin" => ActionKind::Builtin,
            "hook" => ActionKind::Hook,
            other => return Err(row.corrupt("action_kind", other)),
        };
        let terminal = row.get::<Option<&str>>("terminal_status")?;
        Ok(Self {
            id: row.id("id")?,
            domain: row.id("domain_id")?,
            project: row.id("project_id")?,
            action: row.parsed("action_name")?,
            kind,
            parameters: row.json_opt("parameters")?,
            sealed_parameters: row.get("sealed_parameters")?,
            selector: row.get("selector")?,
            timeout_seconds: row.number("timeout_seconds")?,
            deliver_within_seconds: row.number_opt("deliver_within_seconds")?,
            terminal: terminal
                .map(|s| s.parse().map_err(|err| row.corrupt("terminal_status", err)))
                .transpose()?,
            requested_by: row.get("requested_by")?,
            created_at: row.at("created_at")?,
            updated_at: row.at("updated_at")?,
            expires_at: row.at("expires_at")?,
        })
    }

    /// The published shape. A live execution's status is the fold of its targets at this moment.
    pub(super) fn into_wire(
        self,
        counts: BTreeMap<Status, u64>,
        targets: Vec<ExecutionTarget>,
        rollout: Option<Rollout>,
    ) -> Execution {
        Execution {
            id: self.id,
            project_id: self.project,
            domain_id: self.domain,
            action: self.action,
            kind: self.kind,
            status: self
                .terminal
                .unwrap_or_else(|| status::fold(counts.keys().copied())),
            created_at: self.created_at,
            updated_at: self.updated_at,
            targets,
            target_counts: counts,
            timeout_seconds: self.timeout_seconds,
            deliver_within_seconds: self.deliver_within_seconds,
            expires_at: self.expires_at,
            requested_by: self.requested_by,
            rollout,
            selector: self.selector,
            parameters: self.parameters,
            dropped: Vec::new(),
        }
    }
}

impl Store {
    pub(crate) async fn execution_exists(&self, execution: ExecutionId) -> Result<bool, StoreError> {
        let row = query("SELECT 1 FROM action_execution WHERE id = $1")
            .bind(execution.uuid())
            .fetch_optional(&self.lookup)
            .await?;
        Ok(row.is_some())
    }

    pub(crate) async fn header(
        &self,
        project: ProjectId,
        id: ExecutionId,
    ) -> Result<Option<ExecutionHeader>, StoreError> {
        let mut snapshot = self.read.snapshot().await?;
        Self::header_from(&mut snapshot, project, id).await
    }

    pub(super) async fn header_from(
        connection: &mut Transaction,
        project: ProjectId,
        id: ExecutionId,
    ) -> Result<Option<ExecutionHeader>, StoreError> {
        let row = QueryBuilder::new("SELECT ")
            .push(HEADER_COLUMNS)
            .push(" FROM action_execution e WHERE e.project_id = ")
            .push_bind(project.uuid())
            .push(" AND e.id = ")
            .push_bind(id.uuid())
            .build()
            .fetch_optional(connection)
            .await?;
        Ok(row.map(|row| ExecutionHeader::read(&row)).transpose()?)
    }
}
