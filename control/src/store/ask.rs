//! Questions that every report of every node asks. Those that arrive together are answered by one statement, each from
//! a moment after it was asked.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::Arc,
};

use super::{
    CorruptRow, Pool, StoreError,
    sqlite::{apart, here},
};
use crate::together::{Fits, Lead, Together};

/// How many are answered by one statement at most.
const ASKED_MAX: usize = 256;

/// What was found, by what was asked. A row that is none harms nobody but who asked for it.
pub(super) type Found<Q, A> = HashMap<Q, Result<A, CorruptRow>>;

pub(super) type Questions<Q, A> = Together<Q, Result<Option<A>, StoreError>>;

struct Group<Q>(HashSet<Q>);

impl<Q> Default for Group<Q> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<Q: Copy + Eq + Hash> Fits<Q> for Group<Q> {
    fn fits(&mut self, question: &Q) -> bool {
        self.0.len() < ASKED_MAX && self.0.insert(*question)
    }
}

/// Where questions are answered that come to a row each at most. Behind whoever is ready to ask too: where many are, they
/// are one group; where nobody is, it begins at once.
pub(super) fn nearby(lead: Lead) {
    drop(tokio::spawn(async {
        tokio::task::yield_now().await;
        here(lead).await;
    }));
}

/// Where questions are answered that may come to any number of rows.
pub(super) fn elsewhere(lead: Lead) {
    drop(apart(lead));
}

/// Asks with all others who ask now. `find` answers a list of questions, `place` says where.
pub(super) async fn ask<Q, A, F>(
    questions: &Questions<Q, A>,
    question: Q,
    pool: &Pool,
    find: fn(Pool, Vec<Q>) -> F,
    place: fn(Lead),
) -> Result<Option<A>, StoreError>
where
    Q: Copy + Eq + Hash + Send + Sync + 'static,
    A: Send + 'static,
    F: Future<Output = Result<Found<Q, A>, StoreError>> + Send + 'static,
{
    let serve = || {
        let pool = pool.clone();
        move |asked: Vec<Q>| {
            let found = find(pool.clone(), asked.clone());
            async move { answers(&asked, found.await) }
        }
    };
    let answer = questions.done::<Group<Q>, _, _>(question, serve, place).await;
    answer.unwrap_or(Err(StoreError::Sql(sqlx::Error::WorkerCrashed)))
}

fn answers<Q: Eq + Hash, A>(
    asked: &[Q],
    found: Result<Found<Q, A>, StoreError>,
) -> Vec<Result<Option<A>, StoreError>> {
    match found {
        Ok(mut found) => asked
            .iter()
            .map(|question| Ok(found.remove(question).transpose()?))
            .collect(),
        Err(err) => {
            let err = Arc::new(err);
            asked
                .iter()
                .map(|_| Err(StoreError::Together(Arc::clone(&err))))
                .collect()
        }
    }
}
