//! Where hooks are held while they run: in sealed memory, in an unnamed file where programs may not run from memory, and
//! nowhere where that is forbidden too. And the files that are no hooks, each told why.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Command,
};

use muster_tests::{
    operator::said_by,
    prelude::*,
    world::{on_node, target},
};

/// Set to `skip` where no file system may be mounted, to leave these stories out.
const VARIABLE: &str = "MUSTER_STORY_MOUNT";

/// No program runs from memory in this namespace of processes.
const NO_PROGRAMS_IN_MEMORY: &str = "echo 2 > /proc/sys/vm/memfd_noexec";
/// What a directory holds, on a file system that runs no program.
const NOEXEC: &str = "noexec() { mkdir -p \"$2\" && mount -t tmpfs -o mode=700,noexec none \"$2\" && cp -a \"$1/.\" \"$2\" && \
                      mount --move \"$2\" \"$1\"; }";
/// Says where its own bytes are, who runs it and what it was told.
const TELL: &str = "#!/bin/sh\nreadlink \"$0\"\nid -un\necho \"$MUSTER_PARAM_WHO\"\n";

/// Kernels before 6.3 run programs from memory whatever anybody wants.
fn left_out() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| value == "skip")
        || !fs::exists("/proc/sys/vm/memfd_noexec").unwrap_or(false)
}

/// The same command with namespaces of its own for processes and mounts, in which `before` was done.
fn inside(command: &Command, before: &str) -> Command {
    let mut inside = Command::new("unshare");
    inside
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"])
        .arg(format!("{NOEXEC}\n{{ {before}; }} || exit\nexec \"$@\""))
        .arg("sh")
        .arg(command.get_program())
        .args(command.get_args());
    inside
}

async fn prepared(world: &World) -> Node {
    let node = world
        .node("n")
        .config("[hooks]\nlauncher = \"session\"\n")
        .hook("tell", TELL)
        .hook("tell-daemon", TELL);
    node.prepare(|node| node.install_manifest("tell-daemon", "user = \"daemon\"\n"))
        .enrolled()
        .await
}

async fn start_inside(node: &mut Node, before: &str) {
    node.launch_with(|command| *command = inside(command, before));
    let _ = node
        .known(async |summary| {
            let declared = |name| summary.actions.iter().any(|action| action.name.as_str() == name);
            summary.connected && declared("tell") && declared("tell-daemon")
        })
        .await;
}

async fn told(world: &World, node: &Node, hook: &str) -> (Execution, Vec<String>) {
    let mut body = on_node(hook, node.id);
    body["parameters"] = json!({"who": "you"});
    let ran = world.run(body).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}\n{}", node.log());
    let output = world.operator.output(ran.id, node.id).await;
    let lines = String::from_utf8_lossy(&output)
        .lines()
        .map(str::to_owned)
        .collect();
    (ran, lines)
}

