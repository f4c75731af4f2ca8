//! `muster-control prune`: history whose retention is over, as it would go and as it went.

use std::error::Error;

use muster_shared::time::Timestamp;

use crate::{
    args::{Output, PruneArgs},
    config::Config,
    retention, serve,
    store::Store,
};

pub(super) async fn run(args: PruneArgs) -> Result<String, Box<dyn Error>> {
    let config = args.at.config_of(args.file.config)?;
    serve::require_initialised(&config)?;
    if args.dry_run {
        preview(&config, args.output).await
    } else {
        prune(&config, args.output).await
    }
}

async fn preview(config: &Config, output: Output) -> Result<String, Box<dyn Error>> {
    let store = Store::open_to_read(&config.database).await?;
    let due = retention::due(&store, &config.retention, Timestamp::now()).await?;
    if let Output::Json = output {
        return Ok(format!("{}\n", serde_json::to_string_pretty(&due)?));
    }
    let count = |n: Option<u64>| n.unwrap_or_default();
    let lines = due.iter().map(|due| match &due.action {
        Some(action) => format!(
            "domain:{} {action}: {} executions with {} invocations, settled by {}\n",
            due.domain_id,
            count(due.executions),
            count(due.invocations),
            due.before
        ),
        None => format!(
            "domain:{} audit: {} rows, written by {}\n",
            due.domain_id,
            count(due.audit_rows),
            due.before
        ),
    });
    let said: String = lines.collect();
    Ok(if said.is_empty() {
        "nothing: no retention is set for anything that is there\n".to_owned()
    } else {
        said
    })
}

async fn prune(config: &Config, output: Output) -> Result<String, Box<dyn Error>> {
    let key = config.data.server_key()?;
    let outputs = serve::open_outputs(config, &key)?;
    let store = Store::open(&config.database).await?;
    let pruned = retention::prune(&store, &outputs, &config.retention, Timestamp::now(), || true).await?;
    store.close().await;
    Ok(match output {
        Output::Json => format!("{}\n", serde_json::to_string_pretty(&pruned)?),
        Output::Text => format!(
            "removed {} executions with {} invocations, {} outputs, {} audit rows\n",
            pruned.executions, pruned.invocations, pruned.objects, pruned.audit_rows
        ),
    })
}
