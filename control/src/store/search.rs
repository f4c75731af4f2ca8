//! Executions as they are looked for, newest first. Where an index answers the question, it does; what no index knows is asked
//! of a few of them at a time, and for a bounded time: a page that was not filled by then goes on where it stopped.

use std::time::{Duration, Instant};

use muster_shared::{
    ids::{ExecutionId, NodeId, ProjectId},
    selector::Selector,
    status::Status,
    time::Timestamp,
    wire::Execution,
};

use super::{
    CorruptRow, ExecutionHeader, Store, StoreError,
    engine::Transaction,
    header::HEADER_COLUMNS,
    labels::push_selector,
    list::target_counts,
    rows::{Reader, Row},
    statement::QueryBuilder,
};

/// How many executions are looked through with one statement: each may have ten thousand targets.
const STRIDE: u32 = 250;
/// How long a page is looked for.
const WALK_MAX: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(crate) struct ListFilter<'a> {
    pub(crate) status: Option<Status>,
    pub(crate) action: Option<&'a str>,
    /// Only those that have this node among their targets.
    pub(crate) node: Option<NodeId>,
    /// Only those that have a node with these labels, as they are now, among their targets.
    pub(crate) selector: Option<&'a Selector>,
    /// From the first instant on, and before the second.
    pub(crate) created: (Option<Timestamp>, Option<Timestamp>),
    /// Only executions before this one, newest first.
    pub(crate) before: Option<Place>,
}

/// Where an execution is in the history.
pub(crate) type Place = (Timestamp, ExecutionId);

/// What was found, and how far it was looked if neither the page is full nor the history at its end.
pub(crate) struct Found<T> {
    pub(crate) items: Vec<T>,
    pub(crate) stopped: Option<Place>,
}

impl Store {
    /// A page of executions, newest first, without targets.
    pub(crate) async fn executions(
        &self,
        project: ProjectId,
        filter: &ListFilter<'_>,
        limit: u32,
    ) -> Result<Found<Execution>, StoreError> {
        let until = Instant::now() + WALK_MAX;
        let mut snapshot = self.read.snapshot().await?;
        let search = Search {
            project,
            filter,
            stride: STRIDE,
        };
        let found = search
            .found(&mut snapshot, limit, || Instant::now() >= until)
            .await?;
        let ids: Vec<ExecutionId> = found.items.iter().map(|header| header.id).collect();
        let mut counts = target_counts(&mut snapshot, &ids).await?;
        let mut rollouts = Self::rollouts_from(&mut snapshot, ids).await?;
        snapshot.commit().await?;
        let whole = |header: ExecutionHeader| {
            let counts = counts.remove(&header.id).unwrap_or_default();
            let rollout = rollouts.remove(&header.id);
            header.into_wire(counts, Vec::new(), rollout)
        };
        Ok(Found {
            items: found.items.into_iter().map(whole).collect(),
            stopped: found.stopped,
        })
    }
}

pub(super) struct Search<'a> {
    pub(super) project: ProjectId,
    pub(super) filter: &'a ListFilter<'a>,
    /// How many executions are looked through with one statement.
    pub(super) stride: u32,
}

