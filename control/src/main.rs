//! muster-control: admits dispatches, signs them onto each node's stream, records every step, and settles them.

mod access;
mod audit;
mod authz;
mod callback;
mod cancel;
mod config;
mod control;
mod decommission;
mod delivery;
mod dispatch;
mod enroll;
mod gates;
mod http;
mod idempotency;
mod init;
mod instances;
mod integrity;
mod keys;
mod logging;
mod machine;
mod metrics;
mod nsk;
mod oidc;
mod outputs;
mod parameters;
mod pki;
mod presence;
mod rate;
mod reconcile;
mod retention;
mod rolling;
mod rollout;
mod serve;
mod server;
mod signing;
mod store;
mod streams;

use std::{error::Error, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand, ValueEnum};
use muster_shared::time::Timestamp;

/// The control service of Muster.
#[derive(Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 wrong configuration.";

#[derive(Subcommand)]
enum Command {
    /// Make the private CA, the keys, the database and a first operator token in an empty folder
    Init {
        #[arg(
            long,
            env = "MUSTER_CONTROL_DATA_DIR",
            default_value = "/var/lib/muster-control"
        )]
        data_dir: PathBuf,
        /// The address and port that `serve` will listen on
        #[arg(long, env = "MUSTER_CONTROL_LISTEN", default_value = config::LISTEN_DEFAULT)]
        listen: String,
        /// The URL under which nodes and operators reach this control [default: https://ADDRESS:PORT of --listen]
        #[arg(long, env = "MUSTER_CONTROL_SERVER_URL")]
        server_url: Option<String>,
        /// A further name or address for the server certificate; may be repeated
        #[arg(long = "server-name", value_name = "NAME")]
        server_names: Vec<String>,
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Serve nodes and operators until told to stop
    Serve {
        #[arg(
            long,
            env = "MUSTER_CONTROL_DATA_DIR",
            default_value = "/var/lib/muster-control"
        )]
        data_dir: PathBuf,
        /// The address and port to listen on
        #[arg(long, env = "MUSTER_CONTROL_LISTEN")]
        listen: Option<String>,
        /// The URL under which nodes and operators reach this control
        #[arg(long, env = "MUSTER_CONTROL_SERVER_URL")]
        server_url: Option<String>,
        /// The configuration file, over control.toml in the data directory [default: /etc/muster/control.toml for the default
        /// data directory]
        #[arg(long, env = "MUSTER_CONTROL_CONFIG")]
        config: Option<PathBuf>,
    },
    /// Remove history whose retention is over, as `serve` does every hour; also while it is served
    Prune {
        #[arg(
            long,
            env = "MUSTER_CONTROL_DATA_DIR",
            default_value = "/var/lib/muster-control"
        )]
        data_dir: PathBuf,
        /// The configuration file, over control.toml in the data directory [default: /etc/muster/control.toml for the default
        /// data directory]
        #[arg(long, env = "MUSTER_CONTROL_CONFIG")]
        config: Option<PathBuf>,
        /// Say what would go, and remove nothing
        #[arg(long)]
        dry_run: bool,
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// The keys that sign what nodes are asked to do; also while it is served
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Check the audit trail in the data directory itself, also while it is served
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Print the OpenAPI document of the HTTP surface
    Openapi,
}

#[derive(clap::Args)]
struct KeysArgs {
    #[arg(
        long,
        env = "MUSTER_CONTROL_DATA_DIR",
        default_value = "/var/lib/muster-control"
    )]
    data_dir: PathBuf,
}

#[derive(Subcommand)]
enum KeysCommand {
    /// List the signing keys, and the nodes that have not confirmed them
    List(KeysArgs),
    /// Add a key, which signs beside those before it
    Rotate(KeysArgs),
    /// Take a key out of use, once every node has confirmed the present ones
    Retire {
        #[command(flatten)]
        at: KeysArgs,
        /// The key, as `keys list` names it
        keyid: String,
        /// Also where nodes have not confirmed, which are named
        #[arg(long)]
        force: bool,
    },
}

#[derive(Subcommand)]
enum AuditCommand {
    /// Walk every domain's chain of audit rows, and name the first that was changed, moved or taken out
    Verify {
        #[arg(
            long,
            env = "MUSTER_CONTROL_DATA_DIR",
            default_value = "/var/lib/muster-control"
        )]
        data_dir: PathBuf,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

