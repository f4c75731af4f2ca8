//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};

use crate::{
    certificate,
    config::{self, Config, ConfigError, Given},
};

/// The control service of Muster.
#[derive(Parser)]
#[command(version, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, or doctor found what is not well, 2 wrong usage, 3 wrong configuration.";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make the private CA, the keys, the database and a first operator token in an empty folder
    Init(InitArgs),
    /// Serve nodes and operators until told to stop
    Serve(ServeArgs),
    /// Remove history whose retention is over, as `serve` does every hour; also while it is served
    Prune(PruneArgs),
    /// Look at everything that commonly keeps a control from working; also while it is served
    Doctor(DoctorArgs),
    /// Copy everything from which a control can be made again into a new folder; also while it is served
    Backup(BackupArgs),
    /// Make a data directory from a backup, in a folder that is empty or not there yet
    Restore(RestoreArgs),
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

#[derive(clap::Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    pub(crate) at: Place,
    /// The address and port that `serve` will listen on
    #[arg(long, env = "MUSTER_CONTROL_LISTEN", default_value = config::LISTEN_DEFAULT)]
    pub(crate) listen: String,
    /// The URL under which nodes and operators reach this control [default: https://ADDRESS:PORT of --listen]
    #[arg(long, env = "MUSTER_CONTROL_SERVER_URL")]
    pub(crate) server_url: Option<String>,
    /// A further name or address for the server certificate; may be repeated
    #[arg(long = "server-name", value_name = "NAME")]
    pub(crate) server_names: Vec<String>,
    /// How to print what was done
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    at: Place,
    /// The address and port to listen on
    #[arg(long, env = "MUSTER_CONTROL_LISTEN")]
    listen: Option<String>,
    /// The URL under which nodes and operators reach this control
    #[arg(long, env = "MUSTER_CONTROL_SERVER_URL")]
    server_url: Option<String>,
    #[command(flatten)]
    file: ConfigFile,
}

#[derive(clap::Args)]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    pub(crate) at: Place,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// Say what would go, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How to print what was done
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    at: Place,
    #[command(flatten)]
    file: ConfigFile,
    /// The address and port that `serve` listens on
    #[arg(long, env = "MUSTER_CONTROL_LISTEN")]
    listen: Option<String>,
    /// The URL under which nodes and operators reach this control
    #[arg(long, env = "MUSTER_CONTROL_SERVER_URL")]
    server_url: Option<String>,
    /// How to print what was found
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(clap::Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) at: Place,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// Leave out what the built-in output store holds
    #[arg(long)]
    pub(crate) without_outputs: bool,
    /// How to print what was done
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    /// The folder to make; it must not be there yet
    pub(crate) to: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    pub(crate) at: Place,
    /// How to print what was done
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    /// The folder that `backup` made
    pub(crate) from: PathBuf,
}

#[derive(Subcommand)]
pub(crate) enum KeysCommand {
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
pub(crate) enum CertificateCommand {
    /// Make another key and certificate, signed by the CA of the data directory, for the same names and the host of the
    /// server URL; the service takes them when it is started anew
    Renew(RenewArgs),
}

#[derive(clap::Args)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    pub(crate) at: Place,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// A further name or address for the server certificate; may be repeated
    #[arg(long = "server-name", value_name = "NAME")]
    pub(crate) server_names: Vec<String>,
    /// How long it lasts, from 1d to 36500d [default: without an end, as init makes it]
    #[arg(long, value_parser = certificate::parse_ttl)]
    pub(crate) ttl: Option<Duration>,
    /// Say what would be made, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How to print what was done
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Subcommand)]
pub(crate) enum AuditCommand {
    /// Walk every domain's chain of audit rows, and name the first that was changed, moved or taken out
    Verify {
        #[command(flatten)]
        at: Place,
    },
}

/// Where the keys and the records of this control are.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// Where control keeps its keys, its settings and, without another place for them, its records and outputs
    #[arg(
        long,
        env = "MUSTER_CONTROL_DATA_DIR",
        default_value = "/var/lib/muster-control"
    )]
    pub(crate) data_dir: PathBuf,
    /// A PostgreSQL database, postgres://USER@HOST/DATABASE, in place of the file in the data directory
    #[arg(
        long,
        env = "MUSTER_CONTROL_DATABASE_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub(crate) database_url: Option<String>,
}

/// Which settings count.
#[derive(clap::Args)]
pub(crate) struct ConfigFile {
    /// The configuration file, over control.toml in the data directory [default: /etc/muster/control.toml for the default
    /// data directory]
    #[arg(long, env = "MUSTER_CONTROL_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

impl Place {
    /// What the configuration in the data directory says, too.
    pub(crate) fn config(self) -> Result<Config, ConfigError> {
        self.config_of(None)
    }

    pub(crate) fn config_of(self, config: Option<PathBuf>) -> Result<Config, ConfigError> {
        self.config_given(config, None, None)
    }

    fn config_given(
        self,
        config: Option<PathBuf>,
        listen: Option<String>,
        server_url: Option<String>,
    ) -> Result<Config, ConfigError> {
        Config::load(Given {
            data_dir: self.data_dir,
            database_url: self.database_url,
            config,
            listen,
            server_url,
        })
    }
}

impl ServeArgs {
    pub(crate) fn config(self) -> Result<Config, ConfigError> {
        self.at
            .config_given(self.file.config, self.listen, self.server_url)
    }
}

impl DoctorArgs {
    pub(crate) fn config(self) -> Result<Config, ConfigError> {
        self.at
            .config_given(self.file.config, self.listen, self.server_url)
    }
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
