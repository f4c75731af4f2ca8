//! A node behind an HTTP proxy. Names under `.story` lead to this machine, and only the proxy knows that.

use std::os::unix::fs::PermissionsExt as _;

use muster_tests::{
    connect_proxy::{ConnectProxy, Manners},
    prelude::*,
};

const SECRET: &str = "pr0xy-pass:w@rd%";
const BIG: &str = "#!/bin/sh\nhead -c 50000 /dev/zero\n";

fn secret_file(node: &Musterd, text: &str) -> String {
    let path = node.dir.join("proxy.secret");
    std::fs::write(&path, format!("{text}\n")).expect("the secret can be written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode can be set");
    path.to_string_lossy().into_owned()
}

fn named(control: &FakeControl, host: &str) -> String {
    format!("https://{host}:{}", control.port())
}

async fn runs_with_output(control: &FakeControl, node: &Musterd) {
    let request = control.hook_request("big", node.hook_digest("big"));
    control.push(&request);
    let outcome = control.outcome(request.execution_id).await;
    assert_eq!(outcome.status, Status::Succeeded);
    assert_eq!(outcome.output_error, None);
    assert_eq!(control.upload(request.execution_id), Some(vec![0; 50_000]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_reaches_control_and_the_store_through_the_proxy_of_its_file() {
    let control = FakeControl::new().await;
    let proxy = ConnectProxy::start(Manners {
        credentials: Some(format!("node:{SECRET}")),
        ..Manners::default()
    })
    .await;
    let store = named(&control, "store.story");
    control.store_at(&store);
    let node = control
        .start_node_at(&named(&control, "control.story"), |node| {
            let secret = secret_file(node, &format!("node:{SECRET}"));
            node.configure(&format!(
                "[control]\nproxy = \"{}\"\nproxy_credentials_file = \"{secret}\"\nno_proxy = [\"10.0.0.0/8\"]\n",
                proxy.url()
            ));
            node.install_hook("big", BIG);
        })
        .await;
    runs_with_output(&control, &node).await;
    let connects = proxy.connects();
    for host in ["control.story", "store.story"] {
        assert!(
            connects.contains(&format!("{host}:{}", control.port())),
            "{connects:?}"
        );
    }
    let log = node.log();
    assert!(log.contains(&format!("through {}", proxy.url())), "{log}");
    assert!(!log.contains("pr0xy"), "the log shows the credentials");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_names_a_proxy_as_for_other_programs() {
    let control = FakeControl::new().await;
    let manners = Manners {
        credentials: Some("node:env-secret".to_owned()),
        ..Manners::default()
    };
    let proxy = ConnectProxy::start(manners).await;
    let mut node = control
        .start_node_at(&named(&control, "control.story"), |node| {
            node.set_variable("HTTPS_PROXY", &proxy.url_with("node:env-secret"));
            node.set_variable("NO_PROXY", "10.0.0.0/8,.corp.example");
            node.install_hook("big", BIG);
        })
        .await;
    runs_with_output(&control, &node).await;
    // The output's address was loopback, to which no proxy leads unless the file says so.
    let only = format!("control.story:{}", control.port());
    assert!(
        proxy.connects().iter().all(|target| *target == only),
        "{:?}",
        proxy.connects()
    );
    assert!(!node.log().contains("env-secret"));
    let _ = node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn this_machine_is_reached_without_a_proxy_unless_the_file_says_otherwise() {
    let proxy = ConnectProxy::start(Manners::default()).await;
    for (file, through) in [
        ("", false),
        ("[control]\nproxy_loopback = true\n", true),
        (
            "[control]\nproxy_loopback = true\nno_proxy = [\"127.0.0.0/8\"]\n",
            false,
        ),
        ("[control]\nproxy_loopback = true\nproxy = \"none\"\n", false),
    ] {
        let control = FakeControl::new().await;
        let before = proxy.connects().len();
        let node = control
            .start_node(|node| {
                node.set_variable("https_proxy", &proxy.url());
                node.configure(file);
                node.install_hook("big", BIG);
            })
            .await;
        runs_with_output(&control, &node).await;
        assert_eq!(proxy.connects().len() > before, through, "{file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_in_the_way_is_named() {
    let control = FakeControl::new().await;
    let server = named(&control, "control.story");
    let refusing = ConnectProxy::start(Manners {
        refuses: true,
        ..Manners::default()
    })
    .await;
    let asking = ConnectProxy::start(Manners {
        credentials: Some("node:right".to_owned()),
        ..Manners::default()
    })
    .await;
    let node = Musterd::new(control.dir(), "node");
    let wrong = secret_file(&node, "node:wrong");
    let gone = format!("http://127.0.0.1:{}", muster_tests::world::free_port());
    for (proxy, more, sense) in [
        (refusing.url(), String::new(), "the proxy refuses"),
        (asking.url(), String::new(), "proxy_credentials_file"),
        (
            asking.url(),
            format!("proxy_credentials_file = \"{wrong}\"\n"),
            "proxy_credentials_file",
        ),
        (gone, String::new(), "refused"),
    ] {
        node.configure(&format!("[control]\nproxy = \"{proxy}\"\n{more}"));
        let said = control.try_enroll(&node, &server).await.expect(7);
        for part in [&format!("through the proxy {proxy}"), sense] {
            assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
        }
        assert!(!said.stderr.contains("wrong"), "{}", said.stderr);
    }
    assert_eq!(refusing.connects().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_looks_into_tls_is_trusted_only_where_the_file_names_its_authority() {
    let control = FakeControl::new().await;
    let server = named(&control, "control.story");
    let proxy = ConnectProxy::start(Manners {
        looks_inside: Some(control.dir().join("ca.pem")),
        ..Manners::default()
    })
    .await;
    control.store_at(&named(&control, "store.story"));
    let through = format!("[control]\nproxy = \"{}\"\n", proxy.url());
    {
        let node = Musterd::new(control.dir(), "trusting-none");
        node.configure(&through);
        let said = control.try_enroll(&node, &server).await.expect(7);
        for part in ["issued by \"CN=the proxy's own CA\"", "extra_ca_file"] {
            assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
        }
    }
    let mut node = control
        .start_node_at(&server, |node| {
            let ca_file = proxy.ca_file();
            node.configure(&format!("{through}extra_ca_file = \"{}\"\n", ca_file.display()));
            node.install_hook("big", BIG);
        })
        .await;
    runs_with_output(&control, &node).await;

    // The daemon whose admin has not named it says whose it is, by every way.
    let _ = node.stop().await;
    node.configure(&through);
    node.launch();
    let whose = "issued by \"CN=the proxy's own CA\"";
    until("its log says whose certificate it was shown", async || {
        let log = node.log();
        (log.contains(whose) && log.contains("extra_ca_file")).then_some(())
    })
    .await;
    let said = node.tool(&["doctor"]).await.expect(1).stdout;
    assert!(said.contains(whose) && said.contains("extra_ca_file"), "{said}");
    let status = node.tool(&["status"]).await.expect(7).stdout;
    assert!(status.contains(whose), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_to_control_that_makes_no_sense_is_refused_by_its_name() {
    let control = FakeControl::new().await;
    let node = Musterd::new(control.dir(), "node");
    let open = node.dir.join("open.secret");
    std::fs::write(&open, "node:secret").expect("the secret can be written");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("its mode can be set");
    let open = open.display();
    for (file, name) in [
        ("proxi = \"http://p:1\"".to_owned(), "proxi"),
        ("proxy = \"socks5://p:1\"".to_owned(), "proxy must begin with"),
        (
            "proxy = \"http://u:secret@p:1\"".to_owned(),
            "proxy_credentials_file",
        ),
        ("no_proxy = [\"10.0.0.0/99\"]".to_owned(), "no_proxy"),
        ("no_proxy = \"a\"".to_owned(), "no_proxy"),
        (
            "extra_ca_file = \"/nowhere/ca.pem\"".to_owned(),
            "extra_ca_file /nowhere/ca.pem",
        ),
        (format!("extra_ca_file = \"{open}\""), "extra_ca_file"),
        (
            format!("proxy = \"http://p:1\"\nproxy_credentials_file = \"{open}\""),
            "everybody may read it",
        ),
    ] {
        node.configure(&format!("[control]\n{file}\n"));
        let said = control.try_enroll(&node, &control.base()).await.expect(3);
        assert!(said.stderr.contains(name), "{name}: {}", said.stderr);
        if !file.contains("u:secret") {
            assert!(!said.stderr.contains("secret@"), "{}", said.stderr);
        }
    }
    node.configure("");
    node.set_variable("HTTPS_PROXY", "socks5://u:secret@p:1");
    let said = control.try_enroll(&node, &control.base()).await.expect(3);
    assert!(
        said.stderr.contains("HTTPS_PROXY") && !said.stderr.contains("secret"),
        "{}",
        said.stderr
    );
}
