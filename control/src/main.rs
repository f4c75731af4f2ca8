//! muster-control: admits dispatches, signs them onto each node's stream, records every step, and settles them.

mod access;
mod audit;
mod authz;
mod backup;
mod callback;
mod cancel;
mod certificate;
mod config;
mod control;
mod decommission;
mod delivery;
mod dispatch;
mod doctor;
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
mod outbox;
mod outputs;
mod parameters;
mod pki;
mod presence;
mod rate;
mod reconcile;
mod replica;
mod restore;
mod restored;
mod retention;
mod rolling;
mod rollout;
mod serve;
mod server;
mod signing;
mod store;
mod streams;
mod tickets;
mod together;

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

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, or doctor found what is not well, 2 wrong usage, 3 wrong configuration.";

#[derive(Subcommand)]
enum Command {
    /// Make the private CA, the keys, the database and a first operator token in an empty folder
    Init {
        #[command(flatten)]
        at: Place,
        /// The address and port that `serve` will listen on
        #[arg(long, env = "MUSTER_CONTROL_LISTEN", default_value = config::LISTEN_DEFAULT)]
        listen: String,
        /// The URL under which nodes and operators reach this control [default: https://ADDRESS:PORT of --listen]
        #[arg(long, env = "MUSTER_CONTROL_SERVER_URL")]
        server_url: Option<String>,
        /// A further name or address for the server certificate; may be repeated
        #[arg(long = "server-name", value_name = "NAME")]
        server_names: Vec<String>,
        /// How to print what was done
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Serve nodes and operators until told to stop
    Serve {
        #[command(flatten)]
        at: Place,
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
        #[command(flatten)]
        at: Place,
        /// The configuration file, over control.toml in the data directory [default: /etc/muster/control.toml for the default
        /// data directory]
        #[arg(long, env = "MUSTER_CONTROL_CONFIG")]
        config: Option<PathBuf>,
        /// Say what would go, and remove nothing
        #[arg(long)]
        dry_run: bool,
        /// How to print what was done
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Look at everything that commonly keeps a control from working; also while it is served
    Doctor {
        #[command(flatten)]
        at: Place,
        /// The configuration file, over control.toml in the data directory [default: /etc/muster/control.toml for the default
        /// data directory]
        #[arg(long, env = "MUSTER_CONTROL_CONFIG")]
        config: Option<PathBuf>,
        /// The address and port that `serve` listens on
        #[arg(long, env = "MUSTER_CONTROL_LISTEN")]
        listen: Option<String>,
        /// The URL under which nodes and operators reach this control
        #[arg(long, env = "MUSTER_CONTROL_SERVER_URL")]
        server_url: Option<String>,
        /// How to print what was found
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Copy everything from which a control can be made again into a new folder; also while it is served
    Backup {
        #[command(flatten)]
        at: Place,
        /// The configuration file, over control.toml in the data directory [default: /etc/muster/control.toml for the default
        /// data directory]
        #[arg(long, env = "MUSTER_CONTROL_CONFIG")]
        config: Option<PathBuf>,
        /// Leave out what the built-in output store holds
        #[arg(long)]
        without_outputs: bool,
        /// How to print what was done
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
        /// The folder to make; it must not be there yet
        to: PathBuf,
    },
    /// Make a data directory from a backup, in a folder that is empty or not there yet
    Restore {
        #[command(flatten)]
        at: Place,
        /// How to print what was done
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
        /// The folder that `backup` made
        from: PathBuf,
    },
    /// The keys that sign what nodes are asked to do; also while it is served
    #[command(subcommand)]
    Keys(KeysCommand),
    /// The certificate that nodes and operators are shown; also while it is served
    #[command(subcommand)]
    Certificate(CertificateCommand),
    /// Check the audit trail in the data directory itself, also while it is served
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Print the OpenAPI document of the HTTP surface
    Openapi,
}

/// Where the keys and the records of this control are.
#[derive(clap::Args)]
struct Place {
    /// Where control keeps its keys, its settings and, without another place for them, its records and outputs
    #[arg(
        long,
        env = "MUSTER_CONTROL_DATA_DIR",
        default_value = "/var/lib/muster-control"
    )]
    data_dir: PathBuf,
    /// A PostgreSQL database, postgres://USER@HOST/DATABASE, in place of the file in the data directory
    #[arg(
        long,
        env = "MUSTER_CONTROL_DATABASE_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    database_url: Option<String>,
}

impl Place {
    /// What the configuration in the data directory says, too.
    fn config(self) -> Result<config::Config, config::ConfigError> {
        self.config_of(None)
    }

