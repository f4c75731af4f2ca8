use super::*;

const PROJECT: &str = "01900000-0000-7000-8000-000000000001";

fn contexts() -> Contexts {
    let mut contexts = Contexts {
        current: Some("prod".into()),
        ..Contexts::default()
    };
    for name in ["prod", "test"] {
        let context = Context {
            server: Some(format!("https://{name}:1")),
            token: Some(Secret::parse(&format!("{name}-token"), "a test").unwrap()),
            ca_file: Some(format!("/{name}.pem").into()),
            login: None,
            project: Some(PROJECT.into()),
        };
        contexts.contexts.insert(name.into(), context);
    }
    contexts
}

fn resolve(flags: &Flags, env: &[(&str, &str)], contexts: &Contexts) -> Result<Settings, Failure> {
    let lookup = |name: &str| {
        env.iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| (*value).to_owned())
    };
    Settings::resolve(flags, &lookup, contexts)
}

fn host(settings: &Settings) -> String {
    settings.server().unwrap().host_str().unwrap().to_owned()
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_context() {
    let none = Flags::default();
    assert_eq!(host(&resolve(&none, &[], &contexts()).unwrap()), "prod");
    let env = [
        ("MUSTER_SERVER", "https://env:1"),
        ("MUSTER_CA_FILE", "/env.pem"),
        ("MUSTER_TOKEN", "env-token"),
    ];
    let settings = resolve(&none, &env, &contexts()).unwrap();
    assert_eq!(host(&settings), "env");
    assert_eq!(settings.ca_file().unwrap(), &PathBuf::from("/env.pem"));
    assert_eq!(settings.token().unwrap().expose(), "env-token");
    // Each piece is looked for on its own.
    assert_eq!(settings.project().unwrap().to_string(), PROJECT);
    let flags = Flags {
        server: Some("https://flag:1".into()),
        ca_file: Some("/flag.pem".into()),
        ..Flags::default()
    };
    let settings = resolve(&flags, &env, &contexts()).unwrap();
    assert_eq!(host(&settings), "flag");
    assert_eq!(settings.ca_file().unwrap(), &PathBuf::from("/flag.pem"));
}

#[test]
fn a_context_that_is_typed_wins_over_what_was_exported() {
    let env = [
        ("MUSTER_SERVER", "https://env:1"),
        ("MUSTER_CA_FILE", "/env.pem"),
        ("MUSTER_TOKEN", "env-token"),
        ("MUSTER_PROJECT", "garbage"),
    ];
    let mut flags = Flags {
        context: Some("test".into()),
        ..Flags::default()
    };
    let settings = resolve(&flags, &env, &contexts()).unwrap();
    assert_eq!(host(&settings), "test");
    assert_eq!(settings.ca_file().unwrap(), &PathBuf::from("/test.pem"));
    assert_eq!(settings.token().unwrap().expose(), "test-token");
    assert_eq!(settings.project().unwrap().to_string(), PROJECT);
    // What it does not have may come from there.
    let mut contexts = contexts();
    contexts.contexts.get_mut("test").unwrap().token = None;
    let settings = resolve(&flags, &env, &contexts).unwrap();
    assert_eq!(settings.token().unwrap().expose(), "env-token");
    flags.server = Some("https://flag:1".into());
    assert_eq!(host(&resolve(&flags, &env, &contexts).unwrap()), "flag");
}

#[test]
fn a_kept_token_goes_to_its_server_alone() {
    let to = |server: &str| Flags {
        server: Some(server.into()),
        ..Flags::default()
    };
    let token = |flags: &Flags| resolve(flags, &[], &contexts()).unwrap().token();
    assert_eq!(token(&to("https://prod:1/")).unwrap().expose(), "prod-token");
    let words = token(&to("https://other:1")).unwrap_err().words();
    assert!(words.contains("https://prod:1"), "{words}");
}

#[test]
fn the_context_is_chosen_by_flag_then_variable_then_file() {
    let env = [("MUSTER_CONTEXT", "test")];
    assert_eq!(
        host(&resolve(&Flags::default(), &env, &contexts()).unwrap()),
        "test"
    );
    let flags = Flags {
        context: Some("prod".into()),
        ..Flags::default()
    };
    assert_eq!(host(&resolve(&flags, &env, &contexts()).unwrap()), "prod");
    let flags = Flags {
        context: Some("nosuch".into()),
        ..Flags::default()
    };
    let words = resolve(&flags, &env, &contexts()).unwrap_err().words();
    assert_eq!(
        words,
        "muster: no context is named \"nosuch\" (known: prod, test)"
    );
}

#[test]
fn an_empty_variable_is_as_good_as_unset() {
    let env = [("MUSTER_SERVER", ""), ("MUSTER_CONTEXT", "")];
    assert_eq!(
        host(&resolve(&Flags::default(), &env, &contexts()).unwrap()),
        "prod"
    );
}

#[test]
fn what_is_missing_is_named_with_every_way_to_give_it() {
    let settings = resolve(&Flags::default(), &[], &Contexts::default()).unwrap();
    assert!(!settings.has_server());
    let words = settings.server().unwrap_err().words();
    for way in [
        "--server URL",
        "MUSTER_SERVER",
        "muster context set NAME --server URL",
    ] {
        assert!(words.contains(way), "{words}");
    }
    let words = settings.token().unwrap_err().words();
    for way in [
        "MUSTER_TOKEN",
        "MUSTER_TOKEN_FILE",
        "muster context set NAME --token-file FILE",
    ] {
        assert!(words.contains(way), "{words}");
    }
    assert!(settings.ca_file().unwrap_err().words().contains("MUSTER_CA_FILE"));
    assert!(settings.project().unwrap_err().words().contains("MUSTER_PROJECT"));
}

#[test]
fn plain_http_never_leaves_this_machine() {
    for good in [
        "https://control:8443",
        "https://control/base/",
        "http://127.0.0.1:80",
        "http://[::1]:1",
        "http://localhost",
    ] {
        assert!(parse_server(good).is_ok(), "{good}");
    }
    for bad in [
        "",
        "control:8443",
        "http://control",
        "ftp://control",
        "https://user:pw@control",
        "https://c/?q=1",
    ] {
        assert!(parse_server(bad).is_err(), "{bad}");
    }
}
