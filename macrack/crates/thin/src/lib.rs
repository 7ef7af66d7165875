//! A client like any other, but one that never reads `metadata.managedFields`: the operator's, the agents', the plugin's.
//!
//! Invariant: **what a tenant may write into an object cannot make it, or the list that it is in, unreadable.** Whoever
//! may edit an object may also write its managedFields, and the API server keeps a time there that lies past the last
//! one which our times can hold (`9999-12-31T23:59:59Z`, measured). One such object would end every list and watch of
//! its kind, for all tenants. Nothing here needs managedFields, so they are emptied before anything is decoded.

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use kube::{
    Client, Config,
    client::{ClientBuilder, DynBody},
};
use tower::{BoxError, util::MapResponseLayer};

/// A response as the layer gives it on.
type Thin = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// The layer that turns every answer into a thin one.
type Thinning = MapResponseLayer<fn(Response<Box<DynBody>>) -> Thin>;

/// A client by these credentials.
///
/// # Errors
/// When the credentials are not usable.
pub fn connect(config: Config) -> kube::Result<Client> {
    Ok(ClientBuilder::try_from(config)?.with_layer(&thin()).build())
}

/// The layer that empties managedFields in every answer; for a client with more layers it is the last one added.
pub fn thin() -> Thinning {
    MapResponseLayer::new(thinned)
}

fn thinned(response: Response<Box<DynBody>>) -> Thin {
    let mut filter = Filter::default();
    response.map(|body| {
        body.map_frame(move |frame| frame.map_data(|data: Bytes| Bytes::from(filter.pass(&data)))).boxed_unsync()
    })
}

const KEY: &[u8] = b"managedFields";

/// Empties every array under the key `managedFields` of JSON that passes through in pieces. What is no JSON passes.
#[derive(Default)]
struct Filter {
    at: At,
    /// The byte before was a backslash inside a string.
    escaped: bool,
}

/// Where in the text the filter is.
#[derive(Clone, Copy, Default)]
enum At {
    /// Between strings.
    #[default]
    Outside,
    /// In a string; so many of its bytes are those of the key, `None` once one differs.
    Text(Option<usize>),
    /// After the key.
    Key,
    /// After the key and its colon.
    Value,
    /// Inside the array, so many brackets deep.
    Array(usize),
    /// In a string inside the array.
    ArrayText(usize),
}

impl Filter {
    /// What of these bytes is given on.
    fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut kept = Vec::with_capacity(bytes.len());
        for byte in bytes {
            let inside = matches!(self.at, At::Array(_) | At::ArrayText(_));
            self.at = self.next(*byte);
            let ends = inside && matches!(self.at, At::Outside);
            if !inside || ends {
                kept.push(*byte);
            }
        }
        kept
    }

    fn next(&mut self, byte: u8) -> At {
        if matches!(self.at, At::Text(_) | At::ArrayText(_)) && (self.escaped || byte == b'\\') {
            self.escaped = !self.escaped;
            return if let At::ArrayText(deep) = self.at { At::ArrayText(deep) } else { At::Text(None) };
        }
        match (self.at, byte) {
            (At::Text(Some(n)), b'"') if n == KEY.len() => At::Key,
            (At::Text(_), b'"') => At::Outside,
            (At::Text(same), _) => At::Text(same.filter(|n| KEY.get(*n) == Some(&byte)).map(|n| n + 1)),
            (At::Array(deep), b'[') => At::Array(deep + 1),
            (At::Array(1), b']') => At::Outside,
            (At::Array(deep), b']') => At::Array(deep - 1),
            (At::Array(deep), b'"') => At::ArrayText(deep),
            (At::Array(deep), _) => At::Array(deep),
            (At::ArrayText(deep), b'"') => At::Array(deep),
            (At::ArrayText(deep), _) => At::ArrayText(deep),
            (_, b'"') => At::Text(Some(0)),
            (At::Key, b':') => At::Value,
            (At::Value, b'[') => At::Array(1),
            (at @ (At::Key | At::Value), b' ' | b'\n' | b'\r' | b'\t') => at,
            _ => At::Outside,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: &[(&str, &str)] = &[
        (
            r#"{"metadata":{"managedFields":[{"time":"9999-12-31T23:59:59Z","fieldsV1":{"k:[\"]\"]":[[1]]}}],"name":"a"}}"#,
            r#"{"metadata":{"managedFields":[],"name":"a"}}"#,
        ),
        (r#"{"managedFields" : [ ] , "b":[1]}"#, r#"{"managedFields" : [] , "b":[1]}"#),
        // as a value, as text in an annotation, as the end or the beginning of another key, of another kind
        (r#"["managedFields",[1]]"#, r#"["managedFields",[1]]"#),
        (r#"{"a":"\"managedFields\":[1]\\","b":[2]}"#, r#"{"a":"\"managedFields\":[1]\\","b":[2]}"#),
        (r#"{"xmanagedFields":[1],"managedFieldsx":[2]}"#, r#"{"xmanagedFields":[1],"managedFieldsx":[2]}"#),
        (r#"{"managedFields":{"a":[1]},"c":"["}"#, r#"{"managedFields":{"a":[1]},"c":"["}"#),
        ("{\"managedFields\":[1]}\n{\"managedFields\":[2]}\n", "{\"managedFields\":[]}\n{\"managedFields\":[]}\n"),
        ("no JSON at all: [\"", "no JSON at all: [\""),
    ];

    #[test]
    fn managed_fields_are_emptied_and_nothing_else_is_touched() {
        for (text, wanted) in CASES {
            let kept = Filter::default().pass(text.as_bytes());
            assert_eq!(String::from_utf8_lossy(&kept), *wanted, "{text}");
        }
    }

    #[test]
    fn it_does_not_matter_where_the_pieces_are_cut() {
        for (text, wanted) in CASES {
            for size in 1..text.len() {
                let mut filter = Filter::default();
                let kept: Vec<u8> = text.as_bytes().chunks(size).flat_map(|piece| filter.pass(piece)).collect();
                assert_eq!(String::from_utf8_lossy(&kept), *wanted, "{text} in pieces of {size}");
            }
        }
    }
}
