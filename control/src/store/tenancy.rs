//! Domains, projects, signing keys and bootstrap tokens.

use muster_shared::{
    ids::{Digest, DomainId, ProjectId, RowId},
    labels::Labels,
    time::Timestamp,
};

use super::{
    CorruptRow, Store, StoreError, Tx,
    rows::{Reader, Row, to_json},
    statement::query,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Project {
    pub(crate) id: ProjectId,
    pub(crate) domain: DomainId,
}

#[derive(Clone, Debug)]
pub(crate) struct BootstrapToken {
    pub(crate) id: RowId,
    pub(crate) project: ProjectId,
    pub(crate) labels: Labels,
    pub(crate) uses: u32,
    pub(crate) uses_max: u32,
    pub(crate) expires_at: Timestamp,
    pub(crate) revoked_at: Option<Timestamp>,
}

pub(crate) struct NewBootstrapToken<'a> {
    pub(crate) id: RowId,
    pub(crate) project: ProjectId,
    pub(crate) hash: Digest,
    pub(crate) labels: &'a Labels,
    pub(crate) uses_max: u32,
    pub(crate) issued_by: &'a str,
    pub(crate) expires_at: Timestamp,
}

impl Tx {
    pub(crate) async fn insert_domain(
        &mut self,
        id: DomainId,
        name: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        query("INSERT INTO domain (id, name, created_at) VALUES ($1, $2, $3)")
            .bind(id.uuid())
            .bind(name)
            .bind(now)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    pub(crate) async fn insert_project(
        &mut self,
        id: ProjectId,
        domain: DomainId,
        name: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        query("INSERT INTO project (id, domain_id, name, created_at) VALUES ($1, $2, $3, $4)")
            .bind(id.uuid())
            .bind(domain.uuid())
            .bind(name)
            .bind(now)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    pub(crate) async fn insert_signing_key(
        &mut self,
        keyid: &str,
        domain: DomainId,
        public_key: &[u8; 32],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        query("INSERT INTO signing_key (keyid, domain_id, public_key, created_at) VALUES ($1, $2, $3, $4)")
            .bind(keyid)
            .bind(domain.uuid())
            .bind(&public_key[..])
            .bind(now)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    pub(crate) async fn insert_bootstrap_token(
        &mut self,
        token: &NewBootstrapToken<'_>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        query(
            "INSERT INTO bootstrap_token
                 (id, project_id, token_hash, labels, uses_max, issued_by, created_at, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(token.id.uuid())
        .bind(token.project.uuid())
        .bind(&token.hash.as_bytes()[..])
        .bind(to_json(token.labels))
        .bind(i64::from(token.uses_max))
        .bind(token.issued_by)
        .bind(now)
        .bind(token.expires_at)
        .execute(&mut self.0)
        .await?;
        Ok(())
    }

    pub(crate) async fn bootstrap_token(
        &mut self,
        hash: Digest,
    ) -> Result<Option<BootstrapToken>, StoreError> {
        let row = query(BOOTSTRAP_TOKEN)
            .bind(&hash.as_bytes()[..])
            .fetch_optional(&mut self.0)
            .await?;
        Ok(row.as_ref().map(read_bootstrap_token).transpose()?)
    }

    /// Counts one use. The table's own check refuses one past the last.
    pub(crate) async fn use_bootstrap_token(&mut self, id: RowId) -> Result<(), StoreError> {
        query("UPDATE bootstrap_token SET uses = uses + 1 WHERE id = $1")
            .bind(id.uuid())
            .execute(&mut self.0)
            .await?;
        Ok(())
    }
}

const BOOTSTRAP_TOKEN: &str = "SELECT id, project_id, labels, uses, uses_max, expires_at, revoked_at
     FROM bootstrap_token WHERE token_hash = $1";

fn read_bootstrap_token(row: &Row) -> Result<BootstrapToken, CorruptRow> {
    let row = Reader::new(row, "bootstrap_token", "id");
    Ok(BootstrapToken {
        id: row.id("id")?,
        project: row.id("project_id")?,
        labels: row.json("labels")?,
        uses: row.number("uses")?,
        uses_max: row.number("uses_max")?,
        expires_at: row.at("expires_at")?,
        revoked_at: row.at_opt("revoked_at")?,
    })
}

impl Store {
    /// A token as it is at this moment.
    pub(crate) async fn bootstrap_token_now(
        &self,
        hash: Digest,
    ) -> Result<Option<BootstrapToken>, StoreError> {
        let row = query(BOOTSTRAP_TOKEN)
            .bind(&hash.as_bytes()[..])
            .fetch_optional(&self.lookup)
            .await?;
        Ok(row.as_ref().map(read_bootstrap_token).transpose()?)
    }

    pub(crate) async fn project(&self, id: ProjectId) -> Result<Option<Project>, StoreError> {
        let row = query("SELECT id, domain_id FROM project WHERE id = $1")
            .bind(id.uuid())
            .fetch_optional(&self.lookup)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let row = Reader::new(&row, "project", "id");
        Ok(Some(Project {
            id: row.id("id")?,
            domain: row.id("domain_id")?,
        }))
    }

    /// The first domain, which `init` made; `None` in an empty database.
    pub(crate) async fn first_domain(&self) -> Result<Option<DomainId>, StoreError> {
        let row = query("SELECT id FROM domain ORDER BY id LIMIT 1")
            .fetch_optional(&self.read)
            .await?;
        row.map(|row| Reader::new(&row, "domain", "id").id("id"))
            .transpose()
            .map_err(StoreError::from)
    }
}