fn main() -> ExitCode {
    let args = Args::parse();
    logging::install();
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("nothing else installs a TLS provider");
    match run(args.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            log::error!("{}", error_chain(&*err));
            ExitCode::from(if err.is::<config::ConfigError>() { 3 } else { 1 })
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match command {
        Command::Init {
            data_dir,
            listen,
            server_url,
            server_names,
            output,
        } => {
            let options = init::InitOptions {
                data_dir,
                listen,
                server_url,
                server_names,
            };
            let made = runtime.block_on(init::init(options, Timestamp::now()))?;
            show(&made, output)
        }
        Command::Serve {
            data_dir,
            listen,
            server_url,
            config,
        } => {
            let config = config::Config::load(config::Given {
                data_dir,
                config,
                listen,
                server_url,
            })?;
            Ok(runtime.block_on(serve::serve(config))?)
        }
        Command::Prune {
            data_dir,
            config,
            dry_run,
            output,
        } => {
            let config = config::Config::load(config::Given {
                data_dir,
                config,
                listen: None,
                server_url: None,
            })?;
            let said = if dry_run {
                runtime.block_on(prune_preview(&config, output))?
            } else {
                runtime.block_on(prune(&config, output))?
            };
            print(&said);
            Ok(())
        }
        Command::Keys(command) => {
            let said = runtime.block_on(signing_keys(command))?;
            print(&said);
            Ok(())
        }
        Command::Audit(AuditCommand::Verify { data_dir }) => {
            let database = keys::DataDir::new(data_dir).database();
            let ends = runtime.block_on(verify_audit(&database))?;
            print(&ends);
            Ok(())
        }
        Command::Openapi => {
            print(http::openapi_text());
            Ok(())
        }
    }
}

async fn signing_keys(command: KeysCommand) -> Result<String, Box<dyn Error>> {
    let (KeysCommand::List(at) | KeysCommand::Rotate(at) | KeysCommand::Retire { at, .. }) = &command;
    let data = keys::DataDir::new(&at.data_dir);
    if !data.database().exists() {
        return Err(serve::ServeError::NotInitialised(data.path().display().to_string()).into());
    }
    let store = store::Store::open(&data.database()).await?;
    let domain = store.first_domain().await?;
    let domain =
        domain.ok_or_else(|| serve::ServeError::NotInitialised(data.path().display().to_string()))?;
    let now = Timestamp::now();
    let said = match &command {
        KeysCommand::List(_) => key_list(&store).await?,
        KeysCommand::Rotate(_) => {
            let keyid = signing::rotate(&store, &data, domain, now).await?;
            format!("added {keyid}; retire the one before once every node has confirmed it (keys list)\n")
        }
        KeysCommand::Retire { keyid, force, .. } => {
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

async fn key_list(store: &store::Store) -> Result<String, Box<dyn Error>> {
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

async fn prune_preview(config: &config::Config, output: Output) -> Result<String, Box<dyn Error>> {
    let store = store::Store::open_to_read(&config.data.database()).await?;
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

async fn prune(config: &config::Config, output: Output) -> Result<String, Box<dyn Error>> {
    if !config.data.database().exists() {
        return Err(serve::ServeError::NotInitialised(config.data.path().display().to_string()).into());
    }
    let key = config.data.server_key()?;
    let outputs = serve::open_outputs(config, &key)?;
    let store = store::Store::open(&config.data.database()).await?;
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

/// The end of every chain, once all of them hold.
async fn verify_audit(database: &std::path::Path) -> Result<String, Box<dyn Error>> {
    let store = store::Store::open_to_read(database).await?;
    let mut ends = String::new();
    for domain in store.all_domains().await? {
        let (last, pruned) = audit::verify(&store, domain).await?;
        let pruned = pruned.map_or_else(String::new, |pruned| format!(" pruned up to {}", pruned.seq));
        ends.push_str(&format!("domain:{domain} {last}{pruned}\n"));
    }
    Ok(ends)
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
fn print(text: &str) {
    print!("{text}");
}

#[expect(clippy::print_stdout, reason = "what init made is its answer")]
fn show(made: &init::Initialised, output: Output) -> Result<(), Box<dyn Error>> {
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(made)?),
        Output::Text => println!(
            "Initialised. Serve it with: muster-control serve --data-dir DIR\n\
             The token below is shown this once.\n\n\
             export MUSTER_SERVER={}\nexport MUSTER_TOKEN={}\nexport MUSTER_CA_FILE={}\nexport MUSTER_PROJECT={}\n\n\
             A node enrols with: musterd enroll --server {} --token-file FILE --ca-sha256 {}",
            made.server,
            made.token,
            made.ca_file.display(),
            made.project_id,
            made.server,
            made.ca_sha256,
        ),
    }
    Ok(())
}

/// An error with all its causes, in one line.
fn error_chain(err: &dyn Error) -> String {
    let mut text = err.to_string();
    let mut source = err.source();
    while let Some(err) = source {
        let cause = err.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        source = err.source();
    }
    text
}
