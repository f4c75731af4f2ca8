//! Actions that are compiled in. Each answers with one JSON document, and none runs a command line.
//!
//! What only asks the kernel or the daemon itself works inside the daemon, so that it answers also where no process can be
//! started and nothing be written. All else works apart, in a process under a supervisor as a hook's is:
//! bounded, ended as a tree, and found again by a daemon that restarts.

mod apart;
mod command;
mod disk_usage;
mod facts;
mod files;
mod journal;
mod packages;
mod parameter;
mod processes;
mod reboot;
mod services;
pub(crate) mod slots;
mod systemd;

use std::sync::Arc;

use muster_shared::{
    ids::NodeId,
    time::Timestamp,
    wire::{ActionKind, BuiltinAction, Parameters, Verdict},
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::{
    hooks::catalog::{Catalog, State},
    policy::Policy,
};
use apart::Task;
pub(crate) use apart::{environment, main};
use command::to_its_end;
use parameter::{Arguments, Parameter, absolute_path};
use services::Verb;
use slots::Slot;

/// Asks the daemon to read its configuration again. The answer names the settings that take effect at the next start,
/// or says why everything stays as it was.
pub(crate) type ReloadAsked = oneshot::Sender<Result<Vec<&'static str>, String>>;

/// What a builtin inside the daemon may know of it.
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
    work: Work,
}

enum Work {
    /// On a thread of the daemon. It only looks: it may run beside anything, and again after a restart.
    Inside(Slot, fn(&Arguments, &Context) -> Result<Value, Failed>),
    /// In a process of its own.
    Apart {
        changes: bool,
        run: fn(Arguments, crate::run_dir::RunDir) -> Task,
    },
}