async fn doctor_inside(node: &Node, before: &str) -> Value {
    let command = inside(&node.tool_command(&["doctor", "-o", "json"]), before);
    let report = said_by(command.into()).await.json();
    let findings = report["findings"].as_array().expect("a list of findings");
    let found = findings
        .iter()
        .find(|finding| finding["check"] == "sealed memory");
    found
        .unwrap_or_else(|| panic!("no such finding in {report:#}"))
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_program_runs_from_memory_hooks_run_from_a_file_that_nobody_can_change() {
    if left_out() {
        return;
    }
    let world = World::new().await;
    let mut node = prepared(&world).await;
    let mut programs = ["/usr/bin/mount", "/bin/mount"].into_iter();
    let program = programs.find_map(|path| fs::read(path).ok());
    node.install_hook("program", program.expect("whoever runs this story has mount"));
    let before = format!(
        "{NO_PROGRAMS_IN_MEMORY} && noexec {0} {0}.aside",
        node.hooks.display()
    );
    start_inside(&mut node, &before).await;
    assert!(
        node.log().contains("Hooks run from unnamed files in"),
        "{}",
        node.log()
    );
    for (hook, user) in [("tell", "root"), ("tell-daemon", "daemon")] {
        let (_, lines) = told(&world, &node, hook).await;
        let [held, by, who] = &lines[..] else {
            panic!("{lines:?}")
        };
        assert!(
            held.starts_with(&*node.state.to_string_lossy()) && held.ends_with("(deleted)"),
            "{held}"
        );
        assert_eq!((by.as_str(), who.as_str()), (user, "you"));
    }
    let ran = world.run(on_node("program", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}\n{}", node.log());

    let found = doctor_inside(&node, NO_PROGRAMS_IN_MEMORY).await;
    assert_eq!(found["verdict"], "ok", "{found:#}");
    let text = found["finding"].as_str().unwrap_or_default();
    assert!(text.contains("hooks run from unnamed files in"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_state_directory_runs_no_program_either_the_refusal_names_both() {
    if left_out() {
        return;
    }
    let world = World::new().await;
    let mut node = prepared(&world).await;
    let state = node.state.display().to_string();
    let before = format!("{NO_PROGRAMS_IN_MEMORY} && noexec {state} {state}.aside");
    start_inside(&mut node, &before).await;
    assert!(node.log().contains("No hook can run"), "{}", node.log());
    let refused = world.run(on_node("tell", node.id)).await;
    let ended = target(&refused, node.id);
    let error = ended.error.as_deref().unwrap_or_default();
    assert!(
        ended.status == Status::Failed
            && error.starts_with("hook_not_started: the sysctl vm.memfd_noexec=2 forbids")
            && error.contains(&format!(
                "{state} is mounted noexec: set that sysctl to 1, or mount"
            )),
        "{error}"
    );
    assert_eq!(
        world.run(on_node("ping", node.id)).await.status,
        Status::Succeeded
    );

    let found = doctor_inside(&node, &before).await;
    assert_eq!(found["verdict"], "fail", "{found:#}");
    let text = found["finding"].as_str().unwrap_or_default();
    assert!(
        text.contains("vm.memfd_noexec=2") && text.contains("noexec"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_runs_from_memory_wherever_it_lies() {
    if left_out() {
        return;
    }
    let world = World::new().await;
    let mut node = prepared(&world).await;
    let noexec = |dir: &std::path::Path| format!("noexec {0} {0}.aside", dir.display());
    let before = format!("{} && {}", noexec(&node.hooks), noexec(&node.state));
    start_inside(&mut node, &before).await;
    assert!(
        node.log().contains("Hooks run from sealed memory"),
        "{}",
        node.log()
    );
    let (_, lines) = told(&world, &node, "tell-daemon").await;
    assert_eq!(lines, ["/memfd:hook (deleted)", "daemon", "you"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_file_that_is_no_hook_is_refused_with_what_would_make_it_one() {
    const SCRIPT: &str = "#!/bin/sh\necho ran >> @DIR@/ran\n";
    const REFUSED: [(&str, &str); 8] = [
        ("stranger", "belongs to user 12345: it must belong to root"),
        (
            "writable",
            "can be written by others (mode 777): take that right away (chmod go-w)",
        ),
        ("plain", "is not executable (mode 644): make it so (chmod +x)"),
        ("link", "is a symbolic link: put the file itself into"),
        ("folder", "is not a regular file"),
        ("long", "is longer than the 1000 bytes that hook_bytes_max allows"),
        ("empty", "is empty: put a program or a script there"),
        (
            "bare",
            "is no program of this system, and no script that names its interpreter: let its first line be #!",
        ),
    ];
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| {
            node.configure("hook_bytes_max = 1000\n");
            let mode = |name: &str, mode| {
                fs::set_permissions(node.hook_path(name), fs::Permissions::from_mode(mode))
                    .expect("the hook is there");
            };
            for name in ["stranger", "writable", "plain"] {
                node.install_hook(name, SCRIPT);
            }
            mode("writable", 0o777);
            mode("plain", 0o644);
            symlink("/bin/true", node.hook_path("link")).expect("a link can be made");
            fs::create_dir(node.hook_path("folder")).expect("a directory can be made");
            node.install_hook("long", format!("{SCRIPT}{}", "#".repeat(1000)));
            node.install_hook("empty", "");
            node.install_hook("bare", "echo ran >> @DIR@/ran\n");
        })
        .await;
    // Only root may give a file away; elsewhere the case cannot be made.
    let given = std::os::unix::fs::chown(node.hook_path("stranger"), Some(12345), None).is_ok();
    let listed = node.tool(&["hooks", "list", "-o", "json"]).await.expect(0).json();
    for (name, words) in REFUSED {
        if name == "stranger" && !given {
            continue;
        }
        let hooks = listed["hooks"].as_array().expect("a list of hooks");
        let hook = hooks.iter().find(|hook| hook["name"] == name);
        let why = hook.and_then(|hook| hook["refused"].as_str()).unwrap_or_default();
        assert!(why.contains(words) && why.contains(name), "{name}: {listed:#}");

        let request = control.hook_request(name, Digest::of(b"whatever"));
        control.push(&request);
        let outcome = control.outcome(request.execution_id).await;
        let error = outcome.error.as_deref().unwrap_or_default();
        assert!(
            outcome.status == Status::Failed && error == format!("hook_refused: {why}"),
            "{outcome:#?}"
        );
    }
    assert_eq!(node.trace("ran"), "", "nobody guessed at anything");
}
