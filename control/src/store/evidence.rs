//! What nodes report against what is settled. It is kept beside it, each thing once, and only so much of one invocation.

use std::collections::{HashMap, HashSet};

use muster_shared::ids::{ExecutionId, NodeId};

use super::{
    Advance, StoreError, Tx,
    rows::Reader,
    statement::{QueryBuilder, Statement},
};

/// What becomes of a report that contradicts its settled invocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    News,
    /// The node has said just this before.
    Known,
    /// As much is kept of this invocation as may be.
    Full,
}

/// The end that was reported, and the words to it.
type Told = (String, Option<String>);

impl Tx {
    /// What becomes of each of these, of which no two are of one invocation.
    pub(crate) async fn room_for_evidence(
        &mut self,
        evidence: &[Advance<'_>],
        max: u32,
    ) -> Result<HashMap<(ExecutionId, NodeId), Room>, StoreError> {
        let mut kept: HashMap<(ExecutionId, NodeId), HashSet<Told>> = HashMap::new();
        for asked in self.0.pieces(evidence) {
            for row in kept_of(asked).fetch_all(&mut self.0).await? {
                let row = Reader::new(&row, "action_execution_event", "id");
                let of = (row.id("execution_id")?, row.id("node_id")?);
                let told = (row.get("to_status")?, row.get("detail")?);
                let _ = kept.entry(of).or_default().insert(told);
            }
        }
        let room = |step: &Advance<'_>| {
            let of = (step.execution, step.node);
            let told = (step.to.as_str().to_owned(), step.detail());
            (of, room(kept.get(&of), &told, max))
        };
        Ok(evidence.iter().map(room).collect())
    }
}

fn room(kept: Option<&HashSet<Told>>, told: &Told, max: u32) -> Room {
    let kept_count = kept.map_or(0, HashSet::len);
    if kept.is_some_and(|kept| kept.contains(told)) {
        Room::Known
    } else if kept_count >= max as usize {
        Room::Full
    } else {
        Room::News
    }
}

pub(super) fn kept_of(evidence: &[Advance<'_>]) -> Statement {
    let mut query = QueryBuilder::new("WITH asked (execution_id, node_id) AS (");
    query.push_values(evidence, |row, step| {
        row.push_bind(step.execution.uuid()).push_bind(step.node.uuid());
    });
    query
        .push(
            ") SELECT e.id, e.execution_id, e.node_id, e.to_status, e.detail
             FROM asked CROSS JOIN action_execution_event e
             WHERE e.execution_id = asked.execution_id AND e.node_id = asked.node_id AND e.late",
        )
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_kept_once_and_no_more_of_them_than_may_be() {
        let told = |detail: &str| ("failed".to_owned(), Some(detail.to_owned()));
        let kept: HashSet<Told> = [told("a"), told("b")].into();
        assert_eq!(room(None, &told("a"), 1), Room::News);
        assert_eq!(room(Some(&kept), &told("c"), 3), Room::News);
        assert_eq!(room(Some(&kept), &told("c"), 2), Room::Full);
        assert_eq!(room(Some(&kept), &told("a"), 2), Room::Known);
        let another_end = ("succeeded".to_owned(), Some("a".to_owned()));
        assert_eq!(room(Some(&kept), &another_end, 3), Room::News);
    }
}