    fn config_of(self, config: Option<PathBuf>) -> Result<config::Config, config::ConfigError> {
        config::Config::load(config::Given {
            data_dir: self.data_dir,
            database_url: self.database_url,
            config,
            listen: None,
            server_url: None,
        })
    }
}

#[derive(Subcommand)]
enum KeysCommand {
    /// List the signing keys, and the nodes that have not confirmed them
    List(Place),
    /// Add a key, which signs beside those before it
    Rotate(Place),
    /// Take a key out of use, once every node has confirmed the present ones
    Retire {
        #[command(flatten)]
        at: Place,
        /// The key, as `keys list` names it
        keyid: String,
        /// Also where nodes have not confirmed, which are named
        #[arg(long)]
        force: bool,
    },
}

#[derive(Subcommand)]
enum CertificateCommand {
    /// Make another key and certificate, signed by the CA of the data directory, for the same names and the host of the
    /// server URL; the service takes them when it is started anew
    Renew {
        #[command(flatten)]
        at: Place,
        /// The configuration file, over control.toml in the data directory [default: /etc/muster/control.toml for the default
        /// data directory]
        #[arg(long, env = "MUSTER_CONTROL_CONFIG")]
        config: Option<PathBuf>,
        /// A further name or address for the server certificate; may be repeated
        #[arg(long = "server-name", value_name = "NAME")]
        server_names: Vec<String>,
        /// How long it lasts, from 1d to 36500d [default: without an end, as init makes it]
        #[arg(long, value_parser = certificate::parse_ttl)]
        ttl: Option<std::time::Duration>,
        /// Say what would be made, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// How to print what was done
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

#[derive(Subcommand)]
enum AuditCommand {
    /// Walk every domain's chain of audit rows, and name the first that was changed, moved or taken out
    Verify {
        #[command(flatten)]
        at: Place,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// What is not well was told on standard output.
#[derive(Debug, thiserror::Error)]
#[error("something is not well; the findings say what to do")]
struct FoundBad;

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
            at: Place {
                data_dir,
                database_url,
            },
            listen,
            server_url,
            server_names,
            output,
        } => {
            let options = init::InitOptions {
                data_dir,
                database_url,
                listen,
                server_url,
                server_names,
            };
            let made = runtime.block_on(init::init(options, Timestamp::now()))?;
            show(&made, output)
        }
        Command::Serve {
            at: Place {
                data_dir,
                database_url,
            },
            listen,
            server_url,
            config,
        } => {
            let config = config::Config::load(config::Given {
                data_dir,
                database_url,
                config,
                listen,
                server_url,
            })?;
            Ok(runtime.block_on(serve::serve(config))?)
        }
        Command::Prune {
            at,
            config,
            dry_run,
            output,
        } => {
            let config = at.config_of(config)?;
            let said = if dry_run {
                runtime.block_on(prune_preview(&config, output))?
            } else {
                runtime.block_on(prune(&config, output))?
            };
            print(&said);
            Ok(())
        }
        Command::Doctor {
            at: Place {
                data_dir,
                database_url,
            },
            config,
            listen,
            server_url,
            output,
        } => {
            let config = config::Config::load(config::Given {
                data_dir,
                database_url,
                config,
                listen,
                server_url,
            });
            let report = runtime.block_on(doctor::examine(config, Timestamp::now()));
            print(&told(&report, output, doctor::Report::text)?);
            if report.failed() {
                return Err(FoundBad.into());
            }
            Ok(())
        }
        Command::Backup {
            at,
            config,
            without_outputs,
            output,
            to,
        } => {
            let options = backup::BackupOptions {
                to,
                config: config.clone(),
                without_outputs,
            };
            let config = at.config_of(config)?;
            if config.database.is_missing() {
                let shown = config.data.path().display().to_string();
                return Err(serve::ServeError::NotInitialised(shown).into());
            }
            let made = runtime.block_on(backup::backup(&config, &options, Timestamp::now()))?;
            print(&told(&made, output, backup::BackedUp::text)?);
            Ok(())
        }
        Command::Restore {
            at: Place {
                data_dir,
                database_url,
            },
            output,
            from,
        } => {
            let options = restore::RestoreOptions {
                from,
                data_dir,
                database_url,
            };
            let made = runtime.block_on(restore::restore(&options, Timestamp::now()))?;
            print(&told(&made, output, restore::RestoredTo::text)?);
            Ok(())
        }
        Command::Keys(command) => {
            let said = runtime.block_on(signing_keys(command))?;
            print(&said);
            Ok(())
        }
        Command::Certificate(CertificateCommand::Renew {
            at,
            config,
            server_names,
            ttl,
            dry_run,
            output,
        }) => {
            let options = certificate::RenewOptions {
                server_names,
                ttl,
                dry_run,
            };
            let made = certificate::renew(&at.config_of(config)?, &options, Timestamp::now())?;
            print(&told(&made, output, certificate::Renewed::text)?);
            Ok(())
        }
        Command::Audit(AuditCommand::Verify { at }) => {
            let ends = runtime.block_on(verify_audit(&at.config()?.database))?;
            print(&ends);
            Ok(())
        }
        Command::Openapi => {
            print(http::openapi_text());
            Ok(())
        }
    }
}

enum KeyChange {
    None,
    Rotate,
    Retire { keyid: String, force: bool },
}

async fn signing_keys(command: KeysCommand) -> Result<String, Box<dyn Error>> {
    let (change, at) = match command {
        KeysCommand::List(at) => (KeyChange::None, at),
        KeysCommand::Rotate(at) => (KeyChange::Rotate, at),
        KeysCommand::Retire { at, keyid, force } => (KeyChange::Retire { keyid, force }, at),
    };
    let config::Config { data, database, .. } = at.config()?;
    if database.is_missing() {
        return Err(serve::ServeError::NotInitialised(data.path().display().to_string()).into());
    }
    let store = store::Store::open(&database).await?;
    let domain = store.first_domain().await?;
    let domain =
        domain.ok_or_else(|| serve::ServeError::NotInitialised(data.path().display().to_string()))?;
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
    let store = store::Store::open_to_read(&config.database).await?;
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
    if config.database.is_missing() {
        return Err(serve::ServeError::NotInitialised(config.data.path().display().to_string()).into());
    }
    let key = config.data.server_key()?;
    let outputs = serve::open_outputs(config, &key)?;
    let store = store::Store::open(&config.database).await?;
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
async fn verify_audit(database: &store::Database) -> Result<String, Box<dyn Error>> {
    let store = store::Store::open_to_read(database).await?;
    let mut ends = String::new();
    for domain in store.all_domains().await? {
        let (last, pruned) = audit::verify(&store, domain).await?;
        let pruned = pruned.map_or_else(String::new, |pruned| format!(" pruned up to {}", pruned.seq));
        ends.push_str(&format!("domain:{domain} {last}{pruned}\n"));
    }
    Ok(ends)
}

fn told<T: serde::Serialize>(
    made: &T,
    output: Output,
    text: impl FnOnce(&T) -> String,
) -> serde_json::Result<String> {
    match output {
        Output::Json => Ok(format!("{}\n", serde_json::to_string_pretty(made)?)),
        Output::Text => Ok(text(made)),
    }
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
            "Initialised. Serve it with: muster-control serve --data-dir {}\n\
             The token below is shown this once.\n\n\
             export MUSTER_SERVER={}\nexport MUSTER_TOKEN={}\nexport MUSTER_CA_FILE={}\nexport MUSTER_PROJECT={}\n\n\
             A node enrols with: musterd enroll --server {} --token-file FILE --ca-sha256 {}",
            made.data_dir.display(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn pages_and_completions() {
        muster_pages::Program {
            command: Args::command(),
            section: 8,
            prose: include_str!("../../docs/man/muster-control.md"),
        }
        .whole();
    }
}
