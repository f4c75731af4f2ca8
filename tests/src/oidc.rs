//! A real OpenID provider, a person with a browser at it, and forged tokens that it never gave.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use reqwest::{Method, StatusCode, Url, header};
use ring::{
    hmac,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use serde_json::{Value, json};

use crate::{Daemon, Operator, binaries::tool, operator::client_trusting, until, world::free_port};

pub const AUDIENCE: &str = "urn:muster:stories";
pub const CLIENT_ID: &str = "muster-cli";
const ROBOT_SECRET: &str = "a-secret-of-the-stories";

/// What a provider is like.
pub struct Plan {
    pub token_seconds: u64,
    pub groups: Value,
    pub key: IssuerKey,
}

pub struct Provider {
    pub issuer: String,
    pub ca_file: PathBuf,
    pub key: IssuerKey,
    dir: PathBuf,
    port: u16,
    cert_pem: String,
    key_pem: String,
    ca: reqwest::Certificate,
    server: Daemon,
}

/// A provider that is away, with its name and its certificate.
pub struct Away(Provider);

/// An Ed25519 key that both a provider and a story have.
#[derive(Clone)]
pub struct IssuerKey {
    pub kid: String,
    seed: [u8; 32],
}

impl IssuerKey {
    #[must_use]
    pub fn new(kid: &str) -> Self {
        Self {
            kid: kid.to_owned(),
            seed: crate::chance(),
        }
    }

    fn pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&self.seed).expect("32 bytes are a seed")
    }

    #[must_use]
    pub fn public(&self) -> Vec<u8> {
        self.pair().public_key().as_ref().to_vec()
    }

    fn jwk(&self) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "kid": self.kid, "use": "sig",
               "x": URL_SAFE_NO_PAD.encode(self.public()), "d": URL_SAFE_NO_PAD.encode(self.seed)})
    }

    /// A token with these claims, as the issuer would sign it.
    #[must_use]
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_under(&json!({"alg": "EdDSA", "typ": "at+jwt", "kid": self.kid}), claims)
    }

    #[must_use]
    pub fn sign_under(&self, header: &Value, claims: &Value) -> String {
        let signed = unsigned(header, claims);
        let signature = URL_SAFE_NO_PAD.encode(self.pair().sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    /// The key confusion of old: the public key as the secret of an HMAC.
    #[must_use]
    pub fn confuse(&self, claims: &Value) -> String {
        let signed = unsigned(&json!({"alg": "HS256", "typ": "at+jwt", "kid": self.kid}), claims);
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &self.public());
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&secret, signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

#[must_use]
pub fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

impl Provider {
    /// Starts it with a CA of its own.
    ///
    /// # Panics
    /// When Node or the provider's package is not installed, or it does not start.
    pub async fn start(dir: &Path, plan: &Plan) -> Self {
        let key = rcgen::KeyPair::generate().expect("a key can be made");
        let mut about =
            rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address is a name");
        about.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = rcgen::CertifiedIssuer::self_signed(about, key).expect("a CA can be made");
        let leaf_key = rcgen::KeyPair::generate().expect("a key can be made");
        let leaf = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])
            .and_then(|about| about.signed_by(&leaf_key, &ca))
            .expect("a certificate can be made");
        let ca_file = dir.join("issuer-ca.pem");
        std::fs::write(&ca_file, ca.pem()).expect("the CA can be written");
        let certificate = reqwest::Certificate::from_pem(ca.pem().as_bytes()).expect("it is PEM");
        let port = free_port();
        let serving = Serving {
            dir,
            port,
            cert_pem: &leaf.pem(),
            key_pem: &leaf_key.serialize_pem(),
        };
        let server = serving.serve(plan);
        let provider = Self {
            issuer: format!("https://127.0.0.1:{port}"),
            ca_file,
            key: plan.key.clone(),
            dir: dir.to_owned(),
            port,
            cert_pem: leaf.pem(),
            key_pem: leaf_key.serialize_pem(),
            ca: certificate,
            server,
        };
        provider.answers().await;
        provider
    }

    async fn answers(&self) {
        let http = client_trusting(self.ca.clone());
        let url = format!("{}/.well-known/openid-configuration", self.issuer);
        until("the provider answers", async || http.get(&url).send().await.ok()).await;
    }

    /// Takes it away.
    #[must_use]
    pub fn pause(mut self) -> Away {
        self.server.kill9();
        Away(self)
    }

    /// What control has to be told.
    #[must_use]
    pub fn settings(&self) -> String {
        format!(
            "[oidc]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\nclient_id = \"{CLIENT_ID}\"\n\
             audience_parameter = \"resource\"\nca_file = \"{}\"\nleeway_seconds = 0\n",
            self.issuer,
            self.ca_file.display()
        )
    }

    /// A token for a program that is a client of its own, `robot-ALG`.
    pub async fn robot_token(&self, alg: &str) -> String {
        let form = format!("grant_type=client_credentials&resource={AUDIENCE}");
        let answer = client_trusting(self.ca.clone())
            .post(format!("{}/token", self.issuer))
            .basic_auth(format!("robot-{alg}"), Some(ROBOT_SECRET))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form)
            .send()
            .await
            .expect("the provider answers");
        let answer: Value = answer.json().await.expect("the provider answers in JSON");
        answer["access_token"]
            .as_str()
            .unwrap_or_else(|| panic!("no token: {answer}"))
            .to_owned()
    }

    /// The claims of a good token, to be made worse.
    #[must_use]
    pub fn claims(&self) -> Value {
        let now = muster_shared::time::Timestamp::now().as_millis() / 1000;
        json!({"iss": self.issuer, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 300, "groups": ["ops"]})
    }

    /// Opens the page of a device code as a person in a browser does, and signs in or turns the request down.
    pub async fn browse(&self, page: &str, account: &str, approve: bool) {
        let mut browser = Browser {
            http: reqwest::Client::builder()
                .tls_certs_only([self.ca.clone()])
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .expect("an HTTP client can be made"),
            cookies: BTreeMap::new(),
        };
        let mut page = browser.open(Method::GET, page, String::new()).await;
        for _ in 0..12 {
            if page.text.contains("Sign-in Success") || page.text.contains("request was interrupted") {
                return;
            }
            let form = page.form();
            let mut fields = form.fields;
            let abort = !approve && fields.contains_key("confirm");
            if abort {
                fields.insert("abort".into(), "yes".into());
                fields.remove("confirm");
            }
            if fields.get("prompt").is_some_and(|prompt| prompt == "login") {
                fields.insert("login".into(), account.into());
                fields.insert("password".into(), "x".into());
            }
            let body: Vec<_> = fields
                .iter()
                .map(|(name, value)| format!("{name}={}", crate::operator::encoded(value)))
                .collect();
            page = browser.open(Method::POST, &form.action, body.join("&")).await;
        }
        panic!("the person comes to no end: {} {}", page.url, page.text);
    }
}

