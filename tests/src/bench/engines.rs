//! A world for the bench on either database. Commits wait for the disk on both: what a commit costs is what is measured.

use crate::{
    Engine, World,
    postgres::{self, Cluster},
    world::Setup,
};

/// As the summary names it.
#[must_use]
pub const fn name(engine: Engine) -> &'static str {
    match engine {
        Engine::Sqlite => "sqlite",
        Engine::Postgres => "postgresql",
    }
}

/// # Errors
/// With why there is none on that database.
pub async fn world(engine: Engine) -> Result<World, String> {
    let cluster = match engine {
        Engine::Sqlite => None,
        Engine::Postgres if postgres::left_out() => {
            return Err("there is no PostgreSQL: install it, or see scripts/postgres".to_owned());
        }
        Engine::Postgres => Some(Cluster::own(&["fsync=on", "full_page_writes=on"]).await),
    };
    Ok(World::made(Setup {
        engine,
        cluster,
        ..Setup::default()
    })
    .await)
}
