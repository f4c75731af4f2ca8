//! Tokens and relation tuples, as operators manage them.

use muster_shared::{
    access::{BootstrapTokenState, OperatorToken, RelationTuple},
    ids::{Digest, DomainId, ProjectId, RowId},
    time::Timestamp,
};

use super::{
    CorruptRow, Store, StoreError, Tx,
    rows::{Reader, Row},
    statement::{QueryBuilder, query},
};
use crate::authz::{GROUP_DEPTH_MAX, Tuple};

/// `SELECT` of a whole token, with the rest of the statement.
macro_rules! select_token {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, domain_id, created_at, created_by, expires_at, revoked_at, rotated_at, \
             previous_until, token_hash FROM operator_token ",
            $rest
        )
    };
}

/// What a secret is judged by.
#[derive(Clone, Debug)]
pub(crate) struct Presented {
    pub(crate) token: OperatorToken,
    /// The secret is the one before the last rotation.
    pub(crate) is_previous: bool,
}

fn read_token(row: &Row) -> Result<OperatorToken, CorruptRow> {
    let row = Reader::new(row, "operator_token", "id");
    Ok(OperatorToken {
        id: row.id("id")?,
        name: row.get("name")?,
        domain_id: row.id("domain_id")?,
        created_at: row.at("created_at")?,
        created_by: row.get("created_by")?,
        expires_at: row.at_opt("expires_at")?,
        revoked_at: row.at_opt("revoked_at")?,
        rotated_at: row.at_opt("rotated_at")?,
        previous_valid_until: row.at_opt("previous_until")?,
    })
}

fn read_bootstrap(row: &Row) -> Result<BootstrapTokenState, CorruptRow> {
    let row = Reader::new(row, "bootstrap_token", "id");
    Ok(BootstrapTokenState {
        id: row.id("id")?,
        project_id: row.id("project_id")?,
        labels: row.json("labels")?,
        uses: row.number("uses")?,
        uses_max: row.number("uses_max")?,
        issued_by: row.get("issued_by")?,
        created_at: row.at("created_at")?,
        expires_at: row.at("expires_at")?,
        revoked_at: row.at_opt("revoked_at")?,
    })
}

fn read_wire_tuple(row: &Row) -> Result<RelationTuple, CorruptRow> {
    let row = Reader::new(row, "relation_tuple", "id");
    Ok(RelationTuple {
        id: row.id("id")?,
        subject: row.get("subject")?,
        relation: row.get("relation")?,
        resource: row.get("resource")?,
        created_at: row.at("created_at")?,
    })
}

fn read_tuple(row: &Row) -> Result<Tuple, CorruptRow> {
    let row = Reader::new(row, "relation_tuple", "domain_id");
    Ok(Tuple {
        domain: row.id("domain_id")?,
        subject: row.get("subject")?,
        relation: row.get("relation")?,
        resource: row.get("resource")?,
    })
}

impl Store {
    pub(crate) async fn presented_token(&self, hash: Digest) -> Result<Option<Presented>, StoreError> {
        let row = query(select_token!("WHERE token_hash = $1 OR previous_hash = $1"))
            .bind(&hash.as_bytes()[..])
            .fetch_optional(&self.read)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let is_previous = Reader::new(&row, "operator_token", "id").digest("token_hash")? != hash;
        Ok(Some(Presented {
            token: read_token(&row)?,
            is_previous,
        }))
    }

    /// Every tuple that says something of one of the subjects, or of a group that it is in.
    pub(crate) async fn tuples_about(&self, subjects: &[String]) -> Result<Vec<Tuple>, StoreError> {
        let mut query = QueryBuilder::new(
            "WITH RECURSIVE held (domain_id, subject, depth) AS (
                 SELECT domain_id, subject, 0 FROM relation_tuple WHERE ",
        );
        query.push_in("subject", subjects);
        query.push(
            "
                 UNION
                 SELECT t.domain_id, t.resource || '#member', held.depth + 1
                 FROM held JOIN relation_tuple t ON t.domain_id = held.domain_id AND t.subject = held.subject
                 WHERE t.relation = 'member' AND held.depth < ",
        );
        query.push_bind(i64::try_from(GROUP_DEPTH_MAX).unwrap_or(i64::MAX));
        query.push(
            ")
             SELECT DISTINCT t.domain_id, t.subject, t.relation, t.resource
             FROM held JOIN relation_tuple t ON t.domain_id = held.domain_id AND t.subject = held.subject",
        );
        let rows = query.build().fetch_all(&self.read).await?;
        Ok(rows.iter().map(read_tuple).collect::<Result<_, _>>()?)
    }

