//! Which proxy leads to a service, if any. A plain decision: what was said goes in, an address comes out.

use std::{fmt, net::IpAddr};

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::Url;

use crate::identity::Secret;

/// `proxy = "none"`: no proxy, whatever the environment says.
const NONE: &str = "none";
/// What other programs read too, in the order in which it counts. Control and its stores speak TLS, so that plain
/// HTTP's own variable does not matter.
const PROXY_VARIABLES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const NO_PROXY_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// What the admin said, as it was said.
#[derive(Default)]
pub(super) struct Said {
    pub(super) proxy: Option<String>,
    pub(super) credentials: Option<Secret>,
    pub(super) no_proxy: Option<Vec<String>>,
    pub(super) loopback: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Proxies {
    via: Option<Via>,
    loopback: bool,
}

struct Via {
    /// With the credentials, which is how they are handed over.
    url: Url,
    /// Without them: what may be printed.
    shown: String,
    /// Asks which hosts are reached without it.
    matcher: Matcher,
}

impl fmt::Debug for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Display for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.via {
            Some(via) => write!(f, "through {}", via.shown),
            None => f.write_str("direct"),
        }
    }
}

impl Proxies {
    /// The file counts before the environment, which was not written for this daemon. The exceptions of the
    /// environment belong to its proxy.
    pub(super) fn decide(said: Said, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let first = |names: &[&'static str]| {
            names
                .iter()
                .find_map(|name| Some((*name, variable(name).filter(|text| !text.trim().is_empty())?)))
        };
        let entries = match said.no_proxy {
            Some(entries) => {
                entries.iter().try_for_each(|entry| check_entry(entry))?;
                Some(entries.join(","))
            }
            None => None,
        };
        let loopback = said.loopback;
        let (url, said_by, entries) = match said.proxy {
            Some(none) if none == NONE => {
                return Ok(Self { via: None, loopback });
            }
            Some(text) => {
                let mut url = parse(&text).map_err(|why| format!("proxy {why}"))?;
                if has_userinfo(&url) {
                    return Err(
                        "proxy must not hold credentials: put USER:PASSWORD into a file and name it in \
                                proxy_credentials_file"
                            .to_owned(),
                    );
                }
                if let Some(credentials) = &said.credentials {
                    add_credentials(&mut url, credentials)?;
                }
                (url, "agent.toml", entries.unwrap_or_default())
            }
            None if said.credentials.is_some() => {
                return Err("proxy_credentials_file is of no use without proxy".to_owned());
            }
            None => {
                let Some((name, text)) = first(&PROXY_VARIABLES) else {
                    return Ok(Self { via: None, loopback });
                };
                let url = parse(&text).map_err(|why| format!("the variable {name} {why}"))?;
                let of_environment = || first(&NO_PROXY_VARIABLES).map(|(_, text)| text);
                (url, name, entries.or_else(of_environment).unwrap_or_default())
            }
        };
        let shown = format!("{} (by {said_by})", without_userinfo(&url));
        let matcher = Matcher::builder()
            .all(String::from(without_userinfo(&url)))
            .no(normal(&entries))
            .build();
        let via = Some(Via { url, shown, matcher });
        Ok(Self { via, loopback })
    }

    /// The proxy on the way to an address, with its credentials.
    pub(super) fn on_the_way_to(&self, target: &Url) -> Option<Url> {
        self.via(target).map(|via| via.url.clone())
    }

    /// The same for people.
    pub(super) fn named_on_the_way_to(&self, target: &Url) -> Option<&str> {
        self.via(target).map(|via| &*via.shown)
    }

    fn via(&self, target: &Url) -> Option<&Via> {
        let via = self.via.as_ref()?;
        if is_loopback(target) && !self.loopback {
            return None;
        }
        let target = target.as_str().parse().ok()?;
        via.matcher.intercept(&target).map(|_| via)
    }
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The text itself is not shown: it may hold a password.
fn parse(text: &str) -> Result<Url, String> {
    let text = text.trim();
    let url = if text.contains("://") {
        Url::parse(text)
    } else {
        Url::parse(&format!("http://{text}"))
    };
    let url = url.map_err(|err| format!("is not an address: {err}"))?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(format!(
            "must begin with http:// or https://; {}:// is not supported",
            url.scheme()
        ));
    }
    let plain = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
    if plain && url.host_str().is_some() {
        Ok(url)
    } else {
        Err("must be http://HOST[:PORT] or https://HOST[:PORT] and no more".to_owned())
    }
}

