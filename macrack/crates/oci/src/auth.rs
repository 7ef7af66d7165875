//! Who we are to a registry: pull secrets and challenges, pure.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use crate::error::Error;

/// Longest pull secret that is read, in bytes (a Secret holds at most 1 MiB).
const MAX_SECRET: usize = 1 << 20;

/// A name and a password, or a token, for one registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// A name and a password.
    Basic {
        /// The name.
        username: String,
        /// The password.
        password: String,
    },
    /// A token that the registry itself takes.
    Bearer(String),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Login::Basic { username, .. } => write!(f, "Basic({username})"),
            Login::Bearer(_) => f.write_str("Bearer"),
        }
    }
}

impl Login {
    /// The value of an `Authorization` header.
    pub fn header(&self) -> String {
        match self {
            Login::Basic { username, password } => {
                format!("Basic {}", BASE64_STANDARD.encode(format!("{username}:{password}")))
            }
            Login::Bearer(token) => format!("Bearer {token}"),
        }
    }
}

/// Logins by registry: what a Secret of type `kubernetes.io/dockerconfigjson`, or docker's own `config.json`, holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    by_registry: BTreeMap<String, Login>,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl Credentials {
    /// The key of a Secret of type `kubernetes.io/dockerconfigjson` under which what is read here lies.
    pub const SECRET_KEY: &str = ".dockerconfigjson";

    /// Reads `.dockerconfigjson`: every entry, also those of registries that nobody asks here.
    ///
    /// # Errors
    /// When it is not JSON of that form, or an entry cannot be used; never with a password in the words.
    pub fn from_docker_config(json: &[u8]) -> Result<Credentials, Error> {
        if json.len() > MAX_SECRET {
            return Err(Error::Invalid(format!(
                "a docker config of {} bytes, at most {MAX_SECRET} are read",
                json.len()
            )));
        }
        let config: DockerConfig = serde_json::from_slice(json).map_err(|error| {
            // serde's own words may quote a password
            Error::Invalid(format!(
                "no docker config: line {} column {} does not fit {{\"auths\": {{registry: {{username, password}}}}}}",
                error.line(),
                error.column()
            ))
        })?;
        let mut credentials = Credentials::default();
        for (key, entry) in config.auths {
            if let Some(login) = login(&key, entry)? {
                credentials.insert(&key, login);
            }
        }
        Ok(credentials)
    }

    /// Adds a login for a registry, written as docker does: with or without a scheme and a path.
    pub fn insert(&mut self, registry: &str, login: Login) {
        self.by_registry.insert(host(registry), login);
    }

    /// The login for a registry.
    pub fn login(&self, registry: &str) -> Option<&Login> {
        self.by_registry.get(&host(registry))
    }
}

fn login(registry: &str, entry: Entry) -> Result<Option<Login>, Error> {
    if let Some(token) = entry.registrytoken.filter(|token| !token.is_empty()) {
        return Ok(Some(Login::Bearer(token)));
    }
    if let (Some(username), Some(password)) = (&entry.username, &entry.password)
        && !username.is_empty()
    {
        return Ok(Some(Login::Basic { username: username.clone(), password: password.clone() }));
    }
    if let Some(auth) = entry.auth.filter(|auth| !auth.is_empty()) {
        let wrong =
            || Error::Invalid(format!("docker config: auths[{registry:?}].auth is not base64 of name:password"));
        let decoded = BASE64_STANDARD.decode(auth.trim()).map_err(|_| wrong())?;
        let text = String::from_utf8(decoded).map_err(|_| wrong())?;
        let (username, password) = text.split_once(':').ok_or_else(wrong)?;
        let password = password.trim_end_matches('\0');
        return Ok(Some(Login::Basic { username: username.to_owned(), password: password.to_owned() }));
    }
    if entry.identitytoken.is_some() {
        return Err(Error::Invalid(format!(
            "docker config: auths[{registry:?}] holds an identitytoken, which is not used here; make one with a name and a password (an access token is one)"
        )));
    }
    // a credential helper's entry is empty: the login is elsewhere
    Ok(None)
}

