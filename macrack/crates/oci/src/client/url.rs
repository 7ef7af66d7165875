//! Where requests go: pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use http::Uri;

use super::Mirror;

/// A place that has blobs and manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Scheme and authority.
    base: String,
    /// What comes before each repository.
    prefix: String,
}

impl Origin {
    /// A registry itself.
    pub(crate) fn of(registry: &str, insecure: &BTreeSet<String>) -> Origin {
        // docker's own name for its registry is not where it answers
        let host = if registry == "docker.io" { "registry-1.docker.io" } else { registry };
        let scheme = if insecure.contains(registry) || is_loopback(host) { "http" } else { "https" };
        Origin { base: format!("{scheme}://{host}"), prefix: String::new() }
    }

    pub(crate) fn mirror(mirror: &Mirror) -> Origin {
        Origin { base: mirror.base.clone(), prefix: mirror.prefix.clone() }
    }

    /// Scheme and authority.
    pub(crate) fn name(&self) -> &str {
        &self.base
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The authority.
    pub(crate) fn host(&self) -> &str {
        self.base.split_once("://").map_or(self.base.as_str(), |(_, host)| host)
    }

    pub(crate) fn uri(&self, path: &str, rest: &str) -> Uri {
        // both halves hold only what a reference or a digest may: there is nothing to escape
        format!("{}/v2/{}{path}/{rest}", self.base, self.prefix).parse().unwrap_or_default()
    }
}

/// Whether a host, with or without a port, is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether credentials may be sent there.
pub(crate) fn is_safe(uri: &Uri, insecure: &BTreeSet<String>) -> bool {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    // what stands before an @ is a name and a password, and may look like a host
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    uri.scheme_str() == Some("https") || is_loopback(host) || insecure.contains(host)
}

/// Whether two URLs are of one server.
pub(crate) fn same_server(a: &Uri, b: &Uri) -> bool {
    a.scheme() == b.scheme() && a.authority() == b.authority()
}

/// `location` as seen from `base`. Only web addresses.
pub(crate) fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    let whole = if location.starts_with('/') && !location.starts_with("//") {
        format!("{}://{}{location}", base.scheme_str()?, base.authority()?)
    } else {
        location.to_owned()
    };
    let uri: Uri = whole.parse().ok()?;
    (matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some()).then_some(uri)
}

/// With one more parameter in the query.
pub(crate) fn with_parameter(uri: &Uri, name: &str, value: &str) -> Option<Uri> {
    let joint = if uri.query().is_some() { '&' } else { '?' };
    format!("{uri}{joint}{name}={}", escaped(value)).parse().ok()
}

/// As a part of a query (RFC 3986, 2.3).
pub(crate) fn escaped(text: &str) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-._~".contains(b);
    text.bytes().fold(String::new(), |text, b| match plain(&b) {
        true => text + char::from(b).encode_utf8(&mut [0; 4]),
        false => text + &format!("%{b:02X}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine_and_for_what_was_named() {
        let insecure = BTreeSet::from(["lab.example:5000".to_owned()]);
        for (registry, base) in [
            ("ghcr.io", "https://ghcr.io"),
            ("localhost:5000", "http://localhost:5000"),
            ("127.0.0.1:5000", "http://127.0.0.1:5000"),
            ("lab.example:5000", "http://lab.example:5000"),
            ("lab.example", "https://lab.example"),
            ("127.0.0.1.example", "https://127.0.0.1.example"),
            ("docker.io", "https://registry-1.docker.io"),
        ] {
            assert_eq!(Origin::of(registry, &insecure).name(), base);
        }
        assert!(is_loopback("[::1]:5000") && !is_loopback("[::2]:5000"));
    }

    #[test]
    fn credentials_go_over_plain_http_only_to_the_host_behind_a_name_that_looks_like_this_machine() {
        let insecure = BTreeSet::from(["lab.example:5000".to_owned()]);
        for (place, safe) in [
            ("https://r.example/token", true),
            ("http://r.example/token", false),
            ("http://localhost:5001/token", true),
            ("http://lab.example:5000/token", true),
            ("http://me@lab.example:5000/token", true),
            ("http://localhost:x@r.example/token", false),
            ("http://localhost@r.example/token", false),
            ("http://lab.example:5000@r.example/token", false),
        ] {
            assert_eq!(is_safe(&place.parse().unwrap(), &insecure), safe, "{place}");
        }
    }

    #[test]
    fn a_place_is_resolved_against_where_it_was_said() {
        let base: Uri = "https://r.example/v2/x/blobs/uploads/".parse().unwrap();
        let of = |location| resolve(&base, location).map(|uri| uri.to_string());
        assert_eq!(of("/v2/u?s=1").as_deref(), Some("https://r.example/v2/u?s=1"));
        assert_eq!(of("https://cdn.example/b?sig=a%2Fb").as_deref(), Some("https://cdn.example/b?sig=a%2Fb"));
        for bad in ["", "file:///etc/passwd", "ftp://x/y", "uploads/7", "//other.example/x"] {
            assert_eq!(of(bad), None, "{bad}");
        }
        let place = with_parameter(&"https://r.example/u?s=1".parse().unwrap(), "digest", "sha256:ab").unwrap();
        assert_eq!(place, "https://r.example/u?s=1&digest=sha256%3Aab");
    }
}
