//! Actions that are compiled in. Those here may run beside anything, and again after a restart: all but one only look.
//!
//! Each answers with one JSON document, and none runs a command line.

mod disk_usage;
mod facts;

use std::sync::Arc;

use muster_shared::{
    ids::NodeId,
    time::Timestamp,
    wire::{ActionKind, BuiltinAction, BuiltinParameter, Parameters, Verdict},
};
use serde_json::{Value, json};

use tokio::sync::{mpsc, oneshot};

use crate::{
    hooks::catalog::{Catalog, State},
    policy::Policy,
};

/// Asks the daemon to read its configuration again. The answer names the settings that take effect at the next start,
/// or says why everything stays as it was.
pub(crate) type ReloadAsked = oneshot::Sender<Result<Vec<&'static str>, String>>;

/// What a builtin may know of the daemon.
pub(crate) struct Context {
    pub(crate) node: NodeId,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) reload: mpsc::Sender<ReloadAsked>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    Unknown,
    Parameters(String),
    Work(String),
}

struct Builtin {
    name: &'static str,
    description: &'static str,
    parameters: &'static [Parameter],
    run: fn(&Parameters, &Context) -> Result<Value, Failed>,
}

/// Every parameter so far is an optional text.
struct Parameter {
    name: &'static str,
    description: &'static str,
}

const BUILTINS: [Builtin; 5] = [
    Builtin {
        name: "agent.reload",
        description: "Reads the configuration of this node again",
        parameters: &[],
        run: agent_reload,
    },
    Builtin {
        name: "disk.usage",
        description: "Space and inodes of each mounted file system",
        parameters: &[Parameter {
            name: "path",
            description: "An absolute path: only the file system that holds it",
        }],
        run: disk_usage::run,
    },
    Builtin {
        name: "facts",
        description: "What kind of machine this is",
        parameters: &[],
        run: facts::run,
    },
    Builtin {
        name: "hooks.list",
        description: "The hooks of this node, their digests, and why a file is refused",
        parameters: &[],
        run: hooks_list,
    },
    Builtin {
        name: "ping",
        description: "An answer, to show that the node is there",
        parameters: &[],
        run: ping,
    },
];

pub(crate) fn is_builtin(name: &str) -> bool {
    BUILTINS.iter().any(|builtin| builtin.name == name)
}

pub(crate) fn declared(policy: &Policy) -> Vec<BuiltinAction> {
    let parameter = |parameter: &Parameter| BuiltinParameter {
        name: parameter.name.to_owned(),
        kind: Some("string".to_owned()),
        required: false,
        default: None,
        description: Some(parameter.description.to_owned()),
    };
    let action = |builtin: &Builtin| BuiltinAction {
        name: builtin.name.to_owned(),
        description: Some(builtin.description.to_owned()),
        parameters: builtin.parameters.iter().map(parameter).collect(),
        denied: policy.denial(ActionKind::Builtin, builtin.name),
    };
    BUILTINS.iter().map(action).collect()
}

/// The answer as people and programs can read it, with one line end at its end.
pub(crate) fn run(name: &str, parameters: &Parameters, context: &Context) -> Result<Vec<u8>, Failed> {
    let builtin = BUILTINS
        .iter()
        .find(|builtin| builtin.name == name)
        .ok_or(Failed::Unknown)?;
    check(builtin, parameters)?;
    let answer = (builtin.run)(parameters, context)?;
    let mut bytes = serde_json::to_vec_pretty(&answer).map_err(|err| Failed::Work(err.to_string()))?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn check(builtin: &Builtin, parameters: &Parameters) -> Result<(), Failed> {
    for (name, value) in parameters {
        if !builtin.parameters.iter().any(|known| known.name == name) {
            let known: Vec<&str> = builtin.parameters.iter().map(|known| known.name).collect();
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            };
            return Err(Failed::Parameters(format!(
                "{} has no parameter {name:?}; it takes {known}",
                builtin.name
            )));
        }
        if !value.is_string() {
            return Err(Failed::Parameters(format!(
                "parameter {name:?} of {} must be a text",
                builtin.name
            )));
        }
    }
    Ok(())
}

fn ping(_: &Parameters, context: &Context) -> Result<Value, Failed> {
    Ok(json!({ "pong": true, "node_id": context.node, "time": Timestamp::now() }))
}

