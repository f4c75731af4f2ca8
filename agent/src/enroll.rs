//! Enrolment: a bootstrap token becomes an identity, once.
//!
//! The id of the enrolment is on disk before control is asked. When the answer is lost, the same question gets the
//! same node again, and the token is not used up twice.

mod earlier;
pub(crate) mod machine;
pub(crate) mod pin;

use std::{fs, io, path::Path, sync::Arc};

use muster_shared::{
    ids::{Digest, NodeId},
    wire::{EnrollRequest, EnrollResponse},
};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    args::{EnrollArgs, Output, RunArgs},
    chance,
    config::{Config, STATE_DIR_DEFAULT},
    control::{self, CallError},
    durable,
    exit::{self, Exit},
    identity::{self, IdentityFile, Secret, StateLock},
    logging::{say_on_stderr, say_on_stdout},
    reach::{self, Reach},
};
use pin::PinnedByDigest;

/// What `-o json` prints.
#[derive(Serialize)]
struct Enrolled<'a> {
    node_id: NodeId,
    name: &'a str,
    domain_id: String,
    project_id: String,
    server: &'a str,
    state_dir: String,
    notices: &'a [String],
}

pub(crate) async fn enroll(args: &EnrollArgs) -> Result<(), Exit> {
    let server = control::parse_server(&args.server).map_err(Exit::BadConfig)?;
    let token = Secret::new(read_named(&args.token_file, "token")?.trim().to_owned());
    if token.expose().is_empty() {
        return Err(Exit::BadConfig(format!(
            "the token file {} is empty",
            args.token_file.display()
        )));
    }
    let reach = Config::load(RunArgs {
        state_dir: None,
        hooks_dir: None,
        config: args.config.clone(),
    })?
    .reach;
    let http = client(args, &reach)?;
    let _lock = StateLock::take(&args.state_dir)?;
    if args.force {
        earlier::refuse_while_hooks_run(&args.state_dir)?;
    } else {
        refuse_if_enrolled(&args.state_dir)?;
    }
    let ask = question(&args.state_dir)?;
    let answer = control::enroll(&reach, &http, &server, &token, &ask)
        .await
        .map_err(|err| explain(&err))?;
    check(&answer, args.ca_sha256)?;
    let server = server.as_str().trim_end_matches('/');
    let kept = earlier::set_aside(&args.state_dir, ask.enrollment_id)
        .and_then(|notices| keep(&args.state_dir, server, &answer).map(|()| notices));
    let notices = kept.map_err(|err| {
        Exit::Failure(format!(
            "the identity could not be written to {}: {err}; make room and run the same command again",
            args.state_dir.display()
        ))
    })?;
    let notices = [notices, answer.notices.clone()].concat();
    tell(args, server, &answer, &notices);
    Ok(())
}

/// Trusts what the command line names, and nothing before that.
fn client(args: &EnrollArgs, reach: &Reach) -> Result<reqwest::Client, Exit> {
    let pem = match &args.ca_file {
        Some(path) => Some((path, read_named(path, "CA")?)),
        None => None,
    };
    let built = match (args.ca_sha256, pem) {
        (Some(digest), Some((path, pem))) if !pin::is_among(digest, pem.as_bytes()) => {
            return Err(Exit::BadConfig(format!(
                "the CA file {} holds no certificate with the SHA-256 of --ca-sha256",
                path.display()
            )));
        }
        (Some(digest), _) => reach
            .client_with(Arc::new(PinnedByDigest::new(digest)))
            .and_then(|builder| builder.https_only(true).build().map_err(|err| exit::chain(&err))),
        (None, Some((path, pem))) => reach
            .control_client(pem.as_bytes())
            .map_err(|why| format!("{}: {why}", path.display())),
        (None, None) => Err("--ca-file or --ca-sha256 is needed".to_owned()),
    };
    built.map_err(Exit::BadConfig)
}

fn read_named(path: &Path, what: &str) -> Result<String, Exit> {
    fs::read_to_string(path).map_err(|err| {
        Exit::BadConfig(format!(
            "the {what} file {} cannot be read: {err}",
            path.display()
        ))
    })
}

fn refuse_if_enrolled(state_dir: &Path) -> Result<(), Exit> {
    let path = identity::identity_path(state_dir);
    if !path.exists() {
        return Ok(());
    }
    let who = IdentityFile::read(state_dir).ok().flatten();
    let who = who.map(|file| format!(" as node {} ({}) of {}", file.node_id, file.name, file.server));
    Err(Exit::Enrolment(format!(
        "this machine is enrolled already{}: to enrol it anew, as another node, add --force",
        who.unwrap_or_default(),
    )))
}

fn question(state_dir: &Path) -> Result<EnrollRequest, Exit> {
    let failed = |err: io::Error| {
        Exit::Failure(format!(
            "the state directory {} cannot be used: {err}",
            state_dir.display()
        ))
    };
    let machine_id = match machine::machine_id() {
        Some(id) => id,
        None => kept_uuid(&state_dir.join("machine_id"))
            .map_err(failed)?
            .simple()
            .to_string(),
    };
    Ok(EnrollRequest {
        enrollment_id: kept_uuid(&state_dir.join("enrollment_id")).map_err(failed)?,
        hostname: machine::hostname(),
        machine_id,
        labels: machine::facts(),
    })
}

/// The id in this file, which is made when there is none.
fn kept_uuid(path: &Path) -> io::Result<Uuid> {
    match fs::read_to_string(path) {
        Ok(text) => text
            .trim()
            .parse()
            .map_err(|_| io::Error::other(format!("{} is damaged", path.display()))),
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            let id = chance::uuid()?;
            durable::write(path, id.to_string().as_bytes())?;
            Ok(id)
        }
        Err(err) => Err(err),
    }
}