/// `https://ghcr.io/v1/` → `ghcr.io`.
fn host(registry: &str) -> String {
    let rest = registry.split_once("://").map_or(registry, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default().to_ascii_lowercase();
    match host.as_str() {
        // docker's own registry has a name, another in its config file, and answers under a third
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        _ => host,
    }
}

/// What a registry wants to see before it answers (`WWW-Authenticate`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    /// A name and a password.
    Basic,
    /// A token, to be had from `realm`.
    Bearer {
        /// URL of the token server.
        realm: String,
        /// What it is to be asked for.
        service: Option<String>,
        /// The right that is needed.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Reads a header; the first challenge that is understood counts.
    pub fn read(header: &str) -> Option<Challenge> {
        let header = header.trim();
        let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut parameters = parameters(rest);
        Some(Challenge::Bearer {
            realm: parameters.remove("realm").filter(|realm| !realm.is_empty())?,
            service: parameters.remove("service"),
            scope: parameters.remove("scope"),
        })
    }
}

/// `a="x,y",b=z` → a: x,y; b: z.
fn parameters(mut text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    while let Some((name, rest)) = text.split_once('=') {
        let name = name.trim_matches([' ', ',']).to_ascii_lowercase();
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        found.insert(name, value.trim().to_owned());
        text = rest;
    }
    found
}

/// A token server's answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Token {
    token: Option<String>,
    access_token: Option<String>,
    /// Seconds; 60 when it does not say (of the distribution specification).
    pub(crate) expires_in: Option<u64>,
}

impl Token {
    pub(crate) fn into_text(self) -> Option<String> {
        self.token.or(self.access_token).filter(|token| !token.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_with_commas_in_its_scope() {
        let header =
            r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull,push""#;
        let Some(Challenge::Bearer { realm, service, scope }) = Challenge::read(header) else { panic!("{header}") };
        assert_eq!(realm, "https://auth.example/token");
        assert_eq!(service.as_deref(), Some("registry.example"));
        assert_eq!(scope.as_deref(), Some("repository:a/b:pull,push"));
        assert_eq!(Challenge::read("basic realm=\"x\""), Some(Challenge::Basic));
        for nothing in ["", "Negotiate", "Bearer", "Bearer service=x", "Bearer realm=\"\""] {
            assert_eq!(Challenge::read(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_docker_config_holds_logins_in_either_form_and_hosts_in_any() {
        let auth = BASE64_STANDARD.encode("reader:s3cret:with:colons");
        let json = format!(
            r#"{{"auths": {{"https://ghcr.io/v2/": {{"auth": "{auth}"}}, "r.example:5000": {{"username": "u", "password": "p"}},
                 "helper.example": {{}}}}, "credsStore": "desktop"}}"#
        );
        let read = Credentials::from_docker_config(json.as_bytes()).unwrap();
        let basic = |u: &str, p: &str| Login::Basic { username: u.to_owned(), password: p.to_owned() };
        assert_eq!(read.login("ghcr.io"), Some(&basic("reader", "s3cret:with:colons")));
        assert_eq!(read.login("r.example:5000"), Some(&basic("u", "p")));
        assert_eq!(read.login("helper.example"), None);
        assert_eq!(read.login("r.example"), None, "another port is another registry");
        let hub = br#"{"auths": {"https://index.docker.io/v1/": {"username": "u", "password": "p"}}}"#;
        assert!(Credentials::from_docker_config(hub).unwrap().login("registry-1.docker.io").is_some());
    }

    #[test]
    fn a_bad_secret_is_refused_without_repeating_it() {
        for bad in [
            "hunter2",
            r#"{"auths": {"r": {"auth": "hunter2!"}}}"#,
            r#"{"auths": {"r": {"password": ["hunter2"]}}}"#,
            r#"{"auths": {"r": {"identitytoken": "hunter2"}}}"#,
        ] {
            let said = Credentials::from_docker_config(bad.as_bytes()).unwrap_err().to_string();
            assert!(!said.contains("hunter2"), "{said}");
        }
        let login = Login::Basic { username: "u".to_owned(), password: "hunter2".to_owned() };
        assert!(!format!("{login:?}").contains("hunter2"));
    }
}