fn agent_reload(_: &Parameters, context: &Context) -> Result<Value, Failed> {
    let (answer, answered) = oneshot::channel();
    let stopping = || Failed::Work("the daemon is stopping".to_owned());
    context.reload.blocking_send(answer).map_err(|_| stopping())?;
    match answered.blocking_recv().map_err(|_| stopping())? {
        Ok(at_next_start) => Ok(json!({ "reloaded": true, "at_next_start": at_next_start })),
        Err(why) => Err(Failed::Work(format!("the configuration stays as it was: {why}"))),
    }
}

fn hooks_list(_: &Parameters, context: &Context) -> Result<Value, Failed> {
    let hook = |seen: &crate::hooks::catalog::Seen| match &seen.state {
        State::Hook {
            digests, baseline, ..
        } => json!({
            "name": seen.name,
            "digest": digests.whole().to_string(),
            "file": digests.file.to_string(),
            "manifest": digests.manifest.map(|digest| digest.to_string()),
            "baseline": baseline.to_string(),
            "verdict": Verdict::of(Some(*baseline), digests.whole()).as_str(),
        }),
        State::Refused { why } => json!({ "name": seen.name, "refused": why }),
    };
    let mut answer = json!({ "hooks": context.catalog.seen.iter().map(hook).collect::<Vec<_>>() });
    if let Some(problem) = &context.catalog.problem {
        answer["problem"] = json!(problem);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::{Digests, catalog::Seen};
    use muster_shared::ids::Digest;

    fn context() -> Context {
        let digests = Digests {
            file: Digest::of(b"new"),
            manifest: None,
        };
        let seen = vec![
            Seen {
                name: "changed".into(),
                state: State::Hook {
                    digests,
                    baseline: Digest::of(b"old"),
                    manifest: Arc::default(),
                },
            },
            Seen {
                name: "link".into(),
                state: State::Refused {
                    why: "it is a link".into(),
                },
            },
        ];
        let node = NodeId::mint(Timestamp::from_millis(0), [1; 10]);
        Context {
            node,
            catalog: Arc::new(Catalog { seen, problem: None }),
            reload: answering(),
        }
    }

    /// A daemon that reloads whenever it is asked.
    fn answering() -> mpsc::Sender<ReloadAsked> {
        let (reload, mut asked) = mpsc::channel::<ReloadAsked>(1);
        std::thread::spawn(move || {
            while let Some(answer) = asked.blocking_recv() {
                answer.send(Ok(Vec::new())).unwrap();
            }
        });
        reload
    }

    fn answer(name: &str, parameters: &Value) -> Result<Value, Failed> {
        let bytes = run(name, parameters.as_object().unwrap(), &context())?;
        assert!(bytes.ends_with(b"}\n") && !bytes.ends_with(b"\n\n"));
        Ok(serde_json::from_slice(&bytes).unwrap())
    }

    #[test]
    fn every_builtin_answers_with_a_document() {
        for builtin in &BUILTINS {
            assert!(builtin.name.parse::<muster_shared::ids::ActionName>().is_ok());
            assert!(
                answer(builtin.name, &json!({})).unwrap().is_object(),
                "{}",
                builtin.name
            );
        }
        assert_eq!(answer("ping", &json!({})).unwrap()["pong"], json!(true));
    }

    #[test]
    fn wrong_parameters_are_named() {
        let Err(Failed::Parameters(why)) = answer("ping", &json!({"count": 3})) else {
            panic!()
        };
        assert!(why.contains("count") && why.contains("none"), "{why}");
        assert!(matches!(
            answer("disk.usage", &json!({"path": 3})),
            Err(Failed::Parameters(_))
        ));
        assert_eq!(answer("rm", &json!({})), Err(Failed::Unknown));
    }

    #[test]
    fn the_list_of_hooks_tells_drift_and_refusal_apart() {
        let list = answer("hooks.list", &json!({})).unwrap();
        assert_eq!(list["hooks"][0]["verdict"], "drift");
        assert_eq!(list["hooks"][1]["refused"], "it is a link");
    }

    #[test]
    fn one_path_gives_one_file_system() {
        let usage = answer("disk.usage", &json!({"path": "/"})).unwrap();
        let systems = usage["file_systems"].as_array().unwrap();
        assert_eq!(systems.len(), 1);
        assert!(systems[0]["total_bytes"].as_u64().unwrap() > 0);
        assert!(matches!(
            answer("disk.usage", &json!({"path": "etc"})),
            Err(Failed::Parameters(_))
        ));
        assert!(matches!(
            answer("disk.usage", &json!({"path": "/nowhere/at/all"})),
            Err(Failed::Work(_))
        ));
    }
}