/// In the order of their names.
const BUILTINS: &[Builtin] = &[
    Builtin {
        name: "agent.reload",
        description: "Reads the configuration of this node again",
        parameters: &[],
        work: Work::Inside(Slot::Shared, agent_reload),
    },
    Builtin {
        name: "disk.usage",
        description: "Space and inodes of each mounted file system",
        parameters: &[Parameter::text(
            "path",
            absolute_path,
            "An absolute path: only the file system that holds it",
        )],
        work: Work::Inside(Slot::FileSystems, disk_usage::run),
    },
    Builtin {
        name: "facts",
        description: "What kind of machine this is",
        parameters: &[],
        work: Work::Inside(Slot::Shared, facts::run),
    },
    Builtin {
        name: "file.digest",
        description: "The SHA-256 of a file that every user may read, or that the node's admin has opened",
        parameters: files::DIGEST,
        work: Work::Apart {
            changes: false,
            run: |arguments, run| Box::pin(async move { files::apart(files::digest, &arguments, &run) }),
        },
    },
    Builtin {
        name: "file.read",
        description: "A piece of a file that every user may read, or that the node's admin has opened",
        parameters: files::READ,
        work: Work::Apart {
            changes: false,
            run: |arguments, run| Box::pin(async move { files::apart(files::read, &arguments, &run) }),
        },
    },
    Builtin {
        name: "hooks.list",
        description: "The hooks of this node, their digests, and why a file is refused",
        parameters: &[],
        work: Work::Inside(Slot::Shared, hooks_list),
    },
    Builtin {
        name: "journal.read",
        description: "The last lines of the system's journal, by unit, time, priority and text",
        parameters: journal::PARAMETERS,
        work: Work::Apart {
            changes: false,
            run: |arguments, _| Box::pin(journal::read(arguments)),
        },
    },
    Builtin {
        name: "packages.install",
        description: "Installs packages, or other versions of them",
        parameters: packages::NAMED,
        work: Work::Apart {
            changes: true,
            run: |arguments, _| Box::pin(to_its_end(packages::change(packages::Verb::Install, arguments))),
        },
    },
    Builtin {
        name: "packages.list",
        description: "The packages that are installed, or those that could be upgraded",
        parameters: packages::LIST,
        work: Work::Apart {
            changes: false,
            run: |arguments, _| Box::pin(packages::list(arguments)),
        },
    },
    Builtin {
        name: "packages.refresh",
        description: "Fetches the lists of packages anew",
        parameters: packages::REFRESH,
        work: Work::Apart {
            changes: true,
            run: |arguments, _| Box::pin(to_its_end(packages::refresh(arguments))),
        },
    },
    Builtin {
        name: "packages.remove",
        description: "Removes packages, and keeps their configuration",
        parameters: packages::NAMED,
        work: Work::Apart {
            changes: true,
            run: |arguments, _| Box::pin(to_its_end(packages::change(packages::Verb::Remove, arguments))),
        },
    },
    Builtin {
        name: "packages.upgrade",
        description: "Upgrades all packages, or those that are named",
        parameters: packages::UPGRADE,
        work: Work::Apart {
            changes: true,
            run: |arguments, _| Box::pin(to_its_end(packages::change(packages::Verb::Upgrade, arguments))),
        },
    },
    Builtin {
        name: "ping",
        description: "An answer, to show that the node is there",
        parameters: &[],
        work: Work::Inside(Slot::Free, ping),
    },
    Builtin {
        name: "processes.list",
        description: "What runs, with its user, memory, CPU time and command line",
        parameters: processes::PARAMETERS,
        work: Work::Inside(Slot::Shared, processes::run),
    },
    Builtin {
        name: "reboot",
        description: "Restarts the machine; succeeded when it is back",
        parameters: reboot::PARAMETERS,
        work: Work::Apart {
            changes: true,
            run: |arguments, run| Box::pin(reboot::run(arguments, run)),
        },
    },
    Builtin {
        name: "services.list",
        description: "The services that systemd has loaded, and their states",
        parameters: services::LIST,
        work: Work::Apart {
            changes: false,
            run: |arguments, _| Box::pin(services::list(arguments)),
        },
    },
    Builtin {
        name: "services.reload",
        description: "Lets a service read its configuration again, and waits for what systemd says of that",
        parameters: services::ONE,
        work: Work::Apart {
            changes: true,
            run: |arguments, _| Box::pin(services::act(Verb::Reload, arguments)),
        },
    },
    Builtin {
        name: "services.restart",
        description: "Stops a service and starts it, and waits for what systemd says of that",
        parameters: services::ONE,
        work: Work::Apart {
            changes: true,
            run: |arguments, _| Box::pin(services::act(Verb::Restart, arguments)),
        },
    },
    Builtin {
        name: "services.start",
        description: "Starts a service, and waits for what systemd says of that",
        parameters: services::ONE,
        work: Work::Apart {
            changes: true,
            run: |arguments, _| Box::pin(services::act(Verb::Start, arguments)),
        },
    },
    Builtin {
        name: "services.status",
        description: "The state of one service: its process, memory, and how it last ended",
        parameters: services::ONE,
        work: Work::Apart {
            changes: false,
            run: |arguments, _| Box::pin(services::status(arguments)),
        },
    },
    Builtin {
        name: "services.stop",
        description: "Stops a service, and waits for what systemd says of that",
        parameters: services::ONE,
        work: Work::Apart {
            changes: true,
            run: |arguments, _| Box::pin(services::act(Verb::Stop, arguments)),
        },
    },
];

fn find(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.name == name)
}

pub(crate) fn is_builtin(name: &str) -> bool {
    find(name).is_some()
}

/// Whether it needs a supervisor.
pub(crate) fn is_apart(name: &str) -> bool {
    find(name).is_some_and(|builtin| match builtin.work {
        Work::Inside(..) => false,
        Work::Apart { .. } => true,
    })
}

/// Whether the machine may be another one afterwards.
pub(crate) fn changes(name: &str) -> bool {
    find(name).is_some_and(|builtin| match builtin.work {
        Work::Inside(..) => false,
        Work::Apart { changes, .. } => changes,
    })
}