    /// The tokens of a domain, in the order they were made.
    pub(crate) async fn operator_tokens(
        &self,
        domain: DomainId,
        after: Option<RowId>,
        limit: u32,
    ) -> Result<Vec<OperatorToken>, StoreError> {
        let rows = query(select_token!(
            "WHERE domain_id = $1 AND id > $2 ORDER BY id LIMIT $3"
        ))
        .bind(domain.uuid())
        .bind(after.map_or(uuid::Uuid::nil(), RowId::uuid))
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        Ok(rows.iter().map(read_token).collect::<Result<_, _>>()?)
    }

    pub(crate) async fn operator_token_of(&self, id: RowId) -> Result<Option<OperatorToken>, StoreError> {
        let row = query(select_token!("WHERE id = $1"))
            .bind(id.uuid())
            .fetch_optional(&self.read)
            .await?;
        Ok(row.as_ref().map(read_token).transpose()?)
    }

    /// The bootstrap tokens of a project, in the order they were issued.
    pub(crate) async fn bootstrap_tokens(
        &self,
        project: ProjectId,
        after: Option<RowId>,
        limit: u32,
    ) -> Result<Vec<BootstrapTokenState>, StoreError> {
        let rows = query(
            "SELECT id, project_id, labels, uses, uses_max, issued_by, created_at, expires_at, revoked_at
             FROM bootstrap_token WHERE project_id = $1 AND id > $2 ORDER BY id LIMIT $3",
        )
        .bind(project.uuid())
        .bind(after.map_or(uuid::Uuid::nil(), RowId::uuid))
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        Ok(rows.iter().map(read_bootstrap).collect::<Result<_, _>>()?)
    }

    /// The tuples of a project and its nodes and, if asked for, those of the whole domain.
    pub(crate) async fn relation_tuples(
        &self,
        (domain, project): (DomainId, ProjectId),
        of_domain_too: bool,
        after: Option<RowId>,
        limit: u32,
    ) -> Result<Vec<RelationTuple>, StoreError> {
        let rows = query(
            "SELECT id, subject, relation, resource, created_at FROM relation_tuple
             WHERE domain_id = $1 AND (project_id = $2 OR (project_id IS NULL AND $3)) AND id > $4
             ORDER BY id LIMIT $5",
        )
        .bind(domain.uuid())
        .bind(project.uuid())
        .bind(of_domain_too)
        .bind(after.map_or(uuid::Uuid::nil(), RowId::uuid))
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        Ok(rows.iter().map(read_wire_tuple).collect::<Result<_, _>>()?)
    }
}

impl Tx {
    /// Inserts a token. False when the name is taken.
    pub(crate) async fn insert_operator_token(
        &mut self,
        token: &OperatorToken,
        hash: Digest,
    ) -> Result<bool, StoreError> {
        let made = query(
            "INSERT INTO operator_token (id, name, domain_id, token_hash, created_at, created_by, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        )
        .bind(token.id.uuid())
        .bind(&token.name)
        .bind(token.domain_id.uuid())
        .bind(&hash.as_bytes()[..])
        .bind(token.created_at)
        .bind(&token.created_by)
        .bind(token.expires_at)
        .execute(&mut self.0)
        .await?;
        Ok(made > 0)
    }

    /// False when it was revoked already.
    pub(crate) async fn revoke_operator_token(
        &mut self,
        id: RowId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let done = query("UPDATE operator_token SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL")
            .bind(id.uuid())
            .bind(now)
            .execute(&mut self.0)
            .await?;
        Ok(done > 0)
    }

    /// Gives a token that holds a new secret; the former one counts until `previous_until`. False when it holds no more.
    pub(crate) async fn rotate_operator_token(
        &mut self,
        id: RowId,
        hash: Digest,
        previous_until: Timestamp,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let done = query(
            "UPDATE operator_token
             SET previous_hash = token_hash, previous_until = $3, token_hash = $2, rotated_at = $4
             WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $4)",
        )
        .bind(id.uuid())
        .bind(&hash.as_bytes()[..])
        .bind(previous_until)
        .bind(now)
        .execute(&mut self.0)
        .await?;
        Ok(done > 0)
    }