impl Search<'_> {
    pub(super) async fn found(
        &self,
        snapshot: &mut Transaction,
        limit: u32,
        time_is_up: impl Fn() -> bool,
    ) -> Result<Found<ExecutionHeader>, StoreError> {
        let (mut items, mut before) = (Vec::new(), self.filter.before);
        loop {
            let to = if self.is_indexed() {
                None
            } else {
                self.a_stride_after(&mut *snapshot, before).await?
            };
            let wanted = limit.saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX));
            let rows = self
                .within(before, to, wanted)
                .build()
                .fetch_all(&mut *snapshot)
                .await?;
            for row in &rows {
                items.push(ExecutionHeader::read(row)?);
            }
            if to.is_none() || items.len() >= limit as usize {
                let stopped = None;
                return Ok(Found { items, stopped });
            }
            if time_is_up() {
                return Ok(Found { items, stopped: to });
            }
            before = to;
        }
    }

    /// What one node was asked is found from its side, however little that is of the project's history.
    const fn place(&self) -> (&'static str, &'static str) {
        match self.filter.node {
            Some(_) => ("t.created_at", "t.execution_id"),
            None => ("e.created_at", "e.id"),
        }
    }

    /// Whether all that is asked for lies together in an index.
    fn is_indexed(&self) -> bool {
        let ListFilter {
            status,
            action,
            node,
            selector,
            ..
        } = self.filter;
        let alone = selector.is_none() && (action.is_none() || status.is_none());
        match node {
            Some(_) => alone && action.is_none() && status.is_none(),
            None => alone && status.is_none_or(Status::is_terminal),
        }
    }

    /// Those among which an index goes from one to the next, before a place.
    fn push_walked(&self, query: &mut QueryBuilder, before: Option<Place>) {
        let (created, _) = self.place();
        let filter = self.filter;
        if let Some(node) = filter.node {
            query
                .push(" FROM action_execution_target t JOIN action_execution e ON e.id = t.execution_id WHERE t.node_id = ")
                .push_bind(node.uuid())
                .push(" AND e.project_id = ")
                .push_bind(self.project.uuid());
        } else {
            query
                .push(" FROM action_execution e WHERE e.project_id = ")
                .push_bind(self.project.uuid());
            match (filter.status, filter.action) {
                (Some(status), _) => push_rest(query, status),
                (None, Some(action)) => push_action(query, action),
                (None, None) => {}
            }
        }
        let (from, to) = filter.created;
        if let Some(from) = from {
            query.push(" AND ").push(created).push(" >= ").push_bind(from);
        }
        if let Some(to) = to {
            query.push(" AND ").push(created).push(" < ").push_bind(to);
        }
        if let Some(before) = before {
            self.push_bound(query, "<", before);
        }
    }

    fn push_bound(&self, query: &mut QueryBuilder, sense: &str, (at, execution): Place) {
        let (created, id) = self.place();
        query
            .push(format!(" AND ({created}, {id}) {sense} ("))
            .push_bind(at)
            .push(", ")
            .push_bind(execution.uuid())
            .push(")");
    }

    /// How far the next statement looks: the last of so many; none where fewer are left.
    async fn a_stride_after(
        &self,
        snapshot: &mut Transaction,
        before: Option<Place>,
    ) -> Result<Option<Place>, StoreError> {
        let (created, id) = self.place();
        let mut query = QueryBuilder::new(format!("SELECT {created} AS created_at, {id} AS id"));
        self.push_walked(&mut query, before);
        query
            .push(format!(
                " ORDER BY {created} DESC, {id} DESC LIMIT 1 OFFSET {}",
                self.stride - 1
            ))
            .build()
            .fetch_optional(snapshot)
            .await?
            .as_ref()
            .map(|row: &Row| {
                let row = Reader::new(row, "action_execution", "id");
                Ok((row.at("created_at")?, row.id("id")?))
            })
            .transpose()
            .map_err(|err: CorruptRow| err.into())
    }

    /// Those that are asked for before a place, and down to another, this one included.
    fn within(&self, before: Option<Place>, to: Option<Place>, limit: u32) -> QueryBuilder {
        let filter = self.filter;
        let mut query = QueryBuilder::new("SELECT ");
        query.push(HEADER_COLUMNS);
        self.push_walked(&mut query, before);
        if let Some(to) = to {
            self.push_bound(&mut query, ">=", to);
        }
        if let Some(status) = filter.status {
            if filter.node.is_some() {
                push_rest(&mut query, status);
            }
            push_live(&mut query, status);
        }
        if let Some(action) = filter.action
            && (filter.node.is_some() || filter.status.is_some())
        {
            push_action(&mut query, action);
        }
        if let Some(selector) = filter.selector {
            query
                .push(
                    " AND EXISTS (SELECT 1 FROM action_execution_target m WHERE m.execution_id = e.id
                       AND m.node_id IN (SELECT node.id FROM node WHERE node.project_id = ",
                )
                .push_bind(self.project.uuid());
            push_selector(&mut query, selector);
            query.push("))");
        }
        let (created, id) = self.place();
        query
            .push(format!(" ORDER BY {created} DESC, {id} DESC LIMIT "))
            .push_bind(i64::from(limit));
        query
    }
}

fn push_action(query: &mut QueryBuilder, action: &str) {
    query.push(" AND e.action_name = ").push_bind(action.to_owned());
}

/// A settled status is a column.
fn push_rest(query: &mut QueryBuilder, status: Status) {
    if status.is_terminal() {
        query.push(" AND e.terminal_status = ").push_bind(status.as_str());
    } else {
        query.push(" AND e.terminal_status IS NULL");
    }
}

/// A live one is asked of the targets.
fn push_live(query: &mut QueryBuilder, status: Status) {
    const ANY: &str =
        "EXISTS (SELECT 1 FROM action_execution_target s WHERE s.execution_id = e.id AND s.status ";
    let _ = match status {
        Status::Pending => query.push(" AND NOT ").push(ANY).push("<> 'pending')"),
        Status::Ack => query
            .push(" AND NOT ")
            .push(ANY)
            .push("NOT IN ('pending', 'ack')) AND ")
            .push(ANY)
            .push("= 'ack')"),
        Status::Started => query.push(" AND ").push(ANY).push("NOT IN ('pending', 'ack'))"),
        Status::Succeeded | Status::Failed | Status::Cancelled | Status::Timeout => query,
    };
}