pub(crate) fn declared(policy: &Policy) -> Vec<BuiltinAction> {
    let action = |builtin: &Builtin| BuiltinAction {
        name: builtin.name.to_owned(),
        description: Some(builtin.description.to_owned()),
        parameters: builtin.parameters.iter().map(Parameter::declared).collect(),
        denied: policy.standing_denial(ActionKind::Builtin, builtin.name, None),
    };
    BUILTINS.iter().map(action).collect()
}

/// Whether there is such a builtin and it can be given this.
pub(crate) fn check(name: &str, parameters: &Parameters) -> Result<(), Failed> {
    let builtin = find(name).ok_or(Failed::Unknown)?;
    Arguments::check(name, builtin.parameters, parameters).map(drop)
}

/// What it waits for before it works inside the daemon.
pub(crate) fn slot(name: &str) -> Slot {
    match find(name).map(|builtin| &builtin.work) {
        Some(Work::Inside(slot, _)) => *slot,
        Some(Work::Apart { .. }) | None => Slot::Shared,
    }
}

/// Works inside the daemon.
pub(crate) fn run(name: &str, parameters: &Parameters, context: &Context) -> Result<Vec<u8>, Failed> {
    let builtin = find(name).ok_or(Failed::Unknown)?;
    let arguments = Arguments::check(name, builtin.parameters, parameters)?;
    match builtin.work {
        Work::Inside(_, work) => document(&work(&arguments, context)?),
        Work::Apart { .. } => Err(Failed::Work(format!("{name} needs a process of its own"))),
    }
}

/// As systemd has it: what is not in here can neither be an option nor a pattern.
fn unit_name(text: &str) -> Result<(), String> {
    const BYTES_MAX: usize = 255;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    if text.is_empty() || text.len() > BYTES_MAX || text.starts_with(['-', '.']) || !text.bytes().all(plain) {
        return Err(format!("must be the name of a unit, not {text:?}"));
    }
    Ok(())
}

/// The answer as people and programs can read it, with one line end at its end.
fn document(answer: &Value) -> Result<Vec<u8>, Failed> {
    let mut bytes = serde_json::to_vec_pretty(answer).map_err(|err| Failed::Work(err.to_string()))?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn ping(_: &Arguments, context: &Context) -> Result<Value, Failed> {
    Ok(json!({ "pong": true, "node_id": context.node, "time": Timestamp::now() }))
}

fn agent_reload(_: &Arguments, context: &Context) -> Result<Value, Failed> {
    let (answer, answered) = oneshot::channel();
    let stopping = || Failed::Work("the daemon is stopping".to_owned());
    context.reload.blocking_send(answer).map_err(|_| stopping())?;
    match answered.blocking_recv().map_err(|_| stopping())? {
        Ok(at_next_start) => Ok(json!({ "reloaded": true, "at_next_start": at_next_start })),
        Err(why) => Err(Failed::Work(format!("the configuration stays as it was: {why}"))),
    }
}

fn hooks_list(_: &Arguments, context: &Context) -> Result<Value, Failed> {
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
    fn the_names_are_such_that_control_takes_them() {
        let names: Vec<&str> = BUILTINS.iter().map(|builtin| builtin.name).collect();
        assert!(names.is_sorted(), "{names:?}");
        for builtin in BUILTINS {
            assert!(builtin.name.parse::<muster_shared::ids::ActionName>().is_ok());
            for parameter in builtin.parameters {
                assert!(
                    !(parameter.required && parameter.default.is_some()),
                    "{}",
                    parameter.name
                );
            }
        }
    }

    #[test]
    fn what_needs_no_parameter_answers_with_a_document() {
        for name in ["disk.usage", "facts", "hooks.list", "ping", "processes.list"] {
            assert!(answer(name, &json!({})).unwrap().is_object(), "{name}");
        }
        assert_eq!(answer("ping", &json!({})).unwrap()["pong"], json!(true));
        let processes = answer("processes.list", &json!({"limit": 1})).unwrap();
        assert_eq!(processes["processes"].as_array().unwrap().len(), 1);
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
