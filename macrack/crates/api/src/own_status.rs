//! Writing one's own part of a status, onto the very object that it was decided on.
//!
//! Why not server-side apply: on the status of a custom resource the API server overwrites the metadata of the body
//! with the stored one before it compares anything, so that the uid of another object is accepted, and a status decided
//! for an object lands on one made again under its name. (Built-in kinds do refuse it: there `metadata.uid` in the body
//! is enough.) A resourceVersion would hold, but changes with every report of everybody else. The `test` of a JSON
//! Patch is judged at the moment of the write, and fails for nothing but another uid.

use serde_json::{Map, Value, json};

/// The JSON Patches that write `part` into the status of the object with that `uid`, to be tried in this order: into
/// the status that is there, then as the first status of all. At most one of them fits an object, none fits another
/// uid; the API server says 422 to one that does not fit ([`does_not_fit`]).
///
/// Keys of `part` are fields of the status. One that is null is taken away, the others are put in place of what stands
/// there; fields that it does not name stay as they are.
pub fn patches(uid: &str, part: &Map<String, Value>) -> [Value; 2] {
    let same = json!({ "op": "test", "path": "/metadata/uid", "value": uid });
    let mut into = vec![same.clone()];
    for (field, value) in part {
        let path = format!("/status/{field}");
        into.push(json!({ "op": "add", "path": path, "value": value }));
        if value.is_null() {
            // what was added first can be removed, whether or not it was there
            into.push(json!({ "op": "remove", "path": path }));
        }
    }
    let said: Map<String, Value> =
        part.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
    let first = json!([
        same,
        // null is equal to absent here
        { "op": "test", "path": "/status", "value": null },
        { "op": "add", "path": "/status", "value": said },
    ]);
    [Value::Array(into), first]
}

/// Whether the API server refused because a JSON Patch does not fit the object, and not for what it would make of it: a
/// schema's or a policy's refusal names the object.
pub fn does_not_fit(refusal: &kube::core::Status) -> bool {
    refusal.code == 422 && refusal.details.as_ref().is_none_or(|details| details.name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_names_what_it_writes_and_takes_away_and_nothing_else() {
        let part = json!({ "phase": "Ready", "end": null });
        let [into, first] = patches("u-1", part.as_object().unwrap());
        let same = json!({ "op": "test", "path": "/metadata/uid", "value": "u-1" });
        assert_eq!(
            into,
            json!([
                same,
                { "op": "add", "path": "/status/end", "value": null },
                { "op": "remove", "path": "/status/end" },
                { "op": "add", "path": "/status/phase", "value": "Ready" },
            ])
        );
        assert_eq!(first[0], same);
        assert_eq!(first[2]["value"], json!({ "phase": "Ready" }));
    }
}