fn has_userinfo(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

fn without_userinfo(url: &Url) -> Url {
    let mut url = url.clone();
    // Only an address without a host has no room for them, and none such was taken.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url
}

fn add_credentials(url: &mut Url, credentials: &Secret) -> Result<(), String> {
    let malformed = || "proxy_credentials_file must hold USER:PASSWORD on one line".to_owned();
    let (user, password) = credentials.expose().split_once(':').ok_or_else(malformed)?;
    if user.is_empty() || credentials.expose().contains(char::is_control) {
        return Err(malformed());
    }
    url.set_username(&encoded(user)).map_err(|()| malformed())?;
    url.set_password(Some(&encoded(password)))
        .map_err(|()| malformed())
}

/// The address decodes `%`, and its own encoding leaves that alone.
fn encoded(text: &str) -> String {
    text.replace('%', "%25")
}

/// A host, a domain with everything below it, an address, a network, or `*`.
fn check_entry(entry: &str) -> Result<(), String> {
    let sound = match entry.split_once('/') {
        Some((address, bits)) => address.parse::<IpAddr>().is_ok_and(|address| {
            let most = if address.is_ipv4() { 32 } else { 128 };
            bits.parse::<u8>().is_ok_and(|bits| bits <= most)
        }),
        None => {
            let name = entry.strip_prefix('*').unwrap_or(entry);
            let name_is_sound = name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
            !entry.is_empty() && (entry.parse::<IpAddr>().is_ok() || name_is_sound)
        }
    };
    if sound {
        Ok(())
    } else {
        Err(format!(
            "no_proxy has {entry:?}, which is no host, domain (.example), address, network (10.0.0.0/8) or *"
        ))
    }
}

/// `*.example` is what many write for `.example`; some separate by blanks.
fn normal(entries: &str) -> String {
    entries
        .split([',', ' '])
        .filter(|entry| !entry.is_empty())
        .map(|entry| match entry.strip_prefix("*.") {
            Some(domain) => format!(".{domain}"),
            None => entry.to_owned(),
        })
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(proxy: &str, no_proxy: &[&str]) -> Said {
        Said {
            proxy: Some(proxy.to_owned()),
            no_proxy: Some(no_proxy.iter().map(|entry| (*entry).to_owned()).collect()),
            ..Said::default()
        }
    }

    fn decide(said: Said, environment: &[(&str, &str)]) -> Result<Proxies, String> {
        let find = |name: &str| environment.iter().find(|(key, _)| *key == name);
        Proxies::decide(said, |name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn way(proxies: &Proxies, target: &str) -> Option<String> {
        proxies
            .on_the_way_to(&Url::parse(target).unwrap())
            .map(String::from)
    }

    #[test]
    fn the_file_counts_before_the_environment() {
        let environment = [("HTTPS_PROXY", "http://env:1"), ("NO_PROXY", "c.example")];
        let target = "https://c.example:7443";
        let by_file = decide(file("http://file:2", &[]), &environment).unwrap();
        assert_eq!(way(&by_file, target).as_deref(), Some("http://file:2/"));
        let none = decide(file("none", &[]), &environment).unwrap();
        assert_eq!(way(&none, "https://d.example"), None);
        let by_environment = decide(Said::default(), &environment).unwrap();
        assert_eq!(way(&by_environment, target), None);
        assert_eq!(
            way(&by_environment, "https://d.example").as_deref(),
            Some("http://env:1/")
        );
        let exceptions_alone = Said {
            no_proxy: Some(vec!["d.example".to_owned()]),
            ..Said::default()
        };
        let mixed = decide(exceptions_alone, &environment).unwrap();
        assert_eq!(way(&mixed, target).as_deref(), Some("http://env:1/"));
        assert_eq!(way(&mixed, "https://d.example"), None);
        for variable in PROXY_VARIABLES {
            let proxies = decide(Said::default(), &[("HTTPS_PROXY", " "), (variable, "p:3128")]).unwrap();
            let expected = (variable != "HTTPS_PROXY").then_some("http://p:3128/");
            assert!(
                expected.is_none() || way(&proxies, target).as_deref() == expected,
                "{variable}"
            );
        }
    }

    #[test]
    fn exceptions_are_hosts_domains_addresses_and_networks() {
        let entries = [
            "10.0.0.0/8",
            "fd00::/8",
            "192.0.2.7",
            ".corp.example",
            "*.lab.example",
            "one.example",
        ];
        let proxies = decide(file("http://p:3128", &entries), &[]).unwrap();
        for (target, direct) in [
            ("https://10.1.2.3:7443", true),
            ("https://11.1.2.3:7443", false),
            ("https://[fd00::1]:7443", true),
            ("https://[fe00::1]:7443", false),
            ("https://192.0.2.7", true),
            ("https://192.0.2.8", false),
            ("https://c.corp.example", true),
            ("https://corp.example", true),
            ("https://notcorp.example", false),
            ("https://a.lab.example", true),
            ("https://ONE.example", true),
            ("https://sub.one.example", true),
            ("https://two.example", false),
        ] {
            assert_eq!(way(&proxies, target).is_none(), direct, "{target}");
        }
        let all = decide(file("http://p:3128", &["*"]), &[]).unwrap();
        assert_eq!(way(&all, "https://anything.example"), None);
    }

    #[test]
    fn this_machine_is_reached_directly_unless_the_file_says_otherwise() {
        for loopback in [false, true] {
            let said = Said {
                loopback,
                ..file("http://p:3128", &[])
            };
            let proxies = decide(said, &[]).unwrap();
            for target in [
                "https://127.0.0.1:1",
                "https://127.9.9.9",
                "https://[::1]:1",
                "https://localhost",
            ] {
                assert_eq!(way(&proxies, target).is_some(), loopback, "{target}");
            }
            assert!(way(&proxies, "https://127.0.0.1.example").is_some());
        }
    }

    #[test]
    fn credentials_reach_the_proxy_whole_and_are_shown_to_nobody() {
        let said = Said {
            credentials: Some(Secret::new("us er:p@ss:w%40rd/?".to_owned())),
            ..file("http://p:3128", &[])
        };
        let proxies = decide(said, &[]).unwrap();
        let target = Url::parse("https://c.example").unwrap();
        let with = proxies.on_the_way_to(&target).unwrap();
        let matcher = Matcher::builder().all(String::from(with)).build();
        let intercepted = matcher.intercept(&"https://c.example".parse().unwrap()).unwrap();
        let expected = muster_shared::wire::Base64(b"us er:p@ss:w%40rd/?".to_vec());
        let expected = format!(
            "Basic {}",
            serde_json::to_value(expected).unwrap().as_str().unwrap()
        );
        assert_eq!(intercepted.basic_auth().unwrap().to_str().unwrap(), expected);
        let by_environment = decide(Said::default(), &[("HTTPS_PROXY", "http://u:w%40rd@p:3128")]).unwrap();
        for proxies in [proxies, by_environment] {
            let shown = format!("{proxies:?} {:?}", proxies.named_on_the_way_to(&target));
            assert!(
                shown.contains("http://p:3128") && !shown.contains("rd"),
                "{shown}"
            );
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_name_and_without_its_secret() {
        let credentials = |text: &str| Said {
            credentials: Some(Secret::new(text.to_owned())),
            ..file("http://p:3128", &[])
        };
        let alone = Said {
            credentials: Some(Secret::new("u:p".to_owned())),
            ..Said::default()
        };
        let environment = [("HTTPS_PROXY", "socks5://u:secret@p:1080")];
        for (result, name) in [
            (decide(file("socks5://p:1080", &[]), &[]), "proxy must begin with"),
            (
                decide(file("http://u:secret@p:1", &[]), &[]),
                "proxy_credentials_file",
            ),
            (decide(file("http://p:1/path", &[]), &[]), "proxy must be"),
            (decide(file("http://", &[]), &[]), "proxy is not an address"),
            (
                decide(file("http://p:99999", &[]), &[]),
                "proxy is not an address",
            ),
            (decide(file("http://p:1", &["10.0.0.0/33"]), &[]), "10.0.0.0/33"),
            (decide(file("http://p:1", &["a b"]), &[]), "no_proxy has \"a b\""),
            (
                decide(file("http://p:1", &["c.example:7443"]), &[]),
                "c.example:7443",
            ),
            (decide(file("http://p:1", &[""]), &[]), "no_proxy has \"\""),
            (decide(credentials("secret"), &[]), "USER:PASSWORD"),
            (decide(credentials("u:secret\r\nX: y"), &[]), "USER:PASSWORD"),
            (decide(alone, &[]), "proxy_credentials_file is of no use"),
            (
                decide(Said::default(), &environment),
                "HTTPS_PROXY must begin with",
            ),
        ] {
            let why = result.unwrap_err();
            assert!(why.contains(name) && !why.contains("secret"), "{name}: {why}");
        }
    }
}