impl Away {
    /// Brings it back where it was, perhaps changed.
    pub async fn resume(self, plan: &Plan) -> Provider {
        let Self(mut provider) = self;
        let serving = Serving {
            dir: &provider.dir,
            port: provider.port,
            cert_pem: &provider.cert_pem,
            key_pem: &provider.key_pem,
        };
        let server = serving.serve(plan);
        provider.server = server;
        provider.key = plan.key.clone();
        provider.answers().await;
        provider
    }
}

struct Serving<'a> {
    dir: &'a Path,
    port: u16,
    cert_pem: &'a str,
    key_pem: &'a str,
}

impl Serving<'_> {
    fn serve(&self, plan: &Plan) -> Daemon {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
        let packages = std::env::var_os("OIDC_PROVIDER_DIR")
            .map_or_else(|| workspace.join("../target/tools/oidc"), PathBuf::from);
        assert!(
            packages.join("node_modules/oidc-provider").is_dir(),
            "oidc-provider is missing: run `make test`, which installs it, or set OIDC_PROVIDER_DIR"
        );
        let story = json!({
            "port": self.port, "cert": self.cert_pem, "key": self.key_pem, "jwks": [plan.key.jwk()],
            "accessTokenTTL": plan.token_seconds, "groups": plan.groups,
        });
        let mut command = Command::new(tool("node", "NODE"));
        command
            .arg(workspace.join("oidc/provider.mjs"))
            .arg(story.to_string())
            .env("OIDC_PROVIDER_DIR", packages);
        Daemon::start("oidc-provider", command, &self.dir.join("issuer.log"))
    }
}

struct Browser {
    http: reqwest::Client,
    cookies: BTreeMap<String, String>,
}

struct Page {
    url: Url,
    text: String,
}

struct Form {
    action: String,
    fields: BTreeMap<String, String>,
}

impl Browser {
    /// Follows redirects with the cookies of all the pages before.
    async fn open(&mut self, mut method: Method, url: &str, mut body: String) -> Page {
        let mut url = Url::parse(url).expect("a page has a URL");
        for _ in 0..12 {
            let cookies: Vec<_> = self.cookies.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let answer = self
                .http
                .request(method.clone(), url.clone())
                .header(header::COOKIE, cookies.join("; "))
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(body.clone())
                .send()
                .await
                .expect("the provider answers");
            for cookie in answer.headers().get_all(header::SET_COOKIE) {
                let cookie = cookie.to_str().expect("a cookie is text");
                let pair = cookie.split(';').next().unwrap_or_default();
                let (name, value) = pair.split_once('=').expect("a cookie has a value");
                if value.is_empty() {
                    self.cookies.remove(name);
                } else {
                    self.cookies.insert(name.to_owned(), value.to_owned());
                }
            }
            let Some(to) = answer.headers().get(header::LOCATION) else {
                assert_ne!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR, "{url}");
                let text = answer.text().await.expect("a page is text");
                return Page { url, text };
            };
            let to = to.to_str().expect("a location is text");
            url = url.join(to).expect("a location is a URL");
            (method, body) = (Method::GET, String::new());
        }
        panic!("redirects without an end, at {url}");
    }
}

impl Page {
    /// The one form of the page, with what its fields hold.
    fn form(&self) -> Form {
        let (_, form) = self
            .text
            .split_once("<form")
            .unwrap_or_else(|| panic!("no form at {}: {}", self.url, self.text));
        let form = form.split("</form>").next().unwrap_or_default();
        let action = attribute(form, "action").expect("a form has an action");
        let fields = form
            .split("<input")
            .skip(1)
            .filter_map(|input| {
                let input = input.split('>').next()?;
                Some((
                    attribute(input, "name")?,
                    attribute(input, "value").unwrap_or_default(),
                ))
            })
            .collect();
        let action = self.url.join(&action).expect("an action is a URL").into();
        Form { action, fields }
    }
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value.to_owned())
}

/// `muster` without a token in its environment.
#[must_use]
pub fn muster_signed_out(operator: &Operator, args: &[&str]) -> tokio::process::Command {
    let mut command = operator.muster_command();
    command.env_remove("MUSTER_TOKEN").args(args);
    command
}
