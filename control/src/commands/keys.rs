//! `muster-control keys`: which keys sign, one more, one less.

use std::error::Error;

use muster_shared::time::Timestamp;

use crate::{
    args::KeysCommand,
    serve::{self, ServeError},
    signing,
    store::Store,
};

enum KeyChange {
    None,
    Rotate,
    Retire { keyid: String, force: bool },
}

pub(super) async fn run(command: KeysCommand) -> Result<String, Box<dyn Error>> {
    let (change, at) = match command {
        KeysCommand::List(at) => (KeyChange::None, at),
        KeysCommand::Rotate(at) => (KeyChange::Rotate, at),
        KeysCommand::Retire { at, keyid, force } => (KeyChange::Retire { keyid, force }, at),
    };
    let config = at.config()?;
    serve::require_initialised(&config)?;
    let data = config.data;
    let store = Store::open(&config.database).await?;
    let domain = store.first_domain().await?;
    let domain = domain.ok_or_else(|| ServeError::NotInitialised(data.path().display().to_string()))?;
    let now = Timestamp::now();
    let said = match &change {
        KeyChange::None => key_list(&store).await?,
        KeyChange::Rotate => {
            let keyid = signing::rotate(&store, &data, domain, now).await?;
            format!("added {keyid}; retire the one before once every node has confirmed it (keys list)\n")
        }
        KeyChange::Retire { keyid, force } => {
            let behind = signing::retire(&store, domain, (keyid.as_str(), *force), now).await?;
            match &behind[..] {
                [] => format!("retired {keyid}\n"),
                behind => format!(
                    "retired {keyid}; {} had not confirmed the present keys: {}\n",
                    behind.len(),
                    signing::named(behind)
                ),
            }
        }
    };
    store.close().await;
    Ok(said)
}

async fn key_list(store: &Store) -> Result<String, Box<dyn Error>> {
    let keys = store.signing_keys().await?;
    let mut said: String = keys
        .iter()
        .map(|key| {
            let state = key
                .retired_at
                .map_or_else(|| "signs".to_owned(), |at| format!("retired {at}"));
            format!("{}  created {}  {state}\n", key.keyid, key.created_at)
        })
        .collect();
    let behind = store.nodes_without_keys(signing::serial(&keys)).await?;
    said.push_str(&match &behind[..] {
        [] => "every node has confirmed them\n".to_owned(),
        behind => format!("not confirmed by {}: {}\n", behind.len(), signing::named(behind)),
    });
    Ok(said)
}
