//! The commands: settings read, the use case called, and what it answered printed.

mod keys;
mod prune;

use std::error::Error;

use muster_shared::time::Timestamp;

use crate::{
    args::{
        AuditCommand, BackupArgs, CertificateCommand, Command, DoctorArgs, InitArgs, Output, RenewArgs,
        RestoreArgs,
    },
    audit, backup, certificate, doctor, http, init, restore, serve,
    store::{Database, Store},
};

/// What is not well was told on standard output.
#[derive(Debug, thiserror::Error)]
#[error("something is not well; the findings say what to do")]
struct FoundBad;

pub(crate) fn run(command: Command) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match command {
        Command::Init(args) => print(&runtime.block_on(init(args))?),
        Command::Serve(args) => runtime.block_on(serve::serve(args.config()?))?,
        Command::Prune(args) => print(&runtime.block_on(prune::run(args))?),
        Command::Doctor(args) => runtime.block_on(doctor(args))?,
        Command::Backup(args) => print(&runtime.block_on(backup(args))?),
        Command::Restore(args) => print(&runtime.block_on(restore(args))?),
        Command::Keys(command) => print(&runtime.block_on(keys::run(command))?),
        Command::Certificate(CertificateCommand::Renew(args)) => print(&renew(args)?),
        Command::Audit(AuditCommand::Verify { at }) => {
            let config = at.config()?;
            serve::require_initialised(&config)?;
            print(&runtime.block_on(verify_audit(&config.database))?);
        }
        Command::Openapi => print(http::openapi_text()),
    }
    Ok(())
}

async fn init(args: InitArgs) -> Result<String, Box<dyn Error>> {
    let options = init::InitOptions {
        data_dir: args.at.data_dir,
        database_url: args.at.database_url,
        listen: args.listen,
        server_url: args.server_url,
        server_names: args.server_names,
    };
    let made = init::init(options, Timestamp::now()).await?;
    Ok(told(&made, args.output, init::Initialised::text)?)
}

async fn doctor(args: DoctorArgs) -> Result<(), Box<dyn Error>> {
    let output = args.output;
    let report = doctor::examine(args.config(), Timestamp::now()).await;
    print(&told(&report, output, doctor::text)?);
    if report.failed() {
        return Err(FoundBad.into());
    }
    Ok(())
}

async fn backup(args: BackupArgs) -> Result<String, Box<dyn Error>> {
    let options = backup::BackupOptions {
        to: args.to,
        config: args.file.config.clone(),
        without_outputs: args.without_outputs,
    };
    let config = args.at.config_of(args.file.config)?;
    serve::require_initialised(&config)?;
    let made = backup::backup(&config, &options, Timestamp::now()).await?;
    Ok(told(&made, args.output, backup::BackedUp::text)?)
}

async fn restore(args: RestoreArgs) -> Result<String, Box<dyn Error>> {
    let options = restore::RestoreOptions {
        from: args.from,
        data_dir: args.at.data_dir,
        database_url: args.at.database_url,
    };
    let made = restore::restore(&options, Timestamp::now()).await?;
    Ok(told(&made, args.output, restore::RestoredTo::text)?)
}

fn renew(args: RenewArgs) -> Result<String, Box<dyn Error>> {
    let options = certificate::RenewOptions {
        server_names: args.server_names,
        ttl: args.ttl,
        dry_run: args.dry_run,
    };
    let config = args.at.config_of(args.file.config)?;
    let made = certificate::renew(&config, &options, Timestamp::now())?;
    Ok(told(&made, args.output, certificate::Renewed::text)?)
}

/// The end of every chain, once all of them hold.
async fn verify_audit(database: &Database) -> Result<String, Box<dyn Error>> {
    let store = Store::open_to_read(database).await?;
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