fn explain(err: &CallError) -> Exit {
    let hint = match err.code() {
        Some("bootstrap_token_used") => ", or one with more uses",
        Some("bootstrap_token_invalid") => ": is it the token of this control service?",
        Some(_) | None => "",
    };
    let text = format!("this machine was not enrolled: {}{hint}", exit::chain(err));
    match err {
        CallError::Unreachable(_) => Exit::Unreachable(text),
        // Control has not judged the token: it is busy or broken, and may not be soon.
        CallError::Refused {
            status: 429 | 500..=599,
            retry_after,
            ..
        } => {
            let when = retry_after.map_or_else(String::new, |wait| format!(" in {} s", wait.as_secs()));
            Exit::Unreachable(format!("{text}; try again{when} with the same command"))
        }
        CallError::Refused { .. } | CallError::Senseless(_) => Exit::Refused(text),
    }
}

/// An identity that the daemon could not use is not kept.
fn check(answer: &EnrollResponse, pinned: Option<Digest>) -> Result<(), Exit> {
    let unusable =
        |why: String| Exit::Refused(format!("control gave an identity that cannot be used: {why}"));
    reach::roots(&[answer.ca_pem.as_bytes()])
        .map(drop)
        .map_err(unusable)?;
    if pinned.is_some_and(|digest| !pin::is_among(digest, answer.ca_pem.as_bytes())) {
        return Err(unusable("its authority is not the one of --ca-sha256".to_owned()));
    }
    identity::key_ring(&answer.signing_keys, &[]).map_err(unusable)?;
    if answer.nsk.trim().is_empty() {
        Err(unusable("its key is empty".to_owned()))
    } else {
        Ok(())
    }
}

/// `identity.json` comes last: it is the file that says that this machine is enrolled.
fn keep(state_dir: &Path, server: &str, answer: &EnrollResponse) -> io::Result<()> {
    let file = IdentityFile {
        node_id: answer.node_id,
        name: answer.name.clone(),
        domain_id: answer.domain_id,
        project_id: answer.project_id,
        server: server.to_owned(),
        signing_keys: answer.signing_keys.clone(),
        signing_serial: answer.signing_serial.unwrap_or_else(identity::first_set),
        retired_keys: Vec::new(),
    };
    durable::write(&identity::ca_path(state_dir), answer.ca_pem.as_bytes())?;
    durable::write(&identity::nsk_path(state_dir), answer.nsk.as_bytes())?;
    durable::write(
        &identity::identity_path(state_dir),
        &serde_json::to_vec_pretty(&file)?,
    )?;
    match fs::remove_file(state_dir.join("enrollment_id")) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn tell(args: &EnrollArgs, server: &str, answer: &EnrollResponse, notices: &[String]) {
    notices
        .iter()
        .for_each(|notice| say_on_stderr(&format!("notice: {notice}")));
    let state_dir = args.state_dir.display().to_string();
    match args.output {
        Output::Text => {
            say_on_stdout(&format!(
                "Enrolled as node {} ({}) of {server}.",
                answer.node_id, answer.name
            ));
            say_on_stdout(&format!("Start it with: {}", start_command(&args.state_dir)));
        }
        Output::Json => {
            let enrolled = Enrolled {
                node_id: answer.node_id,
                name: &answer.name,
                domain_id: answer.domain_id.to_string(),
                project_id: answer.project_id.to_string(),
                server,
                state_dir,
                notices,
            };
            say_on_stdout(&serde_json::to_string(&enrolled).unwrap_or_default());
        }
    }
}

/// Where systemd is, the unit serves the usual state directory.
fn start_command(state_dir: &Path) -> String {
    if Path::new("/run/systemd/system").is_dir() && state_dir == Path::new(STATE_DIR_DEFAULT) {
        "systemctl enable --now musterd".to_owned()
    } else {
        format!("musterd run --state-dir {}", state_dir.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_an_enrolment_survives_a_lost_answer() {
        let dir = tempfile::tempdir().unwrap();
        let first = question(dir.path()).unwrap().enrollment_id;
        assert_eq!(question(dir.path()).unwrap().enrollment_id, first);
    }

    #[test]
    fn a_control_that_does_not_serve_now_has_not_refused_the_machine() {
        let refused = |status, retry_after| {
            explain(&CallError::Refused {
                status,
                problem: None,
                retry_after,
            })
        };
        for status in [429, 500, 502, 503, 599] {
            let exit = refused(status, None);
            assert!(
                matches!(&exit, Exit::Unreachable(text) if text.contains("try again")),
                "{exit}"
            );
        }
        let exit = refused(503, Some(std::time::Duration::from_secs(2)));
        assert!(exit.to_string().contains("try again in 2 s"), "{exit}");
        for status in [400, 401, 403, 409, 428] {
            let exit = refused(status, None);
            assert!(
                matches!(&exit, Exit::Refused(text) if !text.contains("try again")),
                "{exit}"
            );
        }
    }

    #[test]
    fn an_enrolled_machine_is_not_enrolled_again() {
        let dir = tempfile::tempdir().unwrap();
        assert!(refuse_if_enrolled(dir.path()).is_ok());
        fs::write(identity::identity_path(dir.path()), "{}").unwrap();
        assert!(matches!(refuse_if_enrolled(dir.path()), Err(Exit::Enrolment(_))));
    }
}