    /// Every operator token that opens anything now.
    pub(crate) async fn live_operator_tokens(&mut self, now: Timestamp) -> Result<Vec<RowId>, StoreError> {
        let rows = query(
            "SELECT id FROM operator_token WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)",
        )
        .bind(now)
        .fetch_all(&mut self.0)
        .await?;
        Ok(rows
            .iter()
            .map(|row| Reader::new(row, "operator_token", "id").id("id"))
            .collect::<Result<_, _>>()?)
    }

    /// False when there is no such token in the project, or it was revoked already.
    pub(crate) async fn revoke_bootstrap_token(
        &mut self,
        project: ProjectId,
        id: RowId,
        now: Timestamp,
    ) -> Result<Option<BootstrapTokenState>, StoreError> {
        let row = query(
            "UPDATE bootstrap_token SET revoked_at = coalesce(revoked_at, $3) WHERE id = $1 AND project_id = $2
             RETURNING id, project_id, labels, uses, uses_max, issued_by, created_at, expires_at, revoked_at",
        )
        .bind(id.uuid())
        .bind(project.uuid())
        .bind(now)
        .fetch_optional(&mut self.0)
        .await?;
        Ok(row.as_ref().map(read_bootstrap).transpose()?)
    }

    /// Every tuple of a domain, its groups included.
    pub(crate) async fn tuples_of(&mut self, domain: DomainId) -> Result<Vec<Tuple>, StoreError> {
        let rows =
            query("SELECT domain_id, subject, relation, resource FROM relation_tuple WHERE domain_id = $1")
                .bind(domain.uuid())
                .fetch_all(&mut self.0)
                .await?;
        Ok(rows.iter().map(read_tuple).collect::<Result<_, _>>()?)
    }

    /// Inserts a tuple. Answers with the one that stands, and whether it is new.
    pub(crate) async fn insert_relation(
        &mut self,
        id: RowId,
        (domain, project): (DomainId, Option<ProjectId>),
        (subject, relation, resource): (&str, &str, &str),
        now: Timestamp,
    ) -> Result<(RelationTuple, bool), StoreError> {
        query(
            "INSERT INTO relation_tuple (id, domain_id, project_id, subject, relation, resource, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        )
        .bind(id.uuid())
        .bind(domain.uuid())
        .bind(project.map(ProjectId::uuid))
        .bind(subject)
        .bind(relation)
        .bind(resource)
        .bind(now)
        .execute(&mut self.0)
        .await?;
        let row = query(
            "SELECT id, subject, relation, resource, created_at FROM relation_tuple
             WHERE domain_id = $1 AND subject = $2 AND relation = $3 AND resource = $4",
        )
        .bind(domain.uuid())
        .bind(subject)
        .bind(relation)
        .bind(resource)
        .fetch_one(&mut self.0)
        .await?;
        let tuple = read_wire_tuple(&row)?;
        let new = tuple.id == id;
        Ok((tuple, new))
    }

    /// Deletes a tuple of the project or, if `of_domain_too`, of its domain.
    pub(crate) async fn delete_relation(
        &mut self,
        id: RowId,
        (domain, project): (DomainId, ProjectId),
        of_domain_too: bool,
    ) -> Result<Option<RelationTuple>, StoreError> {
        let row = query(
            "DELETE FROM relation_tuple
             WHERE id = $1 AND domain_id = $2 AND (project_id = $3 OR (project_id IS NULL AND $4))
             RETURNING id, subject, relation, resource, created_at",
        )
        .bind(id.uuid())
        .bind(domain.uuid())
        .bind(project.uuid())
        .bind(of_domain_too)
        .fetch_optional(&mut self.0)
        .await?;
        Ok(row.as_ref().map(read_wire_tuple).transpose()?)
    }
}
