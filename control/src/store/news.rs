//! What a commit is news of, for the other services that share the database. It travels with the commit and not without
//! it. Where nobody shares, it is told to nobody. A notification is a hint: whoever misses one looks by the clock.

use std::{fmt, str::FromStr};

use muster_shared::ids::{ExecutionId, NodeId};
use uuid::Uuid;

use super::{
    Store, StoreError, Tx, postgres,
    statement::{QueryBuilder, query},
};

const CHANNEL: &str = "muster";
/// How many pieces of news one statement tells.
const TOLD_AT_ONCE: usize = 500;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum News {
    /// There are rows in the outbox.
    Outbox,
    /// An execution has moved.
    Timeline(ExecutionId),
    /// A rollout may have a step to make.
    Rollouts,
    /// The streams of this node are to end: it has a newer one, its daemon is another one now, or it is out of service.
    EndStream(NodeId),
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outbox => f.write_str("outbox"),
            Self::Timeline(execution) => write!(f, "timeline {execution}"),
            Self::Rollouts => f.write_str("rollouts"),
            Self::EndStream(node) => write!(f, "end-stream {node}"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no news that this release knows: {0:?}")]
pub(crate) struct UnknownNews(String);

impl FromStr for News {
    type Err = UnknownNews;

    fn from_str(text: &str) -> Result<Self, UnknownNews> {
        let unknown = || UnknownNews(text.to_owned());
        match text.split_once(' ') {
            None if text == "outbox" => Ok(Self::Outbox),
            None if text == "rollouts" => Ok(Self::Rollouts),
            Some(("timeline", id)) => id.parse().map(Self::Timeline).map_err(|_| unknown()),
            Some(("end-stream", id)) => id.parse().map(Self::EndStream).map_err(|_| unknown()),
            Some(_) | None => Err(unknown()),
        }
    }
}

impl Tx {
    /// Tells it with the commit.
    pub(crate) fn tell(&mut self, news: News) {
        if self.0.is_shared() {
            self.1.news.insert(news);
        }
    }

    pub(super) async fn notify(&mut self) -> Result<(), StoreError> {
        let teller = self.1.teller;
        let news: Vec<News> = std::mem::take(&mut self.1.news).into_iter().collect();
        for told in news.chunks(TOLD_AT_ONCE) {
            let mut query = QueryBuilder::new("SELECT pg_notify('muster', told.text) FROM (");
            query.push_values(told, |row, news| {
                row.push_bind(format!("{teller} {news}"));
            });
            query.push(") AS told (text)");
            let _ = query.build().fetch_all(&mut self.0).await?;
        }
        Ok(())
    }
}

/// The news of the others, one after another.
pub(crate) struct Listener {
    listener: postgres::Listener,
    own: Uuid,
}

impl Store {
    /// Tells at once what no commit is needed for.
    pub(crate) async fn announce(&self, news: News) -> Result<(), StoreError> {
        if self.shared {
            let told = format!("{} {news}", self.teller);
            let _ = query("SELECT pg_notify('muster', $1)")
                .bind(told)
                .fetch_all(&self.read)
                .await?;
        }
        Ok(())
    }

    /// Begins to listen; `None` where nobody else can write.
    pub(crate) async fn listen(&self) -> Result<Option<Listener>, StoreError> {
        let listener = self.read.listen(CHANNEL).await?;
        Ok(listener.map(|listener| Listener {
            listener,
            own: self.teller,
        }))
    }
}

impl Listener {
    /// The next news of another service. An error ends it: what was told meanwhile is lost.
    pub(crate) async fn next(&mut self) -> Result<News, StoreError> {
        loop {
            let told = self.listener.next().await?;
            let news = told
                .split_once(' ')
                .filter(|(teller, _)| *teller != self.own.to_string());
            // What is left is our own, or of a later release.
            if let Some(Ok(news)) = news.map(|(_, news)| news.parse()) {
                return Ok(news);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::time::Timestamp;

    #[test]
    fn news_is_read_as_it_was_told() {
        let at = Timestamp::from_millis(1);
        for news in [
            News::Outbox,
            News::Timeline(ExecutionId::mint(at, [1; 10])),
            News::Rollouts,
            News::EndStream(NodeId::mint(at, [2; 10])),
        ] {
            assert_eq!(news.to_string().parse::<News>().unwrap(), news);
        }
        for unknown in ["", "outbox 1", "timeline", "timeline x", "later words"] {
            assert!(unknown.parse::<News>().is_err(), "{unknown}");
        }
    }
}
